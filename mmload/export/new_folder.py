"""Writes a folder so that half of it never looks whole: beside its place, and moved there when all of it is durable.

A killed export leaves its ``.OUT.exporting-*`` beside the place.
"""

from __future__ import annotations

import os
import re
import tempfile
import unicodedata
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from mmload.errors import MmloadError, UsageError
from mmload.runtime.files import is_within, sync_folder

_REFUSED = frozenset('<>:"/\\|?*')
_DEVICE = re.compile(r"(con|prn|aux|nul|com[0-9]|lpt[0-9]|conin\$|conout\$)\s*(\.|$)")
_MOST_BYTES = 80


def check_destination(out: Path, dataset: Path) -> Path:
    """Checks an export's destination before any work, and returns its absolute path.

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
    """Creates an empty folder to write into; renames it to ``out``, absolute, on success, and removes it on failure.

    Raises:
        MmloadError: if it cannot be written.
    """
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=out.parent, prefix=f".{out.name}.exporting-") as work:
            files = Path(work) / "files"  # which others may read, as they may not the temporary folder
            files.mkdir()
            yield files
            with suppress(FileNotFoundError):
                out.rmdir()  # it is empty
            os.sync()  # a rename may reach the disk before what was written earlier
            files.rename(out)
            sync_folder(out.parent)
    except OSError as error:
        name = error.filename2 or error.filename or out
        raise MmloadError(f"cannot write {name} ({error.strerror or error}); nothing was exported") from error


def file_name(text: str) -> str:
    """Returns a name of at most 80 bytes that Linux, macOS, Windows and FAT take, and that leaves no folder.

    What they refuse becomes ``_``: separators, control characters, bytes that are no text. So do a leading dot or
    hyphen, dots and spaces at the end, and the names of devices of Windows get one in front.
    """
    text = unicodedata.normalize("NFC", text)
    plain = "".join("_" if sign in _REFUSED or not sign.isprintable() else sign for sign in text)
    plain = plain.encode("utf-8")[:_MOST_BYTES].decode("utf-8", "ignore").strip()
    plain = re.sub(r"^[.\-~ ]|[. ]+$", "_", plain)
    device = _DEVICE.match(unicodedata.normalize("NFKC", plain).casefold())
    return f"_{plain}" if device or not plain else plain


def distinct_names(texts: Iterable[str]) -> tuple[str, ...]:
    """Returns a :func:`file_name` of each text; adds a number to those that a file system may take for one."""
    names: list[str] = []
    taken: set[str] = set()
    for number, text in enumerate(texts):
        name = file_name(text)
        while _folded(name) in taken:
            name = f"{file_name(text)}_{number}"
            number += 1
        taken.add(_folded(name))
        names.append(name)
    return tuple(names)


def _folded(name: str) -> str:
    """Returns a text that is equal for names that differ in case or Unicode form only."""
    return unicodedata.normalize("NFKC", unicodedata.normalize("NFKC", name).casefold())
