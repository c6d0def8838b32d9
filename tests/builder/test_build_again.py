"""Builds at a place that is not empty: a finished one, half of one, one killed while it took the place of another."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest
from building import recipe
from conftest import contents
from meanwhile import Killed, interrupted

from mmload.builder import staging
from mmload.builder.pipeline import build, update
from mmload.builder.planned_build import fingerprint
from mmload.builder.shards import made_by
from mmload.builder.staging import MARK
from mmload.errors import BuildError
from mmload.runtime.files import exchange, remove
from mmload.store.manifest import read


@pytest.fixture
def half(source, tmp_path):
    """The recipe of ``source``, whose build was interrupted."""
    made = recipe(source, tmp_path / "out")
    interrupted(build, made, after=8)
    return made


def test_a_finished_build_does_nothing_and_changes_are_said(squares, source):
    out = squares.out
    assert build(squares).built == 0
    with pytest.raises(BuildError, match=r"another recipe \(.*\); add --overwrite"):
        build(recipe(source, out, shard_bytes=9000))
    (source / "class0" / "0.jpg").rename(source / "class0" / "new.jpg")
    with pytest.raises(
        BuildError, match="has changed since; run mmload update to build only what has changed, or add --over"
    ):
        build(squares)
    assert build(squares, overwrite=True).built == 15
    assert "class0/new.jpg" in (out / "train/samples.jsonl").read_text()


def test_overwrite_never_removes_what_is_no_dataset(source, tmp_path):
    (tmp_path / "home").mkdir()
    thesis = tmp_path / "home" / "thesis.tex"
    thesis.write_text("years of work")
    with pytest.raises(BuildError, match="is not a dataset"):
        build(recipe(source, tmp_path / "home"), overwrite=True)
    assert thesis.read_text() == "years of work"
    thesis.unlink()
    assert build(recipe(source, tmp_path / "home")).built == 15  # an empty folder is as good as none


def test_interrupted_builds_go_on_from_sealed_shards(half, source, tmp_path):
    build(recipe(source, tmp_path / "whole"))
    assert not half.out.exists()
    assert 0 < build(half).built < 15
    assert contents(half.out) == contents(tmp_path / "whole")


def test_an_unfinished_build_of_something_else_is_said(half, source, monkeypatch):
    with pytest.raises(BuildError, match=r"unfinished build of another recipe \(.*\); add --overwrite"):
        build(recipe(source, half.out, shard_bytes=9000))
    now = made_by()
    assert {"mmload", "torch", "torchvision", "pillow", "simplejpeg", "numpy"} <= now.keys()
    assert re.match(r"\d+\.\d+", now["libjpeg-turbo of simplejpeg"])  # of a wheel
    with monkeypatch.context() as patch:
        patch.setattr("mmload.builder.planned_build.made_by", lambda: now | {"simplejpeg": "99"})
        with pytest.raises(BuildError, match='simplejpeg is "99", was '):
            build(half)
    (source / "class2" / "0.jpg").unlink()
    with pytest.raises(BuildError, match="a source that has changed since"):
        build(half)
    assert build(half, overwrite=True).built == 14


def test_a_replaced_dataset_comes_back_where_there_is_no_other(squares, tmp_path):
    """As where somebody removed the new one, after a kill between the last two steps of a swap."""
    folder, expected = tmp_path / ".out.building", contents(squares.out)
    folder.mkdir()
    (folder / "lock").write_bytes(MARK)
    squares.out.rename(folder / "replaced")
    assert build(squares).built == 0
    assert contents(squares.out) == expected
    assert not folder.exists()


@pytest.mark.parametrize("swap", [exchange, lambda one, other: False], ids=["exchange", "renames"])
def test_an_overwrite_killed_in_its_swap_takes_the_old_dataset_for_no_update_of_the_new(
    squares, source, tmp_path, monkeypatch, swap
):
    """Of a dataset that was updated, and whose source is again as it was."""
    before, rename, removed = contents(squares.out), Path.rename, source / "class0" / "0.jpg"
    removed.rename(tmp_path / "0.jpg")
    update(squares)
    (tmp_path / "0.jpg").rename(removed)

    def killed(path, target):
        if path.name == "dataset":
            raise Killed
        return rename(path, target)

    with monkeypatch.context() as patch:
        patch.setattr(staging, "exchange", swap)
        patch.setattr(Path, "rename", killed)
        with pytest.raises(Killed):
            build(squares, overwrite=True)
    assert build(squares).built == 0
    assert read(squares.out).versions == ()
    assert contents(squares.out) == before


def test_overwrite_again_after_a_kill_in_its_last_steps_does_nothing(squares, source, tmp_path, monkeypatch):
    """The new dataset stands; what was killed is the removal of the folder beside it."""
    again = recipe(source, squares.out, shard_bytes=9000)
    build(recipe(source, tmp_path / "new", shard_bytes=9000))

    def killed(path):
        if path.name == "notes" and not path.with_name("dataset").exists():
            raise Killed
        remove(path)

    with monkeypatch.context() as patch:
        patch.setattr(staging, "remove", killed)
        with pytest.raises(Killed):
            build(again, overwrite=True)
    assert build(again, overwrite=True).built == 0
    assert contents(again.out) == contents(tmp_path / "new")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["new", "out", "photos"]
    assert build(again, overwrite=True).built == 15


def test_a_build_killed_while_it_wrote_its_manifest_leaves_no_half_of_it_in_the_dataset(source, tmp_path, monkeypatch):
    made = recipe(source, tmp_path / "out")

    def killed(paths, place, blocks):
        (paths.folder / "notes" / "dataset.json.0123456789abcdef.partial").write_bytes(blocks[0][:100])
        raise Killed

    with monkeypatch.context() as patch:
        patch.setattr(staging, "write_blocks", killed)
        with pytest.raises(Killed):
            build(made)
    assert build(made).built == 0
    found = contents(made.out)
    shutil.rmtree(made.out)
    build(made)
    assert contents(made.out) == found


@pytest.mark.parametrize("count", [3, 2000])
def test_a_fingerprint_asks_each_sample_once(count):
    class Counting:
        classes = ()
        revisions = ["same"] * count

        def __init__(self):
            self.asked = []

        def __len__(self):
            return count

        def id(self, index):
            return str(index)

        def revision(self, index):
            self.asked.append(index)
            return self.revisions[index]

    split = Counting()
    first = fingerprint({"train": split})
    assert split.asked == list(range(count))
    split.revisions[1] = "changed"
    assert fingerprint({"train": split}) != first
