"""Text of a manifest: JSON with a format, a version and a checksum, written, parsed, and converted to typed records."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import msgspec

from mmload.errors import DamagedError, VersionError, one_line, shown
from mmload.store.checksum import crc32

T = TypeVar("T")


def convert_json(
    body: Any, kind: type[T], path: str, hook: Callable[[type, Any], Any] | None = None, advice: str = ""
) -> T:
    """Converts plain JSON values to a record.

    The hook converts a plain value to a type that msgspec does not know. Messages name the path, and may have advice.

    Raises:
        DamagedError: if a value does not fit; names the file, the place in it, and what is expected.
    """
    try:
        return msgspec.convert(body, kind, dec_hook=hook, str_keys=True)
    except (ValueError, RecursionError, OverflowError) as error:  # ValueError: lone surrogates in a key
        raise DamagedError(f"{path} is damaged: {one_line(str(error))}; {advice or 'rebuild the dataset'}") from error


FORMAT = "mmload dataset"
VERSION = 1
LISTS = "lists"
"""Addition to the format: fields that have a different number of elements per row."""
COLUMNS = "columns"
"""Addition to the format: fields that were added to a finished dataset."""
VERSIONS = "versions"
"""Addition to the format: datasets that were changed after their build; and their folder of earlier manifests."""
ADDITIONS = (LISTS, COLUMNS, VERSIONS)
"""Additions that this mmload reads."""

_OLD_FORMAT = "mmload"  # of datasets from before the first release
_PART = 2**20
_END = re.compile(r',\n "crc32": "([0-9a-f]{8})"\n\}\n')
_END_LENGTH = len(',\n "crc32": "01234567"\n}\n')


def sealed_text(body: Mapping[str, Any]) -> str:
    """Returns a manifest's text, with its checksum; equal plain data in equal order gives equal text."""
    full = {"format": FORMAT, "version": VERSION, "requires": []} | {
        key: value for key, value in body.items() if key not in ("format", "version", "crc32")
    }
    start = json.dumps(full, indent=1, ensure_ascii=False, allow_nan=False).removesuffix("\n}")
    return f'{start},\n "crc32": "{_checksum(start)}"\n}}\n'


def parsed_text(text: str, path: str) -> dict[str, Any]:
    """Parses a manifest's text; checks format, version, additions and checksum."""
    try:
        body: Any = json.loads(text, parse_constant=_refuse_constant, object_pairs_hook=unique_object)
    except (ValueError, RecursionError) as error:
        raise DamagedError(f"{path} is not JSON ({error}); rebuild the dataset") from error
    format_name = body.get("format") if isinstance(body, dict) else None
    if format_name == _OLD_FORMAT:
        raise VersionError(
            f"{path} was written before the first release of mmload (format {shown(body.get('version'))}), "
            "and this mmload cannot read it; build the dataset again"
        )
    if format_name != FORMAT:
        raise DamagedError(f'{path} is not the manifest of an mmload dataset: it has no "format": "{FORMAT}"')
    version = body.get("version")
    if type(version) is not int or version != VERSION:
        raise VersionError(
            f"{path} has format version {shown(version)}, this mmload reads version {VERSION}; upgrade mmload, or "
            "build the dataset again"
        )
    requires = body.get("requires")
    if not isinstance(requires, list) or not all(name in ADDITIONS for name in requires):
        raise VersionError(
            f"{path} requires {shown(body.get('requires'))}, additions to the format that this mmload does not know; "
            "upgrade mmload"
        )
    end = _END.fullmatch(text, max(0, len(text) - _END_LENGTH))
    if end is None:
        raise DamagedError(f"{path} is damaged: it does not end as mmload writes it, with crc32; rebuild the dataset")
    if end[1] != (expected := _checksum(text, len(text) - _END_LENGTH)):
        raise DamagedError(
            f"{path} is damaged: its crc32 is {end[1]}, the text before it has {expected}; rebuild the dataset"
        )
    checked: dict[str, Any] = body
    return checked


def _checksum(text: str, end: int | None = None) -> str:
    """Returns the CRC-32 of a text up to ``end`` in UTF-8, in parts, as it may be long; 8 hexadecimal digits."""
    total, end = 0, len(text) if end is None else end
    for start in range(0, end, _PART):
        total = crc32(text[start : min(start + _PART, end)].encode("utf-8", "backslashreplace"), total)
    return f"{total:08x}"


def unique_object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Returns a JSON object without duplicate keys; Python's own reader would silently keep the last of them.

    Raises:
        ValueError: naming a key that occurs twice.
    """
    body = dict(pairs)
    if len(body) != len(pairs):
        twice = Counter(key for key, _ in pairs).most_common(1)[0][0]
        raise ValueError(f"key {shown(twice)} occurs twice")
    return body


def _refuse_constant(name: str) -> object:
    """Rejects NaN and Infinity, which Python reads and JSON does not have."""
    raise ValueError(f"{name} is not JSON")
