"""Random changes to batches of images: described first, then rendered in one pass over the pixels.

The names, arguments and defaults are those of ``torchvision.transforms.v2``. A step works alone on a batch, in
``nn.Sequential``, and in a :class:`mmload.collate.Collate`, which renders all steps that can be composed at once.
"""

from mmload.augment.boxes import BoxRule
from mmload.augment.colour import Normalize, RandomGrayscale
from mmload.augment.draws import sample_seeds, view_seeds
from mmload.augment.erase import RandomErasing
from mmload.augment.geometry import CenterCrop, RandomCrop, RandomHorizontalFlip, RandomVerticalFlip
from mmload.augment.jitter import ColorJitter
from mmload.augment.mix import CutMix, MixUp
from mmload.augment.resize import RandomResizedCrop, Resize
from mmload.augment.step import AfterStep, Step

__all__ = [
    "AfterStep",
    "BoxRule",
    "CenterCrop",
    "ColorJitter",
    "CutMix",
    "MixUp",
    "Normalize",
    "RandomCrop",
    "RandomErasing",
    "RandomGrayscale",
    "RandomHorizontalFlip",
    "RandomResizedCrop",
    "RandomVerticalFlip",
    "Resize",
    "Step",
    "sample_seeds",
    "view_seeds",
]
