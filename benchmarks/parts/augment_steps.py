"""Every single step against torchvision v2, by CPU time of one thread: the work of bench_augment.

Both sides crop 224 out of 256 x 256 uint8 tensors, do the one step to every sample, and normalize to float32, each
sample with draws of its own, for which torchvision is called one image after another: first without a batch, so that
its images never leave the cache, then with the batch that mmload makes, too, for which they are stacked as a DataLoader
does. Beside it the step alone, from uint8 to uint8, in which nothing that mmload does anyway helps it. A step that
leaves images of sizes of their own takes the crop's place: a resize, or a canvas of one size, ends it on both sides.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torchvision import tv_tensors
from torchvision.transforms import v2

from mmload import augment
from mmload.augment import sample_seeds
from mmload.augment.collate import Collate
from mmload.batch import Batch

MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)

FEWER = 4
"""torchvision gets a fourth of the batch, as its time an image does not depend on how many there are."""

STEPS: dict[str, tuple[str, dict[str, Any]]] = {
    "RandomHorizontalFlip": ("RandomHorizontalFlip", {"p": 1.0}),
    "RandomGrayscale": ("RandomGrayscale", {"p": 1.0}),
    "RandomInvert": ("RandomInvert", {"p": 1.0}),
    "RandomPosterize(4)": ("RandomPosterize", {"bits": 4, "p": 1.0}),
    "RandomSolarize(128)": ("RandomSolarize", {"threshold": 128, "p": 1.0}),
    "RandomAutocontrast": ("RandomAutocontrast", {"p": 1.0}),
    "RandomEqualize": ("RandomEqualize", {"p": 1.0}),
    "RandomAdjustSharpness(2)": ("RandomAdjustSharpness", {"sharpness_factor": 2, "p": 1.0}),
    "ColorJitter(brightness=0.4)": ("ColorJitter", {"brightness": 0.4}),
    "ColorJitter(contrast=0.4)": ("ColorJitter", {"contrast": 0.4}),
    "ColorJitter(saturation=0.4)": ("ColorJitter", {"saturation": 0.4}),
    "ColorJitter(hue=0.2)": ("ColorJitter", {"hue": 0.2}),
    "ColorJitter(0.4, 0.4, 0.4)": ("ColorJitter", {"brightness": 0.4, "contrast": 0.4, "saturation": 0.4}),
    "RandomPhotometricDistort": ("RandomPhotometricDistort", {}),
    "GaussianBlur(3)": ("GaussianBlur", {"kernel_size": 3}),
    "GaussianBlur(23)": ("GaussianBlur", {"kernel_size": 23}),
    "RandomRotation(30)": ("RandomRotation", {"degrees": 30}),
    "RandomRotation(30, bilinear)": ("RandomRotation", {"degrees": 30, "interpolation": v2.InterpolationMode.BILINEAR}),
    "RandomAffine(30, bilinear)": ("RandomAffine", {"degrees": 30, "interpolation": v2.InterpolationMode.BILINEAR}),
    "RandomPerspective": ("RandomPerspective", {"p": 1.0}),
    "RandomErasing": ("RandomErasing", {"p": 1.0}),
    "RandomErasing(random)": ("RandomErasing", {"p": 1.0, "value": "random"}),
    "TrivialAugmentWide": ("TrivialAugmentWide", {}),
    "RandAugment": ("RandAugment", {}),
    "AutoAugment": ("AutoAugment", {}),
    "AugMix": ("AugMix", {}),
}

SIDES = (160, 192, 224)
_RESIZED = [augment.Resize((224, 224))], [v2.Resize((224, 224))]
_PLACED: tuple[list[Any], list[Any]] = [], [v2.RandomCrop(224, pad_if_needed=True)]  # on a canvas, which mmload does
SIZED: dict[str, tuple[str, dict[str, Any], tuple[list[Any], list[Any]]]] = {
    "RandomResizedCrop(224)": ("RandomResizedCrop", {"size": 224}, ([], [])),
    "RandomResizedCrop(224, bicubic)": (
        "RandomResizedCrop",
        {"size": 224, "interpolation": v2.InterpolationMode.BICUBIC},
        ([], []),
    ),
    "ScaleJitter((224, 224))": ("ScaleJitter", {"target_size": (224, 224)}, _PLACED),
    "RandomShortestSize((160, 192, 224))": ("RandomShortestSize", {"min_size": SIDES, "max_size": 224}, _PLACED),
    "RandomZoomOut, Resize": ("RandomZoomOut", {"p": 1.0}, _RESIZED),
    "RandomIoUCrop, Resize": ("RandomIoUCrop", {}, _RESIZED),
}
"""Steps that say the size themselves, and what ends them on either side. Each image of RandomIoUCrop has two boxes."""


def _ours(collate: Collate, images: Tensor, out: Tensor, boxes: Tensor | None = None) -> Callable[[int], None]:
    def work(turn: int) -> None:
        ids = torch.arange(len(images))
        batch = Batch(ids=ids, seeds=sample_seeds(0, turn, ids), batch_size=[len(images)])
        if boxes is not None:
            counts, labels = torch.full((len(ids),), boxes.shape[1]), torch.zeros(boxes.shape[:2], dtype=torch.int64)
            batch = batch.replace(boxes=boxes, counts=counts, labels=labels)
        prepared = collate.prepare(batch, tuple(images.shape[1:]))
        prepared.render_batch(images, out)
        prepared.finish(out)

    return work


def _theirs(
    transform: Any, images: Tensor, boxes: Tensor | None = None, *, stacked: bool = False
) -> Callable[[int], None]:
    inputs: list[tuple[Any, ...]] = [(image,) for image in images]
    if boxes is not None:
        kind: dict[str, Any] = {"format": tv_tensors.BoundingBoxFormat.XYXY, "canvas_size": tuple(images.shape[2:])}
        inputs = [
            (image, tv_tensors.BoundingBoxes(several, **kind), torch.zeros(len(several)))
            for image, several in zip(images, boxes, strict=False)
        ]

    def work(turn: int) -> None:
        if not stacked:
            for one in inputs:
                transform(*one)
            return
        made = [transform(*one) for one in inputs]
        torch.stack([one if boxes is None else one[0] for one in made])

    return work


def _contenders(kind: str, options: dict[str, Any], images: Tensor) -> list[Callable[[int], None]]:
    """The list by mmload, by torchvision and with a batch, and the step alone by both, where it can leave uint8."""
    step, theirs = getattr(augment, kind)(**options), getattr(v2, kind)(**options)
    floats = [v2.ToDtype(torch.float32, scale=True), v2.Normalize(MEAN, STD)]
    last = kind == "RandomErasing"
    ours = [augment.RandomCrop(224), *([] if last else [step]), augment.Normalize.imagenet(), *([step] if last else [])]
    listed = [v2.RandomCrop(224), *([] if last else [theirs]), *floats, *([theirs] if last else [])]
    cut, count, few = images[:, :, 16:240, 16:240].contiguous(), len(images), max(1, len(images) // FEWER)
    theirs_listed = [_theirs(v2.Compose(listed), images[:few], stacked=stacked) for stacked in (False, True)]
    lists = [_ours(Collate(*ours), images, torch.empty(count, 3, 224, 224)), *theirs_listed]
    if options.get("value") == "random":  # noise is floats
        return lists
    return [
        *lists,
        _ours(Collate(step, dtype=torch.uint8), cut, torch.empty(count, 3, 224, 224, dtype=torch.uint8)),
        _theirs(theirs, cut[:few]),
    ]


def _sized(
    kind: str, options: dict[str, Any], ending: tuple[list[Any], list[Any]], images: Tensor
) -> list[Callable[[int], None]]:
    """The list that begins with the step, by mmload, by torchvision and with a batch."""
    count, few = len(images), max(1, len(images) // FEWER)
    corners = torch.rand(count, 2, 2) * 100
    boxes = torch.cat([corners, corners + 40 + torch.rand(count, 2, 2) * 100], 2) if kind == "RandomIoUCrop" else None
    collate = Collate(getattr(augment, kind)(**options), *ending[0], augment.Normalize.imagenet())
    floats = [v2.ToDtype(torch.float32, scale=True), v2.Normalize(MEAN, STD)]
    listed = v2.Compose([getattr(v2, kind)(**options), *ending[1], *floats])
    return [
        _ours(collate, images, torch.empty(count, 3, 224, 224), boxes),
        *(_theirs(listed, images[:few], boxes, stacked=stacked) for stacked in (False, True)),
    ]


def run(rounds: int, count: int, only: str = "") -> list[dict[str, Any]]:
    """Microseconds of CPU time an image of each step whose name has ``only``, worst first.

    Of each the median of rounds in which all take turns.
    """
    torch.set_num_threads(1)
    coarse = torch.rand((count, 3, 20, 20)) * 235
    images = torch.nn.functional.interpolate(coarse, (256, 256), mode="bilinear") + torch.rand(count, 3, 256, 256) * 20
    images = images.to(torch.uint8)
    rows = [_measured(name, _contenders(*step, images), rounds, count) for name, step in STEPS.items() if only in name]
    rows += [_measured(name, _sized(*step, images), rounds, count) for name, step in SIZED.items() if only in name]
    return sorted(rows, key=lambda row: row["list_ratio"])


def _measured(name: str, contenders: list[Callable[[int], None]], rounds: int, count: int) -> dict[str, Any]:
    """The row of a step; without what it takes alone where only lists are compared."""
    times: list[list[float]] = [[] for _ in contenders]
    for turn in range(rounds + 1):
        for taken, work in zip(times, contenders, strict=True):
            start = time.thread_time()
            work(turn)
            taken.append(time.thread_time() - start)
    few = max(1, count // FEWER)
    made = count, few, few, count, few
    medians = [
        statistics.median(taken[1:]) * 1e6 / of for taken, of in zip(times, made, strict=False)
    ]  # the first is warm-up
    row: dict[str, Any] = {"name": name}
    for what, place, against in (("list", 0, 1), ("batch", 0, 2), ("alone", 3, 4)):
        if place < len(medians):
            ours, theirs = medians[place], medians[against]
            row |= {f"{what}_us": ours, f"torchvision_{what}_us": theirs, f"{what}_ratio": theirs / ours}
    return row


def told(rows: list[dict[str, Any]]) -> str:
    """Returns the rows as a table."""
    lines = [
        "| step | in the list: us, torchvision's us, ratio | torchvision with a batch: us, ratio | "
        "alone: us, torchvision's us, ratio |",
        "|---|---:|---:|---:|",
    ]
    for row in rows:
        listed = f"{row['list_us']:,.0f}, {row['torchvision_list_us']:,.0f}, **{row['list_ratio']:.1f}**"
        batch, alone = f"{row['torchvision_batch_us']:,.0f}, **{row['batch_ratio']:.1f}**", ""
        if "alone_us" in row:
            alone = f"{row['alone_us']:,.0f}, {row['torchvision_alone_us']:,.0f}, {row['alone_ratio']:.1f}"
        lines.append(f"| `{row['name']}` | {listed} | {batch} | {alone} |")
    return "\n".join(lines)
