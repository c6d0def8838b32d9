"""Writes the recipe that builds an exported folder again, as it was stored."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from mmload.records import FieldSpec


def recipe_text(comment: str, source: Mapping[str, Any], images: Iterable[FieldSpec], mode: str) -> str:
    """Returns a recipe in TOML without any transform.

    Args:
        comment: its first line.
        source: the keys of its ``[source]``: texts, booleans or lists of texts.
        images: the images of each split. If rows have their own sizes, the recipe stores them so, as pixels: a JPEG
            would be encoded once more, which changes them.
        mode: of its ``[decode]``.
    """
    lines = [f"# {comment}", "", "[source]"]
    lines += [f"{key} = {_toml(value)}" for key, value in source.items()]
    lines += ["", "[decode]", f"mode = {_toml(mode)}"]
    if any(spec.own_sizes for spec in images):
        lines += ["", "[store]", 'layout = "whole"']
    return "\n".join([*lines, ""])


def _toml(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return f'"{"".join(map(_escaped, value))}"'
    items: Sequence[Any] = value
    return f"[{', '.join(map(_toml, items))}]"


def _escaped(sign: str) -> str:
    """A character in a TOML string; bytes that are no text, which TOML cannot express, become U+FFFD."""
    if "\ud800" <= sign <= "\udfff":
        return "\ufffd"
    if sign in '"\\':
        return f"\\{sign}"
    return sign if sign.isprintable() else f"\\U{ord(sign):08x}"
