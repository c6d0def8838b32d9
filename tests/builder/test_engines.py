"""Builds under trouble: dying workers, Ctrl-C, a second build, a full disk, a destination that cannot be written."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from conftest import contents, make_folder
from forked_program import MMLOAD, Program, run_program

from mmload.builder.dataset_change import save_subset
from mmload.builder.pipeline import LocalEngine, build
from mmload.builder.recipe import BuildRecipe, square
from mmload.errors import BuildError, UsageError
from mmload.records import Sample

SLOW = """
import os, time
from mmload.sources.files import SampleFiles
fast = SampleFiles.image
def slow(*args, **options):
    time.sleep(0.1)
    if "READS" in os.environ:
        with open(os.environ["READS"], "a") as reads: reads.write(".")
    return fast(*args, **options)
SampleFiles.image = slow
from mmload.cli.app import main
main()
"""


def recipe(source: Path, out: Path) -> BuildRecipe:
    return BuildRecipe(
        kind="imagefolder", root=source, out=out, transforms=square(32), shard_bytes=5 * (3 * 32 * 32 + 8)
    )


def command(source: Path, out: Path, *more: str) -> list[str]:
    return ["build", "imagefolder", str(source), str(out), "--size", "32", "--shard-size", "15400", *more]


def until(happened: object, seconds: float = 300) -> None:
    end = time.monotonic() + seconds
    while not happened():  # type: ignore[operator]
        assert time.monotonic() < end
        time.sleep(0.01)


class Deadly:
    """A split of 8 rows; at one of them it kills its own worker process, until a file says that this is over."""

    classes = ()
    name = "train"

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def __len__(self) -> int:
        return 8

    def id(self, index: int) -> str:
        return str(index)

    def revision(self, index: int) -> str:
        return ""

    def read(self, index: int) -> Sample:
        (self.folder / f"pid{os.getpid()}").touch()
        if index == 5 and not (self.folder / "over").exists() and multiprocessing.parent_process() is not None:
            os.kill(os.getpid(), signal.SIGKILL)
        return Sample(str(index), {"images": torch.full((1, 2, 2), index, dtype=torch.uint8)}, (2, 2))


def test_a_killed_worker_leaves_no_other_behind_and_the_next_build_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mmload.builder.planned_build._all_splits", lambda recipe: {"train": Deadly(tmp_path)})

    def made(name: str) -> BuildRecipe:
        return BuildRecipe(kind="imagefolder", root=tmp_path / "source", out=tmp_path / name, shard_bytes=4)

    build(made("whole"), processes=1)
    with pytest.raises(BuildError, match="a build worker died .signal SIGKILL, as when memory runs out.; run the same"):
        build(made("out"), processes=2, threads=1)
    assert multiprocessing.active_children() == []
    workers = {int(path.name[3:]) for path in tmp_path.glob("pid*")} - {os.getpid()}
    assert workers
    for pid in workers:
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)
    assert not (tmp_path / "out").exists()
    (tmp_path / "over").touch()
    assert build(made("out"), processes=2, threads=1).built < 8
    assert contents(tmp_path / "out") == contents(tmp_path / "whole")


def test_engine_numbers() -> None:
    with pytest.raises(UsageError, match="processes is 0"):
        LocalEngine(processes=0)
    LocalEngine(processes=2).build_shards(None, [], None)  # type: ignore[arg-type]  # no plans, no work


def test_a_source_that_cannot_be_sent_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    split = Deadly(tmp_path)
    split.hook = lambda: None  # type: ignore[attr-defined]
    monkeypatch.setattr("mmload.builder.planned_build._all_splits", lambda recipe: {"train": split})
    made = BuildRecipe(kind="imagefolder", root=tmp_path / "source", out=tmp_path / "out", shard_bytes=4)
    with pytest.raises(BuildError, match="cannot be sent to worker processes"):
        build(made, processes=2)


@pytest.mark.parametrize("processes", ["1", "2"])
def test_ctrl_c_ends_a_build_with_one_line_and_the_next_goes_on(processes: str, tmp_path: Path) -> None:
    source, out = make_folder(tmp_path / "photos", per_class=8), tmp_path / "out"
    build(recipe(source, tmp_path / "whole"))
    words = command(source, out, "--threads", "1", "--processes", processes)
    running = Program(SLOW if processes == "1" else MMLOAD, words)
    until(lambda: list((tmp_path / ".out.building").glob("notes/train/*.json" if processes == "1" else "plan.json")))
    os.killpg(running.pid, signal.SIGINT)  # the whole group, as a terminal does
    done = running.ended(60)
    assert done.returncode == 130
    assert done.stderr.endswith("mmload: interrupted; run the same command again to continue\n")
    assert not out.exists()
    report = build(recipe(source, out))
    assert contents(out) == contents(tmp_path / "whole")
    if processes == "1":
        assert 0 < report.built < 24


def test_ctrl_c_waits_for_one_sample_not_for_a_chunk(tmp_path: Path) -> None:
    """One chunk would be all 90 images, of 0.1 s each."""
    source = make_folder(tmp_path / "photos", per_class=30)
    words = ["build", "imagefolder", str(source), str(tmp_path / "out"), "--size", "32", "--threads", "1"]
    place = {"READS": str(tmp_path / "reads")}
    running = Program(SLOW, words, place)
    until(lambda: list((tmp_path / ".out.building").glob("parts/*/dataset/train/*")))
    running.send_signal(signal.SIGINT)
    done = running.ended(60)
    assert (tmp_path / "reads").stat().st_size < 60
    assert done.returncode == 130
    assert done.stderr.splitlines()[-1].startswith("mmload: interrupted")


def test_engines_a_second_build_into_one_place_is_refused(tmp_path: Path) -> None:
    source, out = make_folder(tmp_path / "photos", per_class=4), tmp_path / "out"
    words = command(source, out, "--threads", "1")
    first = Program(SLOW, words)
    until((tmp_path / ".out.building" / "plan.json").exists)
    with pytest.raises(BuildError, match=f"another build is writing {out}; wait for it to end"):
        build(recipe(source, out))
    assert first.ended(60).returncode == 0
    assert build(recipe(source, out)).built == 0
    build(recipe(source, tmp_path / "whole"))
    assert contents(out) == contents(tmp_path / "whole")


def test_files_that_may_not_grow(tmp_path: Path) -> None:
    """RLIMIT_FSIZE: reserving the space of a shard fails, as on a full disk."""
    source, out = make_folder(tmp_path / "photos"), tmp_path / "out"
    done = run_program(MMLOAD, *command(source, out), largest_file=15000)
    assert done.returncode == 1
    assert done.stdout == ""
    assert done.stderr.splitlines()[-1].startswith("mmload: no room for ")
    assert done.stderr.endswith("(File too large); free some, or build elsewhere\n")
    assert done.stderr.count("\n") == 2
    assert not out.exists()
    build(recipe(source, tmp_path / "whole"))
    build(recipe(source, out))
    assert contents(out) == contents(tmp_path / "whole")


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 256 KiB."""
    place = tmp_path / "disk"
    place.mkdir()
    _mount("-t", "tmpfs", "-o", "size=256k", "tmpfs", place)
    yield place
    subprocess.run(["umount", str(place)], check=True)


def _mount(*words: object) -> None:
    try:
        done = subprocess.run(["mount", *map(str, words)], capture_output=True, text=True, check=False)
    except FileNotFoundError:
        pytest.skip("there is no mount command")
    if done.returncode:
        pytest.skip(f"mounting is not allowed here: {done.stderr.strip()}")


@pytest.mark.parametrize("full_at", [6, 12, 18])
def test_a_disk_that_fills_up_on_the_way(full_at: int, small_disk: Path, tmp_path: Path) -> None:
    """Something else takes all the room: while shards are written, or at last when lists and manifest are."""
    source, out, hog = make_folder(tmp_path / "photos"), small_disk / "out", small_disk / "hog"

    def fill(done: int, total: int) -> None:
        if done >= full_at and not hog.exists():
            with open(hog, "wb", buffering=0) as file, contextlib.suppress(OSError):
                while True:
                    file.write(bytes(4096))

    with pytest.raises(BuildError, match=r"no room for|cannot (write|move)") as caught:
        build(recipe(source, out), threads=1, progress=fill)
    assert "No space left on device" in str(caught.value)
    assert not out.exists()
    hog.unlink()
    assert build(recipe(source, out)).built < 18
    build(recipe(source, tmp_path / "whole"))
    assert contents(out) == contents(tmp_path / "whole")


def test_a_read_only_destination(small_disk: Path, tmp_path: Path) -> None:
    source = make_folder(tmp_path / "photos")
    _mount("-o", "remount,ro", small_disk)
    with pytest.raises(BuildError, match=r"cannot write beside .* \(Read-only file system\); choose another place"):
        build(recipe(source, small_disk / "out"))
    assert list(small_disk.iterdir()) == []


def test_a_change_of_a_read_only_dataset(small_disk: Path, tmp_path: Path) -> None:
    dataset = build(recipe(make_folder(tmp_path / "photos"), small_disk / "out")).out
    _mount("-o", "remount,ro", small_disk)
    with pytest.raises(BuildError, match=rf"\(Read-only file system\); make {small_disk} writable"):
        save_subset(dataset, "few", [0])
