"""Keeps a report in the dataset's own card, so that whoever opens it knows what was checked, when, with what.

Comes in: a dataset's folder and a report. Goes out: ``dataset.json`` with ``card.parity``, replaced as a whole or not
at all. Nothing else of it changes, keys of later versions included.
"""

from __future__ import annotations

import json
from pathlib import Path

from mmload.errors import StoreError
from mmload.manifest import FILE_NAME, read
from mmload.parity.verdict import Report
from mmload.store import write_atomically


def record(folder: Path, report: Report) -> None:
    """Write a report into the card of a dataset's manifest, in the place of an earlier one.

    Args:
        folder: the dataset's.
        report: what to keep: all but the worst rows, whose files say little elsewhere.

    Raises:
        StoreError: if there is no finished dataset, or it cannot be written.
    """
    read(folder)
    file = folder / FILE_NAME
    kept = {key: value for key, value in report.as_json().items() if key != "worst"}
    try:
        body = json.loads(file.read_text(encoding="utf-8"))
        body["card"] = {**body.get("card", {}), "parity": kept}
        write_atomically(file, json.dumps(body, indent=1, ensure_ascii=False, allow_nan=False) + "\n")
    except OSError as error:
        raise StoreError(f"cannot write {file} ({error.strerror}); the report was not kept") from error
