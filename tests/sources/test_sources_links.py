"""Links in a source: inside of its root they are followed, out of it only where that is allowed."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

import pytest
from building import EXACT
from devkit import Devkit
from picture_folders import folder_of

from mmload.builder.pipeline import build
from mmload.builder.recipe import BuildRecipe
from mmload.builder.verify import compare, repair, verify
from mmload.errors import MmloadError, RecipeError, SourceError, StoreError
from mmload.sources import SourceSplit, find_splits
from mmload.sources.decode import Decoder


def train(kind: str, root: Path, **options: Any) -> SourceSplit:
    return find_splits(kind, root, Decoder(), options)["train"]


@pytest.fixture
def secret(tmp_path: Path) -> Path:
    return folder_of(tmp_path / "secret", "a.png", "deep/b.png")


@pytest.mark.parametrize(
    ("link", "target"),
    [
        ("ant/9.png", "secret/a.png"),
        ("ant/more", "secret/deep"),
        ("ant/more/even", "secret/deep"),
        ("bee", "secret"),
        ("ant/relative.png", "../../secret/a.png"),
        ("ant/gone.png", "secret/nothing.png"),
    ],
)
def test_an_image_folder_with_a_link_out_of_it(tmp_path: Path, secret: Path, link: str, target: str) -> None:
    root = folder_of(tmp_path / "root", "ant/1.png")
    place = root / link
    place.parent.mkdir(parents=True, exist_ok=True)
    place.symlink_to(target if target.startswith("..") else tmp_path / target)
    with pytest.raises(SourceError, match=f"{place} leads out of {root}, to .*--set allow_outside=true"):
        train("imagefolder", root)
    assert len(train("imagefolder", root, allow_outside=True)) > 1
    with pytest.raises(RecipeError, match="allow_outside is 'yes'"):
        train("imagefolder", root, allow_outside="yes")


def test_a_linked_split(tmp_path: Path) -> None:
    folder_of(tmp_path / "secret", "ant/1.png")
    root = folder_of(tmp_path / "root", "val/ant/1.png")
    (root / "train").symlink_to(tmp_path / "secret")
    with pytest.raises(SourceError, match=r"root/train/ant leads out of"):
        train("imagefolder", root)
    assert len(train("imagefolder", root, allow_outside=True)) == 1


@pytest.mark.parametrize("target", ["../step/a.png", "../step/deep/../a.png", "3.png"])
def test_links_by_links(tmp_path: Path, secret: Path, target: str) -> None:
    root = folder_of(tmp_path / "root", "ant/1.png", "other/x/1.png")
    (root / "step").symlink_to(root / "other" / "x" / "hop")
    (root / "other" / "x" / "hop").symlink_to(secret)
    (root / "ant" / "2.png").symlink_to(target)
    (root / "ant" / "3.png").symlink_to("../step/a.png")
    with pytest.raises(SourceError, match=r"root/ant/2.png leads out of"):
        train("imagefolder", root)


def test_links_that_stay_inside_and_a_linked_root(tmp_path: Path) -> None:
    root = folder_of(tmp_path / "root", "ant/1.png", "bee/2.png", "store/x.png")
    (root / "ant" / "2.png").symlink_to("../bee/2.png")
    (root / "cow").symlink_to(root / "store")
    (tmp_path / "link").symlink_to(root)
    for folder in (root, tmp_path / "link", Path(os.path.relpath(root))):
        split = train("imagefolder", folder)
        assert [split.id(i) for i in range(len(split))] == [
            "ant/1.png", "ant/2.png", "bee/2.png", "cow/x.png", "store/x.png",
        ]  # fmt: skip


@pytest.mark.parametrize(
    "name", ["JPEGImages/a.jpg", "Annotations/a.xml", "JPEGImages", "ImageSets/Main/train.txt", ""]
)
def test_voc(devkit: Devkit, tmp_path: Path, name: str) -> None:
    devkit.add("a")
    devkit.list("train", "a")
    place, away = devkit.home / name, tmp_path / "away"
    if name == "JPEGImages/a.jpg":
        place = next((devkit.home / "JPEGImages").glob("a.*"))
    place.rename(away)
    place.symlink_to(away)
    root = devkit.root
    with pytest.raises(SourceError, match=r"leads out of .*, to .*away"):
        train("voc", root, image_set="train")
    assert train("voc", root, image_set="train", allow_outside=True).read(0).fields
    if not name:
        assert train("voc", place, image_set="train").read(0).fields  # the root itself may be a link


@pytest.mark.parametrize("link", ["a.png", "sub", "list.csv"])
def test_list_reads_no_files_outside_by_links(tmp_path: Path, secret: Path, link: str) -> None:
    root = folder_of(tmp_path / "root", "b.png")
    lines = {"a.png": "a.png,0\n", "sub": "sub/b.png,0\n", "list.csv": "b.png,0\n"}[link]
    at = secret / "list.csv" if link == "list.csv" else root / "list.csv"
    at.write_text(f"path,label\n{lines}")
    (root / link).symlink_to({"a.png": secret / "a.png", "sub": secret / "deep", "list.csv": at}[link])
    with pytest.raises(SourceError, match="leads out of .*--set allow_outside=true"):
        train("list", root, file="list.csv")
    assert train("list", root, file="list.csv", allow_outside=True).read(0).fields
    if link == "sub":
        (root / "list.csv").write_text("path,label\nb.png,0\n")
        with pytest.raises(SourceError, match="leads out of"):
            train("list", root, file="list.csv", folder="sub")
        assert train("list", root, file="list.csv", folder="../secret/deep").read(0).fields  # it says so itself


@pytest.mark.parametrize("name", ["cifar-10-batches-py", "cifar-10-batches-py/test_batch"])
def test_cifar(tmp_path: Path, name: str) -> None:
    folder = tmp_path / "root" / "cifar-10-batches-py"
    folder.mkdir(parents=True)
    for batch in [*(f"data_batch_{number}" for number in range(1, 6)), "test_batch", "batches.meta"]:
        (folder / batch).write_bytes(b"x")
    place = tmp_path / "root" / name
    place.rename(tmp_path / "away")
    place.symlink_to(tmp_path / "away")
    with pytest.raises(SourceError, match="leads out of"):
        train("cifar10", tmp_path / "root")
    with pytest.raises(SourceError, match="not a CIFAR batch"):
        train("cifar10", tmp_path / "root", allow_outside=True)


@pytest.mark.parametrize("name", ["train", "train/000001"])
def test_repair_writes_through_no_link(copy: Path, folder: Path, tmp_path: Path, name: str) -> None:
    away = tmp_path / "away"
    shutil.move(copy / name, away)
    (copy / name).symlink_to(away)
    assert verify(copy) == []
    assert compare(copy, folder) == []
    (copy / "train" / "000001" / "images.memmap").write_bytes(b"")
    before = {path: path.stat().st_mtime_ns for path in sorted(away.rglob("*"))}
    with pytest.raises(StoreError, match=f"{copy / name} is a link to"):
        repair(copy, folder)
    assert {path: path.stat().st_mtime_ns for path in sorted(away.rglob("*"))} == before


def test_a_build_says_it_in_one_line(source: Path, tmp_path: Path, secret: Path) -> None:
    (source / "class1" / "9.png").symlink_to(secret / "a.png")
    recipe = BuildRecipe(kind="imagefolder", root=source, out=tmp_path / "out", transforms=EXACT)
    with pytest.raises(MmloadError, match="--set allow_outside=true"):
        build(recipe, threads=1, on_error="skip")
    assert not (tmp_path / "out").exists()
