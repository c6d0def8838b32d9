"""Repairs a dataset: rebuilds only the damaged shards, and replaces them.

A shard is replaced only if the rebuilt one has the checksums of the manifest. Other files at the paths of its files are
moved aside.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path

from mmload.builder.engines import LocalEngine
from mmload.builder.recipe import BuildRecipe
from mmload.builder.shards import BuildPaths, ShardPlan, ShardSummary, join_lists
from mmload.builder.staging import Staging, drop_leftovers
from mmload.builder.verify import Fault, Progress, check_built, job_of, recipe_at, verify
from mmload.errors import BuildError
from mmload.runtime.durable_files import sync_folder
from mmload.store.dataset_folder import check_no_links
from mmload.store.manifest import Manifest, read, shard_name
from mmload.store.shard_table import file_name, files_of

Moved = dict[str, Path]
"""File name in a dataset -> path to which a file that did not belong to the dataset was moved."""


def repair(
    path: str | Path,
    source: str | Path,
    *,
    trust: bool = False,
    threads: int | None = None,
    progress: Progress | None = None,
) -> list[Fault]:
    """Rebuilds only the damaged shards. A shard is replaced only if the rebuilt one has the checksums of the manifest.

    Args:
        path: the dataset's folder.
        source: the root of the source that it was built from, or its URL.
        trust: let the dataset's own recipe run code, download, or read outside of the source.
        threads: decoding threads; None takes the cores available.
        progress: called with (samples done, samples needed).

    Returns:
        The repaired faults, and the new paths of other files that were moved aside; empty if there was no fault.

    Raises:
        UsageError: if the dataset requires permissions that only ``trust`` grants.
        StoreError: if there is no readable manifest, or a split's folder is a link.
        BuildError: if the source has changed, so that some faults could not be repaired; all others are.
    """
    path = Path(path)
    faults = verify(path)
    if not faults:
        drop_leftovers(path.resolve())
        return []
    manifest = read(path)
    check_built(manifest, path)
    _check_of_build(path, manifest, faults)
    recipe = recipe_at(manifest, path, source, trust)
    check_no_links(path, {fault.split for fault in faults if (path / fault.split).exists()})  # dangling: moved aside
    with Staging(path.resolve()) as staging:
        if read(path).contents != manifest.contents:
            raise BuildError(f"{path} was changed by another command meanwhile; run the repair again")
        if staging.plan() is not None:
            raise BuildError(f"{staging.paths.folder} holds an unfinished build; finish it, or remove the folder")
        try:
            moved: Moved = {}
            failed = _rebuild(path, manifest, faults, recipe, staging, LocalEngine(threads=threads), progress, moved)
        except OSError as error:
            raise BuildError(
                f"cannot repair {error.filename2 or error.filename or path} ({error.strerror}); what was repaired "
                "stays repaired: run the repair again"
            ) from error
        finally:
            staging.discard()
    if failed:
        raise BuildError(
            f"{', '.join(failed)} could not be repaired: {source} no longer gives what was stored; "
            "restore the source (and the versions that decoded it), or build the dataset again"
        )
    return [_with_moved(fault, moved) for fault in faults]


def _rebuild(
    path: Path,
    manifest: Manifest,
    faults: list[Fault],
    recipe: BuildRecipe,
    staging: Staging,
    engine: LocalEngine,
    progress: Progress | None,
    moved: Moved,
) -> list[str]:
    """Repairs what is possible; returns the names of files that could not be repaired."""
    staging.clear()  # leftovers of a repair that was killed
    listless = {fault.split for fault in faults if fault.shard is None}
    bad = {(fault.split, fault.shard) for fault in faults}
    job, plans = job_of(manifest, recipe, staging.paths)
    needed = [plan for plan in plans if plan.split in listless or (plan.split, plan.index) in bad]
    summaries = engine.build_shards(job, needed, _counter(sum(plan.stop - plan.start for plan in needed), progress))
    failed_shards = [
        f"{plan.split}/{shard_name(plan.index)}"
        for plan, summary in zip(needed, summaries, strict=True)
        if (plan.split, plan.index) in bad and not _replace_shard(path, manifest, plan, summary, staging.paths, moved)
    ]
    lists = [fault for fault in faults if fault.shard is None]
    return failed_shards + [fault.file for fault in lists if not _replace_list(path, manifest, fault, staging, moved)]


def _replace_shard(
    path: Path, manifest: Manifest, plan: ShardPlan, summary: ShardSummary, paths: BuildPaths, moved: Moved
) -> bool:
    """Replaces a damaged shard's files by rebuilt ones, if these have the checksums of the manifest."""
    record = manifest.splits[plan.split]
    stored = record.shards[plan.index].files
    if summary.record.files != {name: stored[name] for name in files_of(record.built_fields)}:
        return False
    folder = f"{plan.split}/{shard_name(plan.index)}"
    for file in sorted(paths.shard(plan.split, plan.index).iterdir()):
        _put(file, path, f"{folder}/{file.name}", moved)
    return True


def _replace_list(path: Path, manifest: Manifest, fault: Fault, staging: Staging, moved: Moved) -> bool:
    """Replaces a damaged list of samples by that of the rebuilt shards, if it has the checksum of the manifest."""
    name, record = Path(fault.file).name, manifest.splits[fault.split]
    if join_lists(staging.paths, fault.split, range(len(record.shards)), name) != record.lists[name]:
        return False
    _put(staging.paths.dataset / fault.file, path, fault.file, moved)
    return True


def _put(new: Path, root: Path, name: str, moved: Moved) -> None:
    """Moves a rebuilt file to its relative path in a dataset; moves a folder, a link or a special file there aside."""
    place = root / name
    for folder in (place.parents[1], place.parent):
        if folder != root and not (folder.is_dir() and not folder.is_symlink()):
            if os.path.lexists(folder):
                _move_aside(folder, root, moved)
            folder.mkdir(exist_ok=True)
    if os.path.lexists(place) and not stat.S_ISREG(place.lstat().st_mode):
        _move_aside(place, root, moved)
    new.replace(place)
    sync_folder(place.parent)


def _check_of_build(path: Path, manifest: Manifest, faults: Iterable[Fault]) -> None:
    """Rejects to repair lists of a subset and added fields, which are not made from the source."""
    for fault in faults:
        fields = manifest.splits[fault.split].fields
        added = {f"{file_name(name, spec)}.memmap": name for name, spec in fields.items() if spec.version}
        if (name := added.get(Path(fault.file).name)) is not None:
            raise BuildError(
                f"{fault} in {path}, of an added field, which no source can repair; add the field {name} again, or "
                f"remove it: mmload add-field {path} {name} --split {fault.split} --remove"
            )
        if fault.split not in manifest.built_splits:
            raise BuildError(
                f"{fault} in {path}, of a subset, which no source can repair; save the subset again, or remove it: "
                f"mmload subset {path} {fault.split} --remove"
            )


def _move_aside(place: Path, root: Path, moved: Moved) -> None:
    """Moves a file or folder of the dataset aside; removes an empty folder."""
    if place.is_dir() and not place.is_symlink() and not any(place.iterdir()):
        place.rmdir()
        return
    number = 1
    while os.path.lexists(aside := place.with_name(f"{place.name}.aside-{number}")):
        number += 1
    place.rename(aside)
    moved[place.relative_to(root).as_posix()] = aside


def _with_moved(fault: Fault, moved: Moved) -> Fault:
    """Returns the fault, with the new path of any other file that was moved aside."""
    for name, aside in moved.items():
        if fault.file == name or fault.file.startswith(f"{name}/"):
            return replace(fault, reason=f"{fault.reason}; what was in its place is now {aside}")
    return fault


def _counter(total: int, progress: Progress | None) -> Callable[[int, int], None]:
    done = 0

    def on_progress(samples: int, skipped: int) -> None:
        nonlocal done
        done += samples
        if progress is not None:
            progress(done, total)

    return on_progress
