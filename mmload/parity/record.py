"""Stores a report in the dataset's card, so that its users know what was checked, when, and with which versions.

``dataset.json`` gets ``card.parity``, and is replaced atomically. Nothing else in it changes except the version: a
manifest of version 1 is written as version 2, with a checksum.
"""

from __future__ import annotations

from pathlib import Path

from mmload.errors import DamagedError, StoreError
from mmload.parity.verdict import Report
from mmload.runtime.durable_files import folder_lock, remove_partials, write_atomically
from mmload.runtime.regular_files import read_regular
from mmload.store.manifest import FILE_NAME, loads, read
from mmload.store.manifest_text import parse, text_of


def record(folder: str | Path, report: Report) -> None:
    """Write a report to the card of a dataset's manifest; replaces an earlier report.

    Args:
        folder: the dataset's folder.
        report: stored without the worst rows, whose file names are not useful on other machines.

    Raises:
        StoreError: if there is no finished dataset, it is not the checked one, or it cannot be written.
    """
    folder = Path(folder)
    read(folder)
    file = folder / FILE_NAME
    content = {key: value for key, value in report.as_json().items() if key != "worst"}
    try:
        with folder_lock(folder):
            if read(folder).contents != report.contents:
                raise StoreError(f"{folder} was replaced while it was checked; the report was not kept: check it again")
            remove_partials(file)
            body = parse(read_regular(file).decode("utf-8"), str(file))
            for split in body["splits"].values():
                split.setdefault("shard_samples", None)  # does not exist in version 1
            body["card"] = {**body.get("card", {}), "parity": content}
            write_atomically(file, _checked(text_of(body), file))
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
