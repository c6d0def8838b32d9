"""The options that say what training sees: ``--augment`` and ``--recipe``."""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Annotated

import typer

from mmload.errors import UsageError, choices

if TYPE_CHECKING:
    from mmload.augment import Views
    from mmload.augment.collate import Collate
    from mmload.inspection.training import Training

Augment = Annotated[
    str | None, typer.Option(metavar="STEPS", help='What training sees: "RandomCrop(24), ColorJitter(0.4)".')
]
Recipe = Annotated[
    str | None, typer.Option(metavar="NAME", help="What training sees by a training recipe, such as simclr.")
]


def check_one(augment: str | None, recipe: str | None) -> None:
    """Raises UsageError if both are given."""
    if augment is not None and recipe is not None:
        raise UsageError("--augment and --recipe are both given; choose one")


def collate_of(augment: str | None, recipe: str | None, classes: int) -> Collate | Views | None:
    """What the options ask for; None if neither is given.

    Args:
        augment: the steps.
        recipe: the name of a training recipe.
        classes: how many the dataset has, for recipes that mix samples.

    Raises:
        UsageError: naming the option and what is wrong with it.
    """
    if augment is not None:
        from mmload.augment.collate import Collate
        from mmload.inspection.step_text import steps_of

        try:
            return Collate(*steps_of(augment))
        except (TypeError, ValueError) as error:
            raise UsageError(f"--augment is {augment!r}: {error}") from error
    if recipe is None:
        return None
    from mmload import recipes

    if recipe not in recipes.__all__:
        raise UsageError(f"--recipe is {recipe!r}; use one of {choices(recipes.__all__)}")
    make = getattr(recipes, recipe)
    made: Collate | Views = make(num_classes=classes) if _mixes(recipe) else make()
    return made


def training_of(augment: str | None, recipe: str | None, classes: int) -> Training:
    """What the options ask for, with how it is written in Python; by default the usual steps of a split's fields.

    Args:
        augment: as :func:`collate_of`.
        recipe: the same.
        classes: the same.

    Raises:
        UsageError: as :func:`collate_of`.
    """
    from mmload.inspection.training import Training

    made = collate_of(augment, recipe, classes)
    if recipe is None:
        return Training(steps=augment or "", made=made)
    return Training(recipe=f"{recipe}({f'num_classes={classes}' if _mixes(recipe) else ''})", made=made)


def _mixes(recipe: str) -> bool:
    """Whether a training recipe mixes samples, and so takes the number of classes."""
    from mmload import recipes

    return "num_classes" in inspect.signature(getattr(recipes, recipe)).parameters
