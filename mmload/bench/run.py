"""Runs one bench from a dataset and its source to a record: the implementation of ``mmload bench``."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from itertools import chain
from pathlib import Path
from typing import Any

from mmload.bench import contenders
from mmload.bench.building import measure_building
from mmload.bench.ceilings import CACHED, cached_entry, ceiling_entries
from mmload.bench.contenders import ContenderEntry
from mmload.bench.contenders.stock import no_source
from mmload.bench.machine import busy_share, machine, versions
from mmload.bench.measure import ROUNDS, measure
from mmload.bench.options import BenchOptions
from mmload.bench.record import Record, Row, set_limits
from mmload.bench.report import AGAIN, verdict
from mmload.bench.task import Task, task_of
from mmload.bench.train import check_model
from mmload.errors import UsageError, counted
from mmload.records import VARIABLE
from mmload.runtime.resources import available_cores

_BUSY = 0.25  # share of the machine's processors: from there on, other programs are said to use them
_OVERRUN = 1.1  # times the planned seconds


def run_on_dataset(
    dataset: str | Path,
    source: str | Path | None,
    options: BenchOptions,
    *,
    progress: Callable[[str], None] = lambda text: None,
    spent: float = 0.0,
) -> Record:
    """Measures the contenders that the options choose; ``spent`` seconds of the bench are over already.

    Without a source, there are no contenders that need it. ``progress`` is called with what is measured.

    Raises:
        UsageError: if a setting is invalid for this dataset.
        SourceError: if the source is missing, or is not the one that the dataset was built from.
        StoreError: if there is no dataset.
    """
    began = time.monotonic() - spent
    task = task_of(options, Path(dataset), None if source is None else Path(source))
    chosen = _chosen(contenders.entries(task), options.loaders)
    if options.train is not None:
        check_model(options.train, task)
    building: dict[str, list[float]] = {}
    if options.build:
        building = measure_building(task, progress)
        began = time.monotonic()  # the seconds of a bench are those of loading
    busy = busy_share()
    ceilings = ceiling_entries(task, cold=options.cold)
    entries = [*chosen, *ceilings.values(), *([cached_entry()] if options.train else [])]
    rows = measure(task, entries, options, progress, time.monotonic() - began)
    set_limits(rows, {short: entry.name for short, entry in ceilings.items()})
    trains = not task.is_preset
    said = verdict(rows, cores=available_cores(), device=task.device, missing=no_source(task), trains=trains)
    cache, cache_notes = cache_of(rows, options)
    return Record(
        settings=settings_of(task, options) | {"cache": cache},
        machine=machine() | {"busy_before": busy},
        versions=versions(),
        rows=rows,
        notes=[*cache_notes, *notes_of(rows, options, time.monotonic() - began)],
        verdict=said
        + (f" But other programs used {busy:.0%} of the processors before: {AGAIN}." if busy > _BUSY else ""),
        building=building,
    )


def _chosen(entries: Sequence[ContenderEntry], loaders: str | None) -> list[ContenderEntry]:
    """Returns the entries whose group or name has one of the words, all without any; raises UsageError if none has."""
    if loaders is None:
        return list(entries)
    words = [word.strip().lower() for word in loaders.split(",") if word.strip()]
    chosen = [entry for entry in entries if any(word in f"{entry.group} {entry.name}".lower() for word in words)]
    if not chosen:
        names = "; ".join(entry.name for entry in entries)
        raise UsageError(f"--loaders is {loaders!r}, and no loader has that in its name; there are: {names}")
    return chosen


def settings_of(task: Task, options: BenchOptions) -> dict[str, Any]:
    """Returns the task of every contender, and how it was measured, without any path of this machine."""
    return {
        "dataset": task.dataset.name,
        "split": task.split,
        "rows": len(task.rows),
        "layout": task.layout,
        "stored": [None if size == VARIABLE else size for size in task.rows.fields["images"].shape],
        "row_bytes": round(task.row_bytes),
        "augment": task.augment,
        "views": [list(size) for size in task.views] or None,
        "crop": None if task.augment == "none" else task.crop,
        "padding": task.padding,
        "batch_size": task.batch_size,
        "images": task.epoch_images,
        "rounds": ROUNDS,
        "threads": task.threads,
        "workers": list(task.workers),
        "device": task.device,
        "output": _output_of(task),
        "train": options.train,
        "seconds": options.seconds,
    }


def _output_of(task: Task) -> str:
    if task.is_preset:
        return f"{task.augment} to float32, shuffled"
    if task.augment == "none":
        return "uint8 as stored, shuffled"
    padded = f" of rows padded by {task.padding}" if task.padding else ""
    return f"{task.augment} {task.crop}{padded}, flip, normalize to float32, shuffled"


def cache_of(rows: Sequence[Row], options: BenchOptions) -> tuple[str, list[str]]:
    """Returns the state of the page cache, "warm", "cold" if it was proven, or "not proven cold", and notes on it."""
    if not options.cold:
        unread = sum(not row.warmed for row in rows if row.contends)
        note = f"{counted(unread, 'loader')} did not finish the warm-up epoch: some files may have been cold"
        return "warm", [note] if unread else []
    reasons = list(chain.from_iterable(row.warm for row in rows)) or ["no epoch was measured"]
    if still_warm := next(filter(None, reasons), ""):
        return "not proven cold", [f"NOT cold: some epochs may have read from memory: {still_warm}"]
    return "cold", ["cold: before every epoch all files were evicted; mincore found no page of them in memory"]


def notes_of(rows: Sequence[Row], options: BenchOptions, seconds: float) -> list[str]:
    """Returns the notes that are needed to interpret the numbers of a bench that took some seconds."""
    disturbed = "; ".join(row.name for row in rows if row.disturbed or row.training_disturbed)
    late = "; ".join(row.name for row in rows if not row.samples and not row.failure and row.group != CACHED)
    took = f"it took {seconds:.0f} s, not {options.seconds:.0f}"
    notes = [
        (f"disturbed: {disturbed}: faster than their limit, which other programs slowed", disturbed),
        (f"no time for {late}: --full takes ten minutes", late),
        (f"{took}: what the verdict needs is measured in any case", seconds > _OVERRUN * options.seconds),
    ]
    return [text for text, applies in notes if applies]
