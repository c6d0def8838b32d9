"""Every single step against torchvision v2, by CPU time of one thread: the part of bench_augment that --steps runs.

Both sides crop 224 out of 256 x 256 uint8 tensors, do the one step to every sample, and normalize to float32, each
sample with draws of its own, for which torchvision is called one image after another. Beside it the step alone, from
uint8 to uint8, in which nothing that mmload does anyway helps it.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
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
    "TrivialAugmentWide": ("TrivialAugmentWide", {}),
    "RandAugment": ("RandAugment", {}),
    "AutoAugment": ("AutoAugment", {}),
    "AugMix": ("AugMix", {}),
}


def _ours(collate: Collate, images: Tensor, out: Tensor) -> Callable[[int], None]:
    def work(turn: int) -> None:
        ids = torch.arange(len(images))
        batch = Batch(ids=ids, seeds=sample_seeds(0, turn, ids), batch_size=[len(images)])
        prepared = collate.prepare(batch, tuple(images.shape[1:]))
        prepared.render_rows(0, images, ids, out)
        prepared.finish(out)

    return work


def _theirs(transform: Any, images: Tensor) -> Callable[[int], None]:
    def work(turn: int) -> None:
        for image in images:
            transform(image)

    return work


def _contenders(kind: str, options: dict[str, Any], images: Tensor) -> list[Callable[[int], None]]:
    """The list by mmload and torchvision, and the step alone by both."""
    step, theirs = getattr(augment, kind)(**options), getattr(v2, kind)(**options)
    floats = [v2.ToDtype(torch.float32, scale=True), v2.Normalize(MEAN, STD)]
    last = kind == "RandomErasing"
    ours = [augment.RandomCrop(224), *([] if last else [step]), augment.Normalize.imagenet(), *([step] if last else [])]
    listed = [v2.RandomCrop(224), *([] if last else [theirs]), *floats, *([theirs] if last else [])]
    cut, count, few = images[:, :, 16:240, 16:240].contiguous(), len(images), max(1, len(images) // FEWER)
    return [
        _ours(Collate(*ours), images, torch.empty(count, 3, 224, 224)),
        _theirs(v2.Compose(listed), images[:few]),
        _ours(Collate(step, dtype=torch.uint8), cut, torch.empty(count, 3, 224, 224, dtype=torch.uint8)),
        _theirs(theirs, cut[:few]),
    ]


def run(rounds: int, count: int) -> list[dict[str, Any]]:
    """Microseconds of CPU time an image of each step, worst first: the median of rounds in which all take turns."""
    torch.set_num_threads(1)
    coarse = torch.rand((count, 3, 20, 20)) * 235
    images = torch.nn.functional.interpolate(coarse, (256, 256), mode="bilinear") + torch.rand(count, 3, 256, 256) * 20
    images = images.to(torch.uint8)
    rows = []
    for name, (kind, options) in STEPS.items():
        contenders = _contenders(kind, options, images)
        times: list[list[float]] = [[] for _ in contenders]
        for turn in range(rounds + 1):
            for taken, work in zip(times, contenders, strict=True):
                start = time.thread_time()
                work(turn)
                taken.append(time.thread_time() - start)
        made = (count, max(1, count // FEWER)) * 2
        listed, stock, alone, theirs = (
            statistics.median(taken[1:]) * 1e6 / of for taken, of in zip(times, made, strict=True)
        )  # the first is warm-up
        rows.append(
            {
                "name": name,
                "list_us": listed,
                "torchvision_list_us": stock,
                "list_ratio": stock / listed,
                "alone_us": alone,
                "torchvision_alone_us": theirs,
                "alone_ratio": theirs / alone,
            }
        )
    return sorted(rows, key=lambda row: row["list_ratio"])


def told(rows: list[dict[str, Any]]) -> str:
    """A table for docs/benchmarks."""
    lines = [
        "| step | in the list: us, torchvision's us, ratio | alone: us, torchvision's us, ratio |",
        "|---|---:|---:|",
    ]
    for row in rows:
        listed = f"{row['list_us']:,.0f}, {row['torchvision_list_us']:,.0f}, **{row['list_ratio']:.1f}**"
        alone = f"{row['alone_us']:,.0f}, {row['torchvision_alone_us']:,.0f}, {row['alone_ratio']:.1f}"
        lines.append(f"| `{row['name']}` | {listed} | {alone} |")
    return "\n".join(lines)
