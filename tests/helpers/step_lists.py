"""Random lists of steps on random batches, and the same by torchvision's functions, one sample and step at a time."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
import torchvision.transforms.v2.functional as tv
from hypothesis import strategies as st
from torch import Tensor, nn
from torchvision import tv_tensors
from torchvision.transforms import InterpolationMode

from mmload import augment
from mmload.augment.draws import Draws
from mmload.batch import Batch
from mmload.render.plan import Plan
from mmload.render.torch_sampling import Window, windows

VOID = 255
MODES = ("nearest", "nearest-exact", "bilinear", "bicubic")
PADDINGS = ("constant", "edge", "reflect", "symmetric")
CHANGES = (tv.adjust_brightness, tv.adjust_contrast, tv.adjust_saturation, tv.adjust_hue)
SIDES = st.integers(1, 3) | st.integers(1, 24)


@dataclass(frozen=True)
class Sample:
    """One sample on its way.

    Attributes:
        image: [C, H, W].
        boxes: of torchvision, all that the sample came with.
        mask: [H, W].
        frame: where the image itself is among its padding, as a box.
        cut: whether a step cut off something of it.
        error: how far a value may be from mmload's, in levels of 255.
        level: how much of a level is one of the stored image: a resize is rounded to these.
    """

    image: Tensor
    boxes: Any
    mask: Any
    frame: tuple[float, float, float, float]
    cut: bool = False
    error: float = 0.0
    level: float = 1.0

    def on_all(self, change: Any, *args: Any) -> Sample:
        """Image, boxes and mask after the same function of torchvision."""
        items = (change(item, *args) for item in (self.image, self.boxes, self.mask))
        return replace(self, **dict(zip(("image", "boxes", "mask"), items, strict=True)))


def step_lists(channels: int) -> st.SearchStrategy[list[nn.Module]]:
    """Up to five steps; not all lists fit their images."""
    size = st.tuples(SIDES, SIDES) | SIDES
    mode, chance = st.sampled_from(MODES), st.sampled_from((0.0, 0.5, 1.0))
    padding = st.none() | st.integers(0, 30) | st.tuples(*[st.integers(0, 9)] * 4)
    kinds = [
        st.builds(
            augment.RandomCrop,
            size,
            padding,
            st.booleans(),
            st.sampled_from((0, 1)),
            st.sampled_from(PADDINGS),
        ),
        st.builds(augment.CenterCrop, size),
        st.builds(
            augment.RandomResizedCrop,
            size,
            st.sampled_from(((0.08, 1.0), (1.0, 1.0), (0.001, 0.01))),
            st.sampled_from(((0.75, 1.333), (0.1, 0.2), (5.0, 9.0))),
            mode,
            st.booleans(),
        ),
        st.builds(augment.Resize, size, mode, antialias=st.booleans()),
        st.builds(lambda short, more, mode: augment.Resize(short, mode, max_size=short + more), SIDES, SIDES, mode),
        st.builds(augment.RandomHorizontalFlip, chance),
        st.builds(augment.RandomVerticalFlip, chance),
        st.builds(augment.RandomErasing, chance, value=st.sampled_from((0.0, 1.0))),
        st.builds(augment.Normalize, st.just((0.4,) * channels), st.just((0.2,) * channels)),
    ]
    if channels in (1, 3):
        kinds.append(st.builds(augment.RandomGrayscale, chance))
        factor = st.none() | st.sampled_from((0.3, 0.9))
        kinds.append(st.builds(augment.ColorJitter, factor, factor, factor, st.none() | st.just(0.2)))
    return st.lists(st.one_of(kinds), max_size=5)


@st.composite
def batches(draw: Any, channels: int, source: torch.dtype) -> Batch:
    """One to four images with two boxes and a mask each."""
    count, height, width = draw(st.integers(1, 4)), draw(SIDES), draw(SIDES)
    generator = torch.Generator().manual_seed(draw(st.integers(0, 1 << 30)))
    images = torch.randint(0, 256, (count, channels, height, width), dtype=torch.uint8, generator=generator)
    corners = torch.rand((count, 2, 2, 2), generator=generator) * torch.tensor([width, height])
    return Batch(
        images=images if source == torch.uint8 else images.to(source) / 255,
        boxes=torch.cat((corners.amin(2), corners.amax(2)), dim=2),
        labels=torch.tensor([[0, 1]]).repeat(count, 1),
        counts=torch.full((count,), 2),
        masks=torch.randint(0, 20, (count, height, width), dtype=torch.uint8, generator=generator),
        seeds=torch.randint(-(1 << 62), 1 << 62, (count,), generator=generator),
        batch_size=[count],
    )


def by_torchvision(steps: list[nn.Module], batch: Batch, dtype: torch.dtype, conversion_at: int) -> list[Sample]:
    """Every sample after all steps, with the draws that mmload makes."""
    shape = batch.images.shape[1:]
    samples = [_sample(batch, k) for k in range(len(batch))]
    for at, step in enumerate(steps):
        if at == conversion_at:
            samples = [_converted(one, dtype) for one in samples]
        draws = Draws(batch.seeds, at)
        if isinstance(step, augment.ColorJitter):
            factors = step.draw(draws)
            samples = [_jittered(one, step, factors.values[k], factors.order[k]) for k, one in enumerate(samples)]
            continue
        assert isinstance(step, augment.Step)
        plan = step.describe(Plan.unchanged(len(batch), tuple(shape), 255.0, torch.device("cpu")), draws)
        shape = torch.Size((shape[0], plan.height, plan.width))
        pairs = enumerate(zip(samples, windows(plan), strict=True))
        samples = [_changed(one, step, plan, window, k) for k, (one, window) in pairs]
    return [_converted(one, dtype) for one in samples]


def _sample(batch: Batch, k: int) -> Sample:
    size = batch.images.shape[-2], batch.images.shape[-1]
    boxes = tv_tensors.BoundingBoxes(batch.boxes[k], format="XYXY", canvas_size=size)
    frame = (0.0, 0.0, float(size[1]), float(size[0]))
    return Sample(batch.images[k], boxes, tv_tensors.Mask(batch.masks[k]), frame)


def _converted(sample: Sample, dtype: torch.dtype) -> Sample:
    return replace(sample, image=tv.to_dtype(sample.image, dtype, scale=True))


def _changed(sample: Sample, step: nn.Module, plan: Plan, window: Window, k: int) -> Sample:
    """Sample ``k`` after any step but a jitter."""
    if isinstance(step, augment.RandomCrop | augment.CenterCrop):
        return _cropped(sample, step, plan, window)
    if isinstance(step, augment.RandomResizedCrop | augment.Resize):
        return _resized(sample, step, plan, window)
    if isinstance(step, augment.RandomHorizontalFlip | augment.RandomVerticalFlip):
        over = isinstance(step, augment.RandomVerticalFlip)
        if not window.flips:
            return sample
        x1, y1, x2, y2 = sample.frame
        mirrored = (x1, plan.height - y2, x2, plan.height - y1) if over else (plan.width - x2, y1, plan.width - x1, y2)
        return replace(sample.on_all(tv.vertical_flip if over else tv.horizontal_flip), frame=mirrored)
    if isinstance(step, augment.RandomGrayscale):
        if not plan.gray[k]:
            return sample
        gray = tv.rgb_to_grayscale(sample.image, num_output_channels=len(sample.image))
        return replace(sample, image=gray, error=sample.error + 1)
    if isinstance(step, augment.Normalize):
        image = tv.normalize(sample.image, step.mean.tolist(), step.std.tolist())
        return replace(sample, image=image, error=sample.error / 0.2, level=sample.level / 0.2)
    assert isinstance(step, augment.RandomErasing)
    (hole,) = plan.holes
    top, left, rows, cols = (int(one[k]) for one in (hole.top, hole.left, hole.height, hole.width))
    value = torch.tensor(hole.value, dtype=sample.image.dtype)[:, None, None]
    return replace(sample, image=tv.erase(sample.image, top, left, rows, cols, value)) if rows and cols else sample


def _cropped(sample: Sample, step: augment.RandomCrop | augment.CenterCrop, plan: Plan, window: Window) -> Sample:
    """A crop of the padded sample; numpy pads, as torchvision cannot mirror more than once."""
    _, height, width = sample.image.shape
    top, left, rows, cols = window[:4]
    over, across = (max(-top, 0), max(top + rows - height, 0)), (max(-left, 0), max(left + cols - width, 0))
    mode = getattr(step, "padding_mode", "constant")
    fill = step.fill[0] if isinstance(step, augment.RandomCrop) else 0

    def of(item: Tensor, value: float) -> Tensor:
        how: dict[str, Any] = {"constant_values": value} if mode == "constant" else {}
        pads = [(0, 0)] * (item.dim() - 2) + [over, across]
        padded = torch.from_numpy(np.pad(item.numpy(), pads, mode=mode, **how))
        return tv.crop(padded, top + over[0], left + across[0], rows, cols)

    return replace(
        _framed(sample, window),
        image=of(sample.image, fill),
        boxes=tv.crop(sample.boxes, top, left, rows, cols),
        mask=tv_tensors.Mask(of(sample.mask.as_subclass(Tensor), VOID)),
    )


def _framed(sample: Sample, window: Window) -> Sample:
    """The sample with its frame in the window."""
    top, left, rows, cols = window[:4]
    x1, y1, x2, y2 = sample.frame
    moved = (x1 - left, y1 - top, x2 - left, y2 - top)
    inside = (max(moved[0], 0), max(moved[1], 0), min(moved[2], cols), min(moved[3], rows))
    lost = max(abs(one - other) for one, other in zip(moved, inside, strict=True))
    return replace(sample, frame=inside, cut=sample.cut or lost > 1e-3)


def _resized(sample: Sample, step: augment.RandomResizedCrop | augment.Resize, plan: Plan, window: Window) -> Sample:
    sample = _framed(sample, window)
    top, left, rows, cols = window[:4]
    size, mode = [plan.height, plan.width], InterpolationMode(step.interpolation)
    image = tv.crop(sample.image, top, left, rows, cols)
    if plan.resampling is not None:
        image = _smaller_or_larger(image, size, mode, step.antialias)
    of_masks = mode if isinstance(step, augment.Resize) else InterpolationMode.NEAREST
    moved = replace(
        sample,
        image=image,
        boxes=tv.resize(tv.crop(sample.boxes, top, left, rows, cols), size),
        mask=tv.resize(tv.crop(sample.mask, top, left, rows, cols), size, interpolation=of_masks),
    )
    gain, own = {"bilinear": (1.0, 1.0), "bicubic": (2.0, 1.0)}.get(step.interpolation, (1.0, 0.0))
    across, over = plan.width / cols, plan.height / rows
    x1, y1, x2, y2 = sample.frame
    frame = (x1 * across, y1 * over, x2 * across, y2 * over)
    return replace(moved, frame=frame, error=sample.error * gain + own * sample.level)


def _smaller_or_larger(image: Tensor, size: list[int], mode: InterpolationMode, antialias: bool) -> Tensor:
    """torchvision's resize; a column of floats as a row, since torch 2.15 gives all its lines the same value."""
    if size[1] == 1 and image.is_floating_point() and antialias:
        row = tv.resize(image.transpose(1, 2).contiguous(), size[::-1], interpolation=mode, antialias=antialias)
        return row.transpose(1, 2)
    if size == [1, 1] and image.dtype == torch.uint8 and mode.value in ("bilinear", "bicubic"):  # torch 2.15 fails
        levels = tv.resize(image.float(), size, interpolation=mode, antialias=antialias)
        return levels.round().clamp(0, 255).to(torch.uint8)
    return tv.resize(image, size, interpolation=mode, antialias=antialias)


def _jittered(sample: Sample, step: augment.ColorJitter, values: Tensor, order: Tensor) -> Sample:
    """Changes of color, and what they make of errors: each magnifies them, and hue without bound."""
    image, error = sample.image, sample.error
    for which in order.tolist():
        if step.ranges[which] is None or (which > 1 and len(image) == 1):
            continue
        factor = float(values[which])
        image = CHANGES[which](image, factor)
        magnified = error * 512 if which == 3 else error * (abs(factor) + abs(1 - factor))
        error = magnified + 1
    return replace(sample, image=image, error=error)
