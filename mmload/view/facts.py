"""Describes a dataset as plain data for JSON, and finds the sources of rows. Reads no pixels, imports no torch."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any

from mmload.errors import DamagedError, UsageError, choices, one_line
from mmload.records import VARIABLE, FieldSpec
from mmload.store.manifest import BYTES, SKIPPED_NAME, Manifest, SplitRecord

if TYPE_CHECKING:
    from mmload.store.dataset import Dataset, Split

CHECKS = ("verify", "parity", "bench")
"""Keys of what ``--record`` keeps in the card of a dataset."""


def facts(path: str | Path, manifest: Manifest) -> dict[str, Any]:
    """Describes a dataset at a folder or URL by its manifest.

    Returns:
        ``path``, ``rows`` of all splits but subsets, ``bytes`` of all shards, ``recipe``, ``fingerprint`` of the
        source, ``splits`` (by name, see docs/inspection.md), and ``checks``: what verify, parity and bench recorded,
        None where they did not.
    """
    splits = {name: _split(str(path), name, record, manifest) for name, record in manifest.splits.items()}
    return {
        "path": str(path),
        "rows": sum(split["rows"] for split in splits.values() if split["subset_of"] is None),
        "bytes": sum(split["bytes"] for split in splits.values() if split["subset_of"] is None),
        "recipe": manifest.recipe,
        "fingerprint": manifest.fingerprint,
        "splits": splits,
        "checks": {name: manifest.card.get(name) for name in CHECKS},
    }


def _split(path: str, name: str, record: SplitRecord, manifest: Manifest) -> dict[str, Any]:
    own = [spec.encoding for spec in record.fields.values() if spec.variable_size]
    layout, encoding = ("variable-size images", own[0]) if own else ("rows of one size", "raw")
    counts: tuple[int | None, ...] = record.class_counts or (None,) * len(record.classes)
    return {
        "rows": record.rows,
        "subset_of": record.subset_of,
        "bytes": record.bytes,
        "shards": len(record.shards),
        "layout": layout,
        "encoding": encoding,
        "fields": {field: _field(field, spec, record) for field, spec in record.fields.items()},
        "classes": [{"name": each, "rows": count} for each, count in zip(record.classes, counts, strict=True)],
        "mean": list(record.mean),
        "std": list(record.std),
        "skipped": {
            "count": record.skipped_count,
            "first": [{"id": sample, "reason": reason} for sample, reason in record.skipped],
            "file": os.path.join(path, name, record.list_name(SKIPPED_NAME)) if record.skipped_count else None,
        },
        "excluded": len(manifest.excluded(name)),
        "notes": manifest.card_lines("notes", name),
        "warnings": manifest.card_lines("warnings", name),
    }


def _field(name: str, spec: FieldSpec, record: SplitRecord) -> dict[str, Any]:
    if spec.encoding is None:
        return {"dtype": spec.dtype, "shape": list(spec.shape), "row_bytes": spec.row_bytes}
    total = sum(shard.files[f"{name}.{BYTES}"].bytes for shard in record.shards)
    rows = max(1, int(record.rows_of_shards.sum()))
    shape = [None if size == VARIABLE else size for size in spec.shape]
    return {"dtype": spec.dtype, "shape": shape, "row_bytes": total // rows, "encoding": spec.encoding}


def decimals(values: Sequence[float]) -> str:
    """Writes a mean or standard deviation per channel."""
    return " ".join(f"{value:.4f}" for value in values)


def field_text(spec: Mapping[str, Any]) -> str:
    """Writes a field of the facts in words: its dtype and the shape of a row, with * for sizes that differ by row."""
    return f"{spec['dtype']} [{', '.join('*' if size is None else str(size) for size in spec['shape'])}]"


def recipe_texts(recipe: Mapping[str, Any]) -> dict[str, str]:
    """Writes a recipe in words, as ``source``, ``decoded`` and ``transforms``; what another version wrote passes."""
    steps = recipe.get("transforms")
    called = [_call_text(step, "step") for step in steps] if isinstance(steps, list) else []
    return {
        "source": _call_text(recipe.get("source"), "kind"),
        "decoded": ", ".join(f"{key} {value}" for key, value in table_of(recipe, "decode").items()),
        "transforms": ", ".join(called) or "none",
    }


def table_of(body: Mapping[str, Any], name: str) -> dict[str, Any]:
    """Returns a table of a recipe or a card, such as ``decode``; an empty one where there is something else or none."""
    found = body.get(name)
    return found if isinstance(found, dict) else {}


def _call_text(body: object, name: str) -> str:
    """Returns ``Resize(size=64)`` for a step, ``imagefolder`` for a source."""
    if not isinstance(body, dict):
        return str(body)
    arguments = ", ".join(f"{key}={value}" for key, value in body.items() if key != name)
    return f"{body.get(name)}({arguments})" if arguments else str(body.get(name))


def check_text(name: str, result: object) -> str:
    """Writes in a line what verify, parity or bench recorded in the card of a dataset, which may hold anything."""
    if not isinstance(result, dict):
        return f"not recorded (mmload {name} --record)"
    return one_line(f"{str(result.get('date'))[:10]}: {_RESULT_TEXTS[name](result)}")


def _verify_text(result: Mapping[str, Any]) -> str:
    whole = "whole, and equal to its source" if result.get("compared") else "whole"
    return whole if (faults := result.get("faults")) == 0 else f"{faults} fault{'' if faults == 1 else 's'}"


def _parity_text(result: Mapping[str, Any]) -> str:
    states = [one.get("state") for one in dicts_in(result.get("verdicts"))]
    failed, judged = states.count("fail"), states.count("fail") + states.count("pass")
    return f"{failed} of {judged} checks fail" if failed else f"all {judged} checks hold"


def _bench_text(result: Mapping[str, Any]) -> str:
    return str(result.get("verdict") or "no verdict")


_RESULT_TEXTS = {"verify": _verify_text, "parity": _parity_text, "bench": _bench_text}


def dicts_in(value: object) -> list[dict[str, Any]]:
    """Returns the tables of a list; none of anything else."""
    return [one for one in value if isinstance(one, dict)] if isinstance(value, list) else []


@dataclass(frozen=True)
class Origin:
    """A row and the sample that it was made of: its id in the source, and (height, width) before any transform."""

    split: str
    row: int
    id: str
    size: tuple[int, int] | None


def origins(dataset: Dataset, split: str | None, rows: Sequence[int]) -> list[Origin]:
    """Finds the samples that rows were made of; a split must be named if there are several, beside subsets.

    Raises:
        UsageError: if there is no such split or row, or several splits and none is named.
        DamagedError, StoreError: if the list of samples is damaged or cannot be read.
    """
    splits = _splits(dataset, split)
    if len(splits) > 1:
        names = choices(each.name for each in splits)
        raise UsageError(f"{dataset.folder.title} has the splits {names}; say which with --split")
    try:
        return [Origin(splits[0].name, row, *splits[0].source(row)) for row in rows]
    except IndexError as error:
        raise UsageError(f"--row: {error}") from error


def rows_of(dataset: Dataset, split: str | None, file: str) -> list[Origin]:
    """Finds the rows that a file became, in one split or in all but subsets.

    The file is a sample's id, or a path that ends with one, such as the file's whole path.

    Raises:
        UsageError: if no row was made of it; the message says so if it was left out, and why.
        DamagedError, StoreError: if the lists of samples are damaged or cannot be read.
    """
    splits = _splits(dataset, split)
    for candidate in _endings(file):
        found = [
            Origin(each.name, row, candidate, each.source(row).size)
            for each in splits
            for row in each.samples.rows_of(candidate)
        ]
        if found:
            return found
    for each in splits:
        reasons = _left_out(each, set(_endings(file)))
        reasons |= dict.fromkeys(dataset.manifest.excluded(each.name), " by --exclude")
        for candidate in _endings(file):
            if candidate in reasons:
                raise UsageError(f"{candidate} was left out of split {each.name}{reasons[candidate]}")
    where = f"split {split} of {dataset.folder.title}" if split else dataset.folder.title
    example = next((each.source(0).id for each in splits if len(each)), "none")
    raise UsageError(f"no row of {where} was made from {file!r}; its files are named as in {example!r}")


def _splits(dataset: Dataset, split: str | None) -> list[Split]:
    return list(dataset.built_splits.values()) if split is None else [dataset[split]]


def _endings(file: str) -> Iterator[str]:
    """Yields the path itself, then without its first part, and so on; ``/data/photos/a/b.jpg`` has ``a/b.jpg``."""
    parts = PurePosixPath(Path(file).as_posix()).parts
    yield from dict.fromkeys([file, *("/".join(parts[start:]) for start in range(len(parts)))])


def _left_out(split: Split, samples: set[str]) -> dict[str, str]:
    """Returns why some of these samples were left out."""
    if (record := split.record.skipped_file) is None:
        return {}
    folder, file = split.folder, f"{split.name}/{split.record.list_name(SKIPPED_NAME)}"
    try:
        with os.fdopen(folder.open(file, record), encoding="utf-8", errors="surrogateescape") as lines:
            return {body["id"]: f": {body['reason']}" for body in map(json.loads, lines) if body["id"] in samples}
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise DamagedError(f"{folder.name(file)} cannot be read ({error}); {folder.remedy}") from error
