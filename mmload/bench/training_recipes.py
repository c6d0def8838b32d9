"""Training recipes as the task of a bench: what our collate is, and what torchvision's steps are."""

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


def collate_of_recipe(name: str, size: int | None, classes: int) -> Collate | Views:
    """Returns the collate of a training recipe of :mod:`mmload.presets`, or MODULE:FUNCTION, at epoch 0.

    Its (larger) crops are of ``size`` pixels; None: as published.
    """
    make = recipe_function(name)
    arguments: dict[str, Any] = {} if size is None else {"size": size}
    if "num_classes" in inspect.signature(make).parameters:
        arguments["num_classes"] = max(2, classes)
    made: Collate | Views = make(**arguments)
    made.set_epoch(EPOCH)
    return made


def views_of_recipe(name: str, size: int | None, stored: tuple[int, int, int]) -> tuple[tuple[int, int], ...]:
    """Returns the height and width of each view that a recipe makes of the stored images.

    Raises:
        UsageError: if the recipe cannot be done to them.
    """
    from mmload.augment.views import collates_of

    try:
        return tuple(_shape(collate, stored) for collate in collates_of(collate_of_recipe(name, size, 2)))
    except (ValueError, TypeError) as error:
        raise UsageError(f"--steps {name} cannot be done to images {list(stored)}: {error}") from error


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
        self._views = [v2.Compose(view) if view else v2.Identity() for view in views]

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


def recipe_function(name: str) -> Callable[..., Any]:
    """Returns the function of :mod:`mmload.presets`, or MODULE:FUNCTION, that makes the collate of a training recipe.

    Raises:
        UsageError: listing the names, or saying why a module cannot be imported.
    """
    from mmload import presets

    published: dict[str, Callable[..., Any]] = {
        name: getattr(presets, name) for name in presets.__all__ if name != "evaluation"
    }
    module, colon, function = name.partition(":")
    if not colon:
        if name not in published:
            raise UsageError(
                f"--steps is {name!r}; use crop, resized-crop, none, {choices(published)}, or MODULE:FUNCTION"
            )
        return published[name]
    try:
        found = getattr(importlib.import_module(module), function)
    except (ImportError, AttributeError, ValueError) as error:
        raise UsageError(f"--steps is {name!r}: {error}; give MODULE:FUNCTION, and PYTHONPATH to its folder") from error
    if not callable(found):
        raise UsageError(f"--steps is {name!r}, which is {type(found).__name__}; give a function that makes a Collate")
    made: Callable[..., Any] = found
    return made


def _shape(collate: Collate, stored: tuple[int, int, int]) -> tuple[int, int]:
    """Returns the size of the images that a collate makes of one stored image."""
    from mmload.batch import Batch

    row = Batch(images=torch.zeros((2, *stored), dtype=torch.uint8), ids=torch.arange(2), batch_size=[2])
    made = collate(row.replace(targets=torch.zeros(2, dtype=torch.int64))).images
    return made.shape[2], made.shape[3]


def _mixes(step: nn.Module) -> bool:
    inner = getattr(step, "transforms", None)
    return isinstance(step, v2.MixUp | v2.CutMix) or (
        isinstance(step, v2.RandomChoice) and any(isinstance(one, v2.MixUp | v2.CutMix) for one in inner or ())
    )
