"""The samples that a recipe reads: the splits of its source without those that it excludes, and their fingerprint."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path

from mmload.builder.recipe import BuildRecipe
from mmload.errors import RecipeError
from mmload.sources import SourceSplit, make_source
from mmload.sources.decode import Decoder
from mmload.sources.exclusion import Excluded, samples_of, without


def splits_of(recipe: BuildRecipe) -> Mapping[str, SourceSplit]:
    """The splits that a recipe's source finds at its root, without the samples that it excludes.

    Raises:
        RecipeError: if the recipe has no root, or its options are invalid.
        SourceError: if the source cannot be read.
    """
    return without(_whole_splits(recipe), recipe.exclude, all_there=False)


def _whole_splits(recipe: BuildRecipe) -> Mapping[str, SourceSplit]:
    if recipe.root is None:
        raise RecipeError("the recipe has no root; give one")
    return make_source(recipe.kind, recipe.root, Decoder(**recipe.decode), recipe.options).splits()


def remaining_splits(recipe: BuildRecipe, listed: str | Path | None) -> tuple[Mapping[str, SourceSplit], Excluded]:
    """The splits without the samples that the recipe and a list exclude, which must be there; and all of these."""
    splits, excluded = _whole_splits(recipe), recipe.exclude
    if listed is not None:
        named = samples_of(listed, splits)
        excluded = {name: [*excluded.get(name, ()), *named.get(name, ())] for name in {*excluded, *named}}
    return without(splits, excluded, all_there=True), excluded


def fingerprint(splits: Mapping[str, SourceSplit]) -> str:
    """SHA-256 over every sample's id and revision, in order: it changes whenever the source does."""
    digest = hashlib.sha256()
    for name, split in splits.items():
        digest.update(_text_bytes(f"{name}\0{len(split)}\0{split.classes!r}\n"))
        for index in range(len(split)):
            digest.update(_text_bytes(f"{split.id(index)}\0{split.revision(index)}\n"))
    return digest.hexdigest()


def _text_bytes(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass")
