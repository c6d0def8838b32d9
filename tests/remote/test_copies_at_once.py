"""Pushes and pulls beside each other and beside changes."""

from __future__ import annotations

import os
import shutil
import sys
from dataclasses import replace

import pytest
from building import make_pictures, recipe
from meanwhile import once

from mmload.builder.pipeline import build, update
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
def made(tmp_path):
    pytest.importorskip("obstore", reason="object storage needs obstore")
    made = recipe(make_pictures(tmp_path / "photos"), tmp_path / "out")
    build(made)
    return made


@pytest.fixture
def url(tmp_path):
    return f"file://{tmp_path}/store/photos"


def change(made, name="new.jpg"):
    file = sorted(made.root.rglob("*.*"))[0]
    shutil.copy(file, file.with_name(name))
    update(made)


def test_two_pushes_of_one_version_at_once(made, url, tmp_path, monkeypatch):
    push(made.out, url)
    change(made)
    once(monkeypatch, copies, "_push_file", before=lambda: push(made.out, url))
    push(made.out, url, parallel=1)
    assert sorted(p.name for p in (tmp_path / "store/photos").iterdir()) == ["dataset.json", "train", "versions"]
    assert pull(url, tmp_path / "now").files
    assert verify(tmp_path / "now") == []
    pull(url, tmp_path / "first", version=1)
    assert verify(tmp_path / "first") == []


def test_a_push_that_ends_after_that_of_a_later_version(made, url, tmp_path, monkeypatch):
    push(made.out, url)
    change(made)
    copy = shutil.copytree(made.out, tmp_path / "copy")

    def later():
        change(made, "newer.jpg")
        push(made.out, url)

    once(monkeypatch, copies, "_push_file", before=later)
    with pytest.raises(MmloadError, match="was changed by another push meanwhile; run the same command again"):
        push(copy, url, parallel=1)
    assert manifest_at(Objects(url)).version == 3
    pull(url, tmp_path / "first", version=1)


def test_two_pulls_into_one_copy_of_an_earlier_version(made, url, tmp_path, monkeypatch):
    push(made.out, url)
    pull(url, tmp_path / "copy")
    change(made)
    push(made.out, url)

    def second():
        with pytest.raises(MmloadError, match="another pull is writing"):
            pull(url, tmp_path / "copy", parallel=1)

    once(monkeypatch, copies._ArrivingFile, "_finish", before=second)
    pull(url, tmp_path / "copy", parallel=1)
    assert verify(tmp_path / "copy") == []


def test_a_pull_never_writes_over_what_a_change_has_committed_meanwhile(made, url, tmp_path, monkeypatch):
    push(made.out, url)
    copy = tmp_path / "copy"
    pull(url, copy)
    change(made)
    push(made.out, url)  # version 2 is there

    def own_change():  # another version 2 is made here
        for file in sorted(made.root.rglob("*.*")):
            os.utime(file)
        file = sorted(made.root.rglob("*.*"))[0]
        file.with_name("new.jpg").write_bytes(sorted(made.root.rglob("*.*"))[3].read_bytes())
        update(replace(made, out=copy))
        assert verify(copy) == []

    once(monkeypatch, copies._ArrivingFile, "_finish", before=own_change)
    with pytest.raises(MmloadError, match="was changed by another command meanwhile; run this one again"):
        pull(url, copy, parallel=1)
    assert verify(copy) == []


def test_a_pull_that_was_killed_at_its_end_leaves_nothing_when_it_is_run_again(made, url, tmp_path, monkeypatch):
    push(made.out, url)
    copy = tmp_path / "copy"

    class Killed(BaseException):
        pass

    def kill(folder):
        raise Killed

    with monkeypatch.context() as patch:
        patch.setattr(copies, "sync_folder", kill)
        with pytest.raises(Killed):
            pull(url, copy)
    pull(url, copy)
    assert verify(copy) == []
    assert [p.name for p in tmp_path.iterdir() if "pulling" in p.name] == []


def test_a_second_pull_that_comes_as_the_first_ends(made, url, tmp_path, monkeypatch):
    push(made.out, url)
    copy = tmp_path / "copy"
    once(monkeypatch, copies, "_staging", before=lambda: pull(url, copy))
    pull(url, copy)
    assert verify(copy) == []
    assert [p.name for p in tmp_path.iterdir() if "pulling" in p.name] == []
