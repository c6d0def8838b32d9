"""Pushes and pulls beside each other and beside changes."""

from __future__ import annotations

import os
import shutil
import sys
from dataclasses import replace

import numpy as np
import pytest
from meanwhile import dying_at, once
from updating import add_and_update, picture

import mmload
from mmload.builder.pipeline import update
from mmload.builder.verify import verify
from mmload.errors import MmloadError
from mmload.remote import copies
from mmload.remote.chunks import manifest_at
from mmload.remote.copies import pull, push
from mmload.remote.object_store import Objects

pytestmark = [
    pytest.mark.usefixtures("fresh_caches"),
    pytest.mark.skipif(sys.platform == "win32", reason="URLs are not read there"),
]


@pytest.fixture
def url(tmp_path):
    pytest.importorskip("obstore", reason="object storage needs obstore")
    return f"file://{tmp_path}/store/photos"


@pytest.fixture
def pushed(squares, url):
    """The first version of ``squares`` where it is in object storage."""
    push(squares.out, url)
    return url


def assert_whole(copy):
    """Checks that a copy is whole and that no work of its pull is left."""
    assert verify(copy) == []
    assert [path.name for path in copy.parent.iterdir() if "pulling" in path.name] == []


def test_two_pushes_of_one_version_at_once(squares, pushed, tmp_path, monkeypatch):
    add_and_update(squares)
    once(monkeypatch, copies, "_push_file", before=lambda: push(squares.out, pushed))
    push(squares.out, pushed, parallel=1)
    assert sorted(p.name for p in (tmp_path / "store/photos").iterdir()) == ["dataset.json", "train", "versions"]
    for version in (1, None):
        assert pull(pushed, tmp_path / f"back{version}", version=version).files
        assert_whole(tmp_path / f"back{version}")


def test_a_push_that_ends_after_that_of_a_later_version(squares, pushed, tmp_path, monkeypatch):
    add_and_update(squares)
    copy = shutil.copytree(squares.out, tmp_path / "copy")

    def later():
        add_and_update(squares, "newer.jpg")
        push(squares.out, pushed)

    once(monkeypatch, copies, "_push_file", before=later)
    with pytest.raises(MmloadError, match="was changed by another push meanwhile; run the same command again"):
        push(copy, pushed, parallel=1)
    assert manifest_at(Objects(pushed)).version == 3
    pull(pushed, tmp_path / "first", version=1)


def push_until(monkeypatch, put, copy, url):
    """Pushes a copy until an object is to be put whose name has this end, as if the process were killed."""

    def dying(objects, name, content):
        if name.endswith(put) and content:
            raise KeyboardInterrupt
        real(objects, name, content)

    real = Objects.put
    with monkeypatch.context() as patch:
        patch.setattr(Objects, "put", dying)
        with pytest.raises(KeyboardInterrupt):
            push(copy, url, parallel=1)


@pytest.mark.parametrize(
    ("of_copy", "of_first"),
    [(None, "dataset.json"), (None, "score.2.memmap.crc32"), ("dataset.json", "score.2.memmap.crc32")],
)
def test_a_push_after_interrupted_ones_of_other_values(squares, pushed, tmp_path, monkeypatch, of_copy, of_first):
    """What an interrupted push left has the names and sizes of what this one copies."""
    copy = shutil.copytree(squares.out, tmp_path / "copy")
    for place, factor in ((squares.out, 1), (copy, 2)):
        mmload.add_field(place, "score", np.arange(15) * factor)
    if of_copy:
        push_until(monkeypatch, of_copy, copy, pushed)
    push_until(monkeypatch, of_first, squares.out, pushed)
    assert push(copy, pushed).files > 0
    pull(pushed, tmp_path / "back")
    assert_whole(tmp_path / "back")
    found = mmload.open(pushed, cache=tmp_path / "cache")["train"][:].extra["score"]
    assert np.array_equal(found, np.arange(15) * 2)
    assert push(copy, pushed).files == 0


@pytest.fixture
def copy(squares, pushed, tmp_path):
    """A copy of the first version, where the second one is in object storage."""
    pull(pushed, tmp_path / "copy")
    add_and_update(squares)
    push(squares.out, pushed)
    return tmp_path / "copy"


def test_two_pulls_into_one_copy_of_an_earlier_version(pushed, copy, monkeypatch):
    def second():
        with pytest.raises(MmloadError, match="another pull is writing"):
            pull(pushed, copy, parallel=1)

    once(monkeypatch, copies._ArrivingFile, "_finish", before=second)
    pull(pushed, copy, parallel=1)
    assert_whole(copy)


def test_a_pull_never_writes_over_what_a_change_has_committed_meanwhile(squares, pushed, copy, monkeypatch):
    def own_change():  # another version 2 is made here
        for file in squares.root.rglob("*.*"):
            os.utime(file)
        picture(squares.root).with_name("new.jpg").write_bytes(picture(squares.root, 3).read_bytes())
        update(replace(squares, out=copy))
        assert verify(copy) == []

    once(monkeypatch, copies._ArrivingFile, "_finish", before=own_change)
    with pytest.raises(MmloadError, match="was changed by another command meanwhile; run this one again"):
        pull(pushed, copy, parallel=1)
    assert verify(copy) == []


def test_a_pull_that_was_killed_at_its_end_leaves_nothing_when_it_is_run_again(pushed, tmp_path):
    with dying_at(copies, "sync_folder"):
        pull(pushed, tmp_path / "copy")
    pull(pushed, tmp_path / "copy")
    assert_whole(tmp_path / "copy")


def test_a_pull_after_one_of_other_values_that_was_killed_at_its_end(pushed, copy):
    before = set(copy.rglob("*.memmap"))
    with dying_at(copies, "versions_of"):
        pull(pushed, copy)
    arrived = set(copy.rglob("*.memmap")) - before
    for file in arrived:
        file.write_bytes(b"\xff" * file.stat().st_size)  # as if of another second version
    assert pull(pushed, copy).files == len(arrived) > 0
    assert_whole(copy)


def test_a_second_pull_that_comes_as_the_first_ends(pushed, tmp_path, monkeypatch):
    once(monkeypatch, copies, "_staging", before=lambda: pull(pushed, tmp_path / "copy"))
    pull(pushed, tmp_path / "copy")
    assert_whole(tmp_path / "copy")
