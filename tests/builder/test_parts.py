"""Builds in parts: any order, at once, killed, of other recipes; the bytes are those of a build by one process."""

from __future__ import annotations

import os
import shutil
import subprocess
import threading
from collections.abc import Callable
from contextlib import nullcontext, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from conftest import contents, make_folder, mmload
from msgspec import structs
from PIL import Image, ImageOps

from mmload.builder import shard_job
from mmload.builder import staging as staging_module
from mmload.builder.pipeline import build, build_part
from mmload.builder.recipe import BuildRecipe, square
from mmload.builder.shard_job import ShardJob
from mmload.builder.shards import BuildPaths, made_by
from mmload.builder.staging import Staging
from mmload.errors import BuildError, SampleError, UsageError
from mmload.runtime import durable_files
from mmload.store.manifest import read


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_folder(tmp_path_factory.mktemp("parts") / "photos", per_class=6)


@pytest.fixture(scope="module")
def whole(photos: Path) -> Path:
    return build(recipe(photos, photos.parent / "whole")).out


def recipe(source: Path, out: Path) -> BuildRecipe:
    return BuildRecipe(
        kind="imagefolder", root=source, out=out, transforms=square(16), shard_bytes=3 * (3 * 16 * 16 + 8)
    )


class Killed(BaseException):
    """Stands for SIGKILL: nothing of the package catches it, and what a ``finally`` would remove is put off."""


def at(place: tuple[object, str], monkeypatch: pytest.MonkeyPatch, *, after: bool, calls: int = 1) -> None:
    """A kill before or after the nth call of a function; what is cleaned up on the way out stays, as after a kill."""
    count = 0
    before: Callable[..., object] = getattr(*place)

    def killed(*words: object, **more: object) -> object:
        nonlocal count
        count += 1
        result = before(*words, **more) if count != calls or after else None
        if count == calls:
            monkeypatch.setattr(shard_job.shutil, "rmtree", lambda *words, **more: None)
            raise Killed
        return result

    monkeypatch.setattr(*place, killed)


def test_parts_in_any_order_and_again_make_the_bytes_of_one_build(photos: Path, whole: Path, tmp_path: Path) -> None:
    job = recipe(photos, tmp_path / "out")
    second = build_part(job, "2/3")
    assert (second.manifest, second.sealed, second.shards, second.built) == (None, 2, 6, 6)
    assert build_part(job, "2/3").built == 0
    build_part(job, "3/3")
    assert not job.out.exists()  # type: ignore[union-attr]
    last = build_part(job, "1/3")
    assert last.manifest is not None
    assert (last.sealed, last.built) == (6, 6)
    assert contents(tmp_path / "out") == contents(whole)
    assert build_part(job, "1/3").built == 0
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


def test_parts_at_once_several_of_the_same_number(
    photos: Path, whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(durable_files, "os", os)  # without a wait for the disk one in five leaves a folder set aside
    job, failed = recipe(photos, tmp_path / "out"), []

    def run(part: str) -> None:
        try:
            build_part(job, part, threads=1)
        except Exception as error:
            failed.append(error)

    threads = [threading.Thread(target=run, args=(part,)) for part in ["1/2", "2/2", "1/2", "2/2", "1/1", "2/3"]]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failed
    assert contents(tmp_path / "out") == contents(whole)
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize(
    "place",
    [
        (Path, "rename"),
        (Path, "replace"),
        (Staging, "commit"),
        (Staging, "discard"),
        (ShardJob, "chunks"),
    ],
    ids=lambda place: place[1],
)
def test_a_part_that_was_killed_anywhere_is_run_again(
    place: tuple[object, str], after: bool, photos: Path, whole: Path, tmp_path: Path
) -> None:
    job = recipe(photos, tmp_path / "out")
    for calls in (1, 3, 6, 9):
        with pytest.MonkeyPatch.context() as patch:
            at(place, patch, after=after, calls=calls)
            for part in ("1/2", "2/2"):
                try:
                    build_part(job, part, threads=1)
                except Killed:
                    break
    for part in ("1/2", "2/2"):
        build_part(job, part, threads=1)
    assert contents(tmp_path / "out") == contents(whole)
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


@pytest.mark.parametrize("killed", [False, True])
@pytest.mark.parametrize("place", [(shard_job, "ShardWriter"), (shard_job, "publish")], ids=lambda at: at[1])
def test_a_part_that_still_works_when_another_commits_leaves_nothing(
    place: tuple[Any, str], killed: bool, photos: Path, whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = recipe(photos, tmp_path / "out")
    late = getattr(*place)

    def overtaken(*words: Any) -> Any:
        monkeypatch.setattr(*place, late)
        assert build_part(job, "1/1", threads=1).manifest is not None
        with suppress(OSError, BuildError):
            late(*words)
        if killed:
            monkeypatch.setattr(shard_job.shutil, "rmtree", lambda *words, **more: None)
            raise Killed
        return late(*words)

    monkeypatch.setattr(*place, overtaken)
    with pytest.raises(Killed) if killed else nullcontext():
        assert build_part(job, "2/2", threads=1).manifest is not None
    assert contents(tmp_path / "out") == contents(whole)
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


def test_a_part_that_comes_as_another_commits_begins_nothing(
    photos: Path, whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job, join = recipe(photos, tmp_path / "out"), Staging._enter

    def overtaken(staging: Staging) -> Any:
        monkeypatch.setattr(Staging, "_enter", join)
        build_part(job, "1/1", threads=1)
        held = join(staging)
        if killed:
            held.close()
            raise Killed
        return held

    for killed in (True, False):
        monkeypatch.setattr(Staging, "_enter", overtaken)
        with pytest.raises(Killed) if killed else nullcontext():
            assert build_part(job, "2/2").built == 0
        if killed:
            assert (tmp_path / ".out.building" / "plan.json").exists()
            assert build_part(job, "2/2").built == 0
        assert contents(tmp_path / "out") == contents(whole)
        assert [path.name for path in tmp_path.iterdir()] == ["out"]
        shutil.rmtree(tmp_path / "out")


def test_a_part_finishes_the_removal_that_a_killed_one_began(photos: Path, whole: Path, tmp_path: Path) -> None:
    job = recipe(photos, tmp_path / "out")
    with pytest.MonkeyPatch.context() as patch:
        at((staging_module, "remove_set_aside"), patch, after=False)
        with pytest.raises(Killed):
            build_part(job, "1/1", threads=1)
    assert contents(tmp_path / "out") == contents(whole)
    assert len([*tmp_path.iterdir()]) == 2
    assert build_part(job, "1/1").built == 0
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


def test_commit_waits_for_all_shards_and_a_build_by_one_process_goes_on(
    photos: Path, whole: Path, tmp_path: Path
) -> None:
    job = recipe(photos, tmp_path / "out")
    build_part(job, "1/2")
    with pytest.raises(BuildError, match=r"3 shards of 6 not built yet: train 000001, .*, or the parts"):
        build_part(job, None)
    assert build(job).built == 9
    assert build_part(job, None).built == 0
    assert contents(tmp_path / "out") == contents(whole)


def test_a_part_of_another_recipe_source_or_version_is_refused(photos: Path, tmp_path: Path) -> None:
    job = recipe(photos, tmp_path / "out")
    build_part(job, "1/2")
    refused = r"unfinished build of another recipe \(transforms is .*, was .*\); remove that folder to drop it"
    with pytest.raises(BuildError, match=refused):
        build_part(replace(job, transforms=square(8)), "2/2")
    other = make_folder(tmp_path / "other", per_class=2)
    with pytest.raises(BuildError, match="another recipe|a source that has changed"):
        build_part(replace(job, root=other), "2/2")
    now = made_by() | {"mmload": "9"}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("mmload.builder.planned_build.made_by", lambda: now)
        with pytest.raises(BuildError, match=r"mmload is .9., was .*, which may make other pixels"):
            build_part(job, "2/2")
    assert build_part(job, "2/2").manifest is not None


def test_parts_and_a_build_by_one_process_exclude_each_other(photos: Path, tmp_path: Path) -> None:
    job = recipe(photos, tmp_path / "out")
    build_part(job, "1/2")
    with Staging(tmp_path / "out"), pytest.raises(BuildError, match="a build without --part is writing"):
        build_part(job, "2/2")
    with (tmp_path / ".out.building" / "lock").open("ab") as held:
        from mmload.runtime.durable_files import lock

        assert lock(held, shared=True)
        with pytest.raises(BuildError, match="another build is writing"):
            build(job)


@pytest.mark.parametrize("part", ["0/4", "5/4", "1", "a/b", "1/0", "-1/2", "1/2/3", ""])
def test_numbers_of_parts_are_checked(part: str, photos: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="write K/N"):
        build_part(recipe(photos, tmp_path / "out"), part)


def test_errors_and_skips_are_those_of_one_build(photos: Path, tmp_path: Path) -> None:
    source = make_folder(tmp_path / "photos", per_class=6)
    next(iter(sorted(source.rglob("*.*"))[7:])).write_bytes(b"no image")
    job = recipe(source, tmp_path / "out")
    with pytest.raises(SampleError, match="add --on-error skip"):
        build_part(job, "1/1")
    for part in ("1/2", "2/2"):
        build_part(job, part, on_error="skip")
    build(replace(job, out=tmp_path / "whole"), on_error="skip")
    assert contents(tmp_path / "out") == contents(tmp_path / "whole")
    with pytest.raises(BuildError, match="more than --max-errors 0 allows"):
        build_part(replace(job, out=tmp_path / "none"), "1/1", on_error="skip", max_errors=0)


@pytest.mark.parametrize("sealed", [False, True])
def test_a_shard_of_other_bytes_in_the_place_of_an_equally_large_one_is_refused(
    sealed: bool, photos: Path, whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its lists and checksums stay those of its own bytes; only the newcomer's used to remain."""
    job, paths, publish = recipe(photos, tmp_path / "out"), BuildPaths(tmp_path / ".out.building"), shard_job.publish
    before = {}

    def after_another(own: BuildPaths, shared: BuildPaths, split: str, index: int, summary: Any) -> None:
        if (shared, split, index) == (paths, "train", 1):
            other = build(replace(job, root=recolored(photos, tmp_path / "other"), out=tmp_path / "old")).out
            shutil.copytree(other / split / "000001", shared.shard(split, index))
            if sealed:
                record = read(other).splits[split].shards[index]
                shared.summary_file(split, index).write_text(structs.replace(summary, record=record).dumps())
            before.update(contents(paths.folder / "notes"))
        publish(own, shared, split, index, summary)

    build_part(job, "1/2")
    monkeypatch.setattr(shard_job, "publish", after_another)
    with pytest.raises(BuildError, match=r"000001 is not the shard that this build makes"):
        build_part(job, "2/2", threads=1)
    assert contents(paths.folder / "notes") == before
    shutil.rmtree(paths.shard("train", 1))
    monkeypatch.setattr(shard_job, "publish", publish)
    build_part(job, "2/2")
    assert contents(tmp_path / "out") == contents(whole)


def recolored(photos: Path, copy: Path) -> Path:
    """A copy of images with the same names, sizes and times, but other pixels."""
    shutil.copytree(photos, copy)
    for file in copy.rglob("*.png"):
        with Image.open(file) as image:
            other = ImageOps.invert(image)
        was = file.stat()
        other.save(file)
        assert file.stat().st_size == was.st_size
        os.utime(file, ns=(was.st_atime_ns, was.st_mtime_ns))
    return copy


def test_parts_of_sources_with_equal_names_sizes_and_times_but_other_pixels_do_not_mix(
    photos: Path, whole: Path, tmp_path: Path
) -> None:
    job, other = recipe(photos, tmp_path / "out"), recolored(photos, tmp_path / "other")
    build_part(job, "1/2")
    for unlike in (build_part, lambda job, part: build(job)):
        with pytest.raises(BuildError, match=r"unfinished build of a source with other pixels in files of equal names"):
            unlike(replace(job, root=other), "2/2")
    assert build_part(job, "2/2").manifest is not None
    assert contents(tmp_path / "out") == contents(whole)


def test_the_command_builds_parts_and_says_what_is_left(photos: Path, whole: Path, tmp_path: Path) -> None:
    words = ["build", "imagefolder", photos, tmp_path / "out", "--size", 16, "--shard-size", 3 * (3 * 16 * 16 + 8)]
    first = mmload(*words, "--part", "1/2")
    assert (first.returncode, first.stderr) == (0, f"mmload: writes 6.8 KiB in 3 shards to {tmp_path / 'out'}\n")
    assert "3 of 6 shards are finished, the other parts follow" in first.stdout
    unfinished = mmload("info", tmp_path / "out").stderr
    assert "--shard-size 2328" in unfinished
    assert "--part" not in unfinished
    assert mmload(*words, "--commit").returncode == 1
    assert mmload(*words, "--part", "2/2", "--overwrite").returncode == 2
    assert mmload(*words, "--part", "2/2", "--commit").returncode == 2
    assert f"{tmp_path / 'out'} is complete, of 6 shards" in mmload(*words, "--part", "2/2").stdout
    assert mmload(*words, "--commit").returncode == 0
    assert contents(tmp_path / "out") == contents(whole)


@pytest.mark.skipif(os.name != "posix", reason="a shell script")
def test_the_script_of_a_job_array_gives_each_task_its_part(tmp_path: Path) -> None:
    stand_in = tmp_path / "mmload"
    stand_in.write_text('#!/bin/sh\necho "$@"\n')
    stand_in.chmod(0o755)
    script = Path(__file__).parents[2] / "examples" / "build_array.sh"
    task = {"SLURM_ARRAY_TASK_ID": "3", "SLURM_ARRAY_TASK_MAX": "16", "SLURM_CPUS_PER_TASK": "8"}
    place = {**os.environ, **task, "PATH": f"{tmp_path}:{os.environ['PATH']}"}
    done = subprocess.run([script, "voc", "a b", "out"], env=place, capture_output=True, text=True, check=True)
    assert done.stdout == "build voc a b out --part 3/16 --threads 8\n"
