"""Identifies and removes a build's own files in its working folder. Other files are never removed."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import suppress
from itertools import islice
from pathlib import Path

from mmload.builder.destination import listed
from mmload.errors import BuildError
from mmload.runtime.durable_files import is_partial, remove
from mmload.store.unfinished import PLAN_NAME

MARK = b"mmload build: this folder is removed when the build beside it is done\n"
"""The content of ``lock``, which identifies a working folder."""

PLAN, SWAP = PLAN_NAME, "swap.json"
_FILES = ("lock", "workers", PLAN, SWAP)
PARTS = "parts"
_BUILT = ("notes", "dataset", PARTS)
_FOLDERS = (*_BUILT, "replaced")
_ADVICE = "a build works there: rename it, or remove it"
_SHOWN = 4

_NAME, _SHARD, _PARTIAL = "[A-Za-z0-9][A-Za-z0-9_-]*", "[0-9]{6,}", r"((\.[0-9a-f]{16})?\.partial)?"
_LISTS = r"(samples|skipped)\.jsonl"
_PART = r"(\.(bytes|offsets|sizes|encodings))?"  # of a field whose rows have their own sizes
_OWN = re.compile(
    rf"({PARTS}/[0-9a-f]{{16}}/)?("
    rf"notes/{_NAME}/{_SHARD}\.(json{_PARTIAL}|samples\.jsonl|skipped\.jsonl)"
    rf"|notes/({_LISTS}|dataset\.json){_PARTIAL}"
    rf"|dataset/{_NAME}/{_SHARD}(\.partial)?/({_NAME}{_PART}\.memmap|meta\.json{_PARTIAL})"
    rf"|dataset/{_NAME}/{_LISTS}"
    rf"|dataset/dataset\.json{_PARTIAL})"
)
"""Pattern of all file names that a build writes in ``notes``, ``dataset`` and ``parts``."""


def check_made_by_build(folder: Path, has_plan: bool) -> None:
    """Refuses a folder that was not created by a build: work in it begins with removing its content.

    A folder was created by a build if it contains the mark, or a plan as older builds wrote it without a mark, or
    nothing but folders and files with the names of a build's: that is what a build leaves that is killed before it
    writes the mark, or after it has removed it.

    Args:
        folder: the working folder.
        has_plan: whether it contains a build's plan.

    Raises:
        BuildError: naming the unknown files.
    """
    if folder.is_symlink() or not folder.is_dir():
        raise BuildError(f"{folder} is {'a link' if folder.is_symlink() else 'a file'}; {_ADVICE}")
    with os.scandir(folder) as entries:
        found = sorted(entries, key=lambda entry: entry.name)
    others = [entry.name for entry in found if not _is_known(entry)]
    if others:
        raise BuildError(f"{folder} holds {listed(others)}, which is no build's; {_ADVICE}")
    sizes = {entry.name: entry.stat(follow_symlinks=False).st_size for entry in found if entry.name not in _BUILT}
    marked = 0 < sizes.get("lock", 0) <= len(MARK) and MARK.startswith((folder / "lock").read_bytes())
    if marked or has_plan:
        return
    if not sizes.keys() <= {"lock", "workers"} or any(sizes.values()):
        raise BuildError(f"{folder} holds {listed(sorted(sizes))}, and no sign of a build; {_ADVICE}")
    check_only_own(folder)


def check_only_own(folder: Path) -> None:
    """Refuses files in the folders of a build that no build wrote. The caller holds the folder's lock.

    Raises:
        BuildError: naming them.
    """
    others = list(islice((name for name, own in _files(folder) if not own), _SHOWN))
    if others:
        raise BuildError(f"{folder} holds {listed(others)}, which is no build's; {_ADVICE}")


def remove_own(folder: Path) -> None:
    """Removes a build's own files from ``notes`` and ``dataset``, and the folders that become empty.

    Raises:
        OSError: if a file system operation fails.
    """
    for name, own in _files(folder):
        if own:
            (folder / name).unlink(missing_ok=True)
    for top in _BUILT:
        for path, _, _ in os.walk(folder / top, topdown=False):
            with suppress(OSError):  # it contains other files
                os.rmdir(path)


def remove_set_aside(folder: Path) -> None:
    """Removes the folders beside a working folder that parts of a build have prepared, or set aside to be removed."""
    leftovers: list[Path] = []
    with suppress(OSError):  # a folder that may not be listed
        leftovers += [path for path in folder.parent.iterdir() if is_partial(path.name, folder.name)]
    for leftover in leftovers:
        with suppress(OSError):  # another process is removing it, too
            remove_working_folder(leftover)


def remove_working_folder(folder: Path) -> None:
    """Removes a build's own files and the folder; the plan late, as it tells whose they are, and the lock last.

    Raises:
        OSError: if a file system operation fails.
    """
    leftovers = [path for path in folder.iterdir() if is_leftover(path.name)]
    for path in (*leftovers, folder / "workers", folder / SWAP):
        remove(path)
    remove_own(folder)
    for name in (PLAN, "lock"):
        remove(folder / name)
    with suppress(OSError):  # another build may be waiting for its lock
        folder.rmdir()


def is_leftover(name: str) -> bool:
    """Returns whether this is a temporary file that a killed build left when it wrote the plan or the swap."""
    return any(is_partial(name, of) for of in (PLAN, SWAP))


def _files(folder: Path) -> Iterator[tuple[str, bool]]:
    """Yields every file and link of a working folder, relative to it, and whether it belongs to a build."""
    for top in _BUILT:
        waiting = [top] if os.path.lexists(folder / top) else []
        while waiting:
            parent, found = waiting.pop(), list[os.DirEntry[str]]()
            with suppress(FileNotFoundError), os.scandir(folder / parent) as entries:  # a part may be removing its own
                found = sorted(entries, key=lambda entry: entry.name)
            for entry in found:
                name = f"{parent}/{entry.name}"
                if entry.is_dir(follow_symlinks=False):
                    waiting.append(name)
                else:
                    yield name, entry.is_file(follow_symlinks=False) and _OWN.fullmatch(name) is not None


def _is_known(entry: os.DirEntry[str]) -> bool:
    """Returns whether a build creates entries with this name and kind."""
    if entry.name in _FOLDERS:
        return entry.is_dir(follow_symlinks=False)
    return (entry.name in _FILES or is_leftover(entry.name)) and entry.is_file(follow_symlinks=False)
