"""The destination of a build and its working folder ``.NAME.building``: one protocol for one process and for many.

    .NAME.building/
      lock               the mark of the folder, held while a build is alive
      plan.json          recipe, source and command line of the build
      parts/             shards that are being written, each in a folder of its own (:mod:`mmload.builder.shard_job`)
      notes/             seals, and the lines for samples.jsonl and skipped.jsonl
      dataset/           the finished shards of the new dataset
      swap.json          identifies the new dataset, while the old one is exchanged for it
      version.json       identifies the new version, while its files are moved into the dataset
      replaced/          the old dataset, until its files are removed

The folder appears in one step, with its mark, and is renamed in one step before it is removed; finished shards are
moved into it; the dataset leaves it in one step. All of these are atomic renames, so any number of processes may do
them at once, on any number of machines. After a crash at any time there is either the old dataset or the new one, and
the build can resume from the finished shards.

A folder with the mark is a build's, with all that is in it; a folder without it is never touched. The lock, where the
file system has locks, distinguishes two kinds of builds. A build without ``--part`` holds it alone: it may discard what
another build has left, and replace a dataset. Parts of a build share it: none removes anything of the others, and a
part that still works when the folder is renamed finds no place to write to. :data:`_ACTIONS` says what is done with
what a build finds there.
"""

from __future__ import annotations

import hashlib
import json
import os
import secrets
import shutil
import stat
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO, Literal

from mmload.builder.recipe import canonical, unlike
from mmload.builder.shards import COLUMN, PARTS, UPDATES, BuildPaths, write_blocks
from mmload.builder.version_commit import add_to_dataset
from mmload.errors import BuildError, StoreError, UsageError, counted
from mmload.remote.urls import Location, check_no_url
from mmload.runtime.durable_files import (
    TOKEN_BYTES,
    exchange,
    folder_lock,
    is_partial,
    lock,
    open_lock,
    remove,
    sync,
    sync_folder,
    write_atomically,
)
from mmload.runtime.regular_files import is_same, is_within, read_regular
from mmload.store.dataset_folder import dataset_files, first_link
from mmload.store.manifest import FILE_NAME, VERSIONS, Manifest, read
from mmload.store.unfinished import COMMAND, MARK_NAME, PLAN_NAME, is_staging_folder, staging_folder
from mmload.store.versions import kept_manifests

MARK = b"mmload build: this folder is removed when the build beside it is done\n"
"""The content of ``lock``, which identifies a working folder."""

_SWAP, _VERSION, _REPLACED = "swap.json", "version.json", "replaced"
_SHOWN = 3  # upper bound on the entries listed in a message
_IMPORTED = ("python",)  # kinds whose root is the import path of modules, often the current folder
_TRIES = 100  # another process may remove the folder between two checks, but not indefinitely


_Found = Literal["no plan", "own", "committed", "stale", "empty", "other"]
_Action = Literal["use", "discard", "refuse"]

_ACTIONS: Mapping[_Found, tuple[_Action, _Action, _Action]] = {
    # What is found -> what is done with the folder by a build alone, by one that may overwrite, by a part of several.
    "no plan": ("discard", "discard", "discard"),  # what a command without a plan has left
    "own": ("use", "use", "use"),  # this build, begun
    "committed": ("use", "use", "use"),  # this build, killed after its commit
    "stale": ("discard", "discard", "refuse"),  # an update of an earlier state of the source, or of a lost dataset
    "empty": ("discard", "discard", "refuse"),  # another build without a finished shard
    "other": ("refuse", "discard", "refuse"),  # another build with finished shards
}


class Staging:
    """The locked working folder of a build. A context manager; completes an interrupted exchange on creation.

    Args:
        out: the destination, with no symbolic link in it.
        plan: plan of the build; an unfinished build with this plan resumes. None: no plan is written, and an existing
            one stays.
        shared: whether parts of this build may work in the folder at the same time; else the lock is held alone.
        overwrite: discard finished shards of another plan.

    Attributes:
        committed: whether a build of this plan was killed after its commit, with only the cleanup remaining.
        foreign_files: new path of files in the replaced dataset's folder that did not belong to it; None: none.

    Raises:
        BuildError: if the folder cannot be created, another build holds its lock, it was not created by a build, or it
            has finished shards of another plan.
    """

    def __init__(
        self, out: Path, plan: Mapping[str, Any] | None = None, *, shared: bool = False, overwrite: bool = False
    ) -> None:
        self.out, self.shared = out, shared
        self.paths = BuildPaths(staging_folder(out))
        self.committed = False
        self.foreign_files: Path | None = None
        self._wanted, self._overwrite = plan, overwrite
        try:
            self._lock = self._enter()
        except OSError as error:
            advice = f"make {out.parent} writable, with some room" if os.path.lexists(out) else "choose another place"
            raise BuildError(f"cannot write beside {out} ({error.strerror}); {advice}") from error
        self.paths = self.paths.with_plan()

    def __enter__(self) -> Staging:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._lock.close()

    def plan(self) -> dict[str, Any] | None:
        """Returns the plan of the build in this folder; None if there is none that can be read."""
        return _json(self.paths.folder / PLAN_NAME)

    def check_nothing_begun(self) -> None:
        """Rejects a folder in which another command has finished shards.

        Raises:
            BuildError: if it has.
        """
        begun = self.plan()
        if begun is not None and has_finished_shards(self.paths):
            raise BuildError(f"{self.paths.folder} holds an unfinished {unfinished_advice(begun)}")

    def clear(self) -> None:
        """Removes the shards and lists that a killed command without a plan has left."""
        for name in (PARTS, "notes", "dataset"):
            remove(self.paths.folder / name)

    def commit(self, manifest: Manifest, *, replaces: str | None = None) -> None:
        """Writes the manifest, moves the dataset to its destination, and removes a replaced dataset and the folder.

        ``replaces`` is :attr:`Manifest.contents` of the dataset that may be replaced; None: none may be.

        Raises:
            BuildError: if writing fails, or the destination contains something that may not be replaced. If that is
                the same dataset, another part has committed it.
        """
        try:
            write_manifest(self.paths, manifest)
            dataset = dataset_at(self.out)
            if dataset is None:
                self.paths.dataset.rename(self.out)
            elif dataset.contents == replaces:
                self._swap()
            else:
                raise BuildError(
                    f"the dataset at {self.out} appeared during the build; move it elsewhere, "
                    "then run the same command again"
                )
            sync_folder(self.out.parent)
            self.discard()
        except OSError as error:
            raise BuildError(f"cannot move the dataset to {self.out} ({error.strerror})") from error

    def add_version(self, manifest: Manifest, after: str) -> None:
        """Moves the new shards and lists into the dataset at the destination, and replaces its manifest.

        Nothing that the dataset has is changed or removed: a reader goes on. A kill leaves the old version or the new
        one, as the manifest is replaced last, in one step.

        Raises:
            BuildError: if writing fails, or the dataset has another version meanwhile.
        """
        try:
            write_manifest(self.paths, manifest)
            write_atomically(self.paths.folder / _VERSION, json.dumps({"after": after, "contents": manifest.contents}))
            add_to_dataset(self.paths.dataset, self.out, manifest, after)
            self.discard()
        except OSError as error:
            raise BuildError(f"cannot add a version to {self.out} ({error.strerror})") from error

    def complete_version(self) -> bool:
        """Completes a new version that a process was adding when it was killed, or is adding; returns whether."""
        dataset = self.paths.dataset
        with suppress(BuildError, StoreError, FileNotFoundError):
            self.paths.check_there()
            version = _json(self.paths.folder / _VERSION)
            if version is not None and (dataset / FILE_NAME).is_file() and (self.out / FILE_NAME).is_file():
                add_to_dataset(dataset, self.out, read(dataset), str(version.get("after")))
                return True
        return False

    def discard(self) -> None:
        """Removes what is left of the folder."""
        self._remove(self._lock)

    # The folder: creation, lock and removal.

    def _enter(self) -> BinaryIO:
        """Acquires the lock; creates the folder if there is none."""
        folder = self.paths.folder
        for _ in range(_TRIES):
            with suppress(FileNotFoundError):  # the build that held the lock has removed the folder meanwhile
                with suppress(OSError):
                    folder.rmdir()  # an empty one, which has no mark
                if not os.path.lexists(folder):
                    self._create()
                check_made_by_build(folder)
                file = open_lock(folder / MARK_NAME)
                try:
                    usable = self._is_usable(file)
                except BaseException:
                    file.close()
                    raise
                if usable:
                    return file
                file.close()
        raise BuildError(f"{folder} appears and disappears; look which builds of {self.out} run at once")

    def _create(self) -> None:
        """Creates the folder under a temporary name and renames it; if another process was faster, its folder stays."""
        folder = self.paths.folder
        new = self._unused_name()
        new.mkdir(parents=True)
        try:
            with open(new / MARK_NAME, "xb") as file:
                file.write(MARK)
                sync(file)
            if self._wanted is not None:
                (new / "dataset").mkdir()
                write_atomically(new / PLAN_NAME, json.dumps(self._wanted))
            with suppress(OSError):  # it is there already
                new.rename(folder)
        finally:
            remove(new)
        sync_folder(folder.parent)

    def _is_usable(self, file: BinaryIO) -> bool:
        """Locks the file; returns whether the folder can be used; if False, it was removed and has to be created."""
        folder = self.paths.folder
        if not lock(file, shared=self.shared):
            other = "a build without --part" if self.shared else "another build"
            raise BuildError(f"{other} is writing {self.out}; wait for it to end")
        if not os.path.samestat(os.fstat(file.fileno()), (folder / MARK_NAME).stat()):
            return False
        if not self.shared:
            self._recover()
            shutil.rmtree(folder / PARTS, ignore_errors=True)  # a worker that outlives its build writes there, or fails
        elif any((folder / name).exists() for name in (_SWAP, _REPLACED)):
            raise BuildError(
                f"{folder} belongs to a build that was killed at its end; run it again without --part first"
            )
        else:
            self.complete_version()
        if self._wanted is None:
            return True
        begun = self.plan()
        found = self._look_for(self._wanted, begun)
        self.committed = found == "committed"
        alone, overwriting, part = _ACTIONS[found]
        action = part if self.shared else overwriting if self._overwrite else alone
        if action == "refuse":
            raise BuildError(f"{folder} holds an unfinished {self._unlike(begun or {}, self._wanted)}")
        if action == "discard":
            self._remove(file)
        return action == "use"

    def _look_for(self, plan: Mapping[str, Any], begun: Mapping[str, Any] | None) -> _Found:
        """Returns what the folder, where ``begun`` was begun, holds for a build of a plan."""
        if begun is None:
            return "no plan"
        if has_same_recipe(begun, plan) and not self.paths.dataset.exists():
            return "committed"
        if all(begun.get(key) == value for key, value in plan.items() if key != COMMAND):
            return "own"
        is_update = UPDATES in plan or not (self.out / FILE_NAME).exists()
        if UPDATES in begun and is_update and COLUMN not in begun and COLUMN not in plan:
            return "stale"
        return "other" if has_finished_shards(self.paths) else "empty"

    def _unlike(self, begun: Mapping[str, Any], plan: Mapping[str, Any]) -> str:
        """Formats what is unfinished, how it differs from this build, and what to do."""
        if COLUMN in begun or COLUMN in plan:
            return unfinished_advice(begun)
        if self.shared:
            return f"{_difference(begun, plan, 'remove that folder')}; no part removes the shards of others"
        return _difference(begun, plan, "add --overwrite")

    def _remove(self, file: BinaryIO) -> None:
        """Renames the folder, if the lock file still belongs to it; removes it, and those that others have renamed."""
        folder = self.paths.folder
        with suppress(OSError if self.shared else FileNotFoundError):  # another part, or an earlier call, has done so
            if os.path.samestat(os.fstat(file.fileno()), (folder / MARK_NAME).stat()):
                if not self.shared:
                    self._drop_replaced()
                    self.clear()  # the plan last: with it, a build that was killed here knows that it was done
                aside = self._unused_name()
                folder.rename(aside)
                if not os.path.samestat(os.fstat(file.fileno()), (aside / MARK_NAME).stat()):
                    aside.rename(folder)  # of a later command: another part had set aside the one that was looked at
        remove_set_aside(folder)

    def _unused_name(self) -> Path:
        folder = self.paths.folder
        return folder.with_name(f"{folder.name}.{secrets.token_hex(TOKEN_BYTES)}.partial")

    # Replacement of the old dataset by the new one.

    @property
    def _replaced(self) -> Path:
        return self.paths.folder / _REPLACED

    def _swap(self) -> None:
        """Exchanges the dataset at the destination for the new one; if that takes two renames, it is absent in between.

        The folder's lock keeps a report from being recorded in one manifest and written to the other.
        """
        write_atomically(self.paths.folder / _SWAP, json.dumps({"manifest": _digest(self.paths.dataset)}))
        with folder_lock(self.out):
            if exchange(self.paths.dataset, self.out):
                self.paths.dataset.rename(self._replaced)
            else:
                self.out.rename(self._replaced)
                self.paths.dataset.rename(self.out)
        remove(self.paths.folder / _SWAP)

    def _recover(self) -> None:
        """Completes what a build or an update was doing that was killed during its commit, or just after it."""
        dataset, swap = self.paths.dataset, _json(self.paths.folder / _SWAP)
        if self.complete_version():
            self.clear()
            remove(self.paths.folder / PLAN_NAME)
        remove(self.paths.folder / _VERSION)
        if swap is not None and (dataset / FILE_NAME).is_file() and _digest(dataset) != swap.get("manifest"):
            dataset.rename(self._replaced)  # already exchanged: this is the old one
        if self._replaced.exists() and not self.out.exists():
            done = (dataset / FILE_NAME).is_file()
            (dataset if done else self._replaced).rename(self.out)
            sync_folder(self.out.parent)
        remove(self.paths.folder / _SWAP)
        self._drop_replaced()

    def _drop_replaced(self) -> None:
        """Removes the old dataset's own files, and moves all other files in its folder beside the destination."""
        if not self._replaced.is_dir() or remove_dataset(self._replaced):
            return
        number = 1
        while os.path.lexists(folder := self.out.with_name(f"{self.out.name}.left-{number}")):
            number += 1
        self._replaced.rename(folder)
        self.foreign_files = folder


def write_manifest(paths: BuildPaths, manifest: Manifest) -> None:
    """Writes the manifest of the new dataset.

    Raises:
        OSError: if a file system operation fails.
    """
    write_blocks(paths, paths.dataset / FILE_NAME, [manifest.dumps().encode("utf-8", "backslashreplace")])


def drop_leftovers(out: Path, plan: Mapping[str, Any] | None = None, *, shared: bool = False) -> Path | None:
    """Removes what a repair or a build of this plan, killed at its end, has left beside a finished dataset.

    The folder stays if it is in use, or if a build of another plan can resume from it. A part of a build takes it
    ``shared``: another part that is late may be about to look into it, and would be refused.

    Returns:
        :attr:`Staging.foreign_files`.
    """
    folder, foreign_files = staging_folder(out), None
    if os.path.lexists(folder):
        with suppress(BuildError, StoreError), Staging(out, shared=shared) as staging:
            begun = staging.plan()
            if begun is None or (
                plan is not None
                and COLUMN not in begun
                and has_same_recipe(begun, plan)
                and begun.get(UPDATES) != read(out).contents  # else an update that goes on
            ):
                staging.discard()
            foreign_files = staging.foreign_files
    remove_set_aside(folder)
    return foreign_files


def has_finished_shards(paths: BuildPaths) -> bool:
    """Returns whether the build in a working folder has finished at least one shard."""
    return any((paths.folder / "notes").glob("*/*.json"))


# Whose a folder is.


def check_made_by_build(folder: Path) -> None:
    """Rejects a folder without the mark, and one with a link in it: nothing is moved or removed through that.

    Raises:
        BuildError: naming what is in it.
        FileNotFoundError: if another process has removed the folder.
    """
    advice = "a build works there: rename it, or remove it"
    kind = folder.lstat().st_mode  # one look at it: another process may remove it
    if not stat.S_ISDIR(kind):
        raise BuildError(f"{folder} is {'a link' if stat.S_ISLNK(kind) else 'a file'}; {advice}")
    found = list(_links(folder)) if _mark_of(folder) == MARK else sorted(os.listdir(folder))
    if found:
        raise BuildError(f"{folder} holds {listed(found)}, which no build made; {advice}")


def _mark_of(folder: Path) -> bytes | None:
    """Returns the content of the file of a folder's mark; None if there is no such file."""
    with suppress(OSError):
        if not (folder / MARK_NAME).is_symlink():
            return read_regular(folder / MARK_NAME)
    return None


def _links(folder: Path) -> Iterator[str]:
    """Yields the links in a folder and below, relative to it."""
    for path, folders, files in os.walk(folder):
        for name in (*folders, *files):
            if os.path.islink(os.path.join(path, name)):
                yield os.path.relpath(os.path.join(path, name), folder)


def remove_set_aside(folder: Path) -> None:
    """Removes the folders beside a working folder that builds have prepared or given up; the mark last."""
    leftovers: list[Path] = []
    with suppress(OSError):  # a folder that may not be listed
        leftovers += [path for path in folder.parent.iterdir() if is_partial(path.name, folder.name)]
    for leftover in leftovers:
        with suppress(OSError, BuildError):  # another process is removing it, too, or no build made it
            names = os.listdir(leftover)
            if names and not (names == [MARK_NAME] and MARK.startswith(_mark_of(leftover) or b"?")):
                check_made_by_build(leftover)  # else a kill has ended the process that was going to mark it
            own = leftover.with_name(f"{folder.name}.{secrets.token_hex(TOKEN_BYTES)}.partial")
            leftover.rename(own)  # so that nobody writes in it any more: a process may be making it
            for name in sorted(os.listdir(own), key=MARK_NAME.__eq__):
                remove(own / name)
            own.rmdir()


# How a plan differs from another one.


def has_same_recipe(begun: Mapping[str, Any], plan: Mapping[str, Any]) -> bool:
    """Returns whether a build has this recipe and source, regardless of versions."""
    return all(begun.get(key) == plan[key] for key in ("recipe", "fingerprint"))


def unfinished_advice(begun: Mapping[str, Any]) -> str:
    """Formats what is unfinished, a field or a build, and how to proceed."""
    if COLUMN not in begun:
        return "build; run it again, or remove that folder"
    name = begun[COLUMN].get("name")
    return f"field {name}; add the field again, which goes on with it, or remove that folder"


def _difference(begun: Mapping[str, Any], plan: Mapping[str, Any], advice: str) -> str:
    """Formats how an unfinished build differs from this one, and what to do; ``advice`` says how to drop it."""
    if begun.get("recipe") != plan["recipe"]:
        recipe = begun.get("recipe")
        found = unlike(recipe, plan["recipe"]) if isinstance(recipe, dict) else "its plan has none"
        return f"build of another recipe ({found}); {advice} to drop it"
    if begun.get("fingerprint") != plan["fingerprint"]:
        return f"build of a source that has changed since; {advice} to drop it"
    versions = begun.get("versions")
    was, now = versions if isinstance(versions, dict) else {}, plan["versions"]
    changed = [name for name in sorted({*was, *now}) if was.get(name) != now.get(name)]
    if not changed:
        return (
            "build of a source with other pixels in files of equal names, sizes and times; "
            f"continue with that source, or {advice} to drop it"
        )
    before = ", ".join(f"{name} {was.get(name, 'unknown')}" for name in changed)
    after = ", ".join(f"{name} {now.get(name, 'none')}" for name in changed)
    return (
        f"build by {before}, and this machine has {after}, which may make other pixels; "
        f"continue with those versions, or {advice} to drop it and start again"
    )


def _json(path: Path) -> dict[str, Any] | None:
    with suppress(OSError, ValueError, RecursionError):
        body = json.loads(read_regular(path))
        return body if isinstance(body, dict) else None
    return None


def _digest(dataset: Path) -> str:
    """Returns the SHA-256 of a dataset's manifest."""
    return hashlib.sha256(read_regular(dataset / FILE_NAME)).hexdigest()


# The destination: what is there, and which files are a dataset's own: those of its manifests. No other is removed.


def check_apart(kind: str, root: Path | Location, out: Path) -> None:
    """Rejects a destination that is equal to the source, contains it, or is inside it.

    Folders are compared by device and inode, so links, mounts and case-insensitive names are resolved. The root of a
    "python" source is only the import path of modules: it may contain the dataset.

    Raises:
        UsageError: naming both folders.
    """
    check_no_url(out, "a build writes here; copy the dataset with mmload push afterwards")
    try:
        place = out.resolve()
        source = None if isinstance(root, Location) else root.resolve()
    except (OSError, RuntimeError) as error:  # RuntimeError: a loop of links, up to Python 3.12
        raise UsageError(f"cannot find {root} or {out} ({error}); check their links") from error
    advice = "choose a place apart from the source"
    for folder in (place, staging_folder(place)):
        if source is not None and is_within(source, folder):
            what = "is" if is_same(source, folder) else "lies in"
            raise UsageError(f"the source {root} {what} {folder}, where the build would write; {advice}")
    for folder in place.parents:
        if is_staging_folder(folder):
            raise UsageError(f"OUT {out} lies in {folder}, which another build empties; {advice}")
    if source is not None and kind not in _IMPORTED and is_within(place, source):
        raise UsageError(f"OUT {out} lies in the source {root}; {advice}")


def is_up_to_date(out: Path, manifest: Manifest, plan: Mapping[str, Any], *, overwrite: bool, skip: bool) -> bool:
    """Returns whether the dataset at a destination is what a build would make; else the build may replace it.

    With ``overwrite`` it is always replaced; with ``skip`` the build may skip samples.

    Raises:
        BuildError: if it may not be replaced; the message says what to do.
    """
    others = foreign(out, manifest)
    if overwrite:
        if others:
            raise BuildError(
                f"{out} holds more than its dataset: {listed(others)}; --overwrite removes a dataset's own files only: "
                "move the others elsewhere"
            )
        if is_within(Path.cwd(), out):
            raise BuildError(f"the working directory lies in {out}, which --overwrite replaces; run it from elsewhere")
        return False
    unlike = _unlike(manifest, plan, skip)
    if unlike is None:
        return True
    why, other_way = unlike
    replace = "use mmload build --overwrite" if UPDATES in plan else "add --overwrite"
    if others:
        replace = f"move {listed(others)} elsewhere, then {replace}"
    raise BuildError(f"{out} exists and {why}; {other_way}{replace} to build it again")


def dataset_at(out: Path) -> Manifest | None:
    """Returns the manifest of the dataset at a destination; None if the destination is missing or an empty folder.

    Raises:
        BuildError: if it contains other files, or a dataset that cannot be read.
    """
    try:
        if not os.path.lexists(out) or (out.is_dir() and not any(out.iterdir())):
            return None
        if not (out / FILE_NAME).is_file():
            raise BuildError(f"{out} exists and is not a dataset; choose another place, or remove it")
        return read(out)
    except OSError as error:
        raise BuildError(f"cannot look into {out} ({error.strerror}); choose another place") from error
    except StoreError as error:
        raise BuildError(
            f"{out} exists and is not a dataset that can be read ({error}); choose another place, or remove it"
        ) from error


def foreign(folder: Path, manifest: Manifest) -> list[str]:
    """Returns the first few entries in a dataset's folder that its manifest does not list, as relative paths."""
    return list(islice(_foreign(folder, manifest), _SHOWN + 1))


def listed(names: list[str]) -> str:
    """Formats entries for a message: only the first few."""
    return ", ".join(names[:_SHOWN]) + (" and more" if len(names) > _SHOWN else "")


def remove_dataset(folder: Path) -> bool:
    """Removes the files of a dataset, its manifest last, and the folders that become empty.

    Calling this again continues an interrupted removal.

    Returns:
        Whether the folder was removed; it is not if it contains files that do not belong to the dataset.

    Raises:
        OSError: if a file system operation fails.
    """
    with suppress(StoreError):  # without a manifest, no file is known to belong to the dataset
        own = owned_files(folder, read(folder))
        for name in own.files:
            if first_link(folder, name) is None:
                _remove_file(folder / name)
        for name in sorted(own.folders, key=len, reverse=True):
            if first_link(folder, name) is None:
                _remove_if_empty(folder / name)
        for entry in [*folder.iterdir()]:
            if is_partial(entry.name, FILE_NAME):
                _remove_file(entry)
        _remove_file(folder / FILE_NAME)
    _remove_if_empty(folder)
    return not os.path.lexists(folder)


def _unlike(manifest: Manifest, plan: Mapping[str, Any], skip: bool) -> tuple[str, str] | None:
    """Formats the difference of a dataset from the planned build, and an alternative to a rebuild."""
    if (was := canonical(manifest.recipe)) != plan["recipe"]:
        return f"was built by another recipe ({unlike(was, plan['recipe'])})", ""
    if manifest.fingerprint != plan["fingerprint"]:
        return "its source has changed since", "run mmload update to build only what has changed, or "
    skipped = sum(split.skipped_count for split in manifest.splits.values())
    if skipped and not skip:
        return (
            f"left out {counted(skipped, 'sample')} that could not be read",
            "add --on-error skip to accept that, or ",
        )
    return None


@dataclass(frozen=True)
class Owned:
    """Files of all kept versions of a dataset but ``dataset.json``, and their folders; paths relative to its folder."""

    files: frozenset[str]
    folders: frozenset[str]


def owned_files(folder: Path, manifest: Manifest, *, strict: bool = False) -> Owned:
    """Returns the files of all kept versions of a dataset; with ``strict``, all their manifests must be readable."""
    files = {f"{VERSIONS}/{version.number}.json" for version in manifest.versions[:-1]}
    for kept in kept_manifests(folder, manifest, strict=strict):
        files |= {file.name for file in dataset_files(kept)}
    folders = {name.rpartition("/")[0] for name in files}
    return Owned(frozenset(files), frozenset(folders | {name.partition("/")[0] for name in folders}))


def _foreign(folder: Path, manifest: Manifest) -> Iterator[str]:
    own = owned_files(folder, manifest)

    def others(inside: Path) -> Iterator[str]:
        for entry in entries_of(inside):
            name = Path(entry.path).relative_to(folder).as_posix()
            if entry.is_dir(follow_symlinks=False) and name in own.folders:
                yield from others(Path(entry.path))
            elif not (entry.is_file(follow_symlinks=False) and (name in own.files or _is_of_manifest(name))):
                yield name

    return others(folder)


def _is_of_manifest(name: str) -> bool:
    return name == FILE_NAME or is_partial(name, FILE_NAME)


def _remove_file(path: Path) -> None:
    """Removes a regular file; keeps a link, or a folder with a file's name."""
    with suppress(FileNotFoundError, NotADirectoryError):
        if stat.S_ISREG(path.lstat().st_mode):
            path.unlink()


def _remove_if_empty(folder: Path) -> None:
    with suppress(OSError):
        folder.rmdir()


def is_real_folder(path: Path) -> bool:
    """Returns whether this is a folder, not a link to one."""
    return path.is_dir() and not path.is_symlink()


def entries_of(folder: str | Path) -> list[os.DirEntry[str]]:
    """Returns the entries of a folder, sorted by their names; none if it is gone, as another command may remove it."""
    try:
        with os.scandir(folder) as entries:
            return sorted(entries, key=lambda entry: entry.name)
    except FileNotFoundError:
        return []
