"""One of every public step of mmload.augment, and others of their ways."""

from __future__ import annotations

from collections.abc import Callable

from torch import nn

from mmload import augment
from mmload.augment.step import Step

CLASSES = 3
SIDE = 40
BICUBIC = {"interpolation": "bicubic"}
FILL = (9, 100, 250)


def mixers() -> list[nn.Module]:
    return [augment.MixUp(0.4, num_classes=CLASSES), augment.CutMix(num_classes=CLASSES)]


_ONE_OF_EACH: list[Callable[[], nn.Module]] = [
    lambda: augment.AlternatingHorizontalFlip(3),
    augment.AugMix,
    lambda: augment.AutoAugment("imagenet", fill=FILL),
    lambda: augment.CenterCrop((30, 44)),
    lambda: augment.ColorJitter(0.4, 0.4, 0.4, 0.2),
    lambda: augment.CutMix(num_classes=CLASSES),
    lambda: augment.GaussianBlur((9, 5)),
    lambda: augment.MixUp(0.4, num_classes=CLASSES),
    lambda: augment.Letterbox((36, 44), FILL),
    augment.Normalize.imagenet,
    augment.RandAugment,
    lambda: augment.RandomAdjustSharpness(2.3),
    lambda: augment.RandomAffine(20, (0.1, 0.2), (0.7, 1.3), (5, 9, -3, 4), "bilinear", FILL),
    lambda: augment.RandomApply([augment.RandomEqualize(1.0), augment.ColorJitter(hue=0.3)]),
    augment.RandomAutocontrast,
    lambda: augment.RandomChoice([augment.RandomGrayscale(1.0), augment.GaussianBlur(5)], [2, 1]),
    lambda: augment.RandomCrop(36, padding=(3, 9), fill=FILL),
    augment.RandomEqualize,
    lambda: augment.RandomErasing(0.8, value=FILL),
    lambda: augment.RandomGrayscale(0.5),
    lambda: augment.RandomHSV(0.1),
    augment.RandomHorizontalFlip,
    augment.RandomInvert,
    lambda: augment.RandomIoUCrop(trials=9),
    lambda: augment.RandomOrder([augment.RandomPosterize(2), augment.RandomRotation(30)]),
    lambda: augment.RandomPerspective(0.6, 0.7, fill=FILL),
    augment.RandomPhotometricDistort,
    lambda: augment.RandomPosterize(3),
    lambda: augment.RandomResizedCrop((30, 46)),
    lambda: augment.RandomRotation(40, fill=FILL),
    lambda: augment.RandomShortestSize((20, 44), fill=FILL),
    lambda: augment.RandomSolarize(100),
    augment.RandomVerticalFlip,
    lambda: augment.RandomZoomOut(FILL, (1, 2)),
    lambda: augment.Resize((31, 47)),
    lambda: augment.ScaleJitter((36, 44), (0.3, 2.0), fill=FILL),
    augment.TrivialAugmentWide,
]
STEPS: dict[str, Callable[[], nn.Module]] = {type(make()).__name__: make for make in _ONE_OF_EACH} | {
    # other ways through the same steps
    "CutMix of a batch": lambda: augment.CutMix(num_classes=CLASSES, per="batch"),
    "MixChoice": lambda: augment.RandomChoice(mixers()),
    "MixChoice of a batch": lambda: augment.RandomChoice(mixers(), [1, 2], per="batch"),
    "noise": lambda: augment.RandomErasing(1.0, value="random"),
    "reflected": lambda: augment.RandomCrop(SIDE, padding=6, padding_mode="reflect"),
    "bicubic crop": lambda: augment.RandomResizedCrop((30, 46), **BICUBIC),
    "bicubic, enlarged": lambda: augment.Resize((61, 59), **BICUBIC),
    "bicubic, not antialiased": lambda: augment.RandomResizedCrop(30, antialias=False, **BICUBIC),
    "bilinear, not antialiased": lambda: augment.RandomResizedCrop(30, antialias=False),
    "nearest": lambda: augment.RandomResizedCrop(30, interpolation="nearest"),
    "nearest-exact": lambda: augment.Resize((17, 51), "nearest-exact"),
    "bicubic jitter of scales": lambda: augment.ScaleJitter((36, 44), fill=FILL, **BICUBIC),
    "nearest jitter of scales": lambda: augment.ScaleJitter((36, 44), fill=FILL, interpolation="nearest"),
}
PUBLIC_STEPS = {name for name, kind in vars(augment).items() if isinstance(kind, type) and issubclass(kind, Step)}
"""The names of all public steps."""


def made(*kinds: type[nn.Module]) -> list[nn.Module]:
    """One of every step of these kinds."""
    return [step for step in (make() for make in STEPS.values()) if isinstance(step, kinds)]
