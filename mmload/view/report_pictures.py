"""Writes the pictures of a report as HTML: thumbnails in grids, with captions that follow the colors of the page."""

from __future__ import annotations

import re
from collections.abc import Sequence
from html import escape

from mmload.errors import MmloadError, UsageError, counted, one_line
from mmload.pictures.contact_sheet import Cell, annotated, name_in_legend, shown_classes
from mmload.pictures.drawing import figure
from mmload.store.dataset import Dataset, Split, cells_of_rows, first_rows
from mmload.view.report import CopiedPicture, CopiedPictures, Outlier
from mmload.view.training import Training, drawn_cells, is_evaluated

_COLUMNS, _SIDE = 8, 128
"""Thumbnails in a line of a wide page, and their pixels; a narrow page has four in a line."""

_MOST_SHOWN, _MOST_DRAWN = 144, 18
"""Rows of all splits together, so that a page of many splits stays below 5 MB; a third of these of a split at most."""

_MOST_OUTLIERS = 48

_EVALUATED = (
    "<h3>As evaluation sees them</h3><p class=quiet>As they are stored, or resized or cropped in the middle: "
    "evaluation applies no random steps.</p>"
)


def one_line_of(text: object) -> str:
    """Writes a value in one line, control characters escaped; not HTML yet."""
    return one_line(str(text))


def breakable(text: object) -> str:
    """Writes a value as HTML whose lines may break behind the separators of file names."""
    return re.sub(r"([/\\_-]|\.(?=[A-Za-z]))", r"\1<wbr>", escape(one_line_of(text)))


def sheets(split: Split, training: Training, splits: int) -> str:
    """Shows rows as they are stored, and as training sees them, fewer if the page has many splits.

    Raises:
        UsageError: if the requested steps cannot render the rows.
    """
    shown, drawn = (max(1, most // max(3, splits)) for most in (_MOST_SHOWN, _MOST_DRAWN))
    try:
        cells = cells_of_rows(split, first_rows(split, shown))
    except MmloadError:  # no images, or no rows
        return '<p class="quiet">There are no images to show.</p>'
    more = ", spread over the classes" if split.classes and len(cells) < len(split) else ""
    rest = f"; <code>mmload browse {breakable(split.folder.title)}</code> shows all" if len(cells) < len(split) else ""
    return (
        f"<h3>Stored rows</h3><figure><figcaption>{len(cells):,} of {counted(len(split), 'row')}{more}{rest}"
        f"</figcaption>{_grid(cells, _COLUMNS, split)}{_legend(cells, split.classes)}</figure>"
        + (_EVALUATED if is_evaluated(split) else _trained(split, training, drawn))
    )


def _trained(split: Split, training: Training, count: int) -> str:
    steps = f"<code>{escape(one_line_of(training.text(split)))}</code>"
    head = "<h3>As training sees them</h3>"
    try:
        collate = training.collate(split)
        draws = max(1, (_COLUMNS - 1) // len(getattr(collate, "collates", [collate])))
        rows = first_rows(split, count)
        drawn = drawn_cells(split, collate, rows, draws=draws)
    except UsageError:
        if training.made is not None:
            raise
        return (
            f"{head}<p class=quiet>The usual steps, {steps}, cannot be applied to these rows; name others with "
            "--augment.</p>"
        )
    lines = [[cell, *line] for cell, line in zip(cells_of_rows(split, rows), drawn, strict=True)]
    text = f"{counted(len(rows), 'row')}: first as stored, then in {counted(draws, 'epoch')} of {steps}"
    grids = "".join(_grid(line, len(lines[0]), split) for line in lines)
    return f"{head}<figure><figcaption>{text}</figcaption>{grids}</figure>"


def _grid(cells: Sequence[Cell], columns: int, split: Split) -> str:
    items = "".join(f"<li>{_picture(cell, split)}{_caption(cell)}</li>" for cell in cells)
    return f'<ul class="cells" style="--columns:{columns}">{items}</ul>'


def _picture(cell: Cell, split: Split) -> str:
    text = ", ".join(part for part in (cell.name, cell.detail, f"split {split.name}") if part)
    return figure(annotated(cell, _SIDE, split.classes), one_line_of(text), jpeg=True)


def _caption(cell: Cell) -> str:
    name = f"<span>{breakable(cell.name)}</span>" if cell.name else ""
    return name + (f"<span class=quiet>{escape(cell.detail)}</span>" if cell.detail else "")


def _legend(cells: Sequence[Cell], classes: Sequence[str]) -> str:
    """Lists the classes of boxes and masks with their colors; nothing without them."""
    named = (name_in_legend(index, classes) for index in shown_classes(cells))
    items = "".join(f'<li><span style="background:rgb{color}"></span>{breakable(name)}</li>' for name, color in named)
    return f'<ul class="legend">{items}</ul>' if items else ""


def copies(dataset: Dataset, copied: CopiedPictures) -> str:
    """Shows pictures that several rows show, two of these side by side."""
    if not copied.count:
        return (
            "<p>No picture was found in more than one row. The search compares small gray versions of all rows: it "
            "finds copies that were resized, encoded again or made brighter, not cropped or mirrored ones.</p>"
        )
    unlisted = "" if copied.complete else " There are more: too many rows look alike to list them all."
    some = f"{copied.across:,} of them in two splits: what a model was trained on does not test it"
    across = some if copied.across else "None of them is in two splits"
    lead = (
        f"<p>{counted(copied.count, 'picture')} found in more than one row, {copied.rows:,} rows in all. "
        f"{across}.{unlisted}</p>"
    )
    hidden = copied.count - len(copied.first)
    rest = f"<p class=quiet>{counted(hidden, 'more picture')}; --findings FILE lists all.</p>" if hidden else ""
    return f'{lead}<ul class="grid">{"".join(_pair(dataset, one) for one in copied.first)}</ul>{rest}'


def _pair(dataset: Dataset, copied: CopiedPicture) -> str:
    items = "".join(
        f"<li>{_picture(cell, dataset[split])}</li>"
        for split, row in copied.rows[:2]
        for cell in cells_of_rows(dataset[split], [row])
    )
    names = [f"{split} row {row}, {dataset[split].source(row).id}" for split, row in copied.rows]
    alike = "equal pixels" if copied.equal else f"nearly the same, correlation {copied.correlation:.3f}"
    others = [*names[2:], *([f"{copied.count - len(names):,} more"] if copied.count > len(names) else [])]
    also = f"; also {'; '.join(others)}" if others else ""
    text = breakable(f"{alike}: {names[0]} and {names[1]}{also}")
    return f'<li><ul class="cells" style="--columns:2">{items}</ul><span class=quiet>{text}</span></li>'


def outliers(dataset: Dataset, found: Sequence[Outlier]) -> str:
    """Shows rows that stand out, with what they were made of."""
    if not found:
        return (
            "<p>No row is nearly black, nearly white or of one color, and no source image is more than three times as "
            "long as wide.</p>"
        )
    items = []
    for one in found[:_MOST_OUTLIERS]:
        split = dataset[one.split]
        pictures = "".join(_picture(cell, split) for cell in cells_of_rows(split, [one.row]))
        text = breakable(f"{one.reason}: {one.split} row {one.row}, {split.source(one.row).id}")
        items.append(f"<li>{pictures}<span>{text}</span></li>")
    rest = f"; {_MOST_OUTLIERS} are shown, --findings FILE lists all" if len(found) > _MOST_OUTLIERS else ""
    lead = f"<p>{counted(len(found), 'finding')}, the most conspicuous first{rest}.</p>"
    return f'{lead}<ul class="cells" style="--columns:{_COLUMNS}">{"".join(items)}</ul>'
