"""Every documented way to give rows to a Collate, over every layout of a dataset."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import ConcatDataset, DataLoader, Subset, random_split
from variable_datasets import some_images, variable_dataset
from written_datasets import of_tensors

from mmload.augment import CenterCrop, Resize, Views
from mmload.augment.collate import Collate
from mmload.augment.returns import Returns
from mmload.batch import Batch
from mmload.loader import Loader
from mmload.pictures.contact_sheet import contact_sheet
from mmload.remote.opening import open as open_dataset
from mmload.store.dataset import Split, cells_of_rows

SIZES = ((40, 30), (20, 50), (33, 41), (17, 23), (64, 48))
ROWS = len(SIZES)
BOXES = torch.tensor([[[1.0, 2, 12, 9], [3, 3, 16, 15]], [[2, 2, 14, 14], [0, 0, 0, 0]]])[[0, 1, 0, 1, 0]]
ANNOTATIONS = {
    "boxes": BOXES,
    "labels": torch.tensor([[1, 2], [3, -1]])[[0, 1, 0, 1, 0]],
    "counts": torch.tensor([2, 1])[[0, 1, 0, 1, 0]],
}


def written(path: Path, layout: str, annotated: bool) -> Split:
    sizes = ((32, 32),) * ROWS if layout == "squares" else SIZES
    images, fields = some_images(sizes), dict(ANNOTATIONS if annotated else {})
    masks = [(image[0] // 64).astype(np.uint8) for image in images] if annotated else None
    if layout != "squares":
        return open_dataset(variable_dataset(path, images, encoding=layout, masks=masks, fields=fields))["train"]
    if masks is not None:
        fields["masks"] = torch.from_numpy(np.stack(masks))
    tensors = {"images": torch.from_numpy(np.stack(images)), "targets": torch.arange(ROWS), **fields}
    return open_dataset(of_tensors(path, {"train": tensors}))["train"]


@pytest.fixture(scope="module", params=["squares", "raw", "jpeg", "mixed"])
def layout(request: pytest.FixtureRequest) -> str:
    """How rows are stored."""
    return str(request.param)


@pytest.fixture(scope="module", params=["images", "annotated"])
def split(request: pytest.FixtureRequest, layout: str, tmp_path_factory: pytest.TempPathFactory) -> Split:
    """Five rows in this layout, without and with boxes and masks."""
    return written(tmp_path_factory.mktemp(layout) / "data", layout, request.param == "annotated")


def collate() -> Collate:
    return Collate(Resize(14), CenterCrop(12), dtype=torch.uint8)


def stock(dataset: Any, collate: Any, workers: int = 0) -> Iterable[Any]:
    return DataLoader(dataset, batch_size=2, collate_fn=collate, num_workers=workers)


def in_batches(rows: Callable[[list[int]], Any], collate: Any) -> list[Any]:
    return [collate(rows([0, 1])), collate(rows([2])), collate(rows([3, 4]))]


def halves(split: Split) -> ConcatDataset[Batch]:
    return ConcatDataset([split.subset([0, 1, 2]), split.subset([3, 4])])


WAYS: dict[str, Callable[[Split, Any], Iterable[Any]]] = {
    "DataLoader": stock,
    "DataLoader with workers": lambda split, collate: stock(split, collate, workers=1),
    "DataLoader of Split.subset": lambda split, collate: stock(split.subset(range(ROWS)), collate),
    "DataLoader of Subset": lambda split, collate: stock(Subset(split, range(ROWS)), collate),
    "DataLoader of random_split": lambda split, collate: stock(random_split(split, [ROWS, 0])[0], collate),
    "DataLoader of ConcatDataset": lambda split, collate: stock(halves(split), collate),
    "DataLoader of Subset of ConcatDataset": lambda split, collate: stock(Subset(halves(split), range(ROWS)), collate),
    "split[list]": lambda split, collate: in_batches(lambda rows: split[rows], collate),
    "split[array]": lambda split, collate: in_batches(lambda rows: split[np.array(rows)], collate),
    "split[slice]": lambda split, collate: in_batches(lambda rows: split[rows[0] : rows[-1] + 1], collate),
    "split[mask]": lambda split, collate: in_batches(lambda rows: split[[n in rows for n in range(ROWS)]], collate),
    "list of rows": lambda split, collate: in_batches(lambda rows: [split[row] for row in rows], collate),
    "first part of a model": lambda split, collate: in_batches(lambda rows: split[rows], nn.Sequential(collate)),
    "part of a batch": lambda split, collate: in_batches(lambda rows: split[:][rows], collate),
    "Loader": lambda split, collate: Loader(split, batch_size=2, collate=collate),
    "Loader of Subset": lambda split, collate: Loader(Subset(split, range(ROWS)), batch_size=2, collate=collate),
    "Loader of ConcatDataset": lambda split, collate: Loader(halves(split), batch_size=2, collate=collate),
}


def assert_rows(found: list[Batch], split: Split, collate: Collate) -> None:
    """The batches have each row of the split once, as the collate makes it alone."""
    order = [row for batch in found for row in batch.ids.tolist()]
    assert sorted(order) == list(range(ROWS))
    alone = [collate(split[row][None]) for row in order]
    for name in ("images", "targets", "boxes", "labels", "counts", "masks"):
        expected = [getattr(row, name) for row in alone]
        if expected[0] is None:
            assert all(getattr(batch, name) is None for batch in found)
        else:
            assert torch.equal(torch.cat([getattr(batch, name) for batch in found]), torch.cat(expected)), name


@pytest.mark.parametrize("way", sorted(WAYS))
def test_collate_given_rows_in_any_documented_way_makes_the_same_batches(split: Split, way: str) -> None:
    assert_rows(list(WAYS[way](split, collate())), split, collate())


@pytest.mark.parametrize(
    "way", ["DataLoader", "DataLoader with workers", "DataLoader of Subset", "split[list]", "list of rows", "Loader"]
)
def test_views_given_rows_in_any_documented_way_make_the_same_batches(split: Split, way: str) -> None:
    both = list(WAYS[way](split, Views(*[collate()] * 2)))
    for view in range(2):
        assert_rows([views[view] for views in both], split, collate())


def test_returns_around_a_collate_gives_what_the_collate_makes(split: Split) -> None:
    found = list(stock(split, Returns(("images", "ids"), collate())))
    for images, ids in found:
        assert torch.equal(images, torch.cat([collate()(split[row][None]).images for row in ids.tolist()]))


@pytest.mark.parametrize("way", ["DataLoader", "DataLoader of ConcatDataset", "split[list]", "list of rows"])
def test_returns_torchvision_without_a_collate_gives_each_image_as_stored(
    tmp_path: Path, layout: str, way: str
) -> None:
    split = written(tmp_path / "data", layout, annotated=True)
    row = 0
    for images, targets in WAYS[way](split, Returns("torchvision")):
        for image, target in zip(images, targets, strict=True):
            assert torch.equal(image, split[row].images)
            assert torch.equal(target["masks"], split[row].masks)
            assert torch.equal(target["boxes"], split[row].boxes[: split[row].counts])
            row += 1
    assert row == ROWS


def test_preview_of_variable_size_rows_shows_each_as_stored(tmp_path: Path) -> None:
    split = written(tmp_path / "data", "mixed", annotated=True)
    expected = contact_sheet(cells_of_rows(split, [0, 3]), 8)
    assert split[[0, 3]].preview().tobytes() == expected.tobytes()
    assert split[[0, 3, 4]].preview(most=2).tobytes() == expected.tobytes()
