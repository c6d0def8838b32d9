"""Changes of a dataset beside each other, and after one that was killed: gc, fields, subsets, updates, repairs."""

from __future__ import annotations

import shutil
from dataclasses import replace

import pytest
from conftest import contents
from meanwhile import Killed, once
from updating import add_pictures, change

import mmload
from mmload.builder import columns, dataset_change, planned_build, staging
from mmload.builder import verify as verify_module
from mmload.builder.dataset_change import compact, remove_unused
from mmload.builder.pipeline import build, build_part, update
from mmload.builder.previous_version import UpdateOptions
from mmload.builder.staging import Staging
from mmload.builder.verify import repair, verify
from mmload.errors import BuildError, StoreError
from mmload.runtime import files

UPDATE = UpdateOptions()
CHANGES = {
    "subset": (dataset_change, "stored_rows", lambda out: mmload.save_subset(out, "few", [0, 1])),
    "field": (columns, "_spec_of", lambda out: mmload.add_field(out, "f", lambda batch: batch.targets.float())),
}


@pytest.fixture
def updated(squares, source):
    """``squares`` in two versions, of which gc removes one."""
    change(source)
    update(squares)
    return squares


@pytest.mark.parametrize("kind", CHANGES)
def test_a_change_beside_gc_names_no_version_that_is_gone(updated, source, monkeypatch, kind):
    where, name, change_rows = CHANGES[kind]
    once(monkeypatch, where, name, before=lambda: remove_unused(updated.out))
    change_rows(updated.out)
    assert [version.number for version in mmload.open(updated.out).manifest.versions] == [2, 3]
    assert verify(updated.out) == []
    add_pictures(source, 3)
    update(updated)


@pytest.mark.parametrize("kind", CHANGES)
def test_a_change_removes_no_shards_of_an_update_that_has_begun_meanwhile(squares, source, monkeypatch, kind):
    where, name, change_rows = CHANGES[kind]
    add_pictures(source, 30)
    once(monkeypatch, where, name, before=lambda: build_part(squares, "1/2", options=UPDATE))
    with pytest.raises(BuildError, match="holds an unfinished build"):
        change_rows(squares.out)
    assert build_part(squares, "2/2", options=UPDATE).manifest is not None


def test_an_update_beside_gc_is_not_told_of_damage(updated, source, monkeypatch):
    add_pictures(source, 3)
    once(monkeypatch, planned_build, "Staging", before=lambda: remove_unused(updated.out))
    update(updated)
    assert verify(updated.out) == []


def test_parts_of_an_update_go_on_after_gc(squares, source):
    add_pictures(source, 3)
    update(squares)
    for file in (source / "class1").glob("x*"):
        file.unlink()
    update(squares)  # nothing is left of the last shard
    add_pictures(source, 30)
    build_part(squares, "1/2", options=UPDATE)
    remove_unused(squares.out)
    assert build_part(squares, "2/2", options=UPDATE).manifest is not None
    assert verify(squares.out) == []


def test_gc_keeps_other_changes_away_while_it_works(updated, monkeypatch):
    refused = []

    def another():
        with pytest.raises(BuildError, match="another build is writing") as error:
            Staging(updated.out.resolve())
        refused.append(error)

    once(monkeypatch, dataset_change, "_unused_files", before=another)
    remove_unused(updated.out)
    assert refused


def test_a_build_beside_gc_is_not_told_of_a_missing_folder(squares, monkeypatch):
    listed = staging.is_partial
    (squares.out / "dataset.json.partial").touch()

    def then_gc(name, of):
        shutil.rmtree(squares.out / "train" / "000000", ignore_errors=True)
        return listed(name, of)

    monkeypatch.setattr(staging, "is_partial", then_gc)
    assert build(replace(squares, shuffle_seed=5), overwrite=True).built


def test_a_check_beside_compaction_and_gc_finds_no_fault(squares, source, monkeypatch):
    for file in source.rglob("[234]*.*"):
        file.unlink()
    update(squares)
    meanwhile = lambda: (compact(squares.out), remove_unused(squares.out))  # noqa: E731
    once(monkeypatch, verify_module, "available_cores", before=meanwhile)
    with pytest.raises(StoreError, match="was changed by another command during the check; check it again"):
        verify(squares.out)
    assert verify(squares.out) == []


def test_a_repair_keeps_builds_away_until_it_is_done(squares, source, monkeypatch):
    file, whole = squares.out / "train" / "000000" / "images.memmap", contents(squares.out)
    file.write_bytes(bytes(file.stat().st_size))

    def another():
        with pytest.raises(BuildError, match="another build is writing"):
            build(replace(squares, shuffle_seed=7), overwrite=True)

    once(monkeypatch, verify_module, "check_no_links", after=another)
    assert repair(squares.out, source)
    assert contents(squares.out) == whole


def test_a_kill_while_a_manifest_is_kept_leaves_nothing_in_the_dataset(squares, source, monkeypatch):
    change(source)
    with monkeypatch.context() as patch:
        sync, dataset_files, moving = files.sync, staging.dataset_files, []

        def listed(manifest):
            moving.append(manifest)
            return dataset_files(manifest)

        def killed(file):
            if moving:
                patch.setattr(files.Path, "unlink", lambda *_, **__: None)
                raise Killed
            sync(file)

        patch.setattr(staging, "dataset_files", listed)
        patch.setattr(files, "sync", killed)
        with pytest.raises(Killed):
            update(squares)
    update(squares)
    assert verify(squares.out) == []
    assert not [name for name in contents(squares.out) if name.endswith(".partial")]
    build(replace(squares, shuffle_seed=5), overwrite=True)
