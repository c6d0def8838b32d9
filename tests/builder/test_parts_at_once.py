"""Parts of builds and updates beside each other and beside later commands, also where nothing locks."""

from __future__ import annotations

import errno
import os
import threading
from contextlib import nullcontext
from dataclasses import replace

import pytest
from conftest import contents
from meanwhile import once
from updating import add_pictures, interrupt_after

import mmload
from mmload.builder import previous_version, shard_job, shards
from mmload.builder import staging as staging_module
from mmload.builder.engines import LocalEngine
from mmload.builder.pipeline import build, build_part
from mmload.builder.planned_build import PlannedBuild
from mmload.builder.previous_version import UpdateOptions
from mmload.builder.staging import Staging
from mmload.builder.verify import verify
from mmload.store.manifest import Manifest

UPDATE = UpdateOptions()


class Killed(BaseException):
    """Stands for SIGKILL: nothing of the package catches it."""


def kill(*_, **__):
    raise Killed


def planned(job) -> PlannedBuild:
    return PlannedBuild(job, UPDATE)


def all_built(work: PlannedBuild, staging: Staging) -> Manifest:
    """Builds all shards in a folder, and returns the manifest; nothing is committed."""
    layouts = work.layouts()
    plans = [plan for layout in layouts.values() for plan in layout.plans]
    work.build_shards(layouts, plans, staging, LocalEngine())
    return work.manifest(layouts, work.sealed(plans, staging.paths), staging.paths)


@pytest.fixture
def unlocked(monkeypatch):
    """Machines that do not see each other's locks."""
    monkeypatch.setattr(staging_module, "folder_lock", lambda folder: nullcontext())
    monkeypatch.setattr(staging_module, "lock", lambda file, shared=False: True)


def test_a_part_that_commits_after_another_leaves_no_folder(squares, tmp_path, monkeypatch):
    job = replace(squares, out=tmp_path / "o")
    another = lambda: build_part(job, "1/1")  # noqa: E731
    once(monkeypatch, PlannedBuild, "manifest", before=another)
    assert build_part(job, "1/1").manifest is not None
    assert verify(job.out) == []
    assert not [path for path in tmp_path.iterdir() if path.name.startswith(".o")]


def test_a_late_part_is_not_refused_while_another_removes_what_is_left(squares, tmp_path, monkeypatch):
    job, admitted = replace(squares, out=tmp_path / "o"), []
    plan = PlannedBuild(job).probed_plan()
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
    assert not [path for path in tmp_path.iterdir() if path.name.startswith(".o")]


def test_a_part_that_still_works_never_writes_into_the_folder_of_a_later_build(squares, tmp_path, monkeypatch):
    job = replace(squares, out=tmp_path / "o")
    other = replace(job, shuffle_seed=7)
    expected = contents(build(replace(other, out=tmp_path / "expected")).out)

    def later():
        assert build_part(job, "1/1", threads=1).manifest is not None
        with pytest.raises(KeyboardInterrupt):
            build(other, overwrite=True, progress=interrupt_after(1), engine=LocalEngine(threads=1, processes=1))

    once(monkeypatch, shard_job, "private_paths", before=later)
    assert build_part(job, "1/1", threads=1).built == 0
    build(other, overwrite=True)
    assert contents(tmp_path / "o") == expected
    assert verify(tmp_path / "o") == []


def test_a_late_part_of_an_update_is_not_refused_while_another_commits(squares, source, monkeypatch):
    add_pictures(source, 30)
    work, reports = planned(squares), []
    late = lambda: reports.append(work.run(LocalEngine(), slice(1), shared=True))  # noqa: E731
    once(monkeypatch, staging_module, "add_to_dataset", before=late)
    build_part(squares, "1/1", options=UPDATE)
    assert reports[0] is not None
    assert verify(squares.out) == []


@pytest.mark.parametrize(("where", "name"), [(staging_module, "add_to_dataset"), (Staging, "discard")])
def test_a_part_of_an_update_that_was_killed_at_its_end_is_run_again(where, name, squares, source, monkeypatch):
    add_pictures(source, 30)
    with monkeypatch.context() as patch:
        patch.setattr(where, name, kill)
        with pytest.raises(Killed):
            build_part(squares, "1/1", options=UPDATE)
    assert build_part(squares, "1/1", options=UPDATE).manifest is not None
    assert not (squares.out.parent / f".{squares.out.name}.building").exists()


@pytest.mark.parametrize("part", ["1/1", None])
def test_a_part_of_an_update_ends_well_while_another_moves_files(squares, source, monkeypatch, part):
    add_pictures(source, 30)
    build_part(squares, "1/2", options=UPDATE)
    errors, looks, moves = [], threading.Event(), threading.Event()
    sealed, move = PlannedBuild.sealed, os.replace

    def run():
        try:
            build_part(squares, part, options=UPDATE)
        except BaseException as error:
            errors.append(error)

    second = threading.Thread(target=run)

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
    build_part(squares, "2/2", options=UPDATE)
    second.join()
    assert moves.is_set()
    assert not errors
    assert verify(squares.out) == []


def test_a_part_of_an_update_that_looks_as_another_commits_is_not_refused(squares, source, monkeypatch):
    add_pictures(source, 30)
    another = lambda: build_part(squares, "1/1", options=UPDATE)  # noqa: E731
    once(monkeypatch, previous_version, "dataset_at", after=another)
    assert build_part(squares, "2/2", options=UPDATE).manifest is not None
    assert verify(squares.out) == []


@pytest.mark.usefixtures("unlocked")
def test_a_second_commit_of_an_update_without_locks_keeps_the_version_before(squares, source, monkeypatch):
    add_pictures(source, 30)
    work = planned(squares)
    with Staging(squares.out, work.probed_plan(), shared=True) as first:
        made = all_built(work, first)
        with_another = lambda: once(monkeypatch, staging_module, "read", after=lambda: first.commit(made))  # noqa: E731
        once(monkeypatch, staging_module, "add_to_dataset", before=with_another)
        assert build_part(squares, "2/2", options=UPDATE).manifest is not None
    assert verify(squares.out) == []
    assert mmload.open(squares.out, version=1)


@pytest.mark.usefixtures("unlocked")
def test_a_file_that_another_part_has_moved_is_not_missing_without_locks(squares, source, monkeypatch):
    add_pictures(source, 30)
    work, dataset_files, lists = planned(squares), staging_module.dataset_files, []
    with Staging(squares.out, work.probed_plan(), shared=True) as first:
        made = all_built(work, first)

        def then_another_moves_one(manifest):
            lists.append(manifest)
            yield from dataset_files(manifest)
            if len(lists) == 2:  # the files to move are known, and none is moved
                new = first.paths.dataset
                name = next(file.name for file in dataset_files(made) if (new / file.name).exists())
                (squares.out / name).parent.mkdir(parents=True, exist_ok=True)
                os.replace(new / name, squares.out / name)

        monkeypatch.setattr(staging_module, "dataset_files", then_another_moves_one)
        assert build_part(squares, "2/2", options=UPDATE).manifest is not None
    assert len(lists) >= 2
    assert verify(squares.out) == []


@pytest.mark.parametrize("code", [errno.ENOSYS, errno.ENOLCK, errno.EOPNOTSUPP])
def test_parts_are_built_where_the_file_system_has_no_locks(squares, tmp_path, monkeypatch, code):
    def none(*_):
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(pytest.importorskip("fcntl"), "flock", none)
    job = replace(squares, out=tmp_path / "o")
    build_part(job, "1/2")
    assert build_part(job, "2/2").manifest is not None


def test_a_late_part_of_a_build_removes_no_shards_of_an_update_that_tries_again(squares, source, tmp_path):
    job = replace(squares, out=tmp_path / "o")
    add_pictures(source, 30)
    whole = {file: (file.read_bytes(), file.stat().st_mtime_ns) for file in (source / "class1").glob("x[01]*.jpg")}
    for file, (content, time) in whole.items():
        file.write_bytes(bytes(len(content)))
        os.utime(file, ns=(time, time))
    build_part(job, "1/1", on_error="skip")
    for file, (content, time) in whole.items():
        file.write_bytes(content)
        os.utime(file, ns=(time, time))
    report = build_part(job, "1/2", options=UPDATE)
    assert report.sealed
    assert report.manifest is None
    assert build_part(job, "1/1", on_error="skip").built == 0
    assert (tmp_path / ".o.building").exists()
    assert build_part(job, "2/2", options=UPDATE).manifest is not None


def test_the_list_of_origins_has_the_time_of_the_listing_whoever_commits(squares, tmp_path, monkeypatch):
    job, write = replace(squares, out=tmp_path / "o"), shards.write_blocks
    build_part(job, "1/2")
    work = PlannedBuild(job)
    with Staging(job.out, work.probed_plan(), shared=True) as first:
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
