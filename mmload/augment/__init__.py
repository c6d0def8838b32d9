"""Random changes of batches of images, described first and then rendered in one pass over the pixels.

The names, arguments and defaults are those of ``torchvision.transforms.v2``. A step works alone on a batch, in
``nn.Sequential``, and in a :class:`mmload.augment.collate.Collate`, which renders the steps that compose at once.
"""

from mmload.augment.box_crops import RandomIoUCrop, RandomZoomOut
from mmload.augment.boxes import BoxRule
from mmload.augment.canvas_steps import Letterbox, RandomShortestSize, ScaleJitter
from mmload.augment.color import ColorJitter, Normalize, RandomGrayscale, RandomHSV
from mmload.augment.copy_paste import CopyPaste
from mmload.augment.erase import RandomErasing
from mmload.augment.foreign_modules import PerSample
from mmload.augment.geometry import (
    AlternatingHorizontalFlip,
    CenterCrop,
    RandomCrop,
    RandomHorizontalFlip,
    RandomVerticalFlip,
)
from mmload.augment.levels import (
    GaussianBlur,
    RandomAdjustSharpness,
    RandomApply,
    RandomAutocontrast,
    RandomChoice,
    RandomEqualize,
    RandomInvert,
    RandomOrder,
    RandomPhotometricDistort,
    RandomPosterize,
    RandomSolarize,
)
from mmload.augment.mix import CutMix, MixUp
from mmload.augment.mosaic import Mosaic
from mmload.augment.policies import AugMix, AutoAugment, RandAugment, TrivialAugmentWide
from mmload.augment.resize import ProgressiveSize, RandomResizedCrop, Resize
from mmload.augment.step import sample_seeds, view_seeds
from mmload.augment.views import Views
from mmload.augment.warps import RandomAffine, RandomPerspective, RandomRotation

__all__ = [
    "AlternatingHorizontalFlip",
    "AugMix",
    "AutoAugment",
    "BoxRule",
    "CenterCrop",
    "ColorJitter",
    "CopyPaste",
    "CutMix",
    "GaussianBlur",
    "Letterbox",
    "MixUp",
    "Mosaic",
    "Normalize",
    "PerSample",
    "ProgressiveSize",
    "RandAugment",
    "RandomAdjustSharpness",
    "RandomAffine",
    "RandomApply",
    "RandomAutocontrast",
    "RandomChoice",
    "RandomCrop",
    "RandomEqualize",
    "RandomErasing",
    "RandomGrayscale",
    "RandomHSV",
    "RandomHorizontalFlip",
    "RandomInvert",
    "RandomIoUCrop",
    "RandomOrder",
    "RandomPerspective",
    "RandomPhotometricDistort",
    "RandomPosterize",
    "RandomResizedCrop",
    "RandomRotation",
    "RandomShortestSize",
    "RandomSolarize",
    "RandomVerticalFlip",
    "RandomZoomOut",
    "Resize",
    "ScaleJitter",
    "TrivialAugmentWide",
    "Views",
    "sample_seeds",
    "view_seeds",
]
