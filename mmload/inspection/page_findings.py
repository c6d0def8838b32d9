"""What a page shows of the rows that were found: copies, outliers, samples that were left out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

from mmload.errors import counted
from mmload.inspection.page_tables import shown, table
from mmload.inspection.report import CopiedPicture, CopiedPictures, Outlier
from mmload.pictures.contact_sheet import Cell, contact_sheet
from mmload.pictures.embedded import figure
from mmload.store.dataset import Dataset
from mmload.store.row_cells import cells_of_rows

_MOST_OUTLIERS, _MOST_LEFT_OUT = 48, 20
_SIDE = 96


def copies(dataset: Dataset, copied: CopiedPictures) -> str:
    """Pictures that several rows show, two of these side by side."""
    if not copied.count:
        return "<p>No row shows the picture of another, as far as thumbnails of 16 x 16 grays tell.</p>"
    more = "" if copied.complete else " There are more, which were not listed: too many rows are alike."
    lead = (
        f"<p>{counted(copied.count, 'picture')} in several rows, {copied.rows:,} in all; {copied.across:,} of the "
        f"pictures are in two splits: what a model has learned by heart from one is no test in the other.{more}</p>"
    )
    left = copied.count - len(copied.first)
    rest = f"<p class=quiet>{counted(left, 'more picture')}.</p>" if left else ""
    return f'{lead}<ul class="grid">{"".join(_pair(dataset, one) for one in copied.first)}</ul>{rest}'


def _pair(dataset: Dataset, one: CopiedPicture) -> str:
    cells = [cell for split, row in one.rows[:2] for cell in cells_of_rows(dataset[split], [row])]
    names = [f"{split} {row}, {dataset[split].source(row).id}" for split, row in one.rows]
    alike = "equal" if one.equal else f"alike, {one.correlation:.3f}"
    sheet = contact_sheet([Cell(image=cell.image, name=cell.name, detail=cell.detail) for cell in cells], 2, side=_SIDE)
    text = f"{alike}: {names[0]} and {names[1]}"
    others = [*names[2:], *([f"{one.count - len(names):,} more"] if one.count > len(names) else [])]
    also = f"; also {'; '.join(others)}" if others else ""
    return f"<li>{figure(sheet, shown(text), jpeg=True)}<br><span class=quiet>{escape(shown(text + also))}</span></li>"


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
