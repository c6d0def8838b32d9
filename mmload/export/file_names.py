"""Makes file names of any text: such as every file system takes, and no two of them equal on any."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable
from pathlib import PurePosixPath

_REFUSED = frozenset('<>:"/\\|?*')
_DEVICE = re.compile(r"(con|prn|aux|nul|com[0-9]|lpt[0-9]|conin\$|conout\$)\s*(\.|$)")
_MOST_BYTES = 80


def file_name(text: str) -> str:
    """A name of at most 80 bytes that Linux, macOS, Windows and FAT take, and that leaves no folder.

    What they refuse becomes ``_``: separators, control characters, bytes that are no text. So do a leading dot or
    hyphen, dots and spaces at the end, and the names of devices of Windows get one in front.
    """
    text = unicodedata.normalize("NFC", text)
    plain = "".join("_" if sign in _REFUSED or not sign.isprintable() else sign for sign in text)
    plain = plain.encode("utf-8")[:_MOST_BYTES].decode("utf-8", "ignore").strip()
    plain = re.sub(r"^[.\-~ ]|[. ]+$", "_", plain)
    device = _DEVICE.match(unicodedata.normalize("NFKC", plain).casefold())
    return f"_{plain}" if device or not plain else plain


def distinct_names(texts: Iterable[str]) -> tuple[str, ...]:
    """A :func:`file_name` of each text; those that a file system may take for one get their number behind."""
    names: list[str] = []
    taken: set[str] = set()
    for number, text in enumerate(texts):
        name = file_name(text)
        while _folded(name) in taken:
            name = f"{file_name(text)}_{number}"
            number += 1
        taken.add(_folded(name))
        names.append(name)
    return tuple(names)


def row_stem(sample: str, row: int, rows: int) -> str:
    """The stem of a row's file: of its file in the source, and its number, in as many digits as the last row's."""
    stem = "_".join(file_name(PurePosixPath(sample).stem).split())
    return f"{stem}_{row:0{len(str(rows - 1))}d}"


def _folded(name: str) -> str:
    """Equal for names that differ in case or Unicode form only."""
    return unicodedata.normalize("NFKC", unicodedata.normalize("NFKC", name).casefold())
