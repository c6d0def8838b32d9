"""Every public function that takes a path takes it as text, too."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from cifar_files import write_cifar10
from devkit import Devkit, thing

import mmload
from mmload import parity
from mmload.bench.options import BenchOptions
from mmload.bench.run import run_on_dataset
from mmload.builder import recipe, verify
from mmload.errors import RecipeError, SourceError, StoreError
from mmload.sources import find_splits
from mmload.sources.cifar import Cifar10Source
from mmload.sources.decode import Decoder
from mmload.sources.imagefolder import ImageFolderSource
from mmload.sources.python import PythonSource
from mmload.sources.sample_list import ListSource
from mmload.sources.voc import VocSource
from mmload.store.manifest import read


@pytest.fixture
def out(folder: Path, tmp_path: Path) -> str:
    """A dataset that a recipe of texts built."""
    told = mmload.BuildRecipe(kind="imagefolder", root=str(folder), out=f"{tmp_path}/out", transforms=recipe.square(48))
    assert mmload.build(told).out == tmp_path / "out"
    return f"{tmp_path}/out"


def test_a_home_folder_and_no_path_are_as_in_a_file() -> None:
    assert mmload.BuildRecipe(kind="imagefolder", root="~/photos").root == Path.home() / "photos"
    for wrong in ("", 3, b"photos", "a\0b"):
        with pytest.raises(RecipeError, match="root is "):
            mmload.BuildRecipe(kind="imagefolder", root=wrong)


def test_build_verify_repair(out: str, folder: Path) -> None:
    assert verify.verify(out) == []
    assert verify.compare(out, str(folder)) == []
    (Path(out) / "train/000000/images.memmap").write_bytes(b"")
    assert len(verify.repair(out, str(folder))) == 1
    assert read(out) == read(Path(out))
    assert len(mmload.Loader(out, batch_size=2)) == 9


def test_sources(folder: Path, devkit: Devkit, tmp_path: Path) -> None:
    devkit.add("a", thing("cat"))
    devkit.list("train", "a")
    assert len(find_splits("imagefolder", str(folder), Decoder(), {})["train"]) == 18
    assert len(ImageFolderSource(str(folder), Decoder()).splits()["train"]) == 18
    assert VocSource(str(devkit.root), Decoder(), classes="auto").splits()["train"].classes
    assert Cifar10Source(str(write_cifar10(tmp_path)), Decoder()).splits()["train"].read(0)
    assert PythonSource(".", Decoder(), dataset="torchvision.datasets:FakeData").splits()


def test_lists_and_recipes(tmp_path: Path, folder: Path) -> None:
    shutil.copy(folder / "ant" / "00.png", tmp_path / "a.png")
    (tmp_path / "list.csv").write_text("path,label\na.png,x\n")
    assert len(ListSource(f"{tmp_path}/list.csv", Decoder()).splits()["train"]) == 1
    (tmp_path / "r.toml").write_text('[source]\nkind = "imagefolder"\n')
    assert recipe.load(f"{tmp_path}/r.toml").kind == "imagefolder"


@pytest.mark.slow
def test_parity_and_bench(out: str, folder: Path, tmp_path: Path) -> None:
    report = parity.run(out, str(folder), rows=2)
    assert report.passed
    with pytest.raises(StoreError, match="no such dataset"):
        run_on_dataset(f"{tmp_path}/none", str(folder), BenchOptions())
    with pytest.raises(SourceError, match="no such folder"):
        run_on_dataset(out, f"{tmp_path}/none", BenchOptions())
