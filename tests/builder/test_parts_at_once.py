"""Parts of builds and updates beside each other and beside later commands, also where nothing locks."""

from __future__ import annotations

import errno
import os
import threading
from contextlib import nullcontext
from dataclasses import replace

import pytest
from conftest import contents
from meanwhile import dying_at, interrupted, once
from updating import add_pictures

import mmload
from mmload.builder import previous_version, shard_job, shards
from mmload.builder import staging as staging_module
from mmload.builder.pipeline import LocalEngine, build, build_part
from mmload.builder.planned_build import PlannedBuild
from mmload.builder.previous_version import UpdateOptions
from mmload.builder.staging import Staging
from mmload.builder.verify import verify
from mmload.store.manifest import Manifest

UPDATE = UpdateOptions()


def all_built(work: PlannedBuild, staging: Staging) -> Manifest:
    """Builds all shards in a folder, and returns the manifest; nothing is committed."""
    divisions = work.divisions()
    plans = [plan for division in divisions.values() for plan in division.plans]
    work.build_shards(divisions, plans, staging, LocalEngine())
    return work.manifest(divisions, work.sealed(plans, staging.paths), staging.paths)


@pytest.fixture
def job(squares, tmp_path):
    """A recipe of which nothing is built; its dataset is whole at the end, and no working folder is left."""
    made = replace(squares, out=tmp_path / "o")
    yield made
    assert verify(made.out) == []
    assert not [path for path in tmp_path.iterdir() if path.name.startswith(".o")]


@pytest.fixture
def grown(squares, source):
    """``squares`` and 30 new pictures; its dataset is whole at the end, and no working folder is left."""
    add_pictures(source, 30)
    yield squares
    assert verify(squares.out) == []
    assert not (squares.out.parent / f".{squares.out.name}.building").exists()


@pytest.fixture
def unlocked(monkeypatch):
    """Machines that do not see each other's locks."""
    monkeypatch.setattr(staging_module, "folder_lock", lambda folder: nullcontext())
    monkeypatch.setattr(staging_module, "lock", lambda file, shared=False: True)


def test_a_part_that_commits_after_another_leaves_no_folder(job, monkeypatch):
    once(monkeypatch, PlannedBuild, "manifest", before=lambda: build_part(job, "1/1"))
    assert build_part(job, "1/1").manifest is not None


def test_a_late_part_is_not_refused_while_another_removes_what_is_left(job, monkeypatch):
    plan, admitted = PlannedBuild(job).plan, []
    build_part(job, "1/1")

    def late():
        with Staging(job.out, plan, shared=True) as staging:
            admitted.append(staging)
            staging.discard()

    with Staging(job.out, plan, shared=True):
        pass  # killed before it has removed the folder
    once(monkeypatch, staging_module, "remove_set_aside", before=late)
    assert build_part(job, "1/2").built == 0
    assert admitted


def test_a_part_that_still_works_never_writes_into_the_folder_of_a_later_build(job, tmp_path, monkeypatch):
    other = replace(job, shuffle_seed=7)
    expected = contents(build(replace(other, out=tmp_path / "expected")).out)

    def later():
        assert build_part(job, "1/1", threads=1).manifest is not None
        interrupted(build, other, overwrite=True, after=1)

    once(monkeypatch, shard_job, "private_paths", before=later)
    assert build_part(job, "1/1", threads=1).built == 0
    build(other, overwrite=True)
    assert contents(job.out) == expected


def test_a_late_part_of_an_update_is_not_refused_while_another_commits(grown, monkeypatch):
    work, reports = PlannedBuild(grown, UPDATE), []
    late = lambda: reports.append(work.run(LocalEngine(), slice(1), shared=True))  # noqa: E731
    once(monkeypatch, staging_module, "add_to_dataset", before=late)
    build_part(grown, "1/1", options=UPDATE)
    assert reports[0] is not None


@pytest.mark.parametrize(("where", "name"), [(staging_module, "add_to_dataset"), (Staging, "discard")])
def test_a_part_of_an_update_that_was_killed_at_its_end_is_run_again(where, name, grown):
    with dying_at(where, name):
        build_part(grown, "1/1", options=UPDATE)
    assert build_part(grown, "1/1", options=UPDATE).manifest is not None


@pytest.mark.parametrize("part", ["1/1", None])
def test_a_part_of_an_update_ends_well_while_another_moves_files(grown, monkeypatch, part):
    build_part(grown, "1/2", options=UPDATE)
    reports, looks, moves = [], threading.Event(), threading.Event()
    sealed, move = PlannedBuild.sealed, os.replace
    second = threading.Thread(target=lambda: reports.append(build_part(grown, part, options=UPDATE)))

    def waiting(self, *words):
        if threading.current_thread() is second and not looks.is_set():
            looks.set()
            moves.wait(20)
        return sealed(self, *words)

    def slow(place, other):
        move(place, other)
        if threading.current_thread() is not second and not moves.is_set() and other.name == "images.memmap":
            moves.set()
            second.join(2)  # it may wait for the lock that this one holds

    monkeypatch.setattr(PlannedBuild, "sealed", waiting)
    monkeypatch.setattr(os, "replace", slow)
    second.start()
    looks.wait(20)
    build_part(grown, "2/2", options=UPDATE)
    second.join()
    assert moves.is_set()
    assert len(reports) == 1, "the second part has failed"


def test_a_part_of_an_update_that_looks_as_another_commits_is_not_refused(grown, monkeypatch):
    another = lambda: build_part(grown, "1/1", options=UPDATE)  # noqa: E731
    once(monkeypatch, previous_version, "dataset_at", after=another)
    assert build_part(grown, "2/2", options=UPDATE).manifest is not None


@pytest.mark.usefixtures("unlocked")
def test_a_second_commit_of_an_update_without_locks_keeps_the_version_before(grown, monkeypatch):
    work = PlannedBuild(grown, UPDATE)
    with Staging(grown.out, work.plan, shared=True) as first:
        made = all_built(work, first)
        with_another = lambda: once(monkeypatch, staging_module, "read", after=lambda: first.commit(made))  # noqa: E731
        once(monkeypatch, staging_module, "add_to_dataset", before=with_another)
        assert build_part(grown, "2/2", options=UPDATE).manifest is not None
    assert mmload.open(grown.out, version=1)


@pytest.mark.usefixtures("unlocked")
def test_a_file_that_another_part_has_moved_is_not_missing_without_locks(grown, monkeypatch):
    work, dataset_files, lists = PlannedBuild(grown, UPDATE), staging_module.dataset_files, []
    with Staging(grown.out, work.plan, shared=True) as first:
        made = all_built(work, first)

        def then_another_moves_one(manifest):
            lists.append(manifest)
            yield from dataset_files(manifest)
            if len(lists) == 2:  # the files to move are known, and none is moved
                new = first.paths.dataset
                name = next(file.name for file in dataset_files(made) if (new / file.name).exists())
                (grown.out / name).parent.mkdir(parents=True, exist_ok=True)
                os.replace(new / name, grown.out / name)

        monkeypatch.setattr(staging_module, "dataset_files", then_another_moves_one)
        assert build_part(grown, "2/2", options=UPDATE).manifest is not None
    assert len(lists) >= 2


@pytest.mark.parametrize("code", [errno.ENOSYS, errno.ENOLCK, errno.EOPNOTSUPP])
def test_parts_are_built_where_the_file_system_has_no_locks(job, monkeypatch, code):
    def none(*_):
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(pytest.importorskip("fcntl"), "flock", none)
    build_part(job, "1/2")
    assert build_part(job, "2/2").manifest is not None


def test_a_late_part_of_a_build_removes_no_shards_of_an_update_that_tries_again(squares, source, tmp_path):
    job = replace(squares, out=tmp_path / "o")
    add_pictures(source, 30)
    whole = {file: (file.read_bytes(), file.stat().st_mtime_ns) for file in (source / "class1").glob("x[01]*.jpg")}

    def write(change):
        for file, (content, time) in whole.items():
            file.write_bytes(change(content))
            os.utime(file, ns=(time, time))

    write(lambda content: bytes(len(content)))
    build_part(job, "1/1", on_error="skip")
    write(bytes)
    report = build_part(job, "1/2", options=UPDATE)
    assert (report.sealed > 0, report.manifest) == (True, None)
    assert build_part(job, "1/1", on_error="skip").built == 0
    assert (tmp_path / ".o.building").exists()
    assert build_part(job, "2/2", options=UPDATE).manifest is not None


def test_the_list_of_origins_has_the_time_of_the_listing_whoever_commits(job, monkeypatch):
    build_part(job, "1/2")
    work, write = PlannedBuild(job), shards.write_blocks
    with Staging(job.out, work.plan, shared=True) as first:
        made = all_built(work, first)
        listed = (first.paths.dataset / "train" / "origins.jsonl").stat().st_mtime_ns

        def then_another_commits(paths, place, *words):
            record = write(paths, place, *words)
            if place.name == "origins.jsonl":
                monkeypatch.setattr(shards, "write_blocks", write)
                first.commit(made)
            return record

        monkeypatch.setattr(shards, "write_blocks", then_another_commits)
        build_part(job, "2/2")
    assert (job.out / "train" / "origins.jsonl").stat().st_mtime_ns == listed
