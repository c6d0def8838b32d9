"""What a dataset is, as plain data for JSON: from its manifest alone. It reads no row and imports no torch."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from mmload.records import OWN, FieldSpec
from mmload.store.field_files import BYTES
from mmload.store.manifest import SKIPPED_NAME, Manifest, SplitRecord

CHECKS = ("verify", "parity", "bench")
"""What ``--record`` keeps in the card of a dataset, by its key there."""


def facts(path: Path, manifest: Manifest) -> dict[str, Any]:
    """What a dataset is.

    Args:
        path: its folder.
        manifest: its manifest.

    Returns:
        ``path``, ``rows``, ``bytes`` of all shards, ``recipe``, ``fingerprint`` of the source, ``splits`` (by name, see
        docs/inspection.md), and ``checks``: what verify, parity and bench recorded, None where they did not.
    """
    splits = {name: _split(path, name, record, manifest) for name, record in manifest.splits.items()}
    return {
        "path": str(path),
        "rows": sum(split["rows"] for split in splits.values()),
        "bytes": sum(split["bytes"] for split in splits.values()),
        "recipe": manifest.recipe,
        "fingerprint": manifest.fingerprint,
        "splits": splits,
        "checks": {name: manifest.card.get(name) for name in CHECKS},
    }


def _split(path: Path, name: str, record: SplitRecord, manifest: Manifest) -> dict[str, Any]:
    own = [spec for spec in record.fields.values() if spec.own_sizes]
    counts: tuple[int | None, ...] = record.class_counts or (None,) * len(record.classes)
    return {
        "rows": record.rows,
        "bytes": record.bytes,
        "shards": len(record.shards),
        "layout": "whole photographs" if own else "rows of one size",
        "encoding": own[0].encoding if own else "raw",
        "fields": {field: _field(field, spec, record) for field, spec in record.fields.items()},
        "classes": [{"name": each, "rows": count} for each, count in zip(record.classes, counts, strict=True)],
        "mean": list(record.mean),
        "std": list(record.std),
        "skipped": {
            "count": record.skipped_count,
            "first": [{"id": sample, "reason": reason} for sample, reason in record.skipped],
            "file": str(path / name / SKIPPED_NAME) if record.skipped_count else None,
        },
        "excluded": len(manifest.excluded(name)),
        "notes": _notes(manifest.card, name),
    }


def _field(name: str, spec: FieldSpec, record: SplitRecord) -> dict[str, Any]:
    if not spec.own_sizes:
        return {"dtype": spec.dtype, "shape": list(spec.shape), "row_bytes": spec.row_bytes}
    total = int(record.shards.bytes[f"{name}.{BYTES}"].sum())
    shape = [None if size == OWN else size for size in spec.shape]
    return {"dtype": spec.dtype, "shape": shape, "row_bytes": total // max(1, record.rows), "encoding": spec.encoding}


def field_text(spec: Mapping[str, Any]) -> str:
    """A field of the facts in words: its dtype and the shape of a row, with * for sizes that rows have of their own."""
    return f"{spec['dtype']} [{', '.join('*' if size is None else str(size) for size in spec['shape'])}]"


def _notes(card: Mapping[str, Any], split: str) -> list[str]:
    """The notes of a build on a split; a card is for people and may contain anything."""
    notes = card.get("notes")
    of_split = notes.get(split) if isinstance(notes, dict) else None
    return [str(note) for note in of_split] if isinstance(of_split, list) else []
