"""Stores a report in the dataset's card."""

from __future__ import annotations

from pathlib import Path

from mmload.parity.verdict import Report
from mmload.store.card import write_card


def record(folder: str | Path, report: Report) -> None:
    """Write a report to the card of a dataset's manifest; replaces an earlier report.

    Args:
        folder: the dataset's folder.
        report: stored without the worst rows, whose file names are not useful on other machines.

    Raises:
        StoreError: if there is no finished dataset, it is not the checked one, or it cannot be written.
    """
    content = {key: value for key, value in report.as_json().items() if key != "worst"}
    write_card(folder, "parity", content, report.contents)
