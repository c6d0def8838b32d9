"""What an export made, and what to know about it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, kw_only=True)
class Exported:
    """An export that is complete.

    Attributes:
        out: its folder.
        rows: how many were written.
        notes: what is not as in the dataset, a sentence each.
        next: what one may want to do with it now: lines of a shell or of Python.
    """

    out: Path
    rows: int
    notes: tuple[str, ...] = ()
    next: tuple[str, ...] = ()
