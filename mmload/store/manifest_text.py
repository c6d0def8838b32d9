"""``dataset.json`` as text: written with a checksum, read strictly, so that no bit of it can change unnoticed.

Takes and returns plain JSON objects; :mod:`mmload.store.manifest` checks what is in them. The format is in
docs/format.md.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from mmload.errors import DamagedError, VersionError
from mmload.store.checksum import crc32

FORMAT = "mmload"
VERSION = 2
WHOLE_VERSION = 3
"""Of datasets with a field of rows of their own sizes; all others are still written as :data:`VERSION`."""
TABLE_VERSION = 4
"""Of datasets with a split of so many shards that they are written as a table of columns."""
FIRST_VERSION = 1
"""Read, but no longer written: it has no checksum."""

MOST_BYTES = 2**31
"""A larger dataset.json is refused unread: with two fields, ninety million shards fit."""

KEYS = ("format", "version", "recipe", "fingerprint", "splits", "card", "crc32")
"""Those of all versions but the first, all of which must be there, and no others."""

_PART = 2**20
_END = re.compile(r',\n "crc32": "([0-9a-f]{8})"\n\}\n')
_END_LENGTH = len(',\n "crc32": "01234567"\n}\n')


def text_of(body: Mapping[str, Any], version: int = VERSION) -> str:
    """A manifest as JSON text with its checksum; equal bodies in equal order give equal text.

    Args:
        body: with the keys of :data:`KEYS`; ``format``, ``version`` and ``crc32`` are set here.
        version: :data:`VERSION`, :data:`WHOLE_VERSION` or :data:`TABLE_VERSION`.
    """
    full = {"format": FORMAT, "version": version} | {
        key: value for key, value in body.items() if key not in ("format", "version", "crc32")
    }
    start = json.dumps(full, indent=1, ensure_ascii=False, allow_nan=False).removesuffix("\n}")
    return f'{start},\n "crc32": "{_checksum(start)}"\n}}\n'


def parse(text: str, path: str) -> dict[str, Any]:
    """Read a manifest's text.

    Args:
        text: the JSON text.
        path: where it came from, for messages.

    Raises:
        VersionError: if it is of a format version that this mmload does not know.
        DamagedError: if it is not a manifest, or its checksum is of another content.
    """
    try:
        body = json.loads(text, parse_constant=_no_number, object_pairs_hook=_object)
    except (ValueError, RecursionError) as error:
        raise DamagedError(f"{path} is not JSON ({error}); rebuild the dataset") from error
    if not isinstance(body, dict) or body.get("format") != FORMAT:
        raise DamagedError(f'{path} is not the manifest of an mmload dataset: it has no "format": "{FORMAT}"')
    version = body.get("version")
    if type(version) is not int or version not in (FIRST_VERSION, VERSION, WHOLE_VERSION, TABLE_VERSION):
        raise VersionError(
            f"{path} has format version {shown(version)}, this mmload reads versions {FIRST_VERSION} to "
            f"{TABLE_VERSION}; upgrade mmload, or build the dataset again"
        )
    if version != FIRST_VERSION:
        _check(body, text, path)
    elif "crc32" in body:
        raise DamagedError(f"{path} is damaged: format version 1 has no crc32; rebuild the dataset")
    return body


def shown(value: object) -> str:
    """A value as a message shows it."""
    try:
        text = repr(value)
    except RecursionError:
        return "deeply nested"
    return text if len(text) <= 60 else text[:57] + "..."


def _check(body: Mapping[str, Any], text: str, path: str) -> None:
    if different := sorted(set(body) ^ set(KEYS)):
        kind = "an unknown" if different[0] in body else "no"
        raise DamagedError(f"{path} is damaged: it has {kind} key {shown(different[0])}; rebuild the dataset")
    end = _END.fullmatch(text, max(0, len(text) - _END_LENGTH))
    if end is None:
        raise DamagedError(f"{path} is damaged: it does not end as mmload writes it, with crc32; rebuild the dataset")
    if end[1] != (expected := _checksum(text, len(text) - _END_LENGTH)):
        raise DamagedError(
            f"{path} is damaged: its crc32 is {end[1]}, the text before it has {expected}; rebuild the dataset"
        )


def _checksum(text: str, end: int | None = None) -> str:
    """CRC-32 of a text up to ``end`` as it is stored, in UTF-8; 8 hex digits. Made in parts, as it may be long."""
    total, end = 0, len(text) if end is None else end
    for start in range(0, end, _PART):
        total = crc32(text[start : min(start + _PART, end)].encode("utf-8", "backslashreplace"), total)
    return f"{total:08x}"


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    body = dict(pairs)
    if len(body) != len(pairs):
        keys = [key for key, _ in pairs]
        raise ValueError(f"key {shown(next(key for key in keys if keys.count(key) > 1))} is there twice")
    return body


def _no_number(name: str) -> object:
    """Refuse NaN and Infinity, which Python reads and JSON does not have."""
    raise ValueError(f"{name} is no JSON")
