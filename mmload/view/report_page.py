"""Writes a report as one self-contained HTML page: pictures are embedded, names escaped, no other file is needed."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from pathlib import PurePath
from typing import Any

import numpy as np
import numpy.typing as npt

from mmload.augment.collate import collates_of
from mmload.errors import MmloadError, UsageError, bytes_text, counted, one_line
from mmload.pictures.contact_sheet import Cell, annotated, name_in_legend, shown_classes
from mmload.pictures.drawing import figure
from mmload.store.dataset import Dataset, Split, cells_of_rows, first_rows
from mmload.view.facts import check_text, decimals, dicts_in, field_text, recipe_texts, table_of
from mmload.view.report import (
    ASPECTS,
    BINS,
    PER_IMAGE,
    SIDES,
    BoxFacts,
    CopiedPicture,
    DatasetReport,
    Outlier,
)
from mmload.view.training import Training, drawn_cells, is_evaluated

_MOST_BARS, _EXTREMES = 40, 10  # classes; of more than that, the largest and the smallest
_MOST_LEFT_OUT, _MOST_LINES = 20, 200  # the last: of a recorded check
_STEP = 256 // BINS
_SHORTER_SIDES = (0, 32, 64, 96, 128, 192, 256, 384, 512, 768, 1024, 1536, 2048, 3072, 4096)
"""Edges of the shorter sides of source images, in pixels."""

_COLUMNS, _SIDE = 8, 128
"""Thumbnails in a line of a wide page, and their pixels; a narrow page has four in a line."""

_MOST_SHOWN, _MOST_DRAWN = 144, 18
"""Rows of all splits together, so that a page of many splits stays below 5 MB; a third of these of a split at most."""

_MOST_OUTLIERS = 48
_MOST_COPIED, _MOST_ROWS = 48, 8  # pictures in several rows, and rows of each

_EVALUATED = (
    "<h3>As evaluation sees them</h3><p class=quiet>As they are stored, or resized or cropped in the middle: "
    "evaluation applies no random steps.</p>"
)

# Contrast with the page, light / dark (WCAG): text 15.9 / 13.1, quiet 5.7 / 7.9, bars 4.6 / 5.3.
_STYLE = """
:root { color-scheme: light dark; --text: #222; --page: #fff; --line: #ddd; --quiet: #666; --bar: #2a72cc;
--code: #f4f4f4 }
@media (prefers-color-scheme: dark) { :root { --text: #ddd; --page: #15181c; --line: #3a3f45; --quiet: #a8adb3;
--bar: #5a9be8; --code: #22262b } }
body { font: 15px/1.5 system-ui, sans-serif; margin: 2rem auto; max-width: 72rem; padding: 0 1rem; color: var(--text);
background: var(--page); overflow-wrap: anywhere }
h1, h2, h3 { line-height: 1.25 }
nav ul { display: flex; flex-wrap: wrap; gap: .2rem 1rem; list-style: none; padding: 0 }
a { color: var(--bar) } a:focus-visible, [tabindex]:focus-visible { outline: 2px solid var(--bar) }
table { border-collapse: collapse } th, td { text-align: left; padding: .15rem .8rem .15rem 0; vertical-align: top }
th { font-weight: 600; overflow-wrap: normal } .wide table:not(.bars) td { overflow-wrap: break-word }
td.number { text-align: right; white-space: nowrap } img { max-width: 100%; height: auto }
figure { margin: 1rem 0 }
figcaption, .quiet { color: var(--quiet) } .bar { display: inline-block; height: .8em; background: var(--bar) }
.wide { overflow-x: auto } pre { background: var(--code); padding: .8rem; overflow-x: auto }
.bars td:last-child { width: 60% }
ul.grid, ul.legend { display: flex; flex-wrap: wrap; gap: .8rem; list-style: none; padding: 0 }
ul.grid > li { width: 13rem } ul.grid ul.cells { margin: 0 }
ul.legend { gap: .2rem 1rem } ul.legend span { display: inline-block; width: .8em; height: .8em; margin-right: .4em;
outline: 1px solid var(--quiet) }
ul.cells { display: grid; grid-template-columns: repeat(var(--columns), minmax(0, 1fr)); gap: .5rem; list-style: none;
margin: .5rem 0; padding: 0; font-size: .85em; line-height: 1.3 }
.cells img { display: block; width: 100%; aspect-ratio: 1; object-fit: contain; background: var(--code);
outline: 1px solid var(--line) }
.cells span { display: block }
@media (max-width: 40rem) { body { margin: 1rem auto } .bars td:last-child { width: 40% }
ul.cells { grid-template-columns: repeat(min(4, var(--columns)), minmax(0, 1fr)) } ul.grid > li { width: 10.5rem } }
"""


def page(dataset: Dataset, facts: Mapping[str, Any], report: DatasetReport, training: Training) -> str:
    """Writes the page on the results of :func:`mmload.view.facts.facts` and :func:`mmload.view.report.report`.

    Raises:
        UsageError: if rows cannot be drawn by the requested steps or preset.
    """
    sections = [
        ("Findings", _findings(facts, report)),
        ("Copies", copies_html(dataset, report.copied, report.complete)),
        ("Outliers", outliers_html(dataset, report.outliers)),
        ("Left out", _left_out(facts)),
    ]
    for name, split in dataset.built_splits.items():
        sections.append((f"Split {name}", _split(split, facts["splits"][name], report, training, len(dataset))))
    sections += [
        ("How to load it", _code(dataset, training)),
        ("Checks", _checks(facts)),
        ("What it was built from", _about(facts)),
    ]
    links = "".join(f'<li><a href="#s{number}">{escape(name)}</a></li>' for number, (name, _) in enumerate(sections))
    body = "".join(
        f'<section aria-labelledby="s{number}"><h2 id="s{number}">{escape(name)}</h2>{text}</section>'
        for number, (name, text) in enumerate(sections)
    )
    title = escape(f"Report on {one_line_of(PurePath(facts['path']).name)}")
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f'<title>{title}</title><link rel="icon" href="data:,"><style>{_STYLE}</style></head>'
        f"<body><main><h1>{title}</h1>"
        f'<nav aria-label="Sections"><ul>{links}</ul></nav>{body}</main></body></html>\n'
    )


def _findings(facts: Mapping[str, Any], report: DatasetReport) -> str:
    """Writes a few lines of the most important findings: copies across splits, outliers, omitted samples."""
    left_out = sum(split["skipped"]["count"] + split["excluded"] for split in facts["splits"].values())
    copied, across = len(report.copied), sum(one.is_across for one in report.copied)
    outliers = len(report.outliers)
    found = [
        ("pictures in two splits", across, f"{across:,}"),
        ("pictures in several rows", copied, f"{copied:,}"),
        ("outliers", outliers, counted(outliers, "finding")),
        ("samples left out", left_out, f"{left_out:,}"),
    ]
    rows = f"{facts['rows']:,} in {counted(len(facts['splits']), 'split')}, {bytes_text(facts['bytes'])}"
    return _table([("rows", rows), *((name, text if count else "none") for name, count, text in found)])


def _about(facts: Mapping[str, Any]) -> str:
    return _table(
        [
            ("folder", facts["path"]),
            *recipe_texts(facts["recipe"]).items(),
            ("fingerprint of the source", facts["fingerprint"]),
        ]
    )


def _split(split: Split, facts: Mapping[str, Any], report: DatasetReport, training: Training, splits: int) -> str:
    fields = ", ".join(f"{name} {field_text(spec)}" for name, spec in facts["fields"].items())
    rows: list[tuple[str, object]] = [
        ("rows", f"{facts['rows']:,} in {counted(facts['shards'], 'shard')}"),
        ("fields", fields),
        ("stored", f"{facts['layout']}, {facts['encoding']}"),
    ]
    if facts["mean"]:
        rows += [("mean", decimals(facts["mean"])), ("std", decimals(facts["std"]))]
    rows += [(kind, line) for kind in ("warning", "note") for line in facts[f"{kind}s"]]
    parts = [_table(rows), sheets(split, training, splits)]
    parts.append(_classes(facts["classes"], report.classes[split.name]))
    parts.append(_boxes(report.boxes.get(split.name)))
    if split.name in report.brightness:
        names = [f"{bin_ * _STEP} to {bin_ * _STEP + _STEP - 1}" for bin_ in range(BINS)]
        lead = "Rows by their mean brightness, from 0 (black) to 255 (white)."
        parts.append(f"<h3>Brightness</h3><p class=quiet>{lead}</p>")
        parts.append(_histogram(("mean brightness", "rows"), names, report.brightness[split.name]))
        parts.append(_sizes(report.sizes[split.name]))
    return "".join(parts)


def _classes(classes: Sequence[Mapping[str, Any]], found: Mapping[str, list[int]]) -> str:
    columns = {"rows": [int(one["rows"] or 0) for one in classes], **found}
    if not any(columns["rows"]):
        return ""
    heads = ["class", *columns]
    names = [*(one["name"] for one in classes), *map(str, range(len(classes), len(columns["rows"])))]
    ordered = sorted(zip(names, zip(*columns.values(), strict=True), strict=True), key=lambda one: -one[1][0])
    if len(ordered) <= _MOST_BARS:
        return f"<h3>Classes</h3>{_bars(heads, ordered)}"
    rows = sorted(columns["rows"], reverse=True)
    if all(count == ordered[0][1] for _, count in ordered):
        return f"<h3>Classes</h3><p>Each of the {len(rows):,} classes has {counted(rows[0], 'row')}.</p>"
    lead = f"{len(rows):,} classes with {rows[-1]:,} to {rows[0]:,} rows each, median {np.median(rows):,.0f}."
    shown = f"The {_EXTREMES} largest and the {_EXTREMES} smallest:"
    return f"<h3>Classes</h3><p>{lead} {shown}</p>{_bars(heads, ordered[:_EXTREMES] + ordered[-_EXTREMES:])}"


def _boxes(found: BoxFacts | None) -> str:
    """Writes charts of the boxes' sizes and shapes, and of their numbers per image."""
    if found is None or not found.total:
        return ""
    images = int(found.per_image.sum())
    lead = (
        f"{counted(found.total, 'box', 'boxes')} in {counted(images, 'image')}: {found.total / images:.1f} per image, "
        f"{found.most:,} at most; {counted(int(found.per_image[0]), 'image')} without boxes. The size of a box is "
        "the square root of its area, in pixels of the stored image."
    )
    charts = "".join(
        _histogram(heads, _ranges(edges), counts)
        for heads, edges, counts in (
            (("size", "boxes"), SIDES, found.sizes),
            (("width / height", "boxes"), ASPECTS, found.aspects),
            (("boxes per image", "images"), PER_IMAGE, found.per_image),
        )
    )
    return f"<h3>Boxes</h3><p class=quiet>{lead}</p>{charts}"


def _ranges(edges: Sequence[float]) -> list[str]:
    names = [f"{first:g} to under {last:g}" for first, last in zip(edges[:-1], edges[1:], strict=True)]
    return [*names, f"{edges[-1]:g} or more"]


def _sizes(sizes: npt.NDArray[np.int64]) -> str:
    known = sizes[(sizes > 0).all(1)]
    if not len(known):
        return ""
    counts = np.histogram(known.min(1), bins=[*_SHORTER_SIDES, np.inf])[0]
    median = np.median(known, axis=0)
    lead = f"Source images by their shorter side. The median image is {median[1]:,.0f} wide and {median[0]:,.0f} high."
    chart = _histogram(("pixels", "images"), _ranges(_SHORTER_SIDES), counts)
    return f"<h3>Sizes of the source images</h3><p class=quiet>{lead}</p>{chart}"


def _code(dataset: Dataset, training: Training) -> str:
    split = next((split for split in dataset.values() if len(split)), None)
    return _program(training.code(split)) if split is not None else "<p>The dataset has no rows to load.</p>"


def _left_out(facts: Mapping[str, Any]) -> str:
    """Lists samples that have no row, and why."""
    parts = []
    for name, split in facts["splits"].items():
        if split["excluded"]:
            parts.append(f"<p>{counted(split['excluded'], 'sample')} of split {escape(name)}, named by --exclude.</p>")
        skipped = split["skipped"]
        if skipped["count"]:
            first = _table([(one["id"], one["reason"]) for one in skipped["first"][:_MOST_LEFT_OUT]])
            lead = f"{counted(skipped['count'], 'sample')} of split {escape(name)}, with errors; all are listed in"
            parts.append(f"<p>{lead} {breakable(skipped['file'])}:</p>{first}")
    return "".join(parts) or "<p>No sample of the source was left out.</p>"


def _checks(facts: Mapping[str, Any]) -> str:
    """Writes what verify, parity and bench found, as far as it was recorded. A card may contain anything."""
    parts = []
    for name, result in facts["checks"].items():
        details = _DETAILS[name](table_of(facts["checks"], name))
        parts.append(f"<h3>{name.capitalize()}</h3><p>{escape(check_text(name, result))}</p>{details}")
    return "".join(parts)


def _verdicts(result: Mapping[str, Any]) -> str:
    """Writes a table of what parity compared."""
    verdicts = dicts_in(result.get("verdicts"))[:_MOST_LINES]
    rows = [[one.get(key, "") for key in ("part", "name", "state", "text")] for one in verdicts]
    return _columns(("part", "check", "result", "measured"), rows)


def _rates(result: Mapping[str, Any]) -> str:
    """Writes a table of the loaders that bench measured."""
    rows = []
    for one in dicts_in(result.get("results"))[:_MOST_LINES]:
        rate, share = one.get("images_per_second"), one.get("of_ceiling")
        known = f"{rate:,.0f}" if isinstance(rate, int | float) else one.get("failure") or "not measured"
        part = "" if not isinstance(share, int | float) else f"{share:.0%}" if share <= 1.005 else "disturbed"
        rows.append([one.get("name", ""), known, part, one.get("ceiling", ""), one.get("differs", "")])
    return _columns(("loader", "images/s", "of limit", "limit", "what differs"), rows)


_DETAILS = {"verify": lambda result: "", "parity": _verdicts, "bench": _rates}


def _table(rows: Iterable[tuple[str, object]]) -> str:
    """Writes a table of names and values."""
    cells = "".join(f"<tr><th scope=row>{breakable(name)}</th><td>{breakable(value)}</td></tr>" for name, value in rows)
    return f"<table>{cells}</table>"


def _columns(heads: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """Writes a table with a head for each column, numbers to the right; nothing without rows."""
    if not rows:
        return ""
    body = "".join(f"<tr>{''.join(map(_cell, row))}</tr>" for row in rows)
    return f'<div class="wide" tabindex="0"><table><tr>{_heads(heads)}</tr>{body}</table></div>'


def _bars(heads: Sequence[str], rows: Sequence[tuple[str, Sequence[int]]]) -> str:
    """Draws a bar chart that is a table, so that everybody can read it: a bar for the first number of each row.

    Of these numbers at least one is above 0.
    """
    most = max(counts[0] for _, counts in rows)
    body = "".join(
        f"<tr><th scope=row>{escape(one_line_of(name))}</th>{''.join(map(_cell, counts))}"
        f'<td><span class="bar" style="width:{100 * counts[0] / most:.2f}%"></span></td></tr>'
        for name, counts in rows
    )
    return f'<div class="wide" tabindex="0"><table class="bars"><tr>{_heads(heads)}<td></td></tr>{body}</table></div>'


def _histogram(heads: Sequence[str], names: Sequence[str], counts: npt.NDArray[np.int64]) -> str:
    """Draws a bar chart of the bins from the first filled one to the last."""
    filled = np.flatnonzero(counts)
    return _bars(heads, [(names[bin_], [int(counts[bin_])]) for bin_ in range(filled[0], filled[-1] + 1)])


def _program(text: str) -> str:
    """Shows a program, to be copied."""
    lines = "\n".join(map(one_line_of, text.split("\n")))
    return f'<pre tabindex="0"><code>{escape(lines)}</code></pre>'


def _heads(names: Sequence[str]) -> str:
    return "".join(f"<th scope=col>{escape(name)}</th>" for name in names)


def _cell(value: object) -> str:
    if isinstance(value, int):
        return f"<td class=number>{value:,}</td>"
    return f"<td>{breakable(value)}</td>"


# Pictures: thumbnails in grids, with captions that follow the colors of the page.


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
    rest = ""
    if len(cells) < len(split):
        spread = ", spread over the classes" if split.classes else ""
        rest = f"{spread}; <code>mmload browse {breakable(split.folder.title)}</code> shows all"
    return (
        f"<h3>Stored rows</h3><figure><figcaption>{len(cells):,} of {counted(len(split), 'row')}{rest}"
        f"</figcaption>{_pictures(cells, _COLUMNS, split)}{_legend(cells, split.classes)}</figure>"
        + (_EVALUATED if is_evaluated(split) else _trained(split, training, drawn))
    )


def _trained(split: Split, training: Training, count: int) -> str:
    steps = f"<code>{escape(one_line_of(training.text(split)))}</code>"
    head = "<h3>As training sees them</h3>"
    try:
        collate = training.collate(split)
        draws = max(1, (_COLUMNS - 1) // len(collates_of(collate)))
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
    grids = "".join(_pictures(line, len(lines[0]), split) for line in lines)
    return f"{head}<figure><figcaption>{text}</figcaption>{grids}</figure>"


def _pictures(cells: Sequence[Cell], columns: int, split: Split) -> str:
    items = "".join(f"<li>{_picture(cell, split)}{_caption(cell)}</li>" for cell in cells)
    return f'<ul class="cells" style="--columns:{columns}">{items}</ul>'


def _picture(cell: Cell, split: Split) -> str:
    text = ", ".join(filter(None, (cell.name, cell.detail, f"split {split.name}")))
    return figure(annotated(cell, _SIDE, split.classes), one_line_of(text), "JPEG", quality=82)


def _picture_of_row(split: Split, row: int) -> str:
    (cell,) = cells_of_rows(split, [row])
    return _picture(cell, split)


def _caption(cell: Cell) -> str:
    name = f"<span>{breakable(cell.name)}</span>" if cell.name else ""
    return f"{name}<span class=quiet>{escape(cell.detail)}</span>"


def _legend(cells: Sequence[Cell], classes: Sequence[str]) -> str:
    """Lists the classes of boxes and masks with their colors; nothing without them."""
    named = (name_in_legend(index, classes) for index in shown_classes(cells))
    items = "".join(f'<li><span style="background:rgb{color}"></span>{breakable(name)}</li>' for name, color in named)
    return f'<ul class="legend">{items}</ul>' if items else ""


def copies_html(dataset: Dataset, copied: Sequence[CopiedPicture], complete: bool) -> str:
    """Shows pictures that several rows show, two of these side by side; ``complete``: they are all."""
    if not copied:
        return (
            "<p>No picture was found in more than one row. The search compares small gray versions of all rows: it "
            "finds copies that were resized, encoded again or made brighter, not cropped or mirrored ones.</p>"
        )
    unlisted = "" if complete else " There are more: too many rows look alike to list them all."
    count = sum(one.is_across for one in copied)
    some = f"{count:,} of them in two splits: what a model was trained on does not test it"
    across, rows = some if count else "None of them is in two splits", sum(len(one.rows) for one in copied)
    found = f"{counted(len(copied), 'picture')} found in more than one row, {rows:,} rows in all"
    lead = f"<p>{found}. {across}.{unlisted}</p>"
    hidden = len(copied) - _MOST_COPIED
    rest = f"<p class=quiet>{counted(hidden, 'more picture')}; --findings FILE lists all.</p>" if hidden > 0 else ""
    return f'{lead}<ul class="grid">{"".join(_pair(dataset, one) for one in copied[:_MOST_COPIED])}</ul>{rest}'


def _pair(dataset: Dataset, copied: CopiedPicture) -> str:
    items = "".join(f"<li>{_picture_of_row(dataset[split], row)}</li>" for split, row in copied.rows[:2])
    names = [f"{split} row {row}, {dataset[split].source(row).id}" for split, row in copied.rows[:_MOST_ROWS]]
    alike = "equal pixels" if copied.equal else f"nearly the same, correlation {copied.correlation:.3f}"
    hidden = len(copied.rows) - len(names)
    others = "; ".join([*names[2:], f"{hidden:,} more"] if hidden else names[2:])
    also = f"; also {others}" if others else ""
    text = breakable(f"{alike}: {names[0]} and {names[1]}{also}")
    return f'<li><ul class="cells" style="--columns:2">{items}</ul><span class=quiet>{text}</span></li>'


def outliers_html(dataset: Dataset, found: Sequence[Outlier]) -> str:
    """Shows rows that stand out, with what they were made of."""
    if not found:
        return (
            "<p>No row is nearly black, nearly white or of one color, and no source image is more than three times as "
            "long as wide.</p>"
        )
    items = []
    for one in found[:_MOST_OUTLIERS]:
        split = dataset[one.split]
        text = breakable(f"{one.reason}: {one.split} row {one.row}, {split.source(one.row).id}")
        items.append(f"<li>{_picture_of_row(split, one.row)}<span>{text}</span></li>")
    rest = f"; {_MOST_OUTLIERS} are shown, --findings FILE lists all" if len(found) > _MOST_OUTLIERS else ""
    lead = f"<p>{counted(len(found), 'finding')}, the most conspicuous first{rest}.</p>"
    return f'{lead}<ul class="cells" style="--columns:{_COLUMNS}">{"".join(items)}</ul>'
