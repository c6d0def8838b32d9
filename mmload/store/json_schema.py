"""Converts plain JSON values to typed records, and says in one line which value is wrong.

The records are classes of msgspec, whose own messages name a type, but neither the value nor the key of a mapping.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, TypeVar

import msgspec

from mmload.errors import DamagedError

T = TypeVar("T")

_PLACE = re.compile(r"(.*) - at `(?:key` in `)?(\$[^`]*)`", re.DOTALL)
_UNKNOWN = re.compile(r"unknown field `(.*)`", re.DOTALL)
_STEP = re.compile(r"\.(?P<key>[^.\[]+)|\[(?P<index>\d+)\]|(?P<any>\[\.\.\.\])")


def convert_json(
    body: Any, kind: type[T], path: str, hook: Callable[[type, Any], Any] | None = None, advice: str = ""
) -> T:
    """Converts plain JSON values to a record.

    Args:
        body: as :func:`json.loads` returns it; belongs to this function afterwards.
        kind: the type of the record.
        path: the file, for messages.
        hook: converts a plain value to a type that msgspec does not know.
        advice: what a user can do about a damaged file, for messages.

    Raises:
        DamagedError: if a value does not fit; names the file, the place in it, the value, and what is expected.
    """

    def convert() -> T:
        return msgspec.convert(body, kind, dec_hook=hook, str_keys=True)

    try:
        return convert()
    except (ValueError, RecursionError, OverflowError) as error:  # ValueError: lone surrogates in a key
        reason = _reason(body, convert, str(error))
        raise DamagedError(f"{path} is damaged: {reason}; {advice or 'rebuild the dataset'}") from error


def shown(value: object) -> str:
    """Formats a value for a message: at most 60 characters."""
    try:
        text = repr(value)
    except RecursionError:
        return "deeply nested"
    return text if len(text) <= 60 else text[:57] + "..."


def _reason(body: Any, convert: Callable[[], object], error: str) -> str:
    """Translates an error of msgspec: adds the keys of mappings, which it writes as ``[...]``, and the value."""
    text, steps = error, list[re.Match[str]]()
    while found := _PLACE.fullmatch(text):  # several, if the hook has converted a part
        text, place = found.groups()
        steps += _STEP.finditer(place)
    where, value = "", body
    for step in steps:
        if step["any"]:
            key = _failing_key(value, convert, error)
            where, value = f"{where}.{key}", value[key]
        elif step["index"]:
            where, value = f"{where}{step[0]}", value[int(step["index"])]
        else:
            where, value = f"{where}{step[0]}", value[step["key"]]
    text = _UNKNOWN.sub(lambda found: f"unknown field {shown(found[1])}", text).replace("`", "")
    return f"{where[1:]} is {shown(value)}: {text[:1].lower()}{text[1:]}" if where else text[:1].lower() + text[1:]


def _failing_key(table: dict[str, Any], convert: Callable[[], object], error: str) -> str:
    """Finds the entry of a mapping that an error is about, by converting with each entry alone."""
    items = list(table.items())
    for key, value in items:
        table.clear()
        table[key] = value
        try:
            convert()
        except ValueError as again:
            if str(again) == error:
                break
    return key
