"""What mmload knows about modules of other packages: which draw, which mix a batch, and which move pixels.

The random transforms of torchvision and kornia draw once for a whole batch, from generators that threads share, and as
a step they get neither boxes nor masks. A collate refuses them. docs/augment.md says what mmload cannot know.
"""

from __future__ import annotations

from collections.abc import Iterator

from torch import nn

COUNTERPARTS = frozenset(
    (
        *("AugMix", "AutoAugment", "CenterCrop", "ColorJitter", "CutMix", "GaussianBlur", "MixUp", "Normalize"),
        *("RandAugment", "RandomAdjustSharpness", "RandomAffine", "RandomApply", "RandomAutocontrast"),
        *("RandomChoice", "RandomCrop", "RandomEqualize", "RandomErasing", "RandomGrayscale"),
        *("RandomHorizontalFlip", "RandomInvert", "RandomOrder", "RandomPerspective"),
        *("RandomPhotometricDistort", "RandomPosterize", "RandomResizedCrop", "RandomRotation"),
        *("RandomSolarize", "RandomVerticalFlip", "Resize", "TrivialAugmentWide"),
    )
)
"""Torchvision's transforms that :mod:`mmload.augment` has under the same name."""

_STILL = frozenset(("ConvertImageDtype", "Grayscale", "Identity", "LinearTransformation", "RGB", "ToDtype"))
"""Torchvision's that draw nothing and treat every sample of a batch alike."""

_ACTIVATIONS = "torch.nn.modules.activation"


def refuse_foreign(step: nn.Module) -> None:
    """Refuses a step that is none of mmload's and whose pixels would depend on batches and threads.

    Raises:
        ValueError: if it, or a part of it, draws from shared generators, draws once a batch, or mixes a batch.
    """
    for part in nested(step):
        name, why = type(part).__name__, _fault(part)
        if why is not None:
            where = "" if part is step else f" (in {type(step).__name__})"
            raise ValueError(f"{_origin(part)}{name}{where} {why}")


def moves(step: nn.Module) -> bool:
    """Whether a module may put pixels elsewhere: all but activations, torchvision's colors, and what says so."""
    if getattr(step, "keeps_geometry", False):
        return False
    if isinstance(step, nn.Sequential):
        return any(moves(part) for part in step)
    activation = type(step).__module__ == _ACTIVATIONS and not isinstance(step, nn.MultiheadAttention)
    colors = is_from(step, "torchvision.transforms") and type(step).__name__ in _STILL
    return not (activation or colors or isinstance(step, nn.Identity))


def nested(module: nn.Module) -> Iterator[nn.Module]:
    """A module and all in it, those in the plain lists of torchvision's v2.Compose and its kin included."""
    for part in module.modules():
        yield part
        inner = getattr(part, "transforms", None)
        if isinstance(inner, list | tuple):
            yield from (deeper for one in inner if isinstance(one, nn.Module) for deeper in nested(one))


def takes_boxes(module: nn.Module) -> bool:
    """Whether it is torchvision's v2, whose transforms take boxes and masks along."""
    if isinstance(module, nn.Sequential):
        return all(takes_boxes(part) for part in module)
    return is_from(module, "torchvision.transforms.v2")


def is_from(module: nn.Module, package: str) -> bool:
    """Whether a module's class, or one it is made of, is defined in a package."""
    return any(f"{name}.".startswith(f"{package}.") for name in _packages(module))


def _packages(module: nn.Module) -> Iterator[str]:
    return (kind.__module__ for kind in type(module).__mro__)


def _origin(module: nn.Module) -> str:
    return "torchvision's " if type(module).__module__.startswith("torchvision.") else ""


def _fault(part: nn.Module) -> str | None:
    """Why a module cannot be a step, or part of one; None: nothing is known against it."""
    name = type(part).__name__
    if is_from(part, "mmload.augment"):
        return "draws by the samples' seeds only as a step of its own: give it to the collate, not to another module"
    if is_from(part, "torchvision.transforms") and name not in _STILL:
        if name in COUNTERPARTS:
            return f"would draw once for a whole batch: import {name} from mmload.augment"
        return f"would treat a whole batch as one image, without boxes and masks: use PerSample({name}(...))"
    if is_from(part, "kornia.augmentation"):
        return f"draws from torch's generator, which threads share: use PerSample({name}(...))"
    if isinstance(part, nn.modules.dropout._DropoutNd | nn.RReLU):
        return (
            f"draws from torch's generator, which threads share: use PerSample({name}(...)), or put it into the model"
        )
    if isinstance(part, nn.modules.batchnorm._BatchNorm):
        return "makes samples depend on the batch they are in: put it into the model"
    return None
