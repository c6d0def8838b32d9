"""Restricts what a dataset's recipe may do when its source is read again: datasets may be untrusted, so run no code."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from mmload.builder.recipe import BuildRecipe, from_mapping
from mmload.builder.transforms import TransformChain
from mmload.errors import DamagedError, RecipeError, UsageError
from mmload.sources.decode import Decoder
from mmload.sources.files import inner_name

FILE_KINDS = ("imagefolder", "voc", "coco", "yolo", "cifar10", "cifar100", "list", "webdataset", "huggingface")
"""The sources that only read files in their own folder."""

_REQUESTS = {"download": "to download the source", "allow_outside": "to read files outside the source's folder"}
_SHOWN = 200


def trusted_recipe(recipe: Mapping[str, Any], dataset: str | Path, *, trust: bool) -> BuildRecipe:
    """Returns the recipe in a dataset's manifest, to read its source again. Imports nothing that the recipe names.

    ``trust`` allows everything that a user's own recipe may do.

    Raises:
        UsageError: if the recipe does more than read the source's files, and ``trust`` is False.
        DamagedError: if it is not a valid recipe.
    """
    checked = checked_recipe(recipe, dataset)
    if not trust and (requests := _requests(checked)):
        raise UsageError(
            f"the dataset {dataset} asks {', and '.join(requests)}; a dataset may come from anybody: "
            "if you trust this one, add --trust (in Python, trust=True)"
        )
    return checked


def checked_recipe(recipe: Mapping[str, Any], dataset: str | Path) -> BuildRecipe:
    """Returns the recipe in a dataset's manifest, for display.

    Raises:
        DamagedError: if it is not a valid recipe.
    """
    try:
        read = from_mapping(recipe)
        Decoder(**read.decode)
        TransformChain(read.transforms)
    except RecipeError as error:
        raise DamagedError(f"the manifest of {dataset} holds no recipe of a build ({error})") from error
    return read


def _requests(recipe: BuildRecipe) -> list[str]:
    """Returns the operations beyond reading files in the source's folder, as text."""
    if recipe.kind == "python":
        return [f"to run Python code: {_shown(recipe.options)}"]
    if recipe.kind not in FILE_KINDS:
        return [f"to run the code of the source kind {recipe.kind!r:.60}: {_shown(recipe.options)}"]
    requests = [
        f"{request} ({key} = {recipe.options[key]!r:.60})"
        for key, request in _REQUESTS.items()
        if recipe.options.get(key)
    ]
    for key in ("file", "folder", "masks", "class_names"):  # paths relative to the source's folder
        name = recipe.options.get(key) or "."
        if name != "." and (not isinstance(name, str) or inner_name(name) is None):
            requests.append(f"{_REQUESTS['allow_outside']} ({key} = {name!r:.60})")
    return requests


def _shown(options: Mapping[str, Any]) -> str:
    text = ", ".join(f"{key} = {value!r}" for key, value in options.items()) or "no options"
    return text if len(text) <= _SHOWN else text[: _SHOWN - 3] + "..."
