"""What a dataset is, in the lines that ``mmload build``, ``info`` and ``verify`` show. Prints nothing."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from mmload.errors import counted
from mmload.runtime.byte_sizes import bytes_text
from mmload.store.manifest import SKIPPED_NAME, Manifest

if TYPE_CHECKING:
    from pathlib import Path

    from mmload.builder.pipeline import BuildReport
    from mmload.store.dataset import Dataset, Split

MOST_LEFT_OUT = 0.1
"""The share of a split's samples that may be left out without a warning."""

_REASONS = 3
_CLASSES = 6


def of_build(report: BuildReport) -> str:
    """What a build did."""
    if not report.built:
        return f"{report.out} is there already, of the same source and recipe: nothing to do"
    earlier = sum(split.rows for split in report.manifest.splits.values()) - report.stored
    rate = (
        f"{counted(report.stored, 'image')} in {report.seconds:.1f} s ({report.built / report.seconds:,.0f} images/s)"
    )
    left_out = f", {report.skipped:,} left out" if report.skipped else ""
    return f"built {report.out}: {rate}{left_out}" + (f", {earlier:,} from an earlier run" if earlier else "")


def of_dataset(dataset: Dataset) -> list[str]:
    """Rows, fields, statistics, classes, what was left out, and what the build had to say, split by split."""
    return [line for name, split in dataset.items() for line in _of_split(dataset, name, split)]


def of_whole(path: Path, manifest: Manifest, source: Path | None) -> str:
    """That a dataset is as it was written, and equals its source if that was compared; less what was left out."""
    line = f"{path} is whole" + (f" and equals {source}" if source is not None else "")
    left_out = "; ".join(text for name in manifest.splits if (text := _left_out(path, manifest, name)))
    return f"{line}, except for samples that were left out: {left_out}" if left_out else line


def warnings(manifest: Manifest) -> list[str]:
    """Warnings about splits of which much was left out."""
    lines = []
    for name, split in manifest.splits.items():
        samples = split.rows + split.skipped_count
        if split.skipped_count > MOST_LEFT_OUT * samples:
            lines.append(
                f"{split.skipped_count:,} of {counted(samples, 'sample')} of split {name} were left out "
                f"({split.skipped_count / samples:.0%}); see why before you train on the rest"
            )
    return lines


def _of_split(dataset: Dataset, name: str, split: Split) -> Iterator[str]:
    record = split.record
    size = f"{bytes_text(record.bytes)} in {counted(len(record.shards), 'shard')}"
    classes = counted(len(split.classes), "class", "classes")
    yield f"  {name}: {counted(len(split), 'row')}, {classes}, {size}"
    for field, spec in split.fields.items():
        yield f"    {field:<10} {spec.dtype} {list(spec.shape)}"
    if split.mean:
        yield f"    mean {_decimals(split.mean)}   std {_decimals(split.std)}"
    if split.classes:
        more = ", ..." if len(split.classes) > _CLASSES else ""
        yield f"    classes    {', '.join(split.classes[:_CLASSES])}{more}"
    if record.skipped_count:
        yield f"    left out   {_left_out(dataset.path, dataset.manifest, name)}"
        yield from (f"               {sample}: {reason}" for sample, reason in record.skipped[:_REASONS])
        if record.skipped_count > _REASONS:
            yield f"               and {record.skipped_count - _REASONS:,} more"
    for note in _notes(dataset.manifest.card, name):
        yield f"  note on {name}: {note}"


def _left_out(path: Path, manifest: Manifest, name: str) -> str:
    split = manifest.splits[name]
    if not split.skipped_count:
        return ""
    samples = counted(split.rows + split.skipped_count, "sample")
    return f"{split.skipped_count:,} of {samples}, listed in {path / name / SKIPPED_NAME}"


def _notes(card: Mapping[str, Any], split: str) -> list[str]:
    """The notes of a build on a split; a card is for people and may contain anything."""
    notes = card.get("notes")
    of_split = notes.get(split) if isinstance(notes, dict) else None
    return [str(note) for note in of_split] if isinstance(of_split, list) else []


def _decimals(values: tuple[float, ...]) -> str:
    return " ".join(f"{value:.4f}" for value in values)
