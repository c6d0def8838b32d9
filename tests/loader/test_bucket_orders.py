"""Batches of variable-size images of like shapes: each row once, for any ranks, resumable, and nothing cut off."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from loaded import begun, resumed, rows_of
from torch import Tensor, nn

from mmload import Collate, Loader
from mmload import open as open_dataset
from mmload.augment import (
    CenterCrop,
    ColorJitter,
    CutMix,
    MixUp,
    Normalize,
    RandomErasing,
    RandomHorizontalFlip,
    RandomShortestSize,
    RandomVerticalFlip,
    Resize,
    Views,
)
from mmload.batch import make_batch
from mmload.errors import UsageError
from mmload.loader import order as order_module
from mmload.loader.order import Order, bucket_order, shuffled_order, stored_order
from mmload.loader.orders import by_aspect, classes, weighted
from mmload.store.dataset import Dataset
from tests.helpers.loading_variable import build_variable_stores
from tests.helpers.variable_datasets import some_images, variable_dataset

SIZES = [(20 + 5 * (k % 4), 44 - 3 * k) for k in range(11)]


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    images = some_images(SIZES)
    boxes = torch.tensor([[[0.0, 0, width, height]] for height, width in SIZES])
    fields = {"boxes": boxes, "counts": torch.ones(len(SIZES), dtype=torch.int64)}
    folder = tmp_path_factory.mktemp("buckets")
    return variable_dataset(folder / "data", images, fields=fields, masks=[image[0] for image in images], shard_rows=4)


def aspects(rows: Any) -> np.ndarray:
    return (rows * np.uint64(2654435761) % np.uint64(97)).astype(np.float64)


def order(rows: int, together: int, is_drawn: bool = True, **ranks: Any) -> Order:
    source = shuffled_order(rows, 5) if is_drawn else stored_order(rows)
    return Order(epoch_order=bucket_order(source, aspects, together, 5), **ranks)


@pytest.mark.parametrize("rows", [0, 1, 7, 8, 9, 63, 64, 200])
@pytest.mark.parametrize("of", [True, False], ids=["shuffled", "stored"])
def test_each_row_comes_once_for_any_ranks_and_from_any_batch_on(
    rows: int, of: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(order_module, "BATCHES_SORTED", 4)
    whole = order(rows, 8, of).rows_for(2).tolist()
    assert sorted(whole) == list(range(rows))
    for world_size in (1, 2, 3):
        ranks = [order(rows, 8, of, rank=rank, world_size=world_size) for rank in range(world_size)]
        dealt = [one.rows_for(2) for one in ranks]
        assert [len(one) for one in ranks] == [len(one) for one in dealt]
        batches = [one[first : first + 8].tolist() for one in dealt for first in range(0, len(one), 8)]
        assert sorted(sum(batches, [])) == list(range(rows))
        assert all(batch == whole[whole.index(batch[0]) :][: len(batch)] for batch in batches)  # the batches of one
        used = ranks[0].consumed(8)
        rest = [row for one in ranks for row in one.take(2, 0, rows, used).rows.tolist()]
        assert sorted(rest + whole[:used]) == list(range(rows))
        ends = ranks[max(-(-rows // 8) - 1, 0) % world_size]  # the one whose last batch is the epoch's
        assert ends.consumed(len(ends)) == rows
        dropped = [order(rows, 8, of, rank=rank, world_size=world_size, tail="drop") for rank in range(world_size)]
        assert {len(one) for one in dropped} == {rows // 8 // world_size * 8}
        padded = [order(rows, 8, of, rank=rank, world_size=world_size, tail="pad") for rank in range(world_size)]
        assert {len(one) for one in padded} == {-(-rows // (8 * world_size)) * 8}
        assert {row for one in padded for row in one.rows_for(2).tolist()} == set(range(rows))


def test_batches_are_runs_of_the_sorted_window_and_come_in_any_order() -> None:
    rows = order(64 * 10, 10).rows_for(0)
    found = [sorted(aspects(batch)) for batch in rows.reshape(64, 10)]
    runs = sorted((batch[0], batch[-1]) for batch in found)
    assert all(before[1] <= after[0] for before, after in zip(runs[:-1], runs[1:], strict=True))
    assert [batch[0] for batch in found] != sorted(batch[0] for batch in found)
    assert rows.tolist() != order(64 * 10, 10).rows_for(1).tolist()


def test_bucket_batch_places_complete_images_at_the_top_left(path: Path) -> None:
    split = open_dataset(path)["train"]
    collate = Collate(RandomHorizontalFlip(1.0), RandomVerticalFlip(1.0), dtype=torch.uint8)
    batches = list(Loader(split, collate=collate, order=by_aspect(), batch_size=3, seed=1))
    assert sorted(rows_of(batches)) == list(range(len(SIZES)))
    for batch in batches:
        sizes = [SIZES[i] for i in batch.ids.tolist()]
        assert batch.image_sizes.tolist() == [list(size) for size in sizes]
        assert batch.images.shape[2:] == tuple(map(max, zip(*sizes, strict=True)))
        for k, (height, width) in enumerate(sizes):
            shown: Tensor = split[int(batch.ids[k])].images.flip(1, 2)
            image, mask = torch.zeros_like(batch.images[k]), torch.full_like(batch.masks[k], 255)
            image[:, :height, :width], mask[:height, :width] = shown, shown[0]
            assert torch.equal(batch.images[k], image)
            assert torch.equal(batch.masks[k], mask)
            assert batch.boxes[k].tolist() == [[0, 0, width, height]]


def test_sizes_on_the_canvas_stay_only_where_no_later_step_moves_or_mixes_images(path: Path) -> None:
    batch = make_batch({"targets": torch.arange(2)}, 2, seeds=torch.arange(2))
    sizes = torch.tensor([[20, 30], [24, 26]])

    def found(*steps: nn.Module) -> Any:
        prepared = Collate(*steps).prepare(batch, (3, 0, 0), sizes=sizes.numpy(), framed=True)
        got = prepared.finish(torch.zeros(prepared.shape, dtype=prepared.dtype)).image_sizes
        return got if got is None else got.tolist()

    jitter = ColorJitter(0.4)
    assert found() == found(jitter) == found(jitter, Normalize.imagenet()) == found(RandomErasing()) == sizes.tolist()
    assert found(Resize(10), jitter) == [[10, 15], [10, 10]]
    moving = (RandomHorizontalFlip(1.0), RandomVerticalFlip(1.0), CenterCrop(8), nn.Identity())
    assert [found(jitter, step) for step in moving] == [None] * 4
    mixing = MixUp(num_classes=2), CutMix(num_classes=2)
    assert [found(*steps, mix) for mix in mixing for steps in ((), (jitter,), (RandomErasing(),))] == [None] * 6
    assert found(Resize((8, 8))) is None
    loader = Loader(path, collate=Collate(RandomShortestSize(8, 20)), batch_size=4, returns=("image_sizes",))
    assert next(iter(loader))[0].shape == (4, 2)


def test_resizes_come_before_the_canvas_and_levels_after_it(path: Path) -> None:
    options: dict[str, Any] = {"fields": ("images",), "order": by_aspect("sequential"), "batch_size": 4, "seed": 1}
    steps = [Resize(24), RandomHorizontalFlip(), ColorJitter(0.4), Normalize.imagenet()]
    assert all(min(batch.images.shape[2:]) >= 24 for batch in Loader(path, collate=steps, **options))
    shapes = {tuple(batch.images.shape[1:]) for batch in Loader(path, collate=[Resize((20, 20))], **options)}
    assert shapes == {(3, 20, 20)}


def test_a_loader_resumes_within_an_epoch(path: Path) -> None:
    def made(order: Any, batch_size: int = 2) -> Loader:
        return Loader(path, collate=Collate(), order=by_aspect(order), batch_size=batch_size, seed=4)

    loader = made(weighted(range(1, 12)))
    rest = begun(loader, 2)
    state = loader.state_dict()
    assert rows_of(resumed(made(weighted(range(1, 12))), state)) == rows_of(rest)
    with pytest.raises(ValueError, match="by aspect"):
        made("sequential", 3).load_state_dict(state)


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"order": by_aspect("size")}, ValueError, "order is 'size'"),
        ({"order": by_aspect(classes(2, 2)), "batch_size": 4}, ValueError, "by_aspect"),
        ({"order": by_aspect(), "collate": None}, UsageError, r"collate=Collate\(\) is enough"),
        ({"collate": Collate(Resize((8, 8))), "returns": ("image_sizes",)}, UsageError, "image_sizes"),
    ],
)
def test_what_cannot_be_bucketed_is_refused(
    path: Path, options: dict[str, Any], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        Loader(path, **{"collate": Collate(), **options})


def test_rows_of_one_size_have_no_buckets(dataset: Dataset) -> None:
    with pytest.raises(UsageError, match="no variable-size images"):
        Loader(dataset, order=by_aspect("sequential"))


def test_unshuffled_batches_come_from_the_highest_to_the_widest(path: Path) -> None:
    found, shuffled = (
        rows_of(Loader(path, collate=Collate(), order=order, batch_size=2))
        for order in (by_aspect("sequential"), by_aspect())
    )
    assert found == sorted(range(len(SIZES)), key=lambda i: SIZES[i][1] / SIZES[i][0])
    assert shuffled != found != sorted(found, key=lambda i: SIZES[i][1])


def by_batches(seed: int, epoch: int, window: int) -> list[int]:
    """Of rows in their own order, which batch of a window comes when."""
    one = bucket_order(replace(stored_order(1024), is_drawn=True), lambda rows: rows.astype(np.float64), 8, seed)
    first = np.arange(window * 512, (window + 1) * 512, 8, dtype=np.uint64)
    rows: list[int] = one.rows_at(first, epoch)[0].tolist()
    assert sorted(rows) == first.tolist()
    return [row // 8 - window * 64 for row in rows]


def test_batches_are_shuffled_by_the_seed_in_each_epoch_and_window() -> None:
    found = [by_batches(*of) for of in ((5, 0, 0), (6, 0, 0), (5, 1, 0), (5, 0, 1))]
    assert len({tuple(one) for one in found}) == 4
    assert by_batches(5, 1, 0) == found[2]


def test_the_smaller_batch_is_from_any_place() -> None:
    one = bucket_order(replace(stored_order(25), is_drawn=True), lambda rows: rows.astype(np.float64), 8, 3)
    last = [int(one.rows_at(np.array([24], np.uint64), epoch)[0][0]) for epoch in range(60)]
    assert {row: last.count(row) > 4 for row in last} == {0: True, 8: True, 16: True, 24: True}


def test_bucket_order_repeated_rows_have_the_keys_of_the_plain_order(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of 5 rows 40 positions, more than rows: windows end where the epoch does."""
    monkeypatch.setattr(order_module, "BATCHES_SORTED", 2)

    def again_at(positions: Any, epoch: int) -> Any:
        return positions % np.uint64(5), positions // np.uint64(5)

    positions = np.arange(40, dtype=np.uint64)
    for is_drawn in (False, True):
        source = replace(stored_order(5), length=40, rows_at=again_at, is_drawn=is_drawn)
        one = bucket_order(source, aspects, 3, 7)
        assert one.length == 40
        whole: Any = np.stack(one.rows_at(positions, 0))  # type: ignore[arg-type]  # it has occurrences
        assert sorted(whole.T.tolist()) == sorted(np.stack(again_at(positions, 0)).T.tolist())
        late: Any = np.stack(one.rows_at(positions[33:], 0))  # type: ignore[arg-type]
        assert np.array_equal(late, whole[:, 33:])


def test_a_window_has_the_rows_that_the_order_has_there_in_that_epoch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(order_module, "BATCHES_SORTED", 4)
    for is_drawn in (False, True):
        source = replace(shuffled_order(96, 5), is_drawn=is_drawn)
        one = bucket_order(source, aspects, 8, 5)
        for epoch in range(3):
            for first in range(0, 96, 32):
                positions = np.arange(first, first + 32, dtype=np.uint64)
                found, there = one.rows_at(positions, epoch)[0], source.rows_at(positions, epoch)[0]
                assert sorted(found) == sorted(there)
                runs = sorted(sorted(batch) for batch in aspects(found).reshape(4, 8).tolist())
                assert sum(runs, []) == sorted(aspects(there).tolist())


def test_views_of_jpegs_with_boxes_and_labels_keep_their_own_sizes(tmp_path: Path) -> None:
    split = open_dataset(build_variable_stores(tmp_path)["whole jpeg"])["train"]
    plain, flipped = Collate(dtype=torch.uint8), Collate(RandomHorizontalFlip(1.0), dtype=torch.uint8)
    for views in Loader(split, collate=Views(plain, flipped), order=by_aspect(), batch_size=3):
        for view, collate in zip(views, (plain, flipped), strict=True):
            for i, image, target in zip(view.ids.tolist(), *view.to_torchvision(), strict=True):
                [alone], [fields] = collate(split[i][None]).to_torchvision()
                assert torch.equal(image, alone)
                assert all(torch.equal(target[name], fields[name]) for name in ("boxes", "labels", "masks"))
    given: dict[str, Any] = {"collate": flipped, "order": by_aspect("sequential"), "batch_size": 3}
    for (images, targets), batch in zip(
        Loader(split, returns="torchvision", **given), Loader(split, **given), strict=True
    ):
        expected = batch.to_torchvision()
        assert all(map(torch.equal, images, expected[0]))
        assert [one["boxes"].tolist() for one in targets] == [one["boxes"].tolist() for one in expected[1]]
