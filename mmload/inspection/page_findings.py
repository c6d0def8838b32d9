"""What a page shows of the rows that were found: copies, outliers, samples that were left out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

from mmload.errors import counted
from mmload.inspection.page_tables import shown, table
from mmload.inspection.report import Outlier, Pair, Report
from mmload.pictures.contact_sheet import Cell, contact_sheet
from mmload.pictures.embedded import figure
from mmload.store.dataset import Dataset
from mmload.store.row_cells import cells_of_rows

_MOST_PAIRS, _MOST_OUTLIERS, _MOST_LEFT_OUT = 48, 48, 20
_SIDE = 96


def copies(dataset: Dataset, report: Report) -> str:
    """Pairs of rows that show one picture, side by side."""
    across = [pair for pair in report.pairs if pair.first[0] != pair.second[0]]
    if not report.pairs:
        return "<p>No row shows the picture of another, as far as thumbnails of 16 x 16 grays tell.</p>"
    more = "" if report.complete else " There are more, which were not listed."
    lead = (
        f"<p>{counted(len(report.pairs), 'pair')} of rows show one picture, {len(across):,} of them in two splits: "
        f"what a model has learned by heart from one is no test in the other.{more}</p>"
    )
    first = report.pairs[:_MOST_PAIRS]
    rest = f"<p class=quiet>{len(report.pairs) - len(first):,} more.</p>" if len(report.pairs) > len(first) else ""
    return lead + f'<ul class="grid">{"".join(_pair(dataset, pair) for pair in first)}</ul>' + rest


def _pair(dataset: Dataset, pair: Pair) -> str:
    cells, names = [], []
    for split, row in (pair.first, pair.second):
        cells += cells_of_rows(dataset[split], [row])
        names.append(f"{split} {row}, {dataset[split].source(row).id}")
    alike = "equal" if pair.equal else f"alike, {pair.correlation:.3f}"
    sheet = contact_sheet([Cell(image=cell.image, name=cell.name, detail=cell.detail) for cell in cells], 2, side=_SIDE)
    text = f"{alike}: {names[0]} and {names[1]}"
    return f"<li>{figure(sheet, shown(text), jpeg=True)}<br><span class=quiet>{escape(shown(text))}</span></li>"


def outliers(dataset: Dataset, found: Sequence[Outlier]) -> str:
    """Rows that stand out, with what they were made of."""
    if not found:
        return (
            "<p>No row is nearly black, nearly white or of one color; no original is three times as long as wide.</p>"
        )
    items = []
    for one in found[:_MOST_OUTLIERS]:
        cells = cells_of_rows(dataset[one.split], [one.row])
        text = shown(f"{one.reason}: {one.split} {one.row}, {dataset[one.split].source(one.row).id}")
        picture = figure(contact_sheet(cells, 1, side=_SIDE), text, jpeg=True)
        items.append(f"<li>{picture}<br><span class=quiet>{escape(text)}</span></li>")
    lead = f"<p>{counted(len(found), 'finding')}, the most conspicuous first.</p>"
    return f'{lead}<ul class="grid">{"".join(items)}</ul>'


def left_out(facts: Mapping[str, Any]) -> str:
    """Samples that have no row, and why."""
    parts = []
    for name, split in facts["splits"].items():
        if split["excluded"]:
            parts.append(f"<p>{counted(split['excluded'], 'sample')} of split {escape(name)}, by --exclude.</p>")
        skipped = split["skipped"]
        if skipped["count"]:
            first = table([(one["id"], one["reason"]) for one in skipped["first"][:_MOST_LEFT_OUT]])
            listed = escape(shown(skipped["file"]))
            parts.append(f"<p>{skipped['count']:,} of split {escape(name)}, all listed in {listed}:</p>{first}")
    return "".join(parts) or "<p>Every sample of the source has its row.</p>"
