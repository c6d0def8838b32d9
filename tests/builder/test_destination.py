"""What may be at a build's destination: a dataset's own files are replaced, everything else stays."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import pytest
from building import recipe
from conftest import complaint, contents, mmload

from mmload.builder.pipeline import build
from mmload.builder.recipe import BuildRecipe, square
from mmload.builder.staging import check_apart, foreign
from mmload.builder.verify import repair, verify
from mmload.errors import BuildError, StoreError, UsageError
from mmload.store.manifest import read


def test_the_source_is_never_the_destination(source: Path, tmp_path: Path) -> None:
    (source / "dataset.json").write_text(json.dumps({"labels": [["class0/0.jpg", 0]]}))
    link = tmp_path / "link"
    link.symlink_to(source)
    before = contents(source)
    places = (source, link, source / "deep" / "out", tmp_path, source / ".." / "photos", link / "class0")
    for place in places:
        for overwrite in (False, True):
            with pytest.raises(UsageError, match="choose a place apart from the source"):
                build(recipe(source, place, shard_bytes=9000), overwrite=overwrite)
    assert "choose a place apart" in complaint(mmload("build", "imagefolder", source, source, "--overwrite"), 2)
    assert contents(source) == before


def test_folders_are_compared_by_inode_not_by_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a file system that does not tell Photos from photos."""
    (tmp_path / "Photos").mkdir()

    def samefile(self: Path, other: Path) -> bool:
        os.stat(str(self).replace("photos", "Photos"))
        return str(self).lower() == str(other).lower()

    monkeypatch.setattr(Path, "samefile", samefile)
    for place in ("photos", "photos/out"):
        with pytest.raises(UsageError):
            check_apart("imagefolder", tmp_path / "Photos", tmp_path / place)


def test_modules_may_be_imported_from_where_the_dataset_lies(tmp_path: Path) -> None:
    check_apart("python", tmp_path, tmp_path / "out")
    with pytest.raises(UsageError):
        check_apart("python", tmp_path, tmp_path)


def test_a_dataset_is_not_built_inside_another_one(source: Path, squares: BuildRecipe) -> None:
    before = contents(squares.out)
    for place in ("sub", "train/new/sub"):
        with pytest.raises(UsageError, match=f"lies in the dataset {squares.out}; choose a place beside it"):
            build(recipe(source, squares.out / place))
    assert contents(squares.out) == before
    (source.parent / "dataset.json").write_text('{"labels": []}')  # of another program
    assert build(recipe(source, source.parent / "beside")).built == 15


@pytest.mark.parametrize(
    "text",
    ['{"labels": []}', "not JSON", '{"format": "mmload dataset", "version": 99}', '{"format": "mmload", "version": 2}'],
)
def test_only_a_dataset_that_can_be_read_is_replaced(source: Path, out: Path, text: str) -> None:
    (out / "dataset.json").write_text(text)
    before = contents(out)
    for overwrite in (False, True):
        with pytest.raises(BuildError, match="is not a dataset that can be read") as told:
            build(recipe(source, out, shard_bytes=9000), overwrite=overwrite)
        assert "--overwrite" not in str(told.value)
    assert contents(out) == before


@pytest.mark.parametrize(
    "name", ["checkpoint.pt", "train/best.pt", "train/000000/notes.txt", "train/000099/x", "runs/1/log", "val"]
)
def test_a_folder_that_holds_more_is_not_replaced(source: Path, out: Path, name: str) -> None:
    (out / name).parent.mkdir(parents=True, exist_ok=True)
    (out / name).write_text("days of training")
    before = contents(out)
    with pytest.raises(BuildError, match=f"holds more than its dataset: {name.split('/')[0]}.*move the others"):
        build(recipe(source, out, shard_bytes=9000), overwrite=True)
    assert contents(out) == before
    assert build(recipe(source, out)).built == 0


def test_empty_folders_are_foreign(source: Path, out: Path) -> None:
    manifest = read(out)
    assert foreign(out, manifest) == []
    (out / "train" / "empty").mkdir()
    assert foreign(out, manifest) == ["train/empty"]
    for number in range(9):
        (out / f"more{number}").touch()
    with pytest.raises(BuildError, match="more0, more1, more2 and more;"):
        build(recipe(source, out), overwrite=True)


def test_a_file_that_appears_in_the_old_dataset_during_the_build_stays(source: Path, out: Path) -> None:
    before, more = contents(out), {"checkpoint.pt": b"days of training", "train/000000/more": b"more"}

    def place(done: int, total: int) -> None:
        for name, content in more.items():
            (out / name).write_bytes(content)

    with pytest.raises(BuildError, match="holds more than its dataset: checkpoint.pt, train/000000/more; .*move the"):
        build(recipe(source, out, shard_bytes=9000), overwrite=True, progress=place)
    assert contents(out) == before | more
    for name in more:
        (out / name).unlink()
    assert build(recipe(source, out, shard_bytes=9000), overwrite=True).built == 0
    assert verify(out) == []
    assert not (out.parent / ".out.building").exists()


def test_something_that_appears_at_an_empty_destination_stays(source: Path, tmp_path: Path) -> None:
    def place(done: int, total: int) -> None:
        (tmp_path / "out").mkdir(exist_ok=True)
        (tmp_path / "out" / "thesis.tex").write_text("years of work")

    with pytest.raises(BuildError, match="is not a dataset"):
        build(recipe(source, tmp_path / "out"), progress=place)
    assert contents(tmp_path / "out") == {"thesis.tex": b"years of work"}


@pytest.mark.parametrize("before", [False, True])
def test_a_dataset_that_appears_during_the_build_is_not_replaced(source: Path, tmp_path: Path, before: bool) -> None:
    """--overwrite is about what was there when the build began."""
    out, other = tmp_path / "out", tmp_path / "other"
    build(recipe(source, other, transforms=square(24)))
    if before:
        build(recipe(source, out, transforms=square(16)))

    def place(done: int, total: int) -> None:
        if done == total:
            shutil.rmtree(out, ignore_errors=True)
            shutil.copytree(other, out)

    with pytest.raises(
        BuildError, match="appeared during the build; move it elsewhere, then run the same command again"
    ):
        build(recipe(source, out), overwrite=True, progress=place)
    assert contents(out) == contents(other)
    shutil.rmtree(out)
    assert build(recipe(source, out), overwrite=True).built == 0
    assert verify(out) == []


def test_a_repair_writes_nothing_behind_links(source: Path, out: Path, tmp_path: Path) -> None:
    """Another dataset that shares a shard or a file by links keeps its bytes, and so does what a link points to."""
    other, whole = Path(shutil.copytree(out, tmp_path / "other")), contents(out)
    (other / "train" / "000001" / "images.memmap").write_bytes(b"changed")
    before = contents(other)
    (out / "train/000001/images.memmap").unlink()
    (out / "train/000001/images.memmap").symlink_to(other / "train/000001/images.memmap")
    assert repair(out, source)
    assert contents(out) == whole
    for name in ("train/000001", "train"):
        shutil.rmtree(out / name)
        (out / name).symlink_to(other / name)
        with pytest.raises(StoreError, match=f"{name} is a link to .*nothing is written or removed behind links"):
            repair(out, source)
        (out / name).unlink()
    assert contents(other) == before


def test_the_working_directory_is_not_replaced(source: Path, out: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = contents(out)
    for folder in (out, out / "train"):
        monkeypatch.chdir(folder)
        with pytest.raises(BuildError, match="the working directory lies in"):
            build(recipe(source, out), overwrite=True)
    assert contents(out) == before


def test_a_link_to_itself_is_no_destination(source: Path, tmp_path: Path) -> None:
    (tmp_path / "loop").symlink_to("loop")
    with pytest.raises((UsageError, BuildError)):
        build(recipe(source, tmp_path / "loop"))
