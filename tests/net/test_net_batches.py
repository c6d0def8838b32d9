"""Batches of lists of steps x datasets x orders x returns, bit for bit as they were frozen in batches.json.

Each case is loaded twice: by one thread from the disk, and by three threads from memory, resumed after the first batch.
Both read epochs 0 and 1 and have to give the frozen digest of each field.

No case depends on the processor: the digests are the same with ATEN_CPU_CAPABILITY=default and avx2, and with kernels
compiled for x86-64-v3 (NUMBA_CPU_NAME, NUMBA_CPU_FEATURES) and for one with AVX-512. Rows that are JPEGs depend on the
version of libjpeg-turbo that encodes and decodes them.

After a change that is meant to change batches, look at the names of the cases that fail, and freeze these again:

    .venv/bin/python -m pytest tests/net --freeze [-k CASE]
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch
from every_step import PUBLIC_STEPS, STEPS
from net_datasets import DATASETS
from net_digests import Frozen, digests
from torch import Tensor, nn
from torch.utils.data import ConcatDataset, Subset
from torchvision.transforms import v2

import mmload
from mmload import presets
from mmload.augment import (
    BoxRule,
    CenterCrop,
    ColorJitter,
    CopyPaste,
    CutMix,
    Letterbox,
    MixUp,
    Mosaic,
    Normalize,
    PerSample,
    ProgressiveSize,
    RandomAffine,
    RandomCrop,
    RandomGrayscale,
    RandomHorizontalFlip,
    RandomIoUCrop,
    RandomPerspective,
    RandomResizedCrop,
    RandomRotation,
    RandomShortestSize,
    RandomVerticalFlip,
    RandomZoomOut,
    Resize,
    ScaleJitter,
    TrivialAugmentWide,
    Views,
)
from mmload.loader import orders

pytestmark = pytest.mark.filterwarnings("ignore:order=.block.:UserWarning")

Open = Callable[[str], Any]
"""Returns the split of the dataset of a name."""


@dataclass(frozen=True)
class Case:
    """A loader.

    Attributes:
        data: name of a dataset, or a function that makes what is loaded of opened splits.
        steps: makes the steps of the collate, or a Views; None: rows as they are stored.
        options: of the collate.
        order: "shuffle", "stored", "block", row numbers, or an order of mmload.loader.orders.
        like_shapes: whether batches are of images of similar shapes.
        ranks: (rank, number of ranks).
        loader: further options of the loader.
    """

    data: str | Callable[[Open], Any]
    steps: Callable[[], Any] | None = None
    options: Mapping[str, Any] = field(default_factory=dict)
    order: Any = "shuffle"
    like_shapes: bool = False
    ranks: tuple[int, int] = (0, 1)
    loader: Mapping[str, Any] = field(default_factory=dict)

    def collate(self) -> Any:
        """Makes the collate, or the Views."""
        made = None if self.steps is None else self.steps()
        return mmload.Collate(*made, **self.options) if isinstance(made, list) else made


def load(case: Case, data: Any, *, threads: int, tier: str) -> mmload.Loader:
    """Makes the loader of a case: the net's only call of it."""
    named = {"shuffle": {"shuffle": True}, "stored": {}, "block": {"order": "block"}}
    order: dict[str, Any] = named[case.order] if isinstance(case.order, str) else {"order": case.order}
    if case.like_shapes:
        inner = {"shuffle": "shuffled", "stored": "sequential"}
        order = {
            "order": orders.by_aspect(inner.get(case.order, case.order) if isinstance(case.order, str) else case.order)
        }
    if case.ranks[1] > 1:
        order = {**order, "ranks": case.ranks}
    options = {"batch_size": 5, "seed": 7, **case.loader}
    return mmload.Loader(data, collate=case.collate(), threads=threads, tier=tier, **order, **options)


def batches_of(case: Case, data: Any, *, threads: int, tier: str, is_resumed: bool = False) -> Iterator[Any]:
    """Yields the batches of epochs 0 and 1; resumed: the second batch comes from a loader that continues."""
    loader = load(case, data, threads=threads, tier=tier)
    if is_resumed:
        with loader:
            yield next(iter(loader))
            state = loader.state_dict()
        loader = load(case, data, threads=threads, tier=tier)
        loader.load_state_dict(state)
    with loader:
        while loader.epoch < 2:
            yield from loader


class Halved(nn.Module):
    """A deterministic module of a user's own."""

    keeps_geometry = True

    def forward(self, images: Tensor) -> Tensor:
        return images * 0.5


def crop() -> list[nn.Module]:
    return [RandomCrop(32), RandomHorizontalFlip()]


def resized() -> list[nn.Module]:
    return [RandomResizedCrop(24), RandomHorizontalFlip(), Normalize.imagenet()]


def views() -> Views:
    small = mmload.Collate(RandomResizedCrop(12, interpolation="bicubic"), ColorJitter(0.4, 0.4))
    return Views(mmload.Collate(*crop()), small, small)


def foreign() -> list[nn.Module]:
    turned = PerSample(v2.RandomRotation(40))
    return [RandomCrop(32), turned, PerSample(v2.RandomInvert(0.5)), Normalize.imagenet(), Halved()]


def moved() -> list[nn.Module]:
    return [RandomAffine(20, (0.1, 0.2), (0.7, 1.3), 9, "bilinear", fill=(9, 99, 199)), RandomVerticalFlip()]


def zoomed() -> list[nn.Module]:
    return [RandomZoomOut((9, 99, 199)), RandomIoUCrop(trials=9), RandomHorizontalFlip(), Resize((30, 34))]


def cropped() -> list[nn.Module]:
    return [RandomCrop((36, 30), padding=4), RandomHorizontalFlip()]


def pasted() -> list[nn.Module]:
    return [ScaleJitter((40, 44), (0.5, 1.5)), RandomHorizontalFlip(), CopyPaste(0.7)]


def nine() -> list[nn.Module]:
    how = {"degrees": 9.0, "shear": 4.0, "perspective": 0.0005, "mixup": 0.4, "p": 0.7}
    return [Mosaic(40, tiles=9, **how), RandomHorizontalFlip()]


OBJECTS: Mapping[str, Callable[[], Any]] = {
    "crop": cropped,
    "resized crop": lambda: [RandomResizedCrop((30, 26)), RandomHorizontalFlip()],
    "affine": moved,
    "perspective": lambda: [RandomPerspective(0.5, 1.0), RandomRotation(30)],
    "zoom out and crop": zoomed,
    "letterbox": lambda: [Letterbox((36, 44)), RandomHorizontalFlip()],
    "jitter": lambda: [ScaleJitter((40, 44), (0.4, 1.8)), RandomHorizontalFlip()],
    "mosaic": lambda: [Mosaic(40, degrees=5.0, shear=2.0, mixup=0.3), RandomHorizontalFlip()],
    "mosaic of nine": nine,
    "paste": pasted,
}
"""Lists that move boxes, masks, keypoints and polygons."""

WITH_OBJECTS: Mapping[str, str] = {
    "boxes": "crop, resized crop, affine, perspective, zoom out and crop, letterbox, jitter",
    "masks": "crop, resized crop, affine, perspective, letterbox, jitter",
    "instances": "crop, resized crop, affine, perspective, zoom out and crop, mosaic, paste",
    "keypoints": "crop, affine, perspective, letterbox, mosaic, mosaic of nine",
    "rotated": "crop, resized crop, affine, zoom out and crop, mosaic, mosaic of nine",
    "instances of sizes": "resized crop, zoom out and crop, letterbox, jitter, mosaic, paste",
    "keypoints of sizes": "resized crop, letterbox, jitter, mosaic, mosaic of nine",
    "rotated of sizes": "resized crop, letterbox, jitter, mosaic",
}
"""Dataset -> the lists that are loaded from it."""

PRESETS: Mapping[str, Callable[[], Any]] = {
    "torchvision_reference": lambda: presets.torchvision_reference(num_classes=3, size=24),
    "rsb_a2": lambda: presets.rsb_a2(num_classes=3, size=24),
    "deit3": lambda: presets.deit3(num_classes=3, size=24),
    "evaluation": lambda: presets.evaluation(size=24, resize=32, interpolation="bicubic"),
    "ffcv_rn50": lambda: presets.ffcv_rn50(size=ProgressiveSize(16, 32, start_epoch=0, end_epoch=2)),
    "airbench": lambda: presets.airbench(size=40, translate=4, cutout=12),
    "simclr": lambda: presets.simclr(size=24),
    "dinov2": lambda: presets.dinov2(size=24, local_size=12, local_crops=3),
    "mae": lambda: presets.mae(size=24),
}

OUTPUTS: Mapping[str, Case] = {
    "stored": Case("rgb"),
    "uint8": Case("rgb", crop, {"dtype": torch.uint8}),
    "uint8 channels_last": Case("rgb", crop, {"dtype": torch.uint8, "memory_format": torch.channels_last}),
    "float16": Case("rgb", resized, {"dtype": torch.float16}),
    "float16 channels_last": Case("rgb", resized, {"dtype": torch.float16, "memory_format": torch.channels_last}),
    "bfloat16": Case("rgb", resized, {"dtype": torch.bfloat16}),
    "float32 channels_last": Case("rgb", resized, {"memory_format": torch.channels_last}),
    "float64": Case("rgb", resized, {"dtype": torch.float64}),
    "tuple": Case("rgb", resized, loader={"returns": ("images", "targets")}),
    "dict": Case("rgb", resized, loader={"returns": {"pixel_values": "images", "labels": "targets"}}),
    "numpy": Case("masks", cropped, loader={"returns": "numpy", "fields": ("images", "masks", "half")}),
    "function": Case("rgb", resized, loader={"returns": lambda batch: {"double": batch.images * 2}}),
    "boxes in another format": Case("boxes", cropped, loader={"returns": ("images", "boxes_cxcywh", "labels")}),
    "lists": Case("boxes", cropped, loader={"returns": "torchvision"}),
    "lists of instances": Case("instances of sizes", OBJECTS["letterbox"], loader={"returns": "torchvision"}),
    "views": Case("rgb", views),
    "tuple of views": Case("rgb", views, loader={"returns": ("images", "targets")}),
    "two views": Case("raw sizes", lambda: Views(*[mmload.Collate(*resized())] * 2)),
    "views of boxes": Case("boxes", lambda: Views(mmload.Collate(*cropped()), mmload.Collate(*zoomed()))),
    "foreign modules": Case("rgb", foreign),
    "growing size": Case("rgb", lambda: [RandomResizedCrop(lambda epoch: 20 + 3 * epoch)]),
    "box rule": Case("boxes", zoomed, {"box_rule": BoxRule(min_size=3.0, min_visible=0.4)}),
    "box rule of instances": Case("instances", pasted, {"box_rule": BoxRule(min_size=3.0, min_visible=0.4)}),
    "gray": Case("gray", lambda: [RandomResizedCrop(17), ColorJitter(0.4, 0.4)]),
    "four channels": Case("four", lambda: [RandomCrop(16, padding=2, padding_mode="edge"), RandomVerticalFlip()]),
    "floats": Case("floats", lambda: [RandomCrop(6), RandomHorizontalFlip()]),
    "bare": Case("bare"),
    "fields": Case("masks", loader={"fields": ("targets", "half")}),
    "fields beside images": Case("masks", lambda: [RandomCrop(20)], loader={"fields": ("images", "masks")}),
    "mixed soft targets": Case("soft", lambda: [MixUp(0.4, num_classes=3), CutMix(num_classes=3)]),
}
"""What batches are made of and given as."""

FREE_SIZES: Mapping[str, Callable[[], Any]] = {
    "as stored": lambda: [RandomHorizontalFlip()],
    "shorter side": lambda: [Resize(24), Normalize.imagenet()],
}

SIZES: Mapping[str, Callable[[], Any]] = {
    "resized crop": resized,
    "bicubic crop": lambda: [RandomResizedCrop(20, interpolation="bicubic"), TrivialAugmentWide()],
    "middle": lambda: [Resize(26), CenterCrop(24)],
    "padded crop": lambda: [RandomCrop(48, pad_if_needed=True, padding_mode="reflect"), RandomGrayscale(0.5)],
    "shortest side": lambda: [RandomShortestSize((16, 20, 28), max_size=40)],
    "letterbox": OBJECTS["letterbox"],
}
"""Lists that give variable-size images one size."""

VARIABLE: Mapping[str, Case] = {
    **{
        f"{data}, {name}": Case(f"{data} sizes", make)
        for data in ("raw", "jpeg", "mixed")
        for name, make in SIZES.items()
    },
    **{
        f"{data}, {name}": Case(f"{data} sizes", make, like_shapes=True)
        for data in ("raw", "jpeg")
        for name, make in FREE_SIZES.items()
    },
    "padded, not shuffled": Case("mixed sizes", FREE_SIZES["shorter side"], order="stored", like_shapes=True),
    "padded instances": Case("instances of sizes", FREE_SIZES["as stored"], like_shapes=True),
    "padded lists": Case(
        "instances of sizes", FREE_SIZES["as stored"], like_shapes=True, loader={"returns": "torchvision"}
    ),
    "gray": Case("gray sizes", lambda: [RandomResizedCrop(16)]),
    "ssd": Case("instances of sizes", lambda: presets.detection.ssd(size=24)),
    "rt_detr": Case("instances of sizes", lambda: presets.detection.rt_detr(size=26)),
    "scaled decoding": Case("jpeg sizes", lambda: [RandomResizedCrop(6)], loader={"decode": "scaled"}),
}

ORDERS: Mapping[str, Case] = {
    "stored": Case("rgb", crop, order="stored"),
    "another seed": Case("rgb", crop, loader={"seed": 2**64 - 1}),
    "drop last": Case("rgb", crop, loader={"drop_last": True}),
    "block": Case("many", order="block", loader={"batch_size": 64}),
    "block of two ranks": Case("many", order="block", ranks=(1, 2), loader={"batch_size": 64}),
    "listed rows": Case("rgb", crop, order=[3, 1, 1, 12, 0, 3, 5]),
    "weighted": Case("rgb", crop, order=orders.weighted(range(13))),
    "weighted, longer": Case("many", order=orders.weighted([1, 2, 0.5] * 100, 500), loader={"batch_size": 200}),
    "balanced": Case("rgb", crop, order=orders.balanced()),
    "balanced by labels": Case("bare", order=orders.balanced([5, 5, 5, 5, 5, 5, 9, 9, 70000], 20)),
    "repeated": Case("rgb", crop, order=orders.repeated(3)),
    "repeated on a rank of two": Case("rgb", crop, order=orders.repeated(2), ranks=(1, 2)),
    "classes": Case("rgb", crop, order=orders.classes(2, 3), loader={"batch_size": 6}),
    "subset": Case("rgb", crop, order=orders.subset([0, 4, 4, 9, 12, 1])),
    "mixed": Case(lambda rows: ConcatDataset([rows("rgb"), rows("other rgb")]), crop, order=orders.mixed([1, 3])),
    "rank 0 of 2": Case("rgb", crop, ranks=(0, 2)),
    "rank 1 of 2": Case("rgb", crop, ranks=(1, 2)),
    "rank 1 of 2, padded": Case("rgb", crop, ranks=(1, 2), loader={"tail": "pad"}),
    "rank 0 of 2, dropped": Case("rgb", crop, ranks=(0, 2), loader={"tail": "drop"}),
    "like shapes on a rank": Case("raw sizes", resized, like_shapes=True, ranks=(1, 2)),
    "like shapes, balanced": Case("raw sizes", resized, like_shapes=True, order=orders.balanced()),
    "subset of a split": Case(lambda rows: rows("rgb").subset([12, 3, 3, 5, 0, 7]), crop),
    "nested subset": Case(
        lambda rows: Subset(ConcatDataset([rows("rgb"), rows("other rgb")]), [14, 2, 19, 2, 0, 13, 6]), crop
    ),
    "joined": Case(lambda rows: ConcatDataset([rows("rgb"), rows("other rgb"), rows("rgb")]), resized),
    "joined sizes": Case(lambda rows: ConcatDataset([rows("jpeg sizes"), rows("jpeg sizes")]), resized),
    "mosaic of a subset": Case(
        lambda rows: rows("boxes").subset([0, 2, 3, 5, 5]),
        lambda: [Mosaic(32)],
        loader={"fields": ("images", "boxes", "labels", "counts")},
    ),
}


def _step_case(make: Callable[[], nn.Module]) -> Case:
    """Returns a case of one step alone; steps that give images of several sizes are followed by a resize."""
    is_unsized = isinstance(make(), RandomIoUCrop | RandomZoomOut)
    return Case("boxes", lambda: [make(), Resize((20, 24))]) if is_unsized else Case("rgb", lambda: [make()])


CASES: Mapping[str, Case] = {
    **{f"step: {name}": _step_case(make) for name, make in STEPS.items()},
    **{f"preset: {name}": Case("rgb", make) for name, make in PRESETS.items()},
    **{
        f"{data}: {name}": Case(data, OBJECTS[name])
        for data, names in WITH_OBJECTS.items()
        for name in names.split(", ")
    },
    **{f"output: {name}": case for name, case in OUTPUTS.items()},
    **{f"sizes: {name}": case for name, case in VARIABLE.items()},
    **{f"order: {name}": case for name, case in ORDERS.items()},
}


@pytest.fixture(scope="module")
def opened(tmp_path_factory: pytest.TempPathFactory) -> Open:
    """Builds and opens a dataset at its first use."""
    folder, found = tmp_path_factory.mktemp("net"), {}

    def split(name: str) -> Any:
        if name not in found:
            found[name] = mmload.open(DATASETS[name](folder / name))["train"]
        return found[name]

    return split


@pytest.fixture(scope="module")
def frozen(pytestconfig: pytest.Config) -> Iterator[Frozen]:
    found = Frozen(Path(__file__).with_name("batches.json"), pytestconfig)
    yield found
    found.close(CASES)


@pytest.mark.parametrize("name", CASES)
def test_batches_are_the_frozen_ones(name: str, opened: Open, frozen: Frozen) -> None:
    case = CASES[name]
    data = opened(case.data) if isinstance(case.data, str) else case.data(opened)
    found = digests(batches_of(case, data, threads=1, tier="disk"))
    frozen.check(name, found)
    resumed = digests(batches_of(case, data, threads=3, tier="memory", is_resumed=True))
    assert resumed == found, f"{name} depends on threads, tier or a resume"


def test_batches_are_frozen_of_every_step_and_preset() -> None:
    named = {name.removeprefix("step: ") for name in CASES}
    assert named >= PUBLIC_STEPS
    assert set(PRESETS) == set(presets.__all__)
