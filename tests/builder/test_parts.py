"""Builds in parts: any order, at once, killed, of other recipes; the bytes are those of a build by one process."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from conftest import contents, make_folder, mmload
from meanwhile import Killed, dying_at
from msgspec import json, structs
from PIL import Image, ImageOps

from mmload.builder import shard_job
from mmload.builder import staging as staging_module
from mmload.builder.pipeline import build, build_part
from mmload.builder.recipe import BuildRecipe, square
from mmload.builder.shard_job import ShardJob
from mmload.builder.shards import BuildPaths, made_by
from mmload.builder.staging import Staging
from mmload.errors import BuildError, SampleError, UsageError
from mmload.runtime import files
from mmload.runtime.files import lock
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


@pytest.fixture
def begun(photos: Path, tmp_path: Path) -> BuildRecipe:
    """A recipe of six shards, of which a part has built three."""
    job = recipe(photos, tmp_path / "out")
    build_part(job, "1/2")
    return job


@pytest.fixture
def job(photos: Path, whole: Path, tmp_path: Path) -> Iterator[BuildRecipe]:
    """A recipe of which nothing is built; at the end its bytes are those of one build, and nothing is beside them."""
    made = recipe(photos, tmp_path / "out")
    yield made
    assert contents(tmp_path / "out") == contents(whole)
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


def keep_leftovers(patch: pytest.MonkeyPatch) -> None:
    """What is cleaned up on the way out stays, as after a kill."""
    patch.setattr(shard_job.shutil, "rmtree", lambda *words, **more: None)


def kill_at(place: tuple[object, str], patch: pytest.MonkeyPatch, *, after: bool, calls: int) -> None:
    """A kill before or after the nth call of a function."""
    count = 0
    real: Callable[..., object] = getattr(*place)

    def killed(*words: object, **more: object) -> object:
        nonlocal count
        count += 1
        result = real(*words, **more) if count != calls or after else None
        if count == calls:
            keep_leftovers(patch)
            raise Killed
        return result

    patch.setattr(*place, killed)


def test_parts_in_any_order_and_again_make_the_bytes_of_one_build(job: BuildRecipe, tmp_path: Path) -> None:
    second = build_part(job, "2/3")
    assert (second.manifest, second.sealed, second.shards, second.built) == (None, 2, 6, 6)
    assert build_part(job, "2/3").built == 0
    build_part(job, "3/3")
    assert not (tmp_path / "out").exists()
    last = build_part(job, "1/3")
    assert last.manifest is not None
    assert (last.sealed, last.built) == (6, 6)
    assert build_part(job, "1/3").built == 0


def test_parts_at_once_several_of_the_same_number(job: BuildRecipe, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "os", os)  # without a wait for the disk one in five leaves a folder set aside
    parts = ["1/2", "2/2", "1/2", "2/2", "1/1", "2/3"]
    with ThreadPoolExecutor(len(parts)) as pool:
        assert len(list(pool.map(lambda part: build_part(job, part, threads=1), parts))) == len(parts)


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
def test_a_part_that_was_killed_anywhere_is_run_again(place: tuple[object, str], after: bool, job: BuildRecipe) -> None:
    for calls in (1, 3, 6, 9):
        with pytest.MonkeyPatch.context() as patch, suppress(Killed):
            kill_at(place, patch, after=after, calls=calls)
            for part in ("1/2", "2/2"):
                build_part(job, part, threads=1)
    for part in ("1/2", "2/2"):
        build_part(job, part, threads=1)


@pytest.mark.parametrize("killed", [False, True])
@pytest.mark.parametrize("place", [(shard_job, "ShardWriter"), (shard_job, "publish")], ids=lambda at: at[1])
def test_a_part_that_still_works_when_another_commits_leaves_nothing(
    place: tuple[Any, str], killed: bool, job: BuildRecipe, monkeypatch: pytest.MonkeyPatch
) -> None:
    late = getattr(*place)

    def overtaken(*words: Any) -> Any:
        monkeypatch.setattr(*place, late)
        assert build_part(job, "1/1", threads=1).manifest is not None
        with suppress(OSError, BuildError):
            late(*words)
        if killed:
            keep_leftovers(monkeypatch)
            raise Killed
        return late(*words)

    monkeypatch.setattr(*place, overtaken)
    with pytest.raises(Killed) if killed else nullcontext():
        assert build_part(job, "2/2", threads=1).manifest is not None


@pytest.mark.parametrize("killed", [True, False])
def test_a_part_that_comes_as_another_commits_begins_nothing(
    killed: bool, job: BuildRecipe, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    join = Staging._enter

    def overtaken(staging: Staging) -> None:
        monkeypatch.setattr(Staging, "_enter", join)
        build_part(job, "1/1", threads=1)
        join(staging)
        if killed:
            staging._lock.close()
            raise Killed

    monkeypatch.setattr(Staging, "_enter", overtaken)
    with pytest.raises(Killed) if killed else nullcontext():
        assert build_part(job, "2/2").built == 0
    assert (tmp_path / ".out.building" / "plan.json").exists() is killed
    assert build_part(job, "2/2").built == 0


def test_a_part_finishes_the_removal_that_a_killed_one_began(job: BuildRecipe, tmp_path: Path) -> None:
    with dying_at(staging_module, "remove_set_aside"):
        build_part(job, "1/1", threads=1)
    assert len([*tmp_path.iterdir()]) == 2
    assert build_part(job, "1/1").built == 0


def test_commit_waits_for_all_shards_and_a_build_by_one_process_goes_on(begun: BuildRecipe, whole: Path) -> None:
    with pytest.raises(BuildError, match=r"3 shards of 6 not built yet: train 000001, .*, or the parts"):
        build_part(begun, None)
    assert build(begun).built == 9
    assert build_part(begun, None).built == 0
    assert contents(begun.out) == contents(whole)


def test_a_part_of_another_recipe_source_or_version_is_refused(
    begun: BuildRecipe, whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = make_folder(tmp_path / "other", per_class=2)
    for changed, message in (
        ({"transforms": square(8)}, r"another recipe \(transforms is .*, was .*\); remove that folder"),
        ({"root": other}, "another recipe|a source that has changed"),
    ):
        with pytest.raises(BuildError, match=message):
            build_part(replace(begun, **changed), "2/2")
    now = made_by() | {"mmload": "9"}
    with monkeypatch.context() as patch:
        patch.setattr("mmload.builder.planned_build.made_by", lambda: now)
        with pytest.raises(BuildError, match=r"mmload is .9., was .*, which may make other pixels"):
            build_part(begun, "2/2")
    assert build_part(begun, "2/2").manifest is not None
    assert contents(begun.out) == contents(whole)


def test_parts_and_a_build_by_one_process_exclude_each_other(begun: BuildRecipe, tmp_path: Path) -> None:
    with Staging(tmp_path / "out"), pytest.raises(BuildError, match="a build without --part is writing"):
        build_part(begun, "2/2")
    with (tmp_path / ".out.building" / "lock").open("ab") as held:
        assert lock(held, shared=True)
        with pytest.raises(BuildError, match="another build is writing"):
            build(begun)


@pytest.mark.parametrize("part", ["0/4", "5/4", "1", "a/b", "1/0", "-1/2", "1/2/3", ""])
def test_numbers_of_parts_are_checked(part: str, photos: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="write K/N"):
        build_part(recipe(photos, tmp_path / "out"), part)


def test_errors_and_skips_are_those_of_one_build(tmp_path: Path) -> None:
    source = make_folder(tmp_path / "photos", per_class=6)
    (source / "bee" / "01.png").write_bytes(b"no image")
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
    sealed: bool, begun: BuildRecipe, whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its lists and checksums stay those of its own bytes; only the newcomer's used to remain."""
    paths, before, publish = BuildPaths(tmp_path / ".out.building"), {}, shard_job.publish
    other = build(replace(begun, root=recolored(begun.root, tmp_path / "other"), out=tmp_path / "old")).out

    def after_another(own: BuildPaths, shared: BuildPaths, split: str, index: int, summary: Any) -> None:
        monkeypatch.setattr(shard_job, "publish", publish)
        shutil.copytree(other / split / "000001", shared.shard(split, index))
        if sealed:
            record = read(other).splits[split].shards[index]
            shared.summary_file(split, index).write_bytes(json.encode(structs.replace(summary, record=record)))
        before.update(contents(paths.folder / "notes"))
        publish(own, shared, split, index, summary)

    monkeypatch.setattr(shard_job, "publish", after_another)
    with pytest.raises(BuildError, match=r"000001 is not the shard that this build makes"):
        build_part(begun, "2/2", threads=1)
    assert contents(paths.folder / "notes") == before
    shutil.rmtree(paths.shard("train", 1))
    build_part(begun, "2/2")
    assert contents(begun.out) == contents(whole)


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


def test_the_command_builds_parts_and_says_what_is_left(job: BuildRecipe, photos: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    words = ["build", "imagefolder", photos, out, "--size", 16, "--shard-size", job.shard_bytes]
    first = mmload(*words, "--part", "1/2")
    assert (first.returncode, first.stderr) == (0, f"mmload: writes 6.8 KiB in 3 shards to {out}\n")
    assert "3 of 6 shards are finished, the other parts follow" in first.stdout
    unfinished = mmload("info", out).stderr
    assert "--shard-size 2328" in unfinished
    assert "--part" not in unfinished
    assert mmload(*words, "--commit").returncode == 1
    assert f"{out} is complete, of 6 shards" in mmload(*words, "--part", "2/2").stdout
    assert mmload(*words, "--commit").returncode == 0


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
