"""Training recipes as the task of a bench: what our collate is, what torchvision's steps are, what others leave out."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torchvision.transforms import v2

from mmload.errors import UsageError, choices

if TYPE_CHECKING:
    from mmload.augment.collate import Collate
    from mmload.augment.views import Views

EPOCH = 0
"""Epoch for all steps that depend on it, so that the epochs of a bench are equal."""


def check_name(name: str) -> None:
    """Rejects a name that no training recipe has.

    Raises:
        UsageError: listing the names, or saying why a module cannot be imported.
    """
    _function(name)


def collate_of_recipe(name: str, size: int | None, classes: int) -> Collate | Views:
    """Returns the collate of a training recipe of :mod:`mmload.presets`, or MODULE:FUNCTION, at epoch 0.

    Its (larger) crops are of ``size`` pixels; None: as published.
    """
    make = _function(name)
    arguments: dict[str, Any] = {} if size is None else {"size": size}
    if "num_classes" in inspect.signature(make).parameters:
        arguments["num_classes"] = max(2, classes)
    made: Collate | Views = make(**arguments)
    made.set_epoch(EPOCH)
    return made


def task_of_recipe(name: str, size: int | None, stored: tuple[int, int, int]) -> dict[str, Any]:
    """Returns the task's settings for a recipe: size of each view, crop, and steps that not every contender has.

    Raises:
        UsageError: if the recipe cannot be done to the stored images.
    """
    from mmload.augment import Normalize, RandomCrop, RandomResizedCrop
    from mmload.augment.views import collates_of

    collates = collates_of(collate_of_recipe(name, size, 2))
    try:
        shapes = [_shape(collate, stored) for collate in collates]
    except (ValueError, TypeError) as error:
        raise UsageError(f"--recipe {name} cannot be done to images {list(stored)}: {error}") from error
    first = collates[0].steps[0]
    crop: dict[str, Any] = {}
    if isinstance(first, RandomResizedCrop):
        crop = {"augment": "resized-crop", "scale": first.scale, "interpolation": first.interpolation}
    elif isinstance(first, RandomCrop):
        crop = {"augment": "crop", "padding": max(first.padding)}
    normalize = [step for step in collates[0].steps if isinstance(step, Normalize)]
    statistics = [(tuple(step.mean.tolist()), tuple(step.std.tolist())) for step in normalize]
    return crop | {
        "training_recipe": name,
        "statistics": statistics[0] if statistics else ((0.0,) * stored[0], (1.0,) * stored[0]),
        "views": tuple(shapes),
        "crop": shapes[0][0],
        "left_out": ", ".join(dict.fromkeys(_names(collates))),
    }


def published_steps(collate: Collate) -> tuple[list[Any], Any]:
    """Returns torchvision's steps for one image, and the one for a batch that ends them, None if none does.

    An alternating flip, which torchvision does not have, is a random one.
    """
    from mmload.augment import AlternatingHorizontalFlip, RandomHorizontalFlip
    from mmload.augment.collate import Collate as OwnCollate
    from mmload.interop.torchvision import torchvision_equivalent

    steps = [RandomHorizontalFlip() if isinstance(step, AlternatingHorizontalFlip) else step for step in collate.steps]
    twin = OwnCollate(*steps, dtype=collate.dtype)
    twin.set_epoch(EPOCH)
    made = list(torchvision_equivalent(twin).transforms)
    batch = [step for step in made if _mixes(step)]
    return [step for step in made if not _mixes(step)], v2.Compose(batch) if batch else None


class OneByOne:
    """An image's views by torchvision, after steps that are applied once. Picklable."""

    def __init__(self, before: list[Any], views: list[list[Any]]) -> None:
        self._before = v2.Compose(before) if before else v2.Identity()
        self._views = [v2.Compose(view) for view in views]

    def __call__(self, image: Any) -> Any:
        """Returns a tuple of the views, or the only view."""
        whole = self._before(image)
        made = tuple(view(whole) for view in self._views)
        return made if len(made) > 1 else made[0]


class Collated:
    """torch's default collate, and what mixes samples after it. Picklable."""

    def __init__(self, mix: Any) -> None:
        self._mix = mix

    def __call__(self, items: list[tuple[Any, int]]) -> tuple[Any, Tensor]:
        """Returns the batch of some samples."""
        images, labels = torch.utils.data.default_collate(items)
        return (images, labels) if self._mix is None else self._mix(images, labels)


def _function(name: str) -> Callable[..., Any]:
    """Returns the function of a name; raises UsageError if there is none."""
    from mmload import presets

    published: dict[str, Callable[..., Any]] = {
        name: getattr(presets, name) for name in presets.__all__ if name != "evaluation"
    }
    module, colon, function = name.partition(":")
    if not colon:
        if name not in published:
            raise UsageError(f"--recipe is {name!r}; use one of {choices(published)}, or MODULE:FUNCTION of your own")
        return published[name]
    try:
        found = getattr(importlib.import_module(module), function)
    except (ImportError, AttributeError, ValueError) as error:
        raise UsageError(
            f"--recipe is {name!r}: {error}; give MODULE:FUNCTION, and PYTHONPATH to its folder"
        ) from error
    if not callable(found):
        raise UsageError(f"--recipe is {name!r}, which is {type(found).__name__}; give a function that makes a Collate")
    made: Callable[..., Any] = found
    return made


def _shape(collate: Collate, stored: tuple[int, int, int]) -> tuple[int, int]:
    """Returns the size of the images that a collate makes of one stored image."""
    from mmload.batch import Batch

    row = Batch(images=torch.zeros((2, *stored), dtype=torch.uint8), ids=torch.arange(2), batch_size=[2])
    made = collate(row.replace(targets=torch.zeros(2, dtype=torch.int64))).images
    return made.shape[2], made.shape[3]


def _names(collates: tuple[Collate, ...]) -> list[str]:
    """Returns the steps besides the first crop, flip and Normalize, named by what they do."""
    from mmload.augment import AlternatingHorizontalFlip, Normalize, RandomCrop, RandomHorizontalFlip

    usual = (RandomHorizontalFlip, AlternatingHorizontalFlip, Normalize)
    crops = [step for step in (collate.steps[0] for collate in collates) if isinstance(step, RandomCrop)]
    padded = [f"padding by {step.padding_mode}" for step in crops if step.padding_mode != "constant"]
    steps = [step for collate in collates for step in list(collate.steps)[1:] if not isinstance(step, usual)]
    return padded + [name for step in steps for name in _inner_names(step)]


def _inner_names(step: nn.Module) -> list[str]:
    """Returns the step's name, or those of the steps that it applies or chooses from."""
    inner = getattr(step, "transforms", None)
    return [type(step).__name__] if inner is None else [name for one in inner for name in _inner_names(one)]


def _mixes(step: nn.Module) -> bool:
    inner = getattr(step, "transforms", None)
    return isinstance(step, v2.MixUp | v2.CutMix) or (
        isinstance(step, v2.RandomChoice) and any(isinstance(one, v2.MixUp | v2.CutMix) for one in inner or ())
    )
