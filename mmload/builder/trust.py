"""What a dataset may ask for when its source is read again: it may come from a stranger, so it runs no code."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from mmload.builder.recipe import BuildRecipe, from_mapping
from mmload.builder.transforms import TransformChain
from mmload.errors import DamagedError, RecipeError, UsageError
from mmload.sources.decode import Decoder
from mmload.sources.files import inner_name

FILE_KINDS = ("imagefolder", "voc", "cifar10", "cifar100", "manifest")
"""The sources that only read files of the folder that they are given."""

_ASKS = {"download": "to download the source", "allow_outside": "to read files outside the source's folder"}
_SHOWN = 200


def recipe_of(recipe: Mapping[str, Any], dataset: str | Path, *, trust: bool) -> BuildRecipe:
    """The recipe in a dataset's manifest, to build its source again. Imports nothing that the recipe names.

    Args:
        recipe: as the manifest has it.
        dataset: where it is, for messages.
        trust: allow all that a recipe of one's own may ask for.

    Raises:
        UsageError: if the recipe asks for more than to read the source's files, and ``trust`` is False.
        DamagedError: if it is no recipe.
    """
    checked = checked_recipe(recipe, dataset)
    asked = [] if trust else _asked(checked)
    if asked:
        raise UsageError(
            f"the dataset {dataset} asks {', and '.join(asked)}; a dataset may come from anybody: "
            "if you trust this one, add --trust (in Python, trust=True)"
        )
    return checked


def checked_recipe(recipe: Mapping[str, Any], dataset: str | Path) -> BuildRecipe:
    """The recipe in a dataset's manifest, to look at.

    Raises:
        DamagedError: if it is no recipe.
    """
    try:
        read = from_mapping(recipe)
        Decoder(**read.decode)
        TransformChain(read.transforms)
    except RecipeError as error:
        raise DamagedError(f"the manifest of {dataset} holds no recipe of a build ({error})") from error
    return read


def _asked(recipe: BuildRecipe) -> list[str]:
    """What goes beyond reading files of the source's folder, in words."""
    if recipe.kind == "python":
        return [f"to run Python code: {_shown(recipe.options)}"]
    if recipe.kind not in FILE_KINDS:
        return [f"to run the code of the source kind {recipe.kind!r:.60}: {_shown(recipe.options)}"]
    asked = [f"{what} ({key} = {recipe.options[key]!r:.60})" for key, what in _ASKS.items() if recipe.options.get(key)]
    for key in ("file", "folder"):  # of a list, relative to the source's folder
        name = recipe.options.get(key) or "."
        if name != "." and (not isinstance(name, str) or inner_name(name) is None):
            asked.append(f"{_ASKS['allow_outside']} ({key} = {name!r:.60})")
    return asked


def _shown(options: Mapping[str, Any]) -> str:
    text = ", ".join(f"{key} = {value!r}" for key, value in options.items()) or "no options"
    return text if len(text) <= _SHOWN else text[: _SHOWN - 3] + "..."
