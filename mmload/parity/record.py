"""Keeps a report in the dataset's own card, so that whoever opens it knows what was checked, when, with what.

``dataset.json`` gets ``card.parity``, and is replaced as a whole or not at all. Nothing else of it changes but the
version: one of version 1 is written as version 2, with a checksum.
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
    """Write a report into the card of a dataset's manifest, in the place of an earlier one.

    Args:
        folder: the dataset's.
        report: what to keep: all but the worst rows, whose files say little elsewhere.

    Raises:
        StoreError: if there is no finished dataset, it is not the one that was checked, or it cannot be written.
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
                split.setdefault("shard_samples", None)  # version 1 has none
            body["card"] = {**body.get("card", {}), "parity": content}
            write_atomically(file, _checked(text_of(body), file))
    except OSError as error:
        raise StoreError(f"cannot write {file} ({error.strerror}); the report was not kept") from error


def _checked(text: str, file: Path) -> str:
    """A manifest's new text, if it can be read again: version 1 may have keys that this version does not."""
    try:
        loads(text, str(file))
    except DamagedError as error:
        raise StoreError(
            f"{file} cannot be kept as this version writes it; the report was not kept ({error})"
        ) from error
    return text
