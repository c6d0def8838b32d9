"""Writes a report as one self-contained HTML page: pictures are embedded, names escaped, no other file is needed."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from html import escape
from typing import Any

import numpy as np
import numpy.typing as npt

from mmload.errors import MmloadError, counted, one_line
from mmload.inspection.report import BINS, Outlier, Pair, Report
from mmload.pictures.contact_sheet import Cell, contact_sheet
from mmload.pictures.embedded import figure
from mmload.runtime.byte_sizes import bytes_text
from mmload.store.dataset import Dataset, Split
from mmload.store.row_cells import cells_of_rows

_MOST_BARS, _MOST_PAIRS, _MOST_OUTLIERS = 60, 48, 48
_SIDE = 96
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
a { color: var(--bar) } a:focus-visible, .wide:focus-visible { outline: 2px solid var(--bar) }
table { border-collapse: collapse } th, td { text-align: left; padding: .15rem .8rem .15rem 0; vertical-align: top }
th { font-weight: 600; overflow-wrap: normal } td.number { text-align: right } img { max-width: 100%; height: auto }
figure { margin: 1rem 0 }
figcaption, .quiet { color: var(--quiet) } .bar { display: inline-block; height: .8em; background: var(--bar) }
.wide { overflow-x: auto } pre { background: var(--code); padding: .8rem; overflow-x: auto }
.bars td:last-child { width: 60% }
ul.grid { display: flex; flex-wrap: wrap; gap: .8rem; list-style: none; padding: 0 } ul.grid li { max-width: 13rem }
@media (max-width: 40rem) { body { margin: 1rem auto } .bars td:last-child { width: 40% } }
"""


def page(dataset: Dataset, facts: Mapping[str, Any], report: Report) -> str:
    """The page.

    Args:
        dataset: whose rows are shown.
        facts: as :func:`mmload.inspection.facts.facts` gives them.
        report: as :func:`mmload.inspection.report.report` gives it.
    """
    sections = [("What it is", _about(facts))]
    sections += [(f"Split {name}", _split(split, facts["splits"][name], report)) for name, split in dataset.items()]
    sections += [
        ("Copies", _copies(dataset, report)),
        ("Outliers", _outliers(dataset, report.outliers)),
        ("Left out", _left_out(facts)),
        ("Checks", _checks(facts)),
        ("How to load it", _code(dataset)),
    ]
    links = "".join(f'<li><a href="#s{number}">{escape(name)}</a></li>' for number, (name, _) in enumerate(sections))
    body = "".join(
        f'<section aria-labelledby="s{number}"><h2 id="s{number}">{escape(name)}</h2>{text}</section>'
        for number, (name, text) in enumerate(sections)
    )
    title = escape(f"Report on {_shown(dataset.path.name)}")
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f'<title>{title}</title><link rel="icon" href="data:,"><style>{_STYLE}</style></head>'
        f"<body><main><h1>{title}</h1>"
        f'<nav aria-label="Sections"><ul>{links}</ul></nav>{body}</main></body></html>\n'
    )


def _shown(text: object) -> str:
    return one_line(str(text))


def _plain(body: object) -> str:
    """A part of a recipe as words: ``step Resize, size 256``."""
    return ", ".join(f"{key} {value}" for key, value in body.items()) if isinstance(body, dict) else str(body)


def _table(rows: Iterable[tuple[str, object]]) -> str:
    cells = "".join(
        f"<tr><th scope=row>{escape(name)}</th><td>{escape(_shown(value))}</td></tr>" for name, value in rows
    )
    return f"<table>{cells}</table>"


def _about(facts: Mapping[str, Any]) -> str:
    recipe = facts["recipe"]
    steps = recipe.get("transforms")
    return _table(
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


def _split(split: Split, facts: Mapping[str, Any], report: Report) -> str:
    fields = ", ".join(f"{name} {spec['dtype']} {spec['shape']}" for name, spec in facts["fields"].items())
    rows: list[tuple[str, object]] = [
        ("rows", f"{facts['rows']:,} in {counted(facts['shards'], 'shard')}"),
        ("fields", fields),
    ]
    if facts["mean"]:
        rows += [("mean", _decimals(facts["mean"])), ("std", _decimals(facts["std"]))]
    rows += [("note", note) for note in facts["notes"]]
    parts = [_table(rows)]
    try:
        sheet = figure(split.preview(count=48), f"48 rows of split {split.name} at most, of all classes", jpeg=True)
        parts.append(f"<h3>Stored rows</h3><figure>{sheet}</figure>")
    except MmloadError:  # no images, or no rows
        parts.append('<p class="quiet">There are no images to show.</p>')
    parts.append(_classes(facts["classes"]))
    if split.name in report.brightness:
        counts = report.brightness[split.name].tolist()
        names = [f"{bin_ * _STEP} to {bin_ * _STEP + _STEP - 1}" for bin_ in range(BINS)]
        parts.append("<h3>Brightness</h3><p class=quiet>Rows by their mean gray, 0 black to 255 white.</p>")
        parts.append(_bars(list(zip(names, counts, strict=True)), ("mean gray", "rows")))
        parts.append(_sizes(report.sizes[split.name]))
    return "".join(parts)


def _classes(classes: Sequence[Mapping[str, Any]]) -> str:
    counts = [(one["name"], int(one["rows"] or 0)) for one in classes]
    if not any(count for _, count in counts):
        return ""
    ordered = sorted(counts, key=lambda one: -one[1])
    shown, text = ordered, ""
    if len(ordered) > _MOST_BARS:
        half = _MOST_BARS // 2
        shown = ordered[:half] + ordered[-half:]
        text = f"<p class=quiet>The {half} largest and the {half} smallest of {len(ordered):,} classes.</p>"
    return f"<h3>Classes</h3>{text}{_bars(shown, ('class', 'rows'))}"


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
    bars = _bars(list(zip(names, counts, strict=True)), ("pixels", "rows"))
    return f"<h3>Shorter side</h3><p class=quiet>{lead}</p>{bars}"


def _bars(counts: Sequence[tuple[str, int]], heads: tuple[str, str]) -> str:
    """A bar chart that is a table, so that everybody can read it."""
    most = max((count for _, count in counts), default=0) or 1
    rows = "".join(
        f"<tr><th scope=row>{escape(_shown(name))}</th><td class=number>{count:,}</td>"
        f'<td><span class="bar" style="width:{100 * count / most:.2f}%"></span></td></tr>'
        for name, count in counts
    )
    head = "".join(f"<th scope=col>{escape(name)}</th>" for name in heads)
    return f'<div class="wide" tabindex="0"><table class="bars"><tr>{head}<td></td></tr>{rows}</table></div>'


def _copies(dataset: Dataset, report: Report) -> str:
    across = [pair for pair in report.pairs if pair.first[0] != pair.second[0]]
    if not report.pairs:
        return "<p>No row shows the picture of another, as far as thumbnails of 16 x 16 grays tell.</p>"
    more = "" if report.complete else " There are more, which were not listed."
    lead = (
        f"<p>{counted(len(report.pairs), 'pair')} of rows show one picture, {len(across):,} of them in two splits: "
        f"what a model has learned by heart from one is no test in the other.{more}</p>"
    )
    shown = report.pairs[:_MOST_PAIRS]
    rest = f"<p class=quiet>{len(report.pairs) - len(shown):,} more.</p>" if len(report.pairs) > len(shown) else ""
    return lead + f'<ul class="grid">{"".join(_pair(dataset, pair) for pair in shown)}</ul>' + rest


def _pair(dataset: Dataset, pair: Pair) -> str:
    cells, names = [], []
    for split, row in (pair.first, pair.second):
        cells += cells_of_rows(dataset[split], [row])
        names.append(f"{split} {row}, {dataset[split].source(row).id}")
    alike = "equal" if pair.equal else f"alike, {pair.correlation:.3f}"
    sheet = contact_sheet([Cell(image=cell.image, name=cell.name, detail=cell.detail) for cell in cells], 2, side=_SIDE)
    text = f"{alike}: {names[0]} and {names[1]}"
    return f"<li>{figure(sheet, _shown(text), jpeg=True)}<br><span class=quiet>{escape(_shown(text))}</span></li>"


def _outliers(dataset: Dataset, outliers: Sequence[Outlier]) -> str:
    if not outliers:
        return (
            "<p>No row is nearly black, nearly white or of one color; no original is three times as long as wide.</p>"
        )
    items = []
    for one in outliers[:_MOST_OUTLIERS]:
        cells = cells_of_rows(dataset[one.split], [one.row])
        text = _shown(f"{one.reason}: {one.split} {one.row}, {dataset[one.split].source(one.row).id}")
        picture = figure(contact_sheet(cells, 1, side=_SIDE), text, jpeg=True)
        items.append(f"<li>{picture}<br><span class=quiet>{escape(text)}</span></li>")
    lead = f"<p>{counted(len(outliers), 'finding')}, the most conspicuous first.</p>"
    return f'{lead}<ul class="grid">{"".join(items)}</ul>'


def _left_out(facts: Mapping[str, Any]) -> str:
    parts = []
    for name, split in facts["splits"].items():
        if split["excluded"]:
            parts.append(f"<p>{counted(split['excluded'], 'sample')} of split {escape(name)}, by --exclude.</p>")
        skipped = split["skipped"]
        if skipped["count"]:
            first = _table([(one["id"], one["reason"]) for one in skipped["first"][:20]])
            listed = escape(_shown(skipped["file"]))
            parts.append(f"<p>{skipped['count']:,} of split {escape(name)}, all listed in {listed}:</p>{first}")
    return "".join(parts) or "<p>Every sample of the source has its row.</p>"


def _checks(facts: Mapping[str, Any]) -> str:
    rows = []
    for name, result in facts["checks"].items():
        if not isinstance(result, dict):
            rows.append((name, "not recorded"))
            continue
        known = {key: result[key] for key in ("date", "passed", "faults", "compared", "verdict") if key in result}
        rows.append((name, ", ".join(f"{key}: {value}" for key, value in known.items())))
    return _table(rows)


def _code(dataset: Dataset) -> str:
    name = next(iter(dataset), "train")
    code = (
        "import mmload\nfrom mmload.augment import Normalize, RandomHorizontalFlip, RandomResizedCrop\n\n"
        f"split = mmload.open({str(dataset.path)!r})[{name!r}]\n"
        "collate = mmload.Collate(RandomResizedCrop(224), RandomHorizontalFlip(), Normalize.of(split))\n"
        "for batch in mmload.Loader(split, batch_size=64, shuffle=True, collate=collate):\n"
        "    batch.images, batch.targets\n"
    )
    return f'<pre tabindex="0"><code>{escape(_shown_lines(code))}</code></pre>'


def _shown_lines(text: str) -> str:
    return "\n".join(one_line(line) for line in text.split("\n"))


def _decimals(values: Sequence[float]) -> str:
    return " ".join(f"{value:.4f}" for value in values)
