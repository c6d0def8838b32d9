"""What a user may ask of loading, as strategies: steps of a collate, orders, rows, and a loader's other options."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from hypothesis import strategies as st
from loading_alone import alone_steps
from loading_foreign import Halved, blends, per_sample
from loading_orders import order as order_of_kind
from loading_stores import SHAPES
from torch import nn
from torchvision.transforms.v2 import functional as F

from mmload import augment
from mmload.augment.boxes import BoxRule
from mmload.augment.collate import Collate
from mmload.loader.order import Order

Draw = Any
Shape = tuple[int, int, int]

FLOATS = (torch.float32, torch.float32, torch.float16, torch.bfloat16, torch.float64)
FORMATS = (torch.contiguous_format, torch.channels_last)
chances = st.sampled_from([0.0, 0.5, 1.0])


@dataclass(frozen=True)
class Growing:
    """A size that follows the epoch: three pixels more in odd epochs, and so at least what later steps take."""

    height: int
    width: int

    def __call__(self, epoch: int) -> tuple[int, int]:
        """(height, width) in an epoch."""
        return self.height + 3 * (epoch % 2), self.width + 3 * (epoch % 2)


@st.composite
def row_lists(draw: Draw, rows: int, negative: bool = True) -> list[int]:
    """Row numbers in any order, some of them twice."""
    return draw(st.lists(st.integers(-rows if negative else 0, rows - 1), min_size=1, max_size=9))


@st.composite
def row_likes(draw: Draw, rows: int) -> Any:
    """Rows as a list, tuple, tensor or array of any integer dtype, or as a mask of one boolean a row."""
    numbers = draw(row_lists(rows))
    kind = draw(st.sampled_from(["list", "tuple", "items", "mask", "int64", "int32", "int16", "uint8"]))
    if kind == "mask":
        mask = [row in numbers for row in range(rows)]
        return draw(st.sampled_from([mask, np.array(mask), torch.tensor(mask)]))
    if kind == "uint8":
        numbers = [abs(number) % min(rows, 256) for number in numbers]
    if kind in ("list", "tuple", "items"):
        return (
            [np.int64(number) for number in numbers]
            if kind == "items"
            else (tuple if kind == "tuple" else list)(numbers)
        )
    is_array = kind == "uint8" or draw(st.booleans())  # a tensor of uint8 is a mask in torch, and refused
    return np.array(numbers, kind) if is_array else torch.tensor(numbers, dtype=getattr(torch, kind))


def numbers_of(given: Any, rows: int) -> list[int]:
    """The rows that are meant, by numpy."""
    return [int(row) for row in np.arange(rows)[np.asarray(given)]]


@st.composite
def collates(draw: Draw, kind: str) -> Collate | None:
    """A collate for a store, whose result is known: see loading_reference.py."""
    shape = SHAPES[kind]
    if shape is None or draw(st.integers(0, 9)) == 0:
        return None
    whole = kind != "floats"
    dtype = draw(st.sampled_from((*FLOATS, torch.uint8) if whole else FLOATS))
    if not whole:
        dtype = torch.float32
    if whole and shape[0] in (1, 3) and draw(st.integers(0, 2)) == 0:
        steps = draw(alone_steps(shape[0], kind))
    else:
        steps = _steps(draw, kind, shape, dtype == torch.float32)
    if dtype == torch.uint8:
        steps = [step for step in steps if not (isinstance(step, augment.Normalize | Halved) or blends(step))]
    shares = [0] if any(isinstance(step, augment.PerSample) for step in steps) else [0, 0.3771]  # it knows of none
    rule = BoxRule(min_size=draw(st.sampled_from([0, 1.013, 3.017])), min_visible=draw(st.sampled_from(shares)))
    return Collate(*steps, dtype=dtype, memory_format=draw(st.sampled_from(FORMATS)), box_rule=rule)


def _steps(draw: Draw, store: str, shape: Shape, halves: bool) -> list[nn.Module]:
    """Geometry and color while images are levels, then Normalize, and what comes after it."""
    whole = store != "floats"
    steps: list[nn.Module] = []
    size = shape[1], shape[2]
    exact = True
    for _ in range(draw(st.integers(0, 3))):
        kind = draw(
            st.sampled_from(
                [
                    "crop",
                    "crop",
                    "pad",
                    "center",
                    "flip",
                    "flop",
                    "alternating",
                    "resized",
                    "resize",
                    "growing",
                    "gray",
                    "jitter",
                    "erase",
                    "other",
                ]
            )
        )
        if kind in ("gray", "jitter") and not (whole and shape[0] in (1, 3)):
            continue
        if kind == "other":
            steps.append(draw(per_sample()))
            continue
        step, size = _step(draw, kind, shape[0], size, exact)
        exact = exact and kind not in ("resized", "resize", "growing", "gray", "jitter")
        steps.append(step)
    if whole and draw(st.booleans()):
        steps.append(augment.Normalize([0.4, 0.5, 0.45, 0.6][: shape[0]], [0.2, 0.25, 0.3, 0.5][: shape[0]]))
    if halves and draw(st.integers(0, 3)) == 0:
        steps.append(Halved())
    for kind in draw(st.lists(st.sampled_from(["flip", "crop", "center", "erase", "resized"]), max_size=2)):
        step, size = _step(draw, kind, shape[0], size, exact)
        steps.append(step)
    if store != "detection" and draw(st.integers(0, 3)) == 0:
        mix = _mix(draw)
        if not blends(mix) or store != "segmentation":
            steps.append(mix)
    return steps


def _mix(draw: Draw) -> nn.Module:
    """MixUp, CutMix, or a choice of both, drawn for each sample or once a batch."""
    per = st.sampled_from(["sample", "batch"])
    mixes = [
        kind(alpha=draw(st.sampled_from([0.2, 1.0])), num_classes=4, p=draw(chances), per=draw(per))
        for kind in (augment.MixUp, augment.CutMix)
    ]
    return draw(st.sampled_from([*mixes, augment.RandomChoice(mixes, per=draw(per))]))


def _step(
    draw: Draw, kind: str, channels: int, size: tuple[int, int], exact: bool
) -> tuple[nn.Module, tuple[int, int]]:
    """A step that can be done at ``size``, and the size that it gives."""
    height, width = size
    smaller = draw(st.integers(1, height)), draw(st.integers(1, width))
    match kind:
        case "crop":
            return augment.RandomCrop(smaller), smaller
        case "pad":
            return _padded(draw, channels, size)
        case "center":
            wanted = draw(st.sampled_from([smaller, (height + 3, width), (max(1, height - 2), width + 5)]))
            return augment.CenterCrop(wanted), wanted
        case "flip":
            return augment.RandomHorizontalFlip(draw(chances)), size
        case "alternating":
            return augment.AlternatingHorizontalFlip(draw(st.integers(-3, 3))), size
        case "flop":
            return augment.RandomVerticalFlip(draw(chances)), size
        case "gray":
            return augment.RandomGrayscale(draw(chances)), size
        case "erase":
            value = draw(st.sampled_from([0.0, 1.0, [1.0, 0.0, 3.0, 2.0][:channels]]))
            return augment.RandomErasing(draw(chances), value=value), size
        case "jitter":
            hue = 0.5 if exact and draw(st.booleans()) else None
            return augment.ColorJitter(*(draw(st.sampled_from([None, 0.4])) for _ in range(3)), hue), size
    return _resized(draw, kind, size)


def _resized(draw: Draw, kind: str, size: tuple[int, int]) -> tuple[nn.Module, tuple[int, int]]:
    """A resize of a window or of the whole, to a size or, of the shorter side, to a length."""
    modes = "bilinear", "bilinear", "bicubic", "nearest", "nearest-exact"
    mode, antialias = draw(st.sampled_from(modes)), draw(st.booleans())
    wanted = draw(st.integers(1, 20)), draw(st.integers(1, 20))
    if kind == "growing":
        step = draw(st.sampled_from([augment.RandomResizedCrop, augment.Resize]))
        return step(Growing(*wanted), interpolation=mode, antialias=antialias), wanted
    if kind == "resized":
        return augment.RandomResizedCrop(wanted, (0.1, 1.0), interpolation=mode, antialias=antialias), wanted
    if draw(st.booleans()):
        return augment.Resize(wanted, mode, antialias=antialias), wanted
    most = draw(st.sampled_from([None, wanted[0] + 2]))
    longer = wanted[0] * max(size) // min(size)
    if most is not None and most * wanted[0] < longer:  # refused, as it leaves nothing of the shorter side
        return augment.Resize(wanted, mode, antialias=antialias), wanted
    height, width = F.get_size(F.resize(torch.empty(1, *size), [wanted[0]], max_size=most))
    return augment.Resize(wanted[0], mode, most, antialias), (height, width)


def _padded(draw: Draw, channels: int, size: tuple[int, int]) -> tuple[nn.Module, tuple[int, int]]:
    """A padded crop; as far outside as torchvision can reflect."""
    mode = draw(st.sampled_from(["constant", "constant", "edge", "reflect", "symmetric"]))
    most = min(3, *(side - 1 for side in size)) if mode != "constant" else 3
    borders = [draw(st.integers(0, most)) for _ in range(4)]
    padding = draw(st.sampled_from([borders, borders[:2], borders[0]]))
    left, top, right, bottom = (padding,) * 4 if isinstance(padding, int) else (padding * 2)[:4]
    rows, cols = size[0] + top + bottom, size[1] + left + right
    wanted = draw(st.integers(1, rows)), draw(st.integers(1, cols))
    larger = mode == "constant" and draw(st.integers(0, 3)) == 0
    if larger:
        wanted = rows + 2, wanted[1]
    fill = draw(st.sampled_from([0, 7, [9, 0, 200, 30][:channels]])) if mode == "constant" else 0
    mask_fill = draw(st.sampled_from([0, 3, 255]))
    return augment.RandomCrop(wanted, padding, larger, fill, mode, mask_fill), wanted


@st.composite
def orders(draw: Draw) -> Order:
    """An order of blocks, as small as one row and as large as all."""
    world = draw(st.integers(1, 4))
    return order_of_kind(
        kind=draw(st.sampled_from(["block", "block", "full", "sequential"])),
        rows=draw(st.integers(0, 300)),
        seed=draw(st.integers(0, 2**64 - 1)),
        rank=draw(st.integers(0, world - 1)),
        world_size=world,
        tail=draw(st.sampled_from(["exact", "pad", "drop"])),
        block_size=draw(st.integers(1, 70)),
        window=draw(st.integers(1, 9)),
    )


@st.composite
def settings_of_loaders(draw: Draw, rows: int) -> dict[str, Any]:
    """What may differ between two loaders that give the same rows in the same order."""
    world = draw(st.sampled_from([1, 1, 1, 2, 3, 4]))
    return {
        "batch_size": draw(st.integers(30, 90) if rows > 100 else st.integers(1, 9)),
        "threads": draw(st.integers(1, 3)),
        "prefetch": draw(st.integers(0, 3)),
        "tier": draw(st.sampled_from(["disk", "memory", "auto", "device"])),
        "drop_last": draw(st.booleans()),
        "tail": draw(st.sampled_from(["exact", "pad", "drop"])),
        "world_size": world,
        "rank": draw(st.integers(0, world - 1)),
    }
