"""Builds at a place that is not empty: a finished one, half of one, one killed while it took the place of another."""

from __future__ import annotations

import pytest
from building import recipe
from conftest import contents

from mmload.build import build, fingerprint
from mmload.errors import BuildError
from mmload.manifest import read
from mmload.staging import Staging
from mmload.store import Site, remove


def test_a_finished_build_does_nothing_and_changes_are_said(source, tmp_path):
    out = tmp_path / "out"
    build(recipe(source, out))
    assert build(recipe(source, out)).built == 0
    with pytest.raises(BuildError, match="another recipe; add --overwrite"):
        build(recipe(source, out, shard_bytes=9000))
    (source / "class0" / "0.jpg").rename(source / "class0" / "new.jpg")
    with pytest.raises(BuildError, match="source has changed since; add --overwrite"):
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
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        build(recipe(source, tmp_path / "out"), progress=stop)
    with pytest.raises(BuildError, match="unfinished build of another recipe; add --overwrite"):
        build(recipe(source, tmp_path / "out", shard_bytes=9000))
    (source / "class2" / "0.jpg").unlink()
    with pytest.raises(BuildError, match="a source that has changed since"):
        build(recipe(source, tmp_path / "out"))
    assert build(recipe(source, tmp_path / "out"), overwrite=True).built == 14


def test_a_second_build_into_one_place_is_refused(source, tmp_path):
    with (
        Staging((tmp_path / "out").resolve()),
        pytest.raises(BuildError, match="another build is writing"),
    ):
        build(recipe(source, tmp_path / "out"))


@pytest.mark.parametrize("complete", [True, False])
def test_a_kill_between_the_two_renames_of_a_swap_is_recovered(source, tmp_path, complete):
    out = (tmp_path / "out").resolve()
    build(recipe(source, out))
    before = contents(out)
    site = Site(tmp_path / ".out.building")
    build(recipe(source, tmp_path / "new", shard_bytes=9000))
    after = contents(tmp_path / "new")
    site.folder.mkdir()
    out.rename(site.folder / "replaced")
    if complete:
        (tmp_path / "new").rename(site.dataset)
    wanted = recipe(source, out, shard_bytes=9000 if complete else 4000)
    assert build(wanted).built == 0
    assert contents(out) == (after if complete else before)
    assert not site.folder.exists()


@pytest.mark.parametrize("removed", ["notes", "plan.json"])
def test_overwrite_again_after_a_kill_in_its_last_steps_does_nothing(source, tmp_path, monkeypatch, removed):
    """The new dataset stands; what was killed is the removal of the folder beside it, just before one of its parts."""
    out = tmp_path / "out"
    build(recipe(source, out))
    build(recipe(source, tmp_path / "new", shard_bytes=9000))

    def killed(path):
        if path.name == removed and (path.parent / "plan.json").exists():  # not so when the build begins
            raise KeyboardInterrupt
        remove(path)

    with monkeypatch.context() as patch:
        patch.setattr("mmload.staging.remove", killed)
        with pytest.raises(KeyboardInterrupt):
            build(recipe(source, out, shard_bytes=9000), overwrite=True)
    assert build(recipe(source, out, shard_bytes=9000), overwrite=True).built == 0
    assert contents(out) == contents(tmp_path / "new")
    assert not (tmp_path / ".out.building").exists()
    assert build(recipe(source, out, shard_bytes=9000), overwrite=True).built == 15


def test_overwrite_after_a_kill_before_the_first_shard_builds(source, tmp_path):
    build(recipe(source, tmp_path / "out"))
    with Staging((tmp_path / "out").resolve()) as staging:
        manifest = read(tmp_path / "out")
        staging.begin({"recipe": manifest.recipe, "fingerprint": manifest.fingerprint})
    assert build(recipe(source, tmp_path / "out"), overwrite=True).built == 15


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

        def stamp(self, index):
            self.asked.append(index)
            return "same"

    split = Counting()
    first = fingerprint({"train": split})
    assert split.asked == list(range(count))
    split.stamp = lambda index: "changed" if index == 1 else "same"
    assert fingerprint({"train": split}) != first
