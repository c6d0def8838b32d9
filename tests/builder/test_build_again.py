"""Builds at a place that is not empty: a finished one, half of one, one killed while it took the place of another."""

from __future__ import annotations

import pytest
from building import recipe
from conftest import contents

from mmload.builder.pipeline import build
from mmload.builder.planned_build import fingerprint
from mmload.builder.shards import BuildPaths, made_by
from mmload.builder.staging import MARK
from mmload.errors import BuildError
from mmload.runtime.durable_files import remove


def test_a_finished_build_does_nothing_and_changes_are_said(source, tmp_path):
    out = tmp_path / "out"
    build(recipe(source, out))
    assert build(recipe(source, out)).built == 0
    with pytest.raises(BuildError, match=r"another recipe \(.*\); add --overwrite"):
        build(recipe(source, out, shard_bytes=9000))
    (source / "class0" / "0.jpg").rename(source / "class0" / "new.jpg")
    with pytest.raises(
        BuildError, match="has changed since; run mmload update to build only what has changed, or add --over"
    ):
        build(recipe(source, out))
    assert build(recipe(source, out), overwrite=True).built == 15
    assert "class0/new.jpg" in (out / "train/samples.jsonl").read_text()


def test_overwrite_never_removes_what_is_no_dataset(source, tmp_path):
    home = tmp_path / "home"
    home.mkdir()
    (home / "thesis.tex").write_text("years of work")
    with pytest.raises(BuildError, match="is not a dataset"):
        build(recipe(source, home), overwrite=True)
    assert (home / "thesis.tex").exists()
    (home / "thesis.tex").unlink()
    assert build(recipe(source, home)).built == 15  # an empty folder is as good as none


def test_interrupted_builds_go_on_from_sealed_shards(source, tmp_path):
    build(recipe(source, tmp_path / "whole"))

    def stop(done, total):
        if done >= 8:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        build(recipe(source, tmp_path / "out"), threads=1, progress=stop)
    assert not (tmp_path / "out").exists()
    report = build(recipe(source, tmp_path / "out"))
    assert 0 < report.built < 15
    assert contents(tmp_path / "out") == contents(tmp_path / "whole")


def test_an_unfinished_build_of_something_else_is_said(source, tmp_path):
    def stop(done, total):
        if done >= 8:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        build(recipe(source, tmp_path / "out"), threads=1, progress=stop)
    with pytest.raises(BuildError, match=r"unfinished build of another recipe \(.*\); add --overwrite"):
        build(recipe(source, tmp_path / "out", shard_bytes=9000))
    (source / "class2" / "0.jpg").unlink()
    with pytest.raises(BuildError, match="a source that has changed since"):
        build(recipe(source, tmp_path / "out"))
    assert build(recipe(source, tmp_path / "out"), overwrite=True).built == 14


def test_a_build_does_not_go_on_with_other_decoders(source, tmp_path, monkeypatch):
    def stop(done, total):
        if done >= 8:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        build(recipe(source, tmp_path / "out"), threads=1, progress=stop)
    now = made_by()
    assert {"mmload", "torch", "torchvision", "pillow", "simplejpeg", "numpy"} <= now.keys()
    with monkeypatch.context() as patch:
        patch.setattr("mmload.builder.planned_build.made_by", lambda: now | {"simplejpeg": "99"})
        with pytest.raises(BuildError, match='simplejpeg is "99", was '):
            build(recipe(source, tmp_path / "out"))
        assert build(recipe(source, tmp_path / "out"), overwrite=True).built == 15


@pytest.mark.parametrize("complete", [True, False])
def test_a_kill_between_the_two_renames_of_a_swap_is_recovered(source, tmp_path, complete):
    out = (tmp_path / "out").resolve()
    build(recipe(source, out))
    before = contents(out)
    paths = BuildPaths(tmp_path / ".out.building")
    build(recipe(source, tmp_path / "new", shard_bytes=9000))
    after = contents(tmp_path / "new")
    paths.folder.mkdir()
    (paths.folder / "lock").write_bytes(MARK)
    out.rename(paths.folder / "replaced")
    if complete:
        (tmp_path / "new").rename(paths.dataset)
    wanted = recipe(source, out, shard_bytes=9000 if complete else 4000)
    assert build(wanted).built == 0
    assert contents(out) == (after if complete else before)
    assert not paths.folder.exists()


def test_overwrite_again_after_a_kill_in_its_last_steps_does_nothing(source, tmp_path, monkeypatch):
    """The new dataset stands; what was killed is the removal of the folder beside it."""
    out = tmp_path / "out"
    build(recipe(source, out))
    build(recipe(source, tmp_path / "new", shard_bytes=9000))

    def killed(path):
        if path.name == "notes" and not path.with_name("dataset").exists():
            raise KeyboardInterrupt
        remove(path)

    with monkeypatch.context() as patch:
        patch.setattr("mmload.builder.staging.remove", killed)
        with pytest.raises(KeyboardInterrupt):
            build(recipe(source, out, shard_bytes=9000), overwrite=True)
    assert build(recipe(source, out, shard_bytes=9000), overwrite=True).built == 0
    assert contents(out) == contents(tmp_path / "new")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["new", "out", "photos"]
    assert build(recipe(source, out, shard_bytes=9000), overwrite=True).built == 15


def test_a_build_killed_while_it_wrote_its_manifest_leaves_no_half_of_it_in_the_dataset(source, tmp_path, monkeypatch):
    build(recipe(source, tmp_path / "whole"))

    def killed(paths, place, blocks):
        (paths.folder / "notes" / "dataset.json.0123456789abcdef.partial").write_bytes(blocks[0][:100])
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("mmload.builder.staging.write_blocks", killed)
        with pytest.raises(KeyboardInterrupt):
            build(recipe(source, tmp_path / "out"))
    assert build(recipe(source, tmp_path / "out")).built == 0
    assert contents(tmp_path / "out") == contents(tmp_path / "whole")


@pytest.mark.parametrize("count", [3, 2000])
def test_a_fingerprint_asks_each_sample_once(count):
    class Counting:
        classes = ()

        def __init__(self):
            self.asked = []

        def __len__(self):
            return count

        def id(self, index):
            return str(index)

        def revision(self, index):
            self.asked.append(index)
            return "same"

    split = Counting()
    first = fingerprint({"train": split})
    assert split.asked == list(range(count))
    split.revision = lambda index: "changed" if index == 1 else "same"
    assert fingerprint({"train": split}) != first
