"""Compares paths by device and inode, so that links, mounts and case-insensitive names are resolved."""

from __future__ import annotations

from pathlib import Path


def is_within(inner: Path, outer: Path) -> bool:
    """Whether a resolved path is a folder or is inside it."""
    return any(is_same(folder, outer) for folder in (inner, *inner.parents))


def is_same(one: Path, other: Path) -> bool:
    """Whether two resolved paths are one file or folder."""
    try:
        return one == other or one.samefile(other)
    except OSError:
        return False
