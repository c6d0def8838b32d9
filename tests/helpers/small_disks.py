"""Small file systems in memory, which tests fill or make read-only."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest


@contextmanager
def small_disk_at(place: Path, size: str) -> Iterator[Path]:
    """Mounts a file system of this size, such as "256k"; skips the test where that is not allowed."""
    place.mkdir()
    mount("-t", "tmpfs", "-o", f"size={size}", "tmpfs", place)
    try:
        yield place
    finally:
        subprocess.run(["umount", "-l", str(place)], check=True)


def mount(*words: object) -> None:
    """Runs ``mount``; skips the test where that is not allowed."""
    try:
        done = subprocess.run(["mount", *map(str, words)], capture_output=True, text=True, check=False)
    except FileNotFoundError:
        pytest.skip("there is no mount command")
    if done.returncode:
        pytest.skip(f"mounting is not allowed here: {done.stderr.strip()}")


def fill(place: Path) -> None:
    """Takes all the room of a file system."""
    with suppress(OSError), open(place, "wb", buffering=0) as file:
        while True:
            file.write(bytes(4096))
