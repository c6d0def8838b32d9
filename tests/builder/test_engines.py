"""Builds under trouble: dying workers, Ctrl-C, a second build, a full disk, a destination that cannot be written."""

from __future__ import annotations

import multiprocessing
import os
import signal
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import python_datasets
import torch
from conftest import contents, make_folder
from forked_program import MMLOAD, Program, run_program
from small_disks import fill, mount, small_disk_at
from waiting import until

from mmload.builder.dataset_change import save_subset
from mmload.builder.pipeline import LocalEngine, build
from mmload.builder.recipe import BuildRecipe, square
from mmload.errors import BuildError, UsageError
from mmload.records import Sample


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    """18 images, of which shards have five."""
    return make_folder(tmp_path / "photos")


def recipe(source: Path, out: Path) -> BuildRecipe:
    return BuildRecipe(
        kind="imagefolder", root=source, out=out, transforms=square(32), shard_bytes=5 * (3 * 32 * 32 + 8)
    )


def assert_goes_on(job: BuildRecipe, whole: Path) -> int:
    """Checks that a build goes on to the bytes of one that nothing disturbs; returns the images that it reads."""
    built: int = build(job).built
    assert contents(job.out) == contents(build(replace(job, out=whole)).out)
    return built


@pytest.fixture
def slow(tmp_path: Path) -> BuildRecipe:
    """A build that takes 20 ms per image, until the file "reads/slow" goes."""
    (tmp_path / "reads").mkdir()
    (tmp_path / "reads" / "slow").touch()
    options = {"dataset": "python_datasets:Slow", "arguments": {"folder": str(tmp_path / "reads")}}
    root = Path(python_datasets.__file__).parent
    more = {"transforms": square(8), "shard_bytes": 2000}
    return BuildRecipe(kind="python", root=root, out=tmp_path / "out", options=options, **more)


def program_of(slow: BuildRecipe, processes: int = 1) -> Program:
    """The command of that build, which runs."""
    words: list[object] = ["build", "python", slow.root, slow.out, "--size", 8, "--shard-size", slow.shard_bytes]
    words += ["--set", f"dataset={slow.options['dataset']}"]
    words += ["--set", f'arguments={{folder = "{slow.options["arguments"]["folder"]}"}}']
    return Program(MMLOAD, [*words, "--threads", 1, "--processes", processes])


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


@pytest.fixture
def deadly(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Deadly:
    """The only split of every source."""
    split = Deadly(tmp_path)
    monkeypatch.setattr("mmload.builder.planned_build._all_splits", lambda recipe: {"train": split})
    return split


def recipe_of_deadly(out: Path) -> BuildRecipe:
    return BuildRecipe(kind="imagefolder", root=out.with_name("source"), out=out, shard_bytes=4)


@pytest.mark.usefixtures("deadly")
def test_a_killed_worker_leaves_no_other_behind_and_the_next_build_goes_on(tmp_path: Path) -> None:
    out, whole = tmp_path / "out", tmp_path / "whole"
    build(recipe_of_deadly(whole), processes=1)
    with pytest.raises(BuildError, match="a build worker died .signal SIGKILL, as when memory runs out.; run the same"):
        build(recipe_of_deadly(out), processes=2, threads=1)
    assert multiprocessing.active_children() == []
    workers = {int(path.name[3:]) for path in tmp_path.glob("pid*")} - {os.getpid()}
    assert workers
    for pid in workers:
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)
    assert not out.exists()
    (tmp_path / "over").touch()
    assert build(recipe_of_deadly(out), processes=2, threads=1).built < 8
    assert contents(out) == contents(whole)


def test_engine_numbers() -> None:
    with pytest.raises(UsageError, match="processes is 0"):
        LocalEngine(processes=0)
    LocalEngine(processes=2).build_shards(None, [], None)  # type: ignore[arg-type]  # no plans, no work


def test_a_source_that_cannot_be_sent_is_said(tmp_path: Path, deadly: Deadly) -> None:
    deadly.hook = lambda: None  # type: ignore[attr-defined]
    with pytest.raises(BuildError, match="cannot be sent to worker processes"):
        build(recipe_of_deadly(tmp_path / "out"), processes=2)


@pytest.mark.parametrize("processes", [1, 2])
def test_ctrl_c_ends_a_build_with_one_line_and_the_next_goes_on(
    processes: int, slow: BuildRecipe, tmp_path: Path
) -> None:
    running = program_of(slow, processes)
    until(lambda: list((tmp_path / ".out.building").glob("notes/train/*.json")))
    os.killpg(running.pid, signal.SIGINT)  # the whole group, as a terminal does
    done = running.ended()
    assert done.returncode == 130
    assert done.stderr.endswith("mmload: interrupted; run the same command again to continue\n")
    assert not slow.out.exists()
    (tmp_path / "reads" / "slow").unlink()
    assert 0 < assert_goes_on(slow, tmp_path / "whole") < 500


def test_ctrl_c_waits_for_one_sample_not_for_a_chunk(slow: BuildRecipe, tmp_path: Path) -> None:
    """One chunk would be all images."""
    running = program_of(replace(slow, shard_bytes=10**6))
    until(lambda: list((tmp_path / ".out.building").glob("parts/*/dataset/train/*")))
    running.send_signal(signal.SIGINT)
    assert running.ended().returncode == 130
    assert len(list((tmp_path / "reads").iterdir())) < 400


def test_engines_a_second_build_into_one_place_is_refused(slow: BuildRecipe, tmp_path: Path) -> None:
    first = program_of(slow)
    until((tmp_path / ".out.building" / "plan.json").exists)
    with pytest.raises(BuildError, match=f"another build is writing {slow.out}; wait for it to end"):
        build(slow)
    (tmp_path / "reads" / "slow").unlink()
    assert first.ended().returncode == 0
    assert assert_goes_on(slow, tmp_path / "whole") == 0


def test_files_that_may_not_grow(photos: Path, tmp_path: Path) -> None:
    """RLIMIT_FSIZE: writing a shard fails, as on a full disk."""
    words = ["build", "imagefolder", photos, tmp_path / "out", "--size", 32, "--shard-size", 15400]
    done = run_program(MMLOAD, *words, largest_file=15000)
    assert (done.returncode, done.stdout) == (1, "")
    _, line = done.stderr.splitlines()
    assert line.startswith("mmload: cannot write to ")
    assert line.endswith("(File too large); free space there, then run the same command again to continue")
    assert not (tmp_path / "out").exists()
    assert_goes_on(recipe(photos, tmp_path / "out"), tmp_path / "whole")


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 256 KiB."""
    with small_disk_at(tmp_path / "disk", "256k") as place:
        yield place


@pytest.mark.parametrize("full_at", [6, 12, 18])
def test_a_disk_that_fills_up_on_the_way(full_at: int, small_disk: Path, photos: Path) -> None:
    """Something else takes all the room: while shards are written, or at last when lists and manifest are."""
    out, hog = small_disk / "out", small_disk / "hog"

    def take_the_room(done: int, total: int) -> None:
        if done >= full_at and not hog.exists():
            fill(hog)

    with pytest.raises(BuildError, match=r"cannot write.* \(No space left on device\)"):
        build(recipe(photos, out), threads=1, progress=take_the_room)
    assert not out.exists()
    hog.unlink()
    assert assert_goes_on(recipe(photos, out), small_disk.with_name("whole")) < 18


def test_a_read_only_destination_or_dataset(small_disk: Path, photos: Path) -> None:
    dataset = build(recipe(photos, small_disk / "dataset")).out
    mount("-o", "remount,ro", small_disk)
    with pytest.raises(BuildError, match=r"cannot write beside .* \(Read-only file system\); choose another place"):
        build(recipe(photos, small_disk / "out"))
    with pytest.raises(BuildError, match=rf"\(Read-only file system\); make {small_disk} writable"):
        save_subset(dataset, "few", [0])
    assert [path.name for path in small_disk.iterdir()] == ["dataset"]
