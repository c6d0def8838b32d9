"""Writes a folder so that half of it never looks whole: beside its place, and moved there when all of it is durable.

``.OUT.exporting`` is locked while an export works. What a killed one left is removed by the next.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from mmload.errors import MmloadError, UsageError
from mmload.runtime.durable_files import lock, open_lock, sync_everything, sync_folder
from mmload.runtime.path_identity import is_within

_MARK = b"mmload export: this folder is removed when the export is done\n"
_LOCK, _FILES = "lock", "files"


def check_destination(out: Path, dataset: Path) -> Path:
    """The absolute place of an export, checked before any work.

    Raises:
        UsageError: if something is there, or it is the dataset's.
    """
    try:
        place = out.resolve()
        if is_within(place, dataset.resolve()):
            raise UsageError(f"{out} lies in the dataset {dataset}; choose another place")
        if place == Path.cwd():
            raise UsageError(f"{out} is the working directory; give the name of a new folder")
        if os.path.lexists(place) and not (place.is_dir() and not any(place.iterdir())):
            raise UsageError(f"{out} exists and is not an empty folder; choose another place, or remove it")
    except (OSError, RuntimeError) as error:  # RuntimeError: a loop of links, up to Python 3.12
        raise UsageError(f"cannot look at {out} ({getattr(error, 'strerror', None) or error})") from error
    return place


@contextmanager
def new_folder(out: Path) -> Iterator[Path]:
    """An empty folder to write into, which becomes ``out`` if nothing fails, and is removed otherwise.

    Args:
        out: absolute; missing or an empty folder.

    Raises:
        MmloadError: if it cannot be written, or another export is writing it.
    """
    work = out.with_name(f".{out.name}.exporting")
    try:
        work.mkdir(parents=True, exist_ok=True)
        _check_own(work)
        with open_lock(work / _LOCK) as held:
            if not lock(held):
                raise MmloadError(f"another export is writing {out}; wait for it to end")
            held.write(_MARK)
            held.flush()
            try:
                if (work / _FILES).exists():
                    shutil.rmtree(work / _FILES)
                (work / _FILES).mkdir()
                yield work / _FILES
                with suppress(FileNotFoundError):
                    out.rmdir()  # it is empty
                sync_everything()  # a rename may reach the disk before what was written earlier
                (work / _FILES).rename(out)
                sync_folder(out.parent)
            finally:
                shutil.rmtree(work, ignore_errors=True)
    except OSError as error:
        name = error.filename2 or error.filename or out
        raise MmloadError(f"cannot write {name} ({error.strerror or error}); nothing was exported") from error


def _check_own(work: Path) -> None:
    """Refuse a folder that no export made: what is in it would be removed."""
    names = {entry.name for entry in work.iterdir()}
    marked = (
        _LOCK in names and not (work / _LOCK).is_symlink() and (work / _LOCK).read_bytes()[: len(_MARK)] in (b"", _MARK)
    )
    if work.is_symlink() or names - {_LOCK, _FILES} or (names and not marked):
        raise MmloadError(f"{work} was not made by an export, which would empty it; rename it, or remove it")
