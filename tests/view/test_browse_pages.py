"""What the page of ``mmload browse`` gets: rows by pages and classes, pictures, boxes, masks, photographs, draws."""

from __future__ import annotations

import base64
import io
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from building import recipe
from conftest import make_folder
from devkit import Devkit, thing
from PIL import Image
from python_datasets import MADE

from mmload.augment import RandomCrop, RandomHorizontalFlip
from mmload.augment.collate import Collate
from mmload.augment.step import sample_seeds
from mmload.builder.pipeline import build
from mmload.builder.recipe import BuildRecipe
from mmload.cli.options import training_of
from mmload.remote.opening import open as open_dataset
from mmload.store.dataset import Dataset
from mmload.view.browse_pages import DRAWS, Originals, Pages

HOSTILE = "<img src=x onerror=alert(1)>"


def pages(dataset: Path, tmp_path: Path, **options: object) -> Pages:
    return Pages(dataset, tmp_path / "marks.txt", **options)  # type: ignore[arg-type]  # the options of a test


def got(page: Pages, place: str, **query: object):
    return page.get(place, {name.removesuffix("_"): str(value) for name, value in query.items()})


def data(page: Pages, place: str, **query: object):
    reply = got(page, place, **query)
    assert reply.status == 200, reply.body
    return json.loads(reply.body)


def pixels(page: Pages, place: str, **query: object) -> np.ndarray:
    reply = got(page, place, **query)
    assert reply.status == 200, reply.body
    assert reply.kind == "image/png"
    return opened(reply.body)


def opened(picture: bytes) -> np.ndarray:
    return np.asarray(Image.open(io.BytesIO(picture)).convert("RGB"))


def complaint_of(page: Pages, place: str, **query: object) -> str:
    reply = got(page, place, **query)
    assert reply.status == 400
    return str(json.loads(reply.body)["error"])


def made(out: Path, samples: list[object], **more: object) -> Path:
    """A dataset of Python values."""
    MADE["browsed"] = samples
    options = {"dataset": "python_datasets:made", "arguments": {"name": "browsed"}, **more}
    helper = Path(__file__).parents[1] / "helpers"
    build(BuildRecipe(kind="python", root=helper, out=out, options=options), processes=1)
    return out


def check_drawn(page: Pages, *legend: str) -> None:
    """Boxes or masks are drawn into row 0, but not into the plain one, and have this legend."""
    assert [each["name"] for each in data(page, "api/row", split="train", row=0)["legend"]] == list(legend)
    plain = pixels(page, "image/stored", split="train", row=0, plain="")
    assert (plain != pixels(page, "image/stored", split="train", row=0)).any()


def test_pages_and_classes_are_those_of_the_dataset(dataset: Dataset, tmp_path: Path) -> None:
    page, train = pages(dataset.path, tmp_path), dataset["train"]
    about = data(page, "api/about")
    assert about["splits"] == [
        {
            "name": "train",
            "rows": 18,
            "classes": [{"name": name, "rows": 6} for name in ("ant", "bee", "cat")],
            "filter": True,
            "images": True,
        }
    ]
    ids = [source.id for source in train.source(slice(None))]
    for offset in (0, 5, 10, 15, 10**17):
        body = data(page, "api/rows", split="train", offset=offset, count=5)
        assert [row["row"] for row in body["rows"]] == list(range(18))[offset : offset + 5]
        assert [row["id"] for row in body["rows"]] == ids[offset : offset + 5]
    targets = train.rows(range(18)).targets
    for index, name in enumerate(train.classes):
        body = data(page, "api/rows", split="train", class_=index, offset=1, count=3)
        assert body["total"] == 6
        assert [row["row"] for row in body["rows"]] == (targets == index).nonzero().flatten().tolist()[1:4]
        assert {row["name"] for row in body["rows"]} == {name}


def test_a_stored_picture_is_the_row_in_every_shard(dataset: Dataset, tmp_path: Path) -> None:
    page, train = pages(dataset.path, tmp_path), dataset["train"]
    for row in (0, 4, 5, 17):
        shown = pixels(page, "image/stored", split="train", row=row)
        assert shown.shape == (512, 512, 3)  # grown by a whole factor
        stored = train.rows([row]).images[0].permute(1, 2, 0).numpy()
        assert np.array_equal(shown[::16, ::16], stored)
        assert pixels(page, "image/thumbnail", split="train", row=row).shape == (160, 160, 3)
        body = data(page, "api/row", split="train", row=row)
        assert (body["id"], tuple(body["size"])) == (train.source(row).id, train.source(row).size)
        assert (body["shape"], body["boxes"], body["mask"]) == ([3, 32, 32], None, False)


@pytest.mark.parametrize(
    ("place", "query", "expected"),
    [
        ("api/rows", {"split": "x"}, "has no split 'x'; it has train"),
        ("api/row", {"row": 18}, "row 18 is not in split train"),
        ("image/stored", {"row": 18}, "row 18 is not in split train"),
        ("api/row", {"row": -1}, "row is '-1'"),
        ("api/row", {}, "row is ''"),
        ("api/rows", {"class": "٣"}, "class is '٣'"),
        ("api/rows", {"class": 3}, "has no class 3"),
        ("api/draws", {"row": 0}, "with --augment"),
        ("image/source", {"row": 0}, "--source ROOT"),
    ],
)
def test_what_is_not_there_is_said(
    place: str, query: dict[str, object], expected: str, dataset: Dataset, tmp_path: Path
) -> None:
    assert expected in complaint_of(pages(dataset.path, tmp_path), place, **{"split": "train", **query})


def test_boxes_of_a_class_are_found_and_drawn(devkit: Devkit, tmp_path: Path) -> None:
    devkit.add("a", thing("dog", (2, 2, 7, 5)), thing("cat", (1, 1, 3, 3)))
    devkit.add("b", thing("dog"))
    devkit.add("c")
    devkit.list("train", "a", "b", "c")
    devkit.list("val", "b")
    build(recipe(devkit.root, tmp_path / "out", kind="voc", options={"classes": ["bird", "cat", "dog"]}))
    page = pages(tmp_path / "out", tmp_path, source=devkit.root)
    rows = [[row["row"] for row in data(page, "api/rows", split="train", class_=each)["rows"]] for each in range(3)]
    assert rows == [[], [0], [0, 1]]  # bird, cat, dog
    assert [row["name"] for row in data(page, "api/rows", split="train")["rows"]] == ["cat, dog", "dog", ""]
    body = data(page, "api/row", split="train", row=0)
    assert (body["boxes"], body["mask"], body["source"]) == (2, False, "")
    check_drawn(page, "cat", "dog")
    assert pixels(page, "image/source", split="train", row=0).shape == (6, 8, 3)


def test_masks_have_a_legend_and_no_filter(devkit: Devkit, tmp_path: Path) -> None:
    mask = np.zeros((6, 8), np.uint8)
    mask[:3, :4], mask[5] = 2, 255
    devkit.add("a", mask=mask)
    devkit.list("train", "a", kind="Segmentation")
    options = {"task": "segmentation", "classes": ["cat", "dog"]}
    build(recipe(devkit.root, tmp_path / "out", kind="voc", options=options))
    page = pages(tmp_path / "out", tmp_path)
    assert not data(page, "api/about")["splits"][0]["filter"]
    assert data(page, "api/row", split="train", row=0)["mask"]
    check_drawn(page, "dog", "void")


def test_gray_four_channels_several_labels_and_no_images(tmp_path: Path) -> None:
    random = torch.Generator().manual_seed(0)
    for channels in (1, 4):
        image = torch.randint(0, 256, (channels, 9, 7), generator=random, dtype=torch.uint8)
        vector = torch.tensor([0.0, 1.0, 1.0])
        out = made(tmp_path / str(channels), [(image, vector), (image, torch.tensor([1.0, 0.0, 0.0]))])
        page = pages(out, tmp_path)
        assert pixels(page, "image/stored", split="train", row=1).shape == (504, 392, 3)
        assert data(page, "api/row", split="train", row=0)["shape"] == [channels, 9, 7]
        assert data(page, "api/rows", split="train")["rows"][0]["name"] == "1, 2"
    plain = pages(made(tmp_path / "features", [(torch.ones(5), 1), (torch.zeros(5), 0)]), tmp_path)
    assert not data(plain, "api/about")["splits"][0]["images"]
    assert data(plain, "api/row", split="train", row=0)["shape"] is None
    assert "has no uint8 images to show" in complaint_of(plain, "image/stored", split="train", row=0)


def test_several_labels_filter_by_each(tmp_path: Path) -> None:
    class Labeled(list):  # type: ignore[type-arg]
        classes = ("a", "b", "c")

    image = np.zeros((4, 4, 3), np.uint8)
    vectors = [torch.tensor(each) for each in ([1.0, 0.0, 0.25], [0.0, 0.0, 0.75], [0.0, 0.0, 0.0])]
    page = pages(made(tmp_path / "out", Labeled((image, each) for each in vectors)), tmp_path)
    rows = [[row["row"] for row in data(page, "api/rows", split="train", class_=each)["rows"]] for each in range(3)]
    assert rows == [[0], [], [0, 1]]


def test_draws_are_those_of_the_epochs(dataset: Dataset, tmp_path: Path) -> None:
    seen: list[list[int]] = []

    class Recorded(Collate):
        def forward(self, batch: Any) -> Any:
            seen.append(batch.ids.tolist())
            return super().forward(batch)

    def collate_for(classes: int) -> Collate:
        assert classes == 3
        return Recorded(RandomCrop(24), RandomHorizontalFlip())

    page = pages(dataset.path, tmp_path, augmentation="crop", collate_for=collate_for)
    draws = data(page, "api/draws", split="train", row=16)["draws"]
    assert [draw["name"] for draw in draws] == [f"draw {number}" for number in range(1, DRAWS + 1)]
    drawn = [opened(base64.b64decode(draw["picture"].removeprefix("data:image/png;base64,"))) for draw in draws]
    assert len({each.tobytes() for each in drawn}) > DRAWS // 2
    assert seen == [[16, 17, 15, 14, 13, 12, 11, 10]] * DRAWS  # with others to mix with
    split = dataset["train"]
    for epoch in (0, 7):
        batch = split.rows(seen[0])
        made = Collate(RandomCrop(24), RandomHorizontalFlip())(
            batch.replace(seeds=sample_seeds(0, epoch, torch.tensor(seen[0])))
        )
        assert np.array_equal(drawn[epoch][::9, ::9], (made.images[0] * 255).round().permute(1, 2, 0).numpy())


def test_draws_that_cannot_be_made_are_said(dataset: Dataset, tmp_path: Path) -> None:
    page = pages(dataset.path, tmp_path, augmentation="x", collate_for=lambda n: training_of("RandomCrop(99)", n).made)
    assert "these steps cannot render split 'train'" in complaint_of(page, "api/draws", split="train", row=0)


def test_photographs_come_from_below_the_source_only(tmp_path: Path) -> None:
    photos = make_folder(tmp_path / "photos", 2, ("a",))
    (tmp_path / "photos" / HOSTILE.replace("/", "_")).mkdir()
    (photos / HOSTILE / "x.png").write_bytes((photos / "a" / "00.png").read_bytes())
    build(recipe(photos, tmp_path / "out"))
    (tmp_path / "secret.png").write_bytes((photos / "a" / "00.png").read_bytes())
    page = pages(tmp_path / "out", tmp_path, source=photos)
    for row in range(3):
        name = open_dataset(tmp_path / "out")["train"].source(row).id
        assert np.array_equal(
            pixels(page, "image/source", split="train", row=row), np.asarray(Image.open(photos / name))
        )
    (photos / "a" / "00.png").unlink()
    (photos / "a" / "00.png").symlink_to(tmp_path / "secret.png")
    (photos / "a" / "01.png").write_bytes(b"nothing")
    rows = {row["id"]: row["row"] for row in data(page, "api/rows", split="train")["rows"]}
    assert "file a/00.png does not exist" in data(page, "api/row", split="train", row=rows["a/00.png"])["source"]
    assert "file a/00.png does not exist" in complaint_of(page, "image/source", split="train", row=rows["a/00.png"])
    assert got(page, "image/source", split="train", row=rows["a/01.png"]).status == 500
    originals = Originals(photos, open_dataset(tmp_path / "out").manifest.recipe)
    for name in ("../secret.png", str(tmp_path / "secret.png"), "a/../../secret.png", "", ".", "a", "x\0"):
        with pytest.raises(Exception, match="does not exist"):
            originals.picture(name)


def test_what_shows_stored_rows_needs_no_torch(dataset: Dataset, folder: Path, tmp_path: Path) -> None:
    """Torch alone takes two seconds."""
    program = f"""
import sys
from pathlib import Path
from mmload.cli.app import main
from mmload.cli.view import browse
from mmload.cli.terminal import check_target
from mmload.view.browse_pages import Pages
from mmload.view.browse_server import Server
dataset, marks = Path({str(dataset.path)!r}), Path({str(tmp_path / "m.txt")!r})
check_target("--marks", marks, dataset, None)
pages = Pages(dataset, marks, source=Path({str(folder)!r}))
Server(pages).server_close()
for place in ("", "api/about", "api/rows", "api/row", "image/stored", "image/thumbnail"):
    reply = pages.get(place, {{"split": "train", "row": "1", "class": "1"}})
    assert reply.status == 200, reply
assert pages.post("api/marks", b'{{"split": "train", "row": 1, "reason": "broken"}}').status == 200
for words in (["info", str(dataset)], ["preview", str(dataset), "-o", {str(tmp_path / "a.png")!r}]):
    sys.argv = ["mmload", *words]
    try:
        main()
    except SystemExit as done:
        assert done.code == 0
assert "torch" not in sys.modules
"""
    subprocess.run([sys.executable, "-c", program], check=True)
    assert (tmp_path / "a.png").exists()
