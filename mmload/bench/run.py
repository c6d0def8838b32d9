"""Runs one bench from a dataset and its source to a record: the implementation of ``mmload bench``."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from mmload.bench import contenders
from mmload.bench.ceilings import cached_entry, ceiling_entries
from mmload.bench.contender_server import CEILINGS
from mmload.bench.contenders import ContenderEntry
from mmload.bench.machine import machine, versions
from mmload.bench.measure import Measurement, measure
from mmload.bench.options import BenchOptions, MeasurementPlan
from mmload.bench.plan import Budget, overrun
from mmload.bench.record import Record, Row, rows_of
from mmload.bench.sample import build_sample
from mmload.bench.task import Task, task_of
from mmload.bench.train import check_model
from mmload.bench.verdict import verdict
from mmload.errors import bytes_text, counted
from mmload.records import VARIABLE
from mmload.runtime.resources import available_cores

Progress = Callable[[str], None]


def run_on_dataset(
    dataset: str | Path,
    source: str | Path | None,
    options: BenchOptions,
    *,
    entries: Callable[[Task], Sequence[ContenderEntry]] = contenders.entries,
    progress: Progress | None = None,
    began: float | None = None,
) -> Record:
    """Measures every contender of ``entries`` and every ceiling.

    Without a source, contenders that need it are listed as missing. ``began`` is the ``time.monotonic()`` at which the
    time budget began; None: now.

    Raises:
        UsageError: if a setting is invalid for this dataset.
        SourceError: if the source is missing, or is not the one that the dataset was built from.
        StoreError: if there is no dataset.
    """
    plan = options.plan()
    budget = Budget(seconds=plan.budget, began=began)
    task = task_of(options, Path(dataset), None if source is None else Path(source))
    if plan.train is not None:
        check_model(plan.train, task)
    ceilings = ceiling_entries(task)
    all_entries = [*entries(task), *ceilings.values(), *([cached_entry()] if plan.train else [])]
    measurements = measure(task, all_entries, plan, progress, budget)
    rows = rows_of(task, measurements, {short: entry.name for short, entry in ceilings.items()}, plan.cold)
    return Record(
        settings=settings_of(task, plan) | {"cache": cache_of(measurements, plan)},
        machine=machine(),
        versions=versions(),
        rows=rows,
        notes=[*notes_of(measurements, plan), *filter(None, [above_limit(rows), overrun(budget)])],
        verdict=verdict(rows, cores=available_cores(), device=task.device, trains=not task.training_recipe),
    )


def run_on_sample(
    source: str | Path,
    options: BenchOptions,
    *,
    side: int | None = None,
    progress: Progress | None = None,
    began: float | None = None,
) -> Record:
    """Builds a sample of a source in a temporary folder and measures it: estimates the gain of a build.

    The source is an ImageFolder, or the folder with CIFAR's batches. The sample has as many images as an epoch, squares
    of ``side`` pixels; None: 256 for an ImageFolder. The verdict ends with the estimated cost of building the whole
    source.

    Raises:
        UsageError: if a setting is invalid for this source.
        SourceError: if the folder is not a source.
    """
    began = time.monotonic() if began is None else began
    if progress is not None:
        progress(f"building a sample of {source}")
    with tempfile.TemporaryDirectory(prefix="mmload-sample-", ignore_cleanup_errors=True) as work:
        sample = build_sample(
            Path(source),
            Path(work),
            split=options.split,
            images=options.epoch_images(),
            side=side,
            threads=options.threads,
            cold=options.cold,
        )
        record = run_on_dataset(sample.dataset, sample.source, options, progress=progress, began=began)
    settings = record.settings | {"dataset": f"a sample of {Path(source).name}", "sample": asdict(sample.estimate)}
    return replace(record, settings=settings, verdict=f"{record.verdict} {sample.estimate.sentence()}")


def settings_of(task: Task, plan: MeasurementPlan) -> dict[str, Any]:
    """Returns the task of every contender, and how it was measured, without any path of this machine."""
    none = task.augment == "none"
    return {
        "dataset": task.dataset.name,
        "split": task.split,
        "rows": len(task.rows),
        "layout": task.layout,
        "stored": [None if size == VARIABLE else size for size in task.rows.fields["images"].shape],
        "row_bytes": round(task.row_bytes),
        "augment": task.augment,
        "recipe": task.training_recipe or None,
        "views": [list(size) for size in task.views] or None,
        "crop": None if none else task.crop,
        "padding": task.padding,
        "batch_size": task.batch_size,
        "images": task.epoch_images,
        "epochs": plan.epochs,
        "threads": task.threads,
        "workers": list(task.workers),
        "device": task.device,
        "output": _output_of(task),
        "beside": plan.beside,
        "train": plan.train,
        "time_budget": plan.budget,
    }


def _output_of(task: Task) -> str:
    if task.training_recipe:
        return f"float32 contiguous, the training recipe {task.training_recipe}, shuffled"
    return "uint8 as stored, shuffled" if task.augment == "none" else "float32 contiguous, flip + normalize, shuffled"


def cache_of(measurements: Sequence[Measurement], plan: MeasurementPlan) -> str:
    """Returns the state of the page cache: "warm", "cold" if every eviction was verified, else "not proven cold"."""
    if not plan.cold:
        return "warm"
    coldness = [each for result in measurements for each in result.coldness]
    return "cold" if coldness and all(each.proven for each in coldness) else "not proven cold"


def above_limit(rows: Sequence[Row]) -> str:
    """Returns a note on rows that are faster than their limit; "" if there are none."""
    above = [row for row in rows if row.passes_limit]
    if not above:
        return ""
    fastest = max(above, key=lambda row: row.of_ceiling or 0)
    return (
        f"{fastest.name} is faster than its limit, {fastest.ceiling}: other programs disturbed the measurement of the "
        "limit, so the table gives no share of it; run the bench again on an idle machine"
    )


def notes_of(measurements: Sequence[Measurement], plan: MeasurementPlan) -> list[str]:
    """Returns the notes that are needed to interpret the numbers."""
    notes = (
        _note_of_cold(measurements),
        _note_of_cut(measurements, plan.budget),
        "" if plan.cold else _note_of_warming(measurements),
        _note_of_beside(measurements, plan),
        _note_of_training(measurements, plan.budget),
    )
    return [note for note in notes if note]


def _note_of_cold(measurements: Sequence[Measurement]) -> str:
    coldness = [each for result in measurements for each in result.coldness]
    unproven = [each for each in coldness if not each.proven]
    if unproven:
        return (
            f"NOT cold: {len(unproven)} of {counted(len(coldness), 'epoch')} may have read from memory: "
            f"{unproven[0].reason}"
        )
    if coldness:
        return (
            f"cold: before every epoch the contender was created again and {counted(coldness[0].files, 'file')} "
            f"({bytes_text(coldness[0].bytes)}) were evicted; mincore found no page of them in memory"
        )
    return ""


def _note_of_cut(measurements: Sequence[Measurement], budget: float) -> str:
    cut = sum(any(not sample.complete for sample in result.samples) for result in measurements)
    are = "1 row is" if cut == 1 else f"{cut} rows are"
    return f"{are} of epochs that were cut short to keep the time budget of {budget:g} s" if cut else ""


def _note_of_warming(measurements: Sequence[Measurement]) -> str:
    fresh = sum(bool(result.samples) and result.warmed is False for result in measurements)
    return f"{counted(fresh, 'row')} did not finish the warm-up epoch: some files may have been cold" if fresh else ""


def _note_of_beside(measurements: Sequence[Measurement], plan: MeasurementPlan) -> str:
    contenders = [result for result in measurements if result.samples and result.entry.group not in CEILINGS]
    missed = [result for result in contenders if plan.beside and not result.failure and not result.beside]
    if not missed:
        return ""
    return (
        f"{counted(len(missed), 'loader')} not measured beside other threads: the time budget of {plan.budget:g} s has "
        "no room for that; raise --time-budget"
    )


def _note_of_training(measurements: Sequence[Measurement], budget: float) -> str:
    untrained = [result for result in measurements if result.untrained]
    if not untrained:
        return ""
    any_trained = any(result.training for result in measurements)
    names = ", ".join(result.name for result in untrained) if any_trained else "any of them"
    return (
        f"no training with {names}: two steps take about {untrained[0].untrained:,.0f} s, for which the time "
        f"budget of {budget:g} s has no room; raise --time-budget, or lower --batch-size"
    )
