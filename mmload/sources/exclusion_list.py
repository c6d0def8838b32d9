"""The text of a list of samples to leave out, as ``mmload build --exclude FILE`` takes it.

A line is ``NAME``, or ``NAME``, a reason and perhaps a split, separated by tabs. Names are written as ``mmload where``
shows them: what is not printable is escaped, so that a file name with a line end stays in its line.
"""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from mmload.errors import RecipeError, one_line
from mmload.runtime.regular_files import read_regular

MOST_BYTES = 2**28
"""Of a list: a larger file is none."""

_COMMENT = "#"
_ESCAPED = "\\x23"  # a number sign at the start of a name


class Entry(NamedTuple):
    """One line of a list: its number, the name as :func:`listed` gives it, and what it says after that, if anything."""

    line: int
    name: str
    reason: str
    split: str


def listed(sample: str) -> str:
    """Returns a sample's name as a list has it: in one line, without tabs, and never like a comment."""
    name = sample if sample.isprintable() else one_line(sample)
    return _ESCAPED + name[1:] if _is_comment(name) else name


def originals_of(name: str) -> list[str]:
    """Returns the ids that a name in a list may stand for: the name itself, or what its escapes stand for."""
    try:
        unescaped = name.encode("latin-1", "backslashreplace").decode("unicode_escape")
    except UnicodeDecodeError:  # a backslash that is none of an escape
        return [name]
    return [each for each in dict.fromkeys((name, unescaped)) if listed(each) == name]


def line_of(sample: str, reason: str = "", split: str = "") -> str:
    """Returns a line of a list, without its end.

    Args:
        sample: the sample's id.
        reason: why it is left out, for people.
        split: only in this split; empty: in the one that has it.
    """
    fields = (listed(sample), one_line(reason), split)
    return "\t".join(fields).rstrip("\t")


def read_entries(path: str | Path) -> list[Entry]:
    """Reads the entries of a list.

    Raises:
        RecipeError: if it cannot be read, or a line has more than three fields.
    """
    try:
        text = read_regular(path, most=MOST_BYTES).decode("utf-8-sig", "surrogateescape")
    except OSError as error:
        raise RecipeError(f"cannot read the list {path} ({error.strerror}); give a file with a name a line") from error
    return entries_in(text, path)


def entries_in(text: str, path: str | Path) -> list[Entry]:
    """Parses the text of a list.

    Args:
        text: all of it.
        path: where it is from, for messages.

    Raises:
        RecipeError: if a line has more than three fields.
    """
    entries = []
    for number, line in enumerate(text.split("\n"), 1):
        fields = line.removesuffix("\r").split("\t")
        if _is_comment(line) or not line.strip():
            continue
        if len(fields) > 3:
            raise RecipeError(
                f"{path}, line {number} has {len(fields)} fields; write NAME, or NAME, a reason and a split, with tabs "
                "between them"
            )
        name, reason, split = *fields, *[""] * (3 - len(fields))
        entries.append(Entry(number, name if name.isprintable() else one_line(name), reason, split.strip()))
    return entries


def _is_comment(line: str) -> bool:
    """Returns whether a line is a comment: ``#`` alone, or with a space after it; a folder may be called ``#1``."""
    return line.rstrip("\r") == _COMMENT or line.startswith(f"{_COMMENT} ")
