"""Stores what a check found in the dataset's card, so that its users know what was checked, when, and how.

``dataset.json`` gets ``card.NAME``, and is replaced atomically. Nothing else in it changes except the version: a
manifest of version 1 is written as version 2, with a checksum.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from mmload.errors import DamagedError, StoreError
from mmload.runtime.durable_files import folder_lock, remove_partials, write_atomically
from mmload.runtime.regular_files import read_regular
from mmload.store.manifest import FILE_NAME, loads, read
from mmload.store.manifest_text import VERSION, parse, text_of


def write_card(folder: str | Path, name: str, content: Mapping[str, Any], contents: str) -> None:
    """Write the result of a check into the card of a dataset's manifest; replaces an earlier result of that check.

    Args:
        folder: the dataset's folder.
        name: of the check, its key in the card.
        content: plain data for JSON.
        contents: the :attr:`~mmload.store.manifest.Manifest.contents` of the dataset that was checked.

    Raises:
        StoreError: if there is no finished dataset, it is not the checked one, or it cannot be written.
    """
    folder = Path(folder)
    read(folder)
    file = folder / FILE_NAME
    try:
        with folder_lock(folder):
            if read(folder).contents != contents:
                raise StoreError(f"{folder} was replaced while it was checked; the report was not kept: check it again")
            remove_partials(file)
            body = parse(read_regular(file).decode("utf-8"), str(file))
            for split in body["splits"].values():
                split.setdefault("shard_samples", None)  # does not exist in version 1
            body["card"] = {**body.get("card", {}), name: dict(content)}
            write_atomically(file, _checked(text_of(body, max(VERSION, body["version"])), file))
    except OSError as error:
        raise StoreError(f"cannot write {file} ({error.strerror}); the report was not kept") from error


def _checked(text: str, file: Path) -> str:
    """Check that a manifest's new text is readable: version 1 may have keys that this version does not support."""
    try:
        loads(text, str(file))
    except DamagedError as error:
        raise StoreError(
            f"{file} cannot be kept as this version writes it; the report was not kept ({error})"
        ) from error
    return text
