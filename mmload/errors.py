"""Every error that mmload raises on purpose, and the forms of numbers and values in messages.

    MmloadError                exit code 1: it failed
    ├── UsageError             exit code 2: a wrong request
    │   └── RecipeError        an invalid recipe or option
    ├── SourceError            the source folder is not what its kind says
    │   └── SampleError        one sample of it cannot be read
    ├── StoreError             a dataset on disk cannot be opened, read or written
    │   ├── VersionError       it was written in a format this version does not know
    │   └── DamagedError       its files do not match its manifest
    ├── BuildError             a build cannot start or cannot finish
    └── RemoteError            object storage cannot be read or written
        └── RemoteMissingError an object does not exist

A message says what was wrong, the value got, and what to do next; credentials in a URL are not shown. Wrong arguments
to a function stay ``ValueError`` and ``TypeError``. This module never formats for a terminal.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from fractions import Fraction

_SECRETS = (
    # KEY:SECRET@ or KEY@ after any scheme, with one slash as pathlib leaves it. A secret may contain slashes; a port is
    # none.
    (re.compile(r"\b([a-z][a-z0-9+.-]+:/{1,3})(?=[^/\s]*(?:@|:(?!\d{1,5}[/\s])))\S*@", re.IGNORECASE), r"\1...@"),
    (re.compile(r"\b((?:s3|gs|az):/{1,3})[^/:@\s]+:(?!\d{1,5}[/\s])[^/\s][^@\s]*(?=\s|$)", re.IGNORECASE), r"\1..."),
    (re.compile(r"\b([a-z][a-z0-9+.-]+:/[^\s?]*)\?[^\s/=]+=\S+", re.IGNORECASE), r"\1?..."),
)

_SHOWN = 80
_LONGEST = 600


class MmloadError(Exception):
    """Root of the family; ``exit_code`` is that of the command line."""

    exit_code = 1

    def __str__(self) -> str:
        """Returns the message; of a long one, as texts of a user's files may make it, its begin and its end."""
        text = without_secrets(super().__str__())
        return text if len(text) <= _LONGEST else f"{text[: _LONGEST * 3 // 4]} ... {text[-_LONGEST // 4 + 5 :]}"


class UsageError(MmloadError):
    """Request for something that does not exist or is invalid."""

    exit_code = 2


class RecipeError(UsageError):
    """Wrong recipe file or build option."""


class SourceError(MmloadError):
    """Source that is missing, empty, or not laid out as its kind says."""


class SampleError(SourceError):
    """Sample that cannot be read.

    Attributes:
        sample: the sample's id, usually its path relative to the source's root.
        reason: why, in plain words.
    """

    def __init__(self, sample: str, reason: str) -> None:
        super().__init__(f"{sample}: {reason}")
        self.sample = sample
        self.reason = reason

    def __reduce__(self) -> tuple[type[SampleError], tuple[str, str]]:
        return type(self), (self.sample, self.reason)


class StoreError(MmloadError):
    """Dataset on disk that cannot be opened, read or written."""


class VersionError(StoreError):
    """Dataset of a format that this mmload does not read."""


class DamagedError(StoreError):
    """File of a dataset that is missing, or has another size or content than the manifest says."""


class BuildError(MmloadError):
    """Build that cannot start or cannot finish."""


class RemoteError(MmloadError):
    """Object storage that cannot be read or written."""


class RemoteMissingError(RemoteError):
    """Object or bucket that does not exist."""


def one_line(text: str) -> str:
    """Escapes line ends, control characters and lone surrogates, so that a terminal shows a text in one line.

    Surrogates that stand for the bytes of a name (PEP 383), as Python reads names in a locale that is not UTF-8, become
    the text that these bytes are in UTF-8.
    """
    text = re.sub(
        "[\udc80-\udcff]+",
        lambda found: found[0].encode("utf-8", "surrogateescape").decode("utf-8", "surrogateescape"),
        text,
    )
    return "".join(sign if sign.isprintable() else sign.encode("unicode_escape").decode() for sign in text)


def shown(value: object) -> str:
    """Formats a value for a message: its repr in one line of at most 80 characters."""
    try:
        text = one_line(" ".join(repr(value).split()))
    except RecursionError:
        return "deeply nested"
    return text if len(text) <= _SHOWN else f"{text[: _SHOWN - 3]}..."


def utf8_text(text: str) -> str:
    """Returns text that UTF-8 can hold: lone surrogates, as in names that are no text, are escaped."""
    return text.encode("utf-8", "backslashreplace").decode()


def without_secrets(text: str) -> str:
    """Removes what looks like credentials or signatures in URLs."""
    for pattern, safe in _SECRETS:
        text = pattern.sub(safe, text)
    return text


def counted(count: int, singular: str, plural: str = "") -> str:
    """Formats a number and its noun: ``1 image``, ``1,024 images``; ``plural`` if it is not ``singular`` + s."""
    return f"{count:,} {singular if count == 1 else plural or singular + 's'}"


def choices(names: Iterable[str]) -> str:
    """Formats names for a message: ``a, b, c``."""
    return ", ".join(sorted(names))


def aligned(rows: Sequence[Sequence[str]], left: Collection[int] = (0,)) -> list[str]:
    """Formats rows of cells as lines of a table: the columns ``left`` to the left, the others to the right."""
    safe = [list(map(one_line, row)) for row in rows]
    widths = [max(map(len, column)) for column in zip(*safe, strict=True)]
    sides = ["<" if at in left else ">" for at in range(len(widths))]
    return ["  ".join(map("{:{}{}}".format, row, sides, widths)).rstrip() for row in safe]


def did_you_mean(name: str, names: Iterable[str]) -> str:
    """Returns ``". Did you mean X?"`` for the name that is closest to a misspelled one; empty if none is close."""
    from difflib import get_close_matches

    close = get_close_matches(name, list(names), 1)
    return f". Did you mean {close[0]}?" if close else ""


_MOST_DIGITS = 40
_UNITS = {"": 1, "B": 1, "KIB": 2**10, "MIB": 2**20, "GIB": 2**30, "KB": 10**3, "MB": 10**6, "GB": 10**9}


def bytes_text(count: float) -> str:
    """Returns a number of bytes as text, such as ``12 B``, ``23.1 MiB`` or ``1.2 GiB``."""
    if count >= 2**30:
        return f"{count / 2**30:,.1f} GiB"
    if count >= 2**20 / 20:  # 0.1 MiB, as it is shown
        return f"{count / 2**20:,.1f} MiB"
    return f"{count / 2**10:.1f} KiB" if count >= 2**10 else f"{count:.0f} B"


def parse_bytes(text: str | int, name: str = "size") -> int:
    """Parses a size such as ``"1GiB"`` or ``"500 MB"``, or a number of bytes; ``name`` names it in messages.

    Raises:
        RecipeError: if it is not a positive size.
    """
    if type(text) is int:
        size = text
    else:
        found = re.fullmatch(r"([0-9]+(?:\.[0-9]+)?)\s*([A-Za-z]*)", text.strip()) if isinstance(text, str) else None
        if not found or len(found[1]) > _MOST_DIGITS or found[2].upper() not in _UNITS:
            raise RecipeError(f"{name} is {text!r}; write bytes, or a number with KiB, MiB, GiB, KB, MB or GB")
        size = int(Fraction(found[1]) * _UNITS[found[2].upper()])
    if not 1 <= size < 2**62:
        raise RecipeError(f"{name} has to be at least one byte and less than 4 EiB")
    return size


@contextmanager
def naming(what: str, *caught: type[Exception], to: Callable[[str], Exception] = ValueError) -> Iterator[None]:
    """Says before the message of an error, by default a ValueError, what it is about; raises it as another kind."""
    kinds = caught or (ValueError,)
    try:
        yield
    except kinds as error:
        raise to(f"{what}{error}") from error
