"""Summary of a dataset in the lines that ``mmload build``, ``info`` and ``verify`` show. Prints nothing."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from mmload.errors import aligned, bytes_text, choices, counted, one_line
from mmload.store.manifest import SKIPPED_NAME, Manifest
from mmload.view.facts import check_text, decimals, field_text, recipe_texts

if TYPE_CHECKING:
    from pathlib import Path

    from mmload.builder.pipeline import BuildReport, PartReport, UpdateReport
    from mmload.store.manifest import VersionRecord
    from mmload.view.facts import Origin

MOST_LEFT_OUT = 0.1
"""Share of the samples of a split that may be left out without a warning."""

_WIDTH = 80
_REASONS = 3
_CLASSES = 6


def report_text(report: PartReport) -> str:
    """Returns the line on what a build, an update or a part of one has done."""
    from mmload.builder.pipeline import BuildReport, UpdateReport

    if isinstance(report, UpdateReport):
        return _update_text(report)
    return _build_text(report) if isinstance(report, BuildReport) else _part_text(report)


def _build_text(report: BuildReport) -> str:
    """Formats the number of images that a build stored, and its rate."""
    if not report.built:
        return f"{report.out} is there already, of the same source and recipe: nothing to do"
    earlier = sum(split.rows for split in report.manifest.built_splits.values()) - report.stored
    shown = f"{report.rate:,.0f}" if report.rate >= 10 else f"{report.rate:.1f}"
    rate = f"{counted(report.stored, 'image')} in {report.seconds:.1f} s ({shown} images/s)"
    resumed = f", {earlier:,} from an earlier run" if earlier else ""
    return f"built {report.out}: {rate}{_skipped(report)}{resumed}"


def _update_text(report: UpdateReport) -> str:
    """Formats what an update found, and its version."""
    if not report.needed:
        return f"{report.out} is up to date: nothing to do"
    if report.dry_run:
        return f"{report.out} would be updated: {_changes(report)}; nothing was written"
    made = report.manifest.versions[-1]  # whose numbers are those of rows, without samples that were left out
    gone = f"; no row is left of {choices(report.gone)}" if report.gone else ""
    updated = f"updated {report.out} to version {made.number} in {report.seconds:.1f} s"
    return f"{updated}: {_changes(made)}{_skipped(report)}{gone}"


def _part_text(report: PartReport) -> str:
    """Formats the number of images that a part of a build stored, and whether the dataset is complete."""
    built = f"built {counted(report.built - report.skipped, 'image')} in {report.seconds:.1f} s{_skipped(report)}"
    if report.manifest is not None:
        return f"{built}; {report.out} is complete, of {counted(report.shards, 'shard')}"
    return f"{built}; {report.sealed:,} of {counted(report.shards, 'shard')} are finished, the other parts follow"


def _changes(found: UpdateReport | VersionRecord) -> str:
    return f"{found.added:,} new, {found.changed:,} changed, {found.removed:,} gone"


def _skipped(report: PartReport) -> str:
    return f", {report.skipped:,} left out" if report.skipped else ""


def origin_lines(origins: Sequence[Origin]) -> list[str]:
    """Formats rows and the samples that they were made of."""
    sizes = (f", {one.size[1]} x {one.size[0]} pixels" if one.size else "" for one in origins)
    return [f"{one.split} {one.row}: {one.id}{size}" for one, size in zip(origins, sizes, strict=True)]


def version_lines(versions: Sequence[VersionRecord]) -> list[str]:
    """Formats the versions of a dataset, the latest first, as a table."""
    head = ("version", "time (UTC)", "change", "added", "changed", "removed", "contents")
    rows = [
        (str(v.number), v.time, v.change, f"{v.added:,}", f"{v.changed:,}", f"{v.removed:,}", v.contents[:12])
        for v in reversed(versions)
    ]
    return aligned([head, *rows], left=[1, 2, 6])


def dataset_lines(facts: Mapping[str, Any]) -> list[str]:
    """Returns the lines of ``mmload info``, 80 columns wide but for paths: origin, splits, checks."""
    splits = counted(len(facts["splits"]), "split")
    lines = [f"{facts['path']}: {counted(facts['rows'], 'row')} in {splits}, {bytes_text(facts['bytes'])}"]
    recipe = recipe_texts(facts["recipe"])
    recipe["source"] += f"; fingerprint {facts['fingerprint'][:16]}"
    for label, text in recipe.items():
        lines += _labeled(label, text)
    lines += split_lines(facts)
    for name, result in facts["checks"].items():
        lines += _labeled(name, check_text(name, result))
    return lines


def split_lines(facts: Mapping[str, Any]) -> list[str]:
    """Returns rows, fields, statistics, classes, omissions and notes of the build, split by split."""
    return [line for name, split in facts["splits"].items() for line in _lines_of_split(name, split)]


def passed_check_text(path: Path, manifest: Manifest, source: str | None) -> str:
    """Formats the result of a passed check, with the source if it was compared; lists omitted samples."""
    line = f"{path} is whole" + (f" and equals {source}" if source is not None else "")
    left_out = "; ".join(text for name in manifest.splits if (text := _left_out(path, manifest, name)))
    return f"{line}, except for samples that were left out: {left_out}" if left_out else line


def warnings(manifest: Manifest) -> list[str]:
    """Returns warnings about splits with many omitted samples or dropped boxes."""
    lines = []
    for name, split in manifest.splits.items():
        lines += [f"split {name}: {text}" for text in manifest.card_lines("warnings", name)]
        samples = split.rows + split.skipped_count
        if split.skipped_count > MOST_LEFT_OUT * samples:
            lines.append(
                f"{split.skipped_count:,} of {counted(samples, 'sample')} of split {name} were left out "
                f"({split.skipped_count / samples:.0%}); see why before you train on the rest"
            )
    return lines


def _lines_of_split(name: str, split: Mapping[str, Any]) -> Iterator[str]:
    stored = f"{bytes_text(split['bytes'])} in {counted(split['shards'], 'shard')}"
    size = stored if split["subset_of"] is None else f"a subset of {split['subset_of']}"
    yield f"  {name}: {counted(split['rows'], 'row')}, {counted(len(split['classes']), 'class', 'classes')}, {size}"
    for field, spec in split["fields"].items():
        mean = f"{spec['row_bytes'] / 1024:,.1f} KiB" if spec["row_bytes"] >= 1024 else f"{spec['row_bytes']} B"
        yield f"    {field:<10} {field_text(spec)}" + (f", {mean} per row" if "encoding" in spec else "")
    yield f"    stored     {split['layout']}, {split['encoding']}"
    if split["mean"]:
        yield f"    mean {decimals(split['mean'])}   std {decimals(split['std'])}"
    yield from _classes(split["classes"])
    skipped = split["skipped"]
    if skipped["count"]:
        yield f"    left out   {_skipped_text(skipped['count'], split['rows'], skipped['file'])}"
        yield from (f"               {one['id']}: {one['reason']}" for one in skipped["first"][:_REASONS])
        if skipped["count"] > _REASONS:
            yield f"               and {skipped['count'] - _REASONS:,} more"
    if split["excluded"]:
        yield f"    excluded   {counted(split['excluded'], 'sample')}, by --exclude"
    for note in split["notes"]:
        yield f"  note on {name}: {note}"


def _classes(classes: list[dict[str, Any]]) -> list[str]:
    """Returns the first classes with their rows, and how unequal all of them are."""
    counts = [one["rows"] or 0 for one in classes]
    rows_known = any(counts)  # boxes and masks have classes of which no row is counted
    first = zip(classes[:_CLASSES], counts, strict=False)
    shown = [f"{one['name']} {count:,}" if rows_known else one["name"] for one, count in first]
    more = f", ... ({len(classes) - _CLASSES:,} more; all with --json)" if len(classes) > _CLASSES else ""
    fewest, most = min(counts, default=0), max(counts, default=0)
    size = counted(most, "row") if fewest == most else f"{fewest:,} to {most:,} rows"
    spread = f"{size} per class: " if rows_known and len(counts) > _CLASSES else ""
    return _labeled("classes", spread + ", ".join(shown) + more, indent=4)


def _labeled(label: str, text: str, indent: int = 2) -> list[str]:
    """Returns a label and its text, wrapped to 80 columns under each other."""
    first = " " * indent + f"{label:<10} "
    wrapper = textwrap.TextWrapper(width=_WIDTH, break_long_words=False, break_on_hyphens=False)
    wrapper.initial_indent, wrapper.subsequent_indent = first, " " * len(first)
    return wrapper.wrap(one_line(text))


def _skipped_text(count: int, rows: int, file: str) -> str:
    return f"{count:,} of {counted(rows + count, 'sample')}, listed in {file}"


def _left_out(path: Path, manifest: Manifest, name: str) -> str:
    split, excluded = manifest.splits[name], len(manifest.excluded(name))
    texts = [f"{counted(excluded, 'sample')} of split {name} by --exclude"] if excluded else []
    if split.skipped_count:
        texts.append(_skipped_text(split.skipped_count, split.rows, str(path / name / split.list_name(SKIPPED_NAME))))
    return "; ".join(texts)
