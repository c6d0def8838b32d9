"""Reads the part of YAML that descriptions of YOLO datasets use: keys with texts, numbers, lists and tables.

Values of a key are in its line (``[a, b]``, ``{0: a}``), or in the indented lines below it, as ``- a`` or ``0: a``;
lists may be nested once in such a table. Texts over several lines, such as download scripts, are left out.
"""

from __future__ import annotations

import io
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from mmload.errors import SourceError
from mmload.runtime.regular_files import read_regular
from mmload.sources.file_kinds import describe_content

_MOST = 2**20
_KEY = re.compile(r"""("[^"]*"|'[^']*'|[^\s#:\[\]{},"'][^#:]*?)\s*:(?:\s+(.*)|)$""")
_QUOTED = r"""(?:"(?:[^"\\]|\\.)*"|'(?:[^']|'')*')"""
_PART = re.compile(rf"""\s*({_QUOTED}|[^,\[\]{{}}:"']+|[,\[\]{{}}:])""")
_QUOTED_OR_COMMENT = re.compile(rf"(?:^|(?<=[\s\[{{,:])){_QUOTED}|(?:^|(?<=\s))#")
_ESCAPE = re.compile(r"\\(x[0-9A-Fa-f]{2}|u[0-9A-Fa-f]{4}|U[0-9A-Fa-f]{8}|.)")
_ESCAPES = dict(zip('0abtnvfre "/\\N_LP', '\0\a\b\t\n\v\f\r\x1b "/\\\x85\xa0\u2028\u2029', strict=True))


def read_yaml(path: Path) -> dict[str, Any]:
    """Reads a file as a table of texts, numbers, lists and tables.

    Raises:
        SourceError: if it cannot be read, or is more than this part of YAML; names the line.
    """
    try:
        content = read_regular(path, most=_MOST)
        if what := describe_content(content):
            raise SourceError(f"{path} is {what}")
        text = content.decode("utf-8-sig")
    except OSError as error:
        raise SourceError(f"cannot read {path} ({error.strerror or error})") from error
    except UnicodeDecodeError as error:
        raise SourceError(f"{path} is not UTF-8 text ({error})") from error
    every = enumerate(io.StringIO(text, newline=None), 1)  # splitlines() splits at U+2028, too
    lines = [(number, _uncommented(line)) for number, line in every]
    filled = [(number, line) for number, line in lines if line.strip() and line.strip() not in ("---", "...")]
    try:
        return _table(filled, str(path))
    except RecursionError as error:
        raise SourceError(f"{path} has too many lists or tables inside one another") from error


def _table(lines: list[tuple[int, str]], path: str) -> dict[Any, Any]:
    """Returns the table in lines of one indentation, with what is below each."""
    table: dict[Any, Any] = {}
    for (number, line), below in _blocks(lines):
        match = _KEY.fullmatch(line.strip())
        if match is None:
            raise SourceError(f"{path}, line {number}: {line.strip()!r:.60} is not KEY: VALUE")
        value = (match[2] or "").strip()
        try:
            key = _scalar(match[1])
            if value[:1] in ("|", ">"):
                continue
            table[key] = (
                _below(below, path) if not value else _flow(" ".join([value, *(one.strip() for _, one in below)]))
            )
        except (ValueError, TypeError) as error:  # a list as a key is a TypeError
            raise SourceError(f"{path}, line {number}: {error}") from error
    return table


def _below(lines: list[tuple[int, str]], path: str) -> Any:
    """Returns the list or table in the lines below a key; None if there is none."""
    if not lines:
        return None
    if lines[0][1].strip()[:1] in ("[", "{"):
        return _flow(" ".join(line.strip() for _, line in lines))
    if lines[0][1].strip().startswith("- "):
        return [_flow(line.strip().removeprefix("- ").strip()) for _, line in lines]
    return _table(lines, path)


def _blocks(lines: list[tuple[int, str]]) -> Iterator[tuple[tuple[int, str], list[tuple[int, str]]]]:
    """Yields each line of the first indentation with the lines below it; a list may have the indentation of its key."""
    first = min((_indent(line) for _, line in lines), default=0)
    place = 0
    while place < len(lines):
        stop = place + 1
        while stop < len(lines) and (_indent(lines[stop][1]) > first or lines[stop][1].strip().startswith("- ")):
            stop += 1
        yield lines[place], lines[place + 1 : stop]
        place = stop


def _indent(line: str) -> int:
    return len(line) - len(line.lstrip())


def _uncommented(line: str) -> str:
    """Returns a line without the comment at its end: a number sign after a space, outside of quotes."""
    comment = next((match for match in _QUOTED_OR_COMMENT.finditer(line) if match[0].startswith("#")), None)
    return line[: None if comment is None else comment.start()].rstrip()


def _flow(text: str) -> Any:
    """Returns the value of a text: a list in brackets, a table in braces, or a scalar."""
    if text[:1] not in "[{":
        return _scalar(text)
    parts = [match[1].strip() for match in _PART.finditer(text)]
    parts = [part for part in parts if part]
    if "".join(parts).replace(" ", "") != re.sub(r"\s", "", text):
        raise ValueError(f"{text!r:.60} is no list or table")
    parts.reverse()
    value = _value(parts)
    if parts:
        raise ValueError(f"{text!r:.60} has more after its end")
    return value


def _value(parts: list[str]) -> Any:
    """Takes the parts of a value, of which the last is the first, and returns the value."""
    if not parts:
        raise ValueError("a list or table does not end")
    first = parts.pop()
    if first not in ("[", "{"):
        return _scalar(first)
    end, items = {"[": "]", "{": "}"}[first], []
    while parts and parts[-1] != end:
        item = _value(parts)
        if end == "}":
            if not parts or parts.pop() != ":":
                raise ValueError("a table has a key without a value")
            item = (item, _value(parts))
        items.append(item)
        if parts and parts[-1] == ",":
            parts.pop()
        elif parts and parts[-1] != end:
            raise ValueError("a list or table has two values without a comma between them")
    if not parts:
        raise ValueError("a list or table does not end")
    parts.pop()
    return dict(items) if end == "}" else items


def _escaped(escape: re.Match[str]) -> str:
    """Returns the character that an escape in double quotes stands for."""
    code = escape[1]
    number = int(code[1:], 16) if len(code) > 1 else -1
    if number > sys.maxunicode or (number < 0 and code not in _ESCAPES):
        raise ValueError(f"the escape {escape[0]} stands for no character")
    return _ESCAPES[code] if number < 0 else chr(number)


def _scalar(text: str) -> Any:
    """Returns the text, number, truth value or nothing that a word stands for."""
    word = text.strip()
    if word[:1] in ('"', "'"):
        if not re.fullmatch(_QUOTED, word):
            raise ValueError(f"{word!r:.60} is no text in quotes")
        return word[1:-1].replace("''", "'") if word[0] == "'" else _ESCAPE.sub(_escaped, word[1:-1])
    if word[:1] in ("&", "*", "!"):
        raise ValueError(f"{word!r:.60} is an anchor or a tag, which are not read; write the value itself")
    if re.fullmatch(r"[+-]?[0-9]{1,18}", word):
        return int(word)
    if re.fullmatch(r"[+-]?[0-9]*\.[0-9]+", word):
        return float(word)
    return {"true": True, "false": False, "null": None, "~": None, "": None}.get(word.lower(), word)
