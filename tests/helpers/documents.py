"""Code of README.md, CONTRIBUTING.md and docs/: blocks in order, and the mmload commands in and between them."""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]

_FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
_NEEDS = re.compile(r"<!-- needs: (.+?) -->\n$")
_INLINE = re.compile(r"`(mmload [^`]+)`")


@dataclass(frozen=True)
class Block:
    """A fenced block of a page.

    Attributes:
        page: the file.
        line: of its first line of code.
        language: what follows its fence.
        code: its text.
        needs: the package that it needs, "" if none beyond mmload's own.
    """

    page: Path
    line: int
    language: str
    code: str
    needs: str

    @property
    def skipped(self) -> bool:
        """Whether it does not run here."""
        return bool(self.needs) and find_spec(self.needs) is None

    def __str__(self) -> str:
        return f"{self.page.relative_to(ROOT)}:{self.line}"


def blocks(page: Path) -> list[Block]:
    """The fenced blocks of a page, in order."""
    text = page.read_text(encoding="utf-8")
    found = []
    for match in _FENCE.finditer(text):
        needs = _NEEDS.search(text[: match.start()])
        line = text.count("\n", 0, match.start()) + 2
        found.append(Block(page, line, match[1], match[2], needs[1] if needs else ""))
    return found


def commands(page: Path) -> list[list[str]]:
    """The words of every ``mmload`` command on a line of its own, in order, without ``mmload`` and comments."""
    lines = []
    for line in page.read_text(encoding="utf-8").splitlines():
        indented = line.startswith("    mmload ")
        if indented or (line.startswith("mmload ") and line in _shell_lines(page)):
            lines.append(shlex.split(re.sub(r"[][]", "", line), comments=True)[1:])  # with what is optional
    return lines


def inline_commands(page: Path) -> list[list[str]]:
    """The words of every command in a sentence, of those that are whole: none with dots or alternatives."""
    text = _FENCE.sub("", page.read_text(encoding="utf-8"))
    found = [re.sub(r"\s+", " ", match) for match in _INLINE.findall(text)]
    return [shlex.split(each)[1:] for each in found if not set("[|…") & set(each) and "..." not in each]


def _shell_lines(page: Path) -> set[str]:
    return {line for block in blocks(page) if block.language == "sh" for line in block.code.splitlines()}
