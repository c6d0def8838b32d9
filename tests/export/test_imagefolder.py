"""``mmload export --to imagefolder``: pixels, labels and names, back through ``mmload build``, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from conftest import complaint, mmload
from loading_stores import build_store
from PIL import Image
from torchvision.datasets import ImageFolder
from written_datasets import of_tensors

from mmload.builder.pipeline import build
from mmload.builder.recipe import BuildRecipe, VariableLayout
from mmload.errors import UsageError
from mmload.export import Choice, to_imagefolder
from mmload.export.chosen_rows import chosen_rows
from mmload.remote.opening import open as open_dataset
from mmload.store.dataset import Dataset


def same_rows(one: Dataset, other: Dataset, fields: set[str]) -> None:
    """Two datasets have the same rows in these fields."""
    assert one.keys() == other.keys()
    for name, split in one.items():
        mine, theirs = split.rows(slice(None)), other[name].rows(slice(None))
        for field in fields:
            assert torch.equal(getattr(mine, field), getattr(theirs, field)), field


def test_the_recipe_of_an_export_builds_the_same_rows(dataset: Dataset, tmp_path: Path) -> None:
    done = mmload("export", dataset.path, tmp_path / "out", "--threads", 2)
    assert done.returncode == 0, done.stderr
    command = f"mmload build --config {tmp_path / 'out' / 'recipe.toml'} {tmp_path / 'out'} NEW"
    assert done.stdout == f"{tmp_path / 'out'}: 18 rows as imagefolder\nnext:\n  {command}\n"
    again = mmload(*command.replace("NEW", str(tmp_path / "again")).split()[1:])
    assert again.returncode == 0, again.stderr
    rebuilt = open_dataset(tmp_path / "again")
    same_rows(dataset, rebuilt, {"images", "targets"})
    assert rebuilt["train"].classes == dataset["train"].classes
    assert [one.id for one in rebuilt["train"].source(range(18))] == [
        one.id for one in dataset["train"].source(range(18))
    ]
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith(".")] == []


@pytest.mark.parametrize("encode", ["raw", "jpeg"])
def test_variable_size_rows_are_the_same_again(encode: str, source: Path, tmp_path: Path) -> None:
    options = {"transforms": (), "variable_layout": VariableLayout(encode=encode)}
    build(BuildRecipe(kind="imagefolder", root=source, out=tmp_path / "built", **options))
    stored = open_dataset(tmp_path / "built")["train"]
    (command,) = to_imagefolder(open_dataset(stored.path), tmp_path / "out").next
    done = mmload(*command.replace("NEW", str(tmp_path / "again")).split()[1:])
    assert done.returncode == 0, done.stderr
    rebuilt = open_dataset(tmp_path / "again")["train"]
    assert len(rebuilt) == len(stored) == 15
    for one, other in ((rebuilt[row], stored[row]) for row in range(15)):
        assert torch.equal(one.images, other.images)
        assert torch.equal(one.targets, other.targets)


def test_it_is_an_image_folder(dataset: Dataset, tmp_path: Path) -> None:
    split = dataset["train"]
    assert to_imagefolder(dataset, tmp_path / "out").rows == 18
    folder = ImageFolder(str(tmp_path / "out" / "train"))
    assert tuple(folder.classes) == split.classes
    for (file, target), (image, _) in zip(folder.samples, folder, strict=True):
        row = int(Path(file).stem.rpartition("_")[2])
        assert target == int(split[row].targets)
        assert np.array_equal(np.asarray(image).transpose(2, 0, 1), split[row].images)
        assert Path(file).stem.rpartition("_")[0] == Path(split.source(row).id).stem


@pytest.mark.parametrize(("kind", "mode"), [("gray", "L"), ("four", "RGBA")])
def test_images_of_other_channels(kind: str, mode: str, tmp_path: Path) -> None:
    stored = open_dataset(build_store(kind, tmp_path / "built"))
    made = to_imagefolder(stored, tmp_path / "out", threads=1)
    name, split = next(iter(stored.items()))
    files = sorted((tmp_path / "out" / name).glob("*/*.png"), key=lambda file: file.stem.rpartition("_")[2])
    assert len(files) == len(split)
    for row, file in enumerate(files):
        with Image.open(file) as image:
            assert image.mode == mode
            pixels = np.asarray(image).reshape(*image.size[::-1], -1)
        assert np.array_equal(pixels.transpose(2, 0, 1), split[row].images)
    if kind == "gray":
        mmload(*made.next[0].replace("NEW", str(tmp_path / "again")).split()[1:])
        same_rows(stored, open_dataset(tmp_path / "again"), {"images", "targets"})
    else:
        assert made.next == []
        assert made.notes[0] == "an ImageFolder has no place for features: left out"
        assert made.notes[1].startswith("no recipe.toml: ")


def test_a_part_of_the_rows(dataset: Dataset, tmp_path: Path) -> None:
    done = mmload("export", dataset.path, tmp_path / "out", "--split", "train", "--class", "bee", "--limit", 4)
    assert done.returncode == 0, done.stderr
    lines = [json.loads(line) for line in (tmp_path / "out" / "labels.jsonl").read_text().splitlines()]
    bees = [row for row in range(18) if int(dataset["train"][row].targets) == 1][:4]
    assert [line["id"] for line in lines] == [dataset["train"].source(row).id for row in bees]
    assert {line["label"] for line in lines} == {1}
    assert sorted(path.name for path in (tmp_path / "out" / "train").iterdir()) == ["ant", "bee", "cat"]


def test_rows_of_a_class_are_those_with_a_share_of_it(tmp_path: Path) -> None:
    targets = torch.tensor([[0.0, 1.0], [0.25, 0.75], [1.0, 0.0], [0.5, 0.5]])
    images = torch.zeros((4, 3, 4, 4), dtype=torch.uint8)
    stored = of_tensors(tmp_path / "built", {"train": {"images": images, "targets": targets}}, classes=("ant", "bee"))
    (found,) = chosen_rows(open_dataset(stored), Choice(of_class="ant"))
    assert found.rows.tolist() == [1, 2, 3]


ODD = (
    "CON",
    "a/b",
    "../x",
    "<b>bold</b>",
    "Ant",
    "ant",
    ".hid",
    "nul.txt",
    "tail. ",
    "é",
    "e\u0301",
    "\udc80",
    "x" * 300,
)


def test_class_names_that_are_no_folder_names(tmp_path: Path) -> None:
    root = tmp_path / "list"
    root.mkdir()
    lines = []
    for number, _ in enumerate(ODD):
        Image.new("RGB", (4, 4), (number, 0, 0)).save(root / f"{number}.png")
        lines.append(json.dumps({"path": f"{number}.png", "label": number}))
    (root / "list.jsonl").write_text("\n".join(lines))
    options = {"file": "list.jsonl", "classes": list(ODD)}
    build(BuildRecipe(kind="list", root=root, out=tmp_path / "built", options=options))
    stored = open_dataset(tmp_path / "built")
    made = to_imagefolder(stored, tmp_path / "out")
    folders = [path.name for path in (tmp_path / "out" / "train").iterdir()]
    assert len(folders) == len({name.casefold() for name in folders}) == len(ODD)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["built", "list", "out"]
    assert any("'a/b' is a_b" in note for note in made.notes)
    assert any("sorted folders" in note for note in made.notes)
    assert mmload(*made.next[0].replace("NEW", str(tmp_path / "again")).split()[1:]).returncode == 0
    same_rows(stored, open_dataset(tmp_path / "again"), {"images", "targets"})
    names = open_dataset(tmp_path / "again")["train"].classes
    assert names == tuple(name.replace("\udc80", "\ufffd") for name in ODD)


@pytest.mark.parametrize("names", [(".", "", ".."), (" ", "b"), ("", "_"), ("\udc80", "\ufffd")])
def test_imagefolder_of_class_names_that_no_recipe_can_hold_has_no_recipe(
    names: tuple[str, ...], tmp_path: Path
) -> None:
    targets = torch.arange(len(names))
    images = torch.arange(len(names) * 48, dtype=torch.uint8).reshape(-1, 3, 4, 4)
    path = of_tensors(tmp_path / "built", {"train": {"images": images, "targets": targets}}, classes=names)
    made = to_imagefolder(open_dataset(path), tmp_path / "out")
    assert made.next == []
    assert any("no recipe.toml: " in note for note in made.notes)


REFUSED = (
    (["--to", "zip"], 2, "--to is 'zip': 'zip' is not one of 'imagefolder', 'coco', 'yolo'"),
    (["--name", "x"], 2, "--name is for --to fiftyone"),
    (["--split", "test"], 2, "has no split 'test'; it has train"),
    (["--class", "wasp"], 2, "has no class 'wasp'; it has ant, bee, cat"),
    (["--limit", "0"], 2, "limit is 0; give a positive number"),
    (["--threads", "0"], 2, "threads is 0"),
)


@pytest.mark.parametrize(
    ("words", "code", "said"), REFUSED, ids=lambda value: "".join(value) if type(value) is list else ""
)
def test_what_cannot_be_exported_is_refused(
    words: list[str], code: int, said: str, dataset: Dataset, tmp_path: Path
) -> None:
    assert said in complaint(mmload("export", dataset.path, tmp_path / "out", *words), code)
    assert [*tmp_path.iterdir()] == []


@pytest.mark.parametrize(
    ("kind", "to"), [("gray", "imagefolder"), ("detection", "coco"), ("soft", "huggingface"), ("bare", "huggingface")]
)
def test_export_without_a_format_takes_the_one_that_suits_the_rows(kind: str, to: str, tmp_path: Path) -> None:
    if to == "huggingface":
        pytest.importorskip("datasets")
    done = mmload("export", build_store(kind, tmp_path / "built"), tmp_path / "out")
    assert done.stdout.splitlines()[0].endswith(f" as {to}"), done.stderr


def test_rows_without_a_single_class_are_refused(tmp_path: Path) -> None:
    for kind, said in (("soft", "export them to huggingface"), ("bare", "has no uint8 images")):
        stored = open_dataset(build_store(kind, tmp_path / kind))
        with pytest.raises(UsageError, match=said):
            to_imagefolder(stored, tmp_path / "out")
