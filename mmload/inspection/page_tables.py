"""Tables, bars and texts of a page, with every name escaped."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape

from mmload.errors import one_line


def shown(text: object) -> str:
    """A value in one line, control characters escaped; not HTML yet."""
    return one_line(str(text))


def table(rows: Iterable[tuple[str, object]]) -> str:
    """A table of names and values."""
    cells = "".join(
        f"<tr><th scope=row>{escape(shown(name))}</th><td>{escape(shown(value))}</td></tr>" for name, value in rows
    )
    return f"<table>{cells}</table>"


def columns(heads: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """A table with a head for each column; numbers are set to the right."""
    body = "".join(f"<tr>{''.join(map(_cell, row))}</tr>" for row in rows)
    return f'<div class="wide" tabindex="0"><table><tr>{_heads(heads)}</tr>{body}</table></div>'


def bars(heads: Sequence[str], rows: Sequence[tuple[str, Sequence[int]]]) -> str:
    """A bar chart that is a table, so that everybody can read it: a bar for the first number of each row."""
    most = max((counts[0] for _, counts in rows), default=0) or 1
    body = "".join(
        f"<tr><th scope=row>{escape(shown(name))}</th>{''.join(map(_cell, counts))}"
        f'<td><span class="bar" style="width:{100 * counts[0] / most:.2f}%"></span></td></tr>'
        for name, counts in rows
    )
    return f'<div class="wide" tabindex="0"><table class="bars"><tr>{_heads(heads)}<td></td></tr>{body}</table></div>'


def program(text: str) -> str:
    """A program, to be copied."""
    return f'<pre tabindex="0"><code>{escape(_lines(text))}</code></pre>'


def _heads(names: Sequence[str]) -> str:
    return "".join(f"<th scope=col>{escape(name)}</th>" for name in names)


def _cell(value: object) -> str:
    if isinstance(value, int):
        return f"<td class=number>{value:,}</td>"
    return f"<td>{escape(shown(value))}</td>"


def _lines(text: str) -> str:
    return "\n".join(shown(line) for line in text.split("\n"))
