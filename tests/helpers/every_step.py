"""One of every public step of mmload.augment, and others of their ways."""

from __future__ import annotations

from collections.abc import Callable

from torch import nn

from mmload import augment

CLASSES = 3
SIDE = 40
BICUBIC = {"interpolation": "bicubic"}
FILL = (9, 100, 250)


def mixers() -> list[nn.Module]:
    return [augment.MixUp(0.4, num_classes=CLASSES), augment.CutMix(num_classes=CLASSES)]


STEPS: dict[str, Callable[[], nn.Module]] = {
    "AlternatingHorizontalFlip": lambda: augment.AlternatingHorizontalFlip(3),
    "AugMix": augment.AugMix,
    "AutoAugment": lambda: augment.AutoAugment("imagenet", fill=FILL),
    "CenterCrop": lambda: augment.CenterCrop((30, 44)),
    "ColorJitter": lambda: augment.ColorJitter(0.4, 0.4, 0.4, 0.2),
    "CutMix": lambda: augment.CutMix(num_classes=CLASSES),
    "GaussianBlur": lambda: augment.GaussianBlur((9, 5)),
    "MixUp": lambda: augment.MixUp(0.4, num_classes=CLASSES),
    "Letterbox": lambda: augment.Letterbox((36, 44), FILL),
    "Normalize": augment.Normalize.imagenet,
    "RandAugment": augment.RandAugment,
    "RandomAdjustSharpness": lambda: augment.RandomAdjustSharpness(2.3),
    "RandomAffine": lambda: augment.RandomAffine(20, (0.1, 0.2), (0.7, 1.3), (5, 9, -3, 4), "bilinear", FILL),
    "RandomApply": lambda: augment.RandomApply([augment.RandomEqualize(1.0), augment.ColorJitter(hue=0.3)]),
    "RandomAutocontrast": augment.RandomAutocontrast,
    "RandomChoice": lambda: augment.RandomChoice([augment.RandomGrayscale(1.0), augment.GaussianBlur(5)], [2, 1]),
    "RandomCrop": lambda: augment.RandomCrop(36, padding=(3, 9), fill=FILL),
    "RandomEqualize": augment.RandomEqualize,
    "RandomErasing": lambda: augment.RandomErasing(0.8, value=FILL),
    "RandomGrayscale": lambda: augment.RandomGrayscale(0.5),
    "RandomHorizontalFlip": augment.RandomHorizontalFlip,
    "RandomInvert": augment.RandomInvert,
    "RandomIoUCrop": lambda: augment.RandomIoUCrop(trials=9),
    "RandomOrder": lambda: augment.RandomOrder([augment.RandomPosterize(2), augment.RandomRotation(30)]),
    "RandomPerspective": lambda: augment.RandomPerspective(0.6, 0.7, fill=FILL),
    "RandomPhotometricDistort": augment.RandomPhotometricDistort,
    "RandomPosterize": lambda: augment.RandomPosterize(3),
    "RandomResizedCrop": lambda: augment.RandomResizedCrop((30, 46)),
    "RandomRotation": lambda: augment.RandomRotation(40, fill=FILL),
    "RandomShortestSize": lambda: augment.RandomShortestSize((20, 44), fill=FILL),
    "RandomSolarize": lambda: augment.RandomSolarize(100),
    "RandomVerticalFlip": augment.RandomVerticalFlip,
    "RandomZoomOut": lambda: augment.RandomZoomOut(FILL, (1, 2)),
    "Resize": lambda: augment.Resize((31, 47)),
    "ScaleJitter": lambda: augment.ScaleJitter((36, 44), (0.3, 2.0), fill=FILL),
    "TrivialAugmentWide": augment.TrivialAugmentWide,
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
NO_STEPS = {"AfterStep", "BoxRule", "PerSample", "ProgressiveSize", "Step", "TwoViews", "Views"} | {
    "sample_seeds",
    "view_seeds",
}
