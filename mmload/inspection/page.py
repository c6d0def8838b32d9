"""Writes a report as one self-contained HTML page: pictures are embedded, names escaped, no other file is needed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

import numpy as np
import numpy.typing as npt

from mmload.errors import MmloadError, UsageError, counted
from mmload.inspection.class_rows import ClassRows
from mmload.inspection.facts import field_text
from mmload.inspection.page_checks import checks
from mmload.inspection.page_findings import copies, left_out, outliers
from mmload.inspection.page_tables import bars, program, shown, table
from mmload.inspection.report import BINS, Report
from mmload.inspection.training import Training
from mmload.pictures.contact_sheet import contact_sheet
from mmload.pictures.embedded import figure
from mmload.runtime.byte_sizes import bytes_text
from mmload.store.dataset import Dataset, Split
from mmload.store.row_cells import cells_of_rows, first_rows

_MOST_BARS = 60
_COLUMNS, _SIDE = 8, 120
"""Of a sheet, which is as wide as the page, so that its text is legible."""

_MOST_SHOWN, _MOST_DRAWN = 144, 18
"""Rows on all sheets together, so that a page of many splits stays below 5 MB; a third of these of a split at most."""

_STEP = 256 // BINS
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
ul.grid { display: flex; flex-wrap: wrap; gap: .8rem; list-style: none; padding: 0 } ul.grid li { max-width: 13rem }
.sheet { overflow-x: auto } .sheet img { max-width: none }
@media (max-width: 40rem) { body { margin: 1rem auto } .bars td:last-child { width: 40% } }
"""


def page(dataset: Dataset, facts: Mapping[str, Any], report: Report, training: Training) -> str:
    """The page.

    Args:
        dataset: whose rows are shown.
        facts: as :func:`mmload.inspection.facts.facts` gives them.
        report: as :func:`mmload.inspection.report.report` gives it.
        training: what augmented rows are drawn by.

    Raises:
        UsageError: if rows cannot be drawn by steps or a recipe that were asked for.
    """
    sections = [("What it is", _about(facts))]
    for name, split in dataset.items():
        sections.append((f"Split {name}", _split(split, facts["splits"][name], report, training, len(dataset))))
    sections += [
        ("Copies", copies(dataset, report.copied)),
        ("Outliers", outliers(dataset, report.outliers)),
        ("Left out", left_out(facts)),
        ("Checks", checks(facts)),
        ("How to load it", _code(dataset, training)),
    ]
    links = "".join(f'<li><a href="#s{number}">{escape(name)}</a></li>' for number, (name, _) in enumerate(sections))
    body = "".join(
        f'<section aria-labelledby="s{number}"><h2 id="s{number}">{escape(name)}</h2>{text}</section>'
        for number, (name, text) in enumerate(sections)
    )
    title = escape(f"Report on {shown(dataset.path.name)}")
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f'<title>{title}</title><link rel="icon" href="data:,"><style>{_STYLE}</style></head>'
        f"<body><main><h1>{title}</h1>"
        f'<nav aria-label="Sections"><ul>{links}</ul></nav>{body}</main></body></html>\n'
    )


def _plain(body: object) -> str:
    """A part of a recipe as words: ``step Resize, size 256``."""
    return ", ".join(f"{key} {value}" for key, value in body.items()) if isinstance(body, dict) else str(body)


def _about(facts: Mapping[str, Any]) -> str:
    recipe = facts["recipe"]
    steps = recipe.get("transforms")
    return table(
        [
            ("folder", facts["path"]),
            ("rows", f"{facts['rows']:,} in {counted(len(facts['splits']), 'split')}"),
            ("size", bytes_text(facts["bytes"])),
            ("source", _plain(recipe.get("source"))),
            ("decoded", _plain(recipe.get("decode"))),
            ("transforms", "; ".join(map(_plain, steps)) if isinstance(steps, list) and steps else "none"),
            ("fingerprint of the source", facts["fingerprint"]),
        ]
    )


def _split(split: Split, facts: Mapping[str, Any], report: Report, training: Training, splits: int) -> str:
    fields = ", ".join(f"{name} {field_text(spec)}" for name, spec in facts["fields"].items())
    rows: list[tuple[str, object]] = [
        ("rows", f"{facts['rows']:,} in {counted(facts['shards'], 'shard')}"),
        ("fields", fields),
        ("stored", f"{facts['layout']}, {facts['encoding']}"),
    ]
    if facts["mean"]:
        rows += [("mean", _decimals(facts["mean"])), ("std", _decimals(facts["std"]))]
    rows += [("note", note) for note in facts["notes"]]
    parts = [table(rows), _sheets(split, training, *_shares(splits))]
    parts.append(_classes(facts["classes"], report.classes.get(split.name)))
    if split.name in report.brightness:
        counts = report.brightness[split.name].tolist()
        names = [f"{bin_ * _STEP} to {bin_ * _STEP + _STEP - 1}" for bin_ in range(BINS)]
        parts.append("<h3>Brightness</h3><p class=quiet>Rows by their mean gray, 0 black to 255 white.</p>")
        filled = np.flatnonzero(counts)
        listed = [(names[bin_], [counts[bin_]]) for bin_ in range(filled[0], filled[-1] + 1)]
        parts.append(bars(("mean gray", "rows"), listed))
        parts.append(_sizes(report.sizes[split.name]))
    return "".join(parts)


def _shares(splits: int) -> tuple[int, int]:
    """How many rows of each of so many splits are shown, and drawn."""
    return tuple(max(1, most // max(3, splits)) for most in (_MOST_SHOWN, _MOST_DRAWN))  # type: ignore[return-value]


def _sheets(split: Split, training: Training, shown_rows: int, drawn_rows: int) -> str:
    """Rows as they are stored, and as training sees them."""
    try:
        cells = cells_of_rows(split, first_rows(split, shown_rows))
    except MmloadError:  # no images, or no rows
        return '<p class="quiet">There are no images to show.</p>'
    sheet = contact_sheet(cells, _COLUMNS, classes=split.classes, side=_SIDE)
    picture = figure(sheet, f"{len(cells)} stored rows of split {split.name}, of all classes", jpeg=True)
    return (
        f'<h3>Stored rows</h3><figure class="sheet" tabindex="0">{picture}</figure>'
        f"<h3>As training sees them</h3>{_drawn(split, training, drawn_rows)}"
    )


def _drawn(split: Split, training: Training, count: int) -> str:
    from mmload.inspection.augmented import augmented_sheet

    steps = f"<code>{escape(shown(training.text(split)))}</code>"
    try:
        collate = training.collate(split)
        draws = max(1, (_COLUMNS - 1) // len(getattr(collate, "collates", [collate])))
        rows = first_rows(split, count)
        sheet = augmented_sheet(split, collate, rows, draws=draws, side=_SIDE)
    except UsageError:
        if training.made is not None:
            raise
        return f"<p class=quiet>These rows cannot be drawn by the usual steps, {steps}; give others with --augment.</p>"
    text = f"{len(rows)} rows of split {split.name}, each as it is stored and as it is drawn in {draws} epochs"
    picture = f'<div class="sheet" tabindex="0">{figure(sheet, text, jpeg=True)}</div>'
    return f"<figure>{picture}<figcaption>{steps}</figcaption></figure>"


def _classes(classes: Sequence[Mapping[str, Any]], found: ClassRows | None) -> str:
    names = [one["name"] for one in classes]
    heads = ["class", "rows"]
    if found is not None:
        names += [str(index) for index in range(len(names), len(found.rows))]
        counts = [[count] for count in found.rows.tolist()]
        if found.amounts is not None:
            heads.append(found.unit)
            counts = [[*count, amount] for count, amount in zip(counts, found.amounts.tolist(), strict=True)]
    else:
        counts = [[int(one["rows"] or 0)] for one in classes]
    if not any(count[0] for count in counts):
        return ""
    ordered = sorted(zip(names, counts, strict=True), key=lambda one: -one[1][0])
    listed, text = ordered, ""
    if len(ordered) > _MOST_BARS:
        half = _MOST_BARS // 2
        listed = ordered[:half] + ordered[-half:]
        text = f"<p class=quiet>The {half} largest and the {half} smallest of {len(ordered):,} classes.</p>"
    return f"<h3>Classes</h3>{text}{bars(heads, listed)}"


def _sizes(sizes: npt.NDArray[np.int64]) -> str:
    known = sizes[(sizes > 0).all(1)]
    if not len(known):
        return ""
    shorter = known.min(1)
    edges = np.unique(np.round(np.geomspace(max(1, shorter.min()), shorter.max() + 1, 13)).astype(np.int64))
    if len(edges) < 2:
        edges = np.array([edges[0], edges[0] + 1])
    counts = np.histogram(shorter, bins=edges)[0].tolist()
    names = [f"{first:,} to {last - 1:,}" for first, last in zip(edges[:-1].tolist(), edges[1:].tolist(), strict=True)]
    median = np.median(known, axis=0)
    lead = f"Of the originals; the median image has {median[1]:,.0f} x {median[0]:,.0f} pixels."
    chart = bars(("pixels", "rows"), [(name, [count]) for name, count in zip(names, counts, strict=True)])
    return f"<h3>Shorter side</h3><p class=quiet>{lead}</p>{chart}"


def _code(dataset: Dataset, training: Training) -> str:
    split = next((split for split in dataset.values() if len(split)), None)
    return program(training.code(split)) if split is not None else "<p>It has no rows to load.</p>"


def _decimals(values: Sequence[float]) -> str:
    return " ".join(f"{value:.4f}" for value in values)
