"""Damage of every kind is found and named, and repair mends exactly what is bad."""

from __future__ import annotations

import errno
import os
import re
import shutil
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from coco_sets import CocoSet
from conftest import complaint, contents, make_folder, mmload
from forked_program import run_program
from PIL import Image

from mmload.builder.pipeline import build
from mmload.builder.recipe import BuildRecipe, square
from mmload.builder.staging import Staging
from mmload.builder.verify import compare, repair, verify
from mmload.errors import BuildError, StoreError


@pytest.fixture
def source(tmp_path: Path) -> Path:
    return make_folder(tmp_path / "photos")


@pytest.fixture
def out(source: Path, tmp_path: Path) -> Path:
    """18 rows in five shards."""
    build(recipe(source, tmp_path / "out"), threads=2)
    return tmp_path / "out"


def recipe(source: Path, out: Path, **more: Any) -> BuildRecipe:
    return BuildRecipe(
        kind="imagefolder", root=source, out=out, transforms=square(16), shard_bytes=4 * (3 * 16 * 16 + 8), **more
    )


def files(folder: Path) -> dict[str, tuple[bytes, int, int]]:
    """Name -> (content, inode, time of change) of every file under a folder."""
    return {
        path.relative_to(folder).as_posix(): (path.read_bytes(), path.stat().st_ino, path.stat().st_mtime_ns)
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


def flip(path: Path, at: int = 100) -> None:
    """Change one bit, and not the time."""
    times = path.stat()
    body = bytearray(path.read_bytes())
    body[at] ^= 4
    path.write_bytes(body)
    os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))


def truncate(path: Path) -> None:
    os.truncate(path, path.stat().st_size - 1)


DAMAGE: list[tuple[str, Callable[[Path], object], str]] = [
    ("train/000001/images.memmap", flip, "its bytes have changed"),
    ("train/000004/targets.memmap", lambda path: flip(path, 3), "its bytes have changed"),
    ("train/000002/images.memmap", truncate, "has 3,071 bytes, the manifest says 3,072"),
    ("train/000000/targets.memmap", Path.unlink, "is missing"),
    ("train/000001/meta.json", lambda path: path.write_text("{}"), "has 2 bytes"),
    ("train/000001/meta.json", flip, "its bytes have changed"),
    ("train/samples.jsonl", flip, "its bytes have changed"),
    ("train/samples.jsonl", Path.unlink, "is missing"),
]


@pytest.mark.parametrize(("name", "damage", "reason"), DAMAGE)
def test_damage_is_named_and_only_it_is_mended(
    name: str, damage: Callable[[Path], object], reason: str, out: Path, source: Path, tmp_path: Path
) -> None:
    assert verify(out) == []
    before = files(out)
    damage(out / name)
    (fault,) = verify(out)
    assert fault.file == name
    assert re.search(reason, fault.reason)
    assert fault.shard == (None if name.endswith("jsonl") else int(name.split("/")[1]))
    assert repair(out, source) == [fault]
    after = files(out)
    assert {key: value[0] for key, value in after.items()} == {key: value[0] for key, value in before.items()}
    bad = name.rpartition("/")[0] if fault.shard is not None else name
    assert all(after[other] == before[other] for other in before if not other.startswith(bad))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out", "photos"]
    assert verify(out) == []


def test_several_faults_at_once(out: Path, source: Path) -> None:
    before = contents(out)
    flip(out / "train/000000/images.memmap")
    shutil.rmtree(out / "train/000003")
    (out / "train/samples.jsonl").unlink()
    assert [fault.file for fault in verify(out)] == [
        "train/000000/images.memmap",
        "train/000003/meta.json",
        "train/000003/images.memmap",
        "train/000003/targets.memmap",
        "train/samples.jsonl",
    ]
    told: list[tuple[int, int]] = []
    repair(out, source, progress=lambda *counts: told.append(counts))
    assert contents(out) == before
    assert told[-1] == (18, 18)  # a list of samples needs every image's size again
    shutil.rmtree(out / "train")
    repair(out, source)
    assert contents(out) == before


def test_repair_loses_nothing_that_is_not_the_datasets(out: Path, source: Path) -> None:
    before = contents(out)
    flip(out / "train/000000/images.memmap")
    (out / "train/000000/best.pt").write_bytes(b"a checkpoint")
    assert repair(out, source)
    assert contents(out) == before | {"train/000000/best.pt": b"a checkpoint"}
    images = out / "train/000001/images.memmap"
    images.unlink()
    images.mkdir()
    (images / "thesis.tex").write_bytes(b"years of work")
    assert [fault.reason for fault in verify(out)] == ["is not a file"]
    with pytest.raises(BuildError, match=r"cannot repair .*000001/images.memmap \(Is a directory\)"):
        repair(out, source)
    assert (images / "thesis.tex").read_bytes() == b"years of work"
    shutil.rmtree(images)
    shutil.rmtree(out / "train/000002")
    (out / "train/000002").write_bytes(b"a file")
    with pytest.raises(BuildError, match=r"cannot repair .*000002 \(File exists\)"):
        repair(out, source)
    assert (out / "train/000002").read_bytes() == b"a file"


def test_what_a_kill_left_of_a_repair_goes_whether_or_not_something_is_to_be_mended(out: Path, source: Path) -> None:
    flip(out / "train/000000/images.memmap")
    for faults in (1, 0):
        with Staging(out) as staging:
            staging.paths.dataset.mkdir()
        assert len(repair(out, source)) == faults
        assert not staging.paths.folder.exists()


def test_progress_is_in_bytes(out: Path) -> None:
    told: list[tuple[int, int]] = []
    verify(out, progress=lambda *counts: told.append(counts))
    total = sum(len(body) for name, body in contents(out).items() if name != "dataset.json")
    assert told[-1] == (total, total)


@pytest.mark.parametrize("check", [lambda out, source: verify(out), compare, repair])
def test_no_manifest_is_an_error(check: Callable[[Path, Path], object], out: Path, source: Path) -> None:
    (out / "dataset.json").unlink()
    with pytest.raises(StoreError, match="not a finished dataset"):
        check(out, source)


def repaint(path: Path) -> None:
    """Change one pixel's neighborhood of an image; its size stays."""
    with Image.open(path) as image:
        pixels = np.array(image)
    pixels[pixels.shape[0] // 2 - 4 :, pixels.shape[1] // 2 - 4 :] ^= 255
    Image.fromarray(pixels).save(path)


def test_compare_finds_changed_images_and_rows_and_rejects_a_short_file(out: Path, source: Path) -> None:
    told: list[tuple[int, int]] = []
    assert compare(out, source, threads=2, progress=lambda *counts: told.append(counts)) == []
    assert told[-1] == (18, 18)
    flip(out / "train/000001/images.memmap", 3 * 768 + 5)
    repaint(source / "bee" / "03.png")
    assert [(fault.split, fault.shard, fault.file, fault.reason) for fault in compare(out, source)] == [
        ("train", 1, "train/000001", "images of row 7 differs from bee/01.png in the source"),
        ("train", 2, "train/000002", "images of row 9 differs from bee/03.png in the source"),
    ]
    truncate(out / "train/000003/images.memmap")
    with pytest.raises(StoreError, match="000003/images.memmap"):
        compare(out, source)


def test_compare_finds_renamed_and_unreadable_images(out: Path, source: Path) -> None:
    (source / "ant" / "00.png").rename(source / "ant" / "000.png")
    (source / "cat" / "05.png").write_bytes(b"broken")
    first, last = compare(out, source)
    assert first.reason.startswith("row 0 is 'ant/000.png' of size")
    assert last.reason == "2 rows stored, the source gives 1"
    (source / "cat" / "05.png").unlink()
    with pytest.raises(BuildError, match="has 17 samples of split train, the dataset was built from 18"):
        compare(out, source)


def test_repair_from_a_changed_source_is_refused_and_loses_nothing(out: Path, source: Path, tmp_path: Path) -> None:
    whole = contents(out)
    flip(out / "train/000000/images.memmap")
    flip(out / "train/000002/images.memmap")
    damaged = contents(out)
    repaint(source / "bee" / "03.png")
    with pytest.raises(BuildError, match=r"train/000002 could not be repaired: .* no longer gives what was stored"):
        repair(out, source)
    assert contents(out) == {**damaged, "train/000000/images.memmap": whole["train/000000/images.memmap"]}
    (source / "bee" / "03.png").unlink()
    before = files(out)
    with pytest.raises(BuildError, match="has 17 samples"):
        repair(out, source)
    assert files(out) == before
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out", "photos"]


def test_a_disk_that_refuses_the_mended_shard_is_said(
    out: Path, source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put = Path.replace

    def refuse(path: Path, target: Path) -> Path:
        if target.parent == out / "train/000002":
            raise OSError(errno.EROFS, "Read-only file system", str(target))
        return put(path, target)

    flip(out / "train/000001/images.memmap")
    flip(out / "train/000002/images.memmap")
    monkeypatch.setattr(Path, "replace", refuse)
    with pytest.raises(
        BuildError,
        match=r"cannot repair .*000002/images.memmap \(Read-only file system\); what was repaired stays repaired",
    ):
        repair(out, source)
    assert [fault.file for fault in verify(out)] == ["train/000002/images.memmap"]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out", "photos"]


def test_repair_waits_for_no_build_and_touches_none(out: Path, source: Path, tmp_path: Path) -> None:
    flip(out / "train/000000/images.memmap")
    with Staging(out, {"recipe": {}, "fingerprint": ""}) as staging:
        staging.paths.make_folders("train")
        staging.paths.summary_file("train", 0).write_text("{}")  # a finished shard
        with pytest.raises(BuildError, match="another build is writing"):
            repair(out, source)
    with pytest.raises(BuildError, match="holds an unfinished build"):
        repair(out, source)
    assert (tmp_path / ".out.building" / "plan.json").exists()


def test_a_dataset_that_left_samples_out(source: Path, tmp_path: Path) -> None:
    (source / "ant" / "01.png").write_bytes(b"broken")
    out = build(recipe(source, tmp_path / "out", shuffle_seed=3), on_error="skip").out
    before = contents(out)
    assert compare(out, source) == []
    for number in range(5):
        flip(out / f"train/{number:06d}/images.memmap")
    assert len(repair(out, source)) == 5
    for name in ("samples.jsonl", "skipped.jsonl"):
        flip(out / "train" / name, 8)
        (fault,) = verify(out)
        assert (fault.file, fault.shard) == (f"train/{name}", None)
        assert repair(out, source) == [fault]
    assert contents(out) == before


def test_verify_the_commands(out: Path, source: Path) -> None:
    with_source, repairs = ("--source", source), ("--repair", "--source", source)
    for more, said in (
        ((), f"{out} is whole\n"),
        ((*with_source, "--threads", 1), f"{out} is whole and equals {source}\n"),
        (repairs, f"{out} is whole, there was nothing to repair\n"),
    ):
        assert mmload("verify", out, *more) == (0, said, "")
    flip(out / "train/000001/images.memmap")
    truncate(out / "train/000003/images.memmap")
    code, shown, said = mmload("verify", out)
    assert [line.split(":")[:2] for line in shown.splitlines()] == [
        ["bad", " train/000001/images.memmap"],
        ["bad", " train/000003/images.memmap"],
    ]
    advice = f"to repair what can be repaired: mmload verify {out} --repair --source ROOT"
    assert (code, said) == (1, f"mmload: {out}: 2 faults; {advice}\n")
    done = mmload("verify", out, *repairs)
    assert (done.returncode, done.stdout.count("repaired: ")) == (0, 2)
    repaint(source / "bee" / "03.png")
    code, shown, _ = mmload("verify", out, *with_source)
    assert (code, shown) == (1, "bad: train/000002: images of row 9 differs from bee/03.png in the source\n")
    flip(out / "train/000002/images.memmap")
    assert complaint(mmload("verify", out, *repairs), 1).startswith("mmload: train/000002 could not be repaired")
    assert complaint(mmload("verify", out.parent / "none"), 1).startswith("mmload: no such dataset")


KILLED = """
import os, signal, sys
from pathlib import Path
from mmload.builder.verify import repair
left = int(sys.argv[3])
def doom(event, args):
    global left
    if event in ("os.mkdir", "os.remove", "os.rename", "os.rmdir"):
        left -= 1
        if not left:
            os.kill(os.getpid(), signal.SIGKILL)
out, source = Path(sys.argv[1]), Path(sys.argv[2])
sys.addaudithook(doom)
repair(out, source, threads=1)
"""


@pytest.mark.skipif(os.name != "posix", reason="needs SIGKILL")
def test_a_repair_that_is_killed_is_finished_by_the_next(out: Path, source: Path, tmp_path: Path) -> None:
    before = contents(out)
    for moment in (2, 9, 14, 22):
        flip(out / "train/000001/images.memmap")
        flip(out / "train/000003/targets.memmap", 3)
        killed = run_program(KILLED, out, source, moment)
        assert killed.returncode == -signal.SIGKILL, killed.stderr
        assert contents(out).keys() == before.keys()
        repair(out, source, threads=1)
        assert contents(out) == before
        assert sorted(path.name for path in tmp_path.iterdir()) == ["out", "photos"]


def test_compare_reads_chunks_without_any_object(tmp_path: Path) -> None:
    made = CocoSet(tmp_path / "coco")
    for number in (1, 2):
        made.image(number)
    made.object(1, [2, 2, 8, 8], segmentation=[[2, 2, 10, 2, 10, 10]])  # no crowd, so no row has run lengths
    options = {"options": {"task": "instances"}, "transforms": ({"step": "Letterbox", "size": 16},)}
    out = build(BuildRecipe(kind="coco", root=made.write(), out=tmp_path / "out", **options)).out
    assert compare(out, made.root) == []
    flip(out / "train/000000/polygons.bytes.memmap", 3)
    (fault,) = compare(out, made.root)
    assert fault.reason == "polygons of row 0 differs from train2017/000001.png in the source"
