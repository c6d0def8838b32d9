"""Variable-size images in the fuzz of loading: any options, each sample held against its collate of the image alone."""

from __future__ import annotations

import warnings
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from hypothesis import note
from hypothesis import strategies as st
from loading_orders import order_options
from torch import Tensor, nn
from variable_datasets import some_images, variable_dataset

import mmload
from mmload import augment
from mmload.augment.collate import Collate
from mmload.augment.step import batch_of_epoch, sample_seeds
from mmload.batch import Batch
from mmload.loader import Loader
from mmload.loader.orders import by_aspect
from mmload.store.dataset import Split

Draw = Any

SIZES = [(20 + 7 * k % 23, 60 - 11 * k % 37) for k in range(17)] + [(1, 31), (29, 1), (2, 2)]
ENCODINGS = ("raw", "jpeg", "mixed")
FIELDS = ("images", "masks", "boxes", "labels", "counts", "targets")


def build_variable_stores(root: Path) -> dict[str, Path]:
    """A dataset of each encoding, with masks and boxes."""
    images = some_images(SIZES)
    counts = torch.arange(len(SIZES)) % 3
    real = torch.arange(2) < counts[:, None]
    boxes = torch.tensor([[[0, 0, w, h], [w / 4, h / 4, w / 2, h / 2]] for h, w in SIZES]) * real[:, :, None]
    fields = {"boxes": boxes, "labels": torch.where(real, 1, -1), "counts": counts}
    masks = [np.ascontiguousarray(image[0]) for image in images]
    return {
        f"whole {encoding}": variable_dataset(
            root / f"whole-{encoding}", images, encoding=encoding, masks=masks, fields=fields, shard_rows=6
        )
        for encoding in ENCODINGS
    }


@cache
def rows_of(path: Path) -> tuple[Split, list[Batch]]:
    """The split of a store, and its rows, each decoded whole."""
    split = mmload.open(path)["train"]
    return split, [split[row] for row in range(len(split))]


@st.composite
def steps_of(draw: Draw, bucket: bool) -> list[nn.Module]:
    """Steps for images of a size each; with ``bucket`` perhaps none that gives them one size."""
    mode = draw(st.sampled_from(["bilinear", "bilinear", "bicubic", "nearest"]))
    sized: list[list[nn.Module]] = [
        [augment.RandomResizedCrop((11, 13), interpolation=mode)],
        [augment.Resize((9, 17), mode, antialias=draw(st.booleans()))],
        [augment.Resize(14, mode), augment.CenterCrop(12)],
        [augment.CenterCrop((20, 24))],
        [augment.RandomCrop(18, pad_if_needed=True, padding_mode=draw(st.sampled_from(["constant", "reflect"])))],
        [augment.Letterbox((16, 20), interpolation=mode, scaleup=draw(st.booleans()))],
        [augment.ScaleJitter((40, 44), (0.9, 2.0), interpolation=mode)],
        [augment.RandomZoomOut(), augment.RandomIoUCrop(trials=5), augment.Resize((11, 9), mode)],
    ]
    free: list[list[nn.Module]] = [[], [augment.Resize(14)], [augment.RandomVerticalFlip()]]
    first = draw(st.sampled_from(free if bucket else sized))
    last = [augment.Normalize.imagenet()] if draw(st.booleans()) else []
    return [*first, *[augment.RandomHorizontalFlip()] * draw(st.integers(0, 1)), *last]


def play(data: Any, stores: dict[str, Path]) -> None:
    """Load an epoch of a store, or its rest after a resume, and check every sample."""
    encoding = data.draw(st.sampled_from(ENCODINGS))
    split, rows = rows_of(stores[f"whole {encoding}"])
    bucket = data.draw(st.sampled_from([False, False, True]))
    steps = data.draw(steps_of(bucket))
    collate = Collate(*steps, dtype=data.draw(st.sampled_from([torch.float32, torch.float16])))
    order = data.draw(st.sampled_from(["sequential", "shuffled", "block"]))
    lasting = {
        "seed": data.draw(st.integers(0, 9)),
        **({"order": by_aspect(order)} if bucket else order_options(order)),
    }
    lasting |= {"collate": collate, "batch_size": data.draw(st.integers(1, 7))}
    epoch, used = data.draw(st.integers(0, 2)), data.draw(st.integers(0, 3))
    note(f"{encoding}: {steps} {lasting}")
    loader = _loader(split, lasting, data)
    with loader:
        loader.set_epoch(epoch)
        batches = iter(loader)
        seen = [batch for _, batch in zip(range(used), batches, strict=False)]
        state = loader.state_dict()
        rest = list(batches)
    for batch in (*seen, *rest):
        _check(batch, rows, collate, int(lasting["seed"]), epoch)
    ids = [int(row) for batch in (*seen, *rest) for row in batch.ids]
    assert sorted(ids) == list(range(len(rows)))
    if seen and rest:
        with _loader(split, lasting, data) as again:
            again.load_state_dict(state)
            assert [batch.ids.tolist() for batch in again] == [batch.ids.tolist() for batch in rest]


def _loader(split: Split, lasting: dict[str, Any], data: Any) -> Loader:
    """A loader with any of the options that change no batch."""
    tier = data.draw(st.sampled_from(["disk", "memory", "auto"]))
    threads, prefetch = data.draw(st.integers(1, 3)), data.draw(st.integers(0, 2))
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="order=.block.")
        return Loader(split, tier=tier, threads=threads, prefetch=prefetch, **lasting)


def _check(batch: Batch, rows: list[Batch], collate: Collate, seed: int, epoch: int) -> None:
    """Every field of every sample is that of its row alone; where images have a size each, beside one color."""
    seeds = sample_seeds(seed, epoch, batch.ids)
    for k, row in enumerate(batch.ids.tolist()):
        with batch_of_epoch(epoch):
            alone = collate(rows[row].replace(ids=batch.ids[k], seeds=seeds[k])[None])
        for name in FIELDS:
            got, wanted = getattr(batch, name)[k], getattr(alone, name)[0]
            if name in ("images", "masks") and got.shape != wanted.shape:
                got = _part(got, *wanted.shape[-2:])
            near = name == "boxes"  # of a smaller canvas they are clipped to whole numbers
            same = torch.allclose(got, wanted, rtol=0, atol=1e-4) if near else torch.equal(got, wanted)
            assert same, f"{name} of row {row} is {got}, expected {wanted}"


def _part(image: Tensor, height: int, width: int) -> Tensor:
    """The image on a canvas that is as large or larger, of which the rest has one color."""
    assert image.shape[-2] >= height
    assert image.shape[-1] >= width
    for rest in (image[..., height:, :], image[..., width:]):
        if rest.numel():
            assert (rest == image[..., -1:, -1:]).all()
    return image[..., :height, :width]
