"""The destination of a build and its working folder ``.NAME.building``: one protocol for one process and for many.

    .NAME.building/
      lock               the mark of the folder, held while a build is alive
      plan.json          recipe, source and command line of the build
      parts/             shards that are being written, each in a folder of its own (:mod:`mmload.builder.shard_job`)
      notes/             seals, and the lines for samples.jsonl and skipped.jsonl
      dataset/           the finished shards of the new dataset, or of a new version; its manifest last
      swap               identifies the new dataset, while the old one is exchanged for it
      replaced/          the old dataset, until its files are removed

The folder appears in one step, with its mark, and is renamed in one step before it is removed; finished shards are
moved into it; the dataset leaves it in one step, a new version with its manifest last. All of these are atomic renames,
so any number of processes may do them at once, on any number of machines. After a crash at any time there is either the
old dataset or the new one, and the next command goes on with what it finds:

    .NAME.TOKEN.partial beside the folder        it was being made or removed: removes it
    plan.json, finished shards                   the same plan: builds the others; another one: refuses, or drops them
    dataset/dataset.json, and NAME is missing    the build was about to commit: commits
    dataset/dataset.json of a further version    moves the files that are not in NAME yet, its manifest last
    swap, dataset/ of the contents in it         NAME is still the old dataset: commits again
    swap, dataset/ of others                     both are exchanged: removes the old one
    replaced/, and NAME is missing               between two renames: makes the second one
    replaced/ beside NAME, or no dataset/        all is done: removes the rest

A folder with the mark is a build's, with all that is in it; a folder without it is never touched. The lock, where the
file system has locks, distinguishes two kinds of builds. A build without ``--part`` holds it alone: it may discard what
another build has left, and replace a dataset. Parts of a build share it: none removes anything of the others, and a
part that still works when the folder is renamed finds no place to write to.
"""

from __future__ import annotations

import json
import os
import secrets
import shutil
import stat
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from pathlib import Path, PurePosixPath
from types import TracebackType
from typing import Any

import msgspec

from mmload.builder.recipe import canonical, unlike
from mmload.builder.shards import PARTS, UPDATES, BuildPaths, reported, write_blocks
from mmload.errors import BuildError, StoreError, UsageError, counted
from mmload.remote.urls import Location, check_no_url, is_url, place
from mmload.runtime.files import (
    TOKEN_BYTES,
    exchange,
    folder_lock,
    is_partial,
    is_same,
    is_within,
    lock,
    open_lock,
    open_regular,
    read_regular,
    remove,
    sync_folder,
    write_atomically,
)
from mmload.store.dataset_folder import check_no_links, dataset_files
from mmload.store.manifest import (
    COMMAND,
    FILE_NAME,
    FORMAT,
    MARK_NAME,
    PLAN_NAME,
    VERSIONS,
    Manifest,
    read,
    staging_folder,
    unfinished_plan,
)
from mmload.store.versions import kept_manifests, versions_of

SOURCE_NAME = ".source"
"""A hint beside the manifest, which is no part of the dataset: where its source lay when it was built or updated."""

MARK = b"mmload build: this folder is removed when the build beside it is done\n"
"""The content of ``lock``, which identifies a working folder."""

_SWAP, _REPLACED = "swap", "replaced"
_FIRST_BYTES = 100  # of a manifest, which name its format
_SHOWN = 3  # upper bound on the entries listed in a message
_TRIES = 100  # another process may remove the folder between two checks, but not indefinitely


class Staging(AbstractContextManager["Staging"]):
    """The locked working folder of a build. A context manager; completes an interrupted commit on creation.

    An unfinished build of the same plan resumes. One of another plan is discarded with ``overwrite``, or if it has no
    finished shard; parts of a build discard nothing.

    Args:
        out: the destination, with no symbolic link in it.
        plan: plan of the build. None: no plan is written, an existing one stays, and without one the folder is removed
            at the end, unless it holds a new version that has only to be added to the dataset.
        shared: whether parts of this build may work in the folder at the same time; else the lock is held alone.
        overwrite: discard finished shards of another plan.

    Attributes:
        committed: whether a build of this plan was killed after its commit, with only the cleanup remaining.

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
        self._wanted, self._overwrite = plan, overwrite
        try:
            self._enter()
        except OSError as error:
            advice = f"make {out.parent} writable, with some room" if os.path.lexists(out) else "choose another place"
            raise BuildError(f"cannot write beside {out} ({error.strerror}); {advice}") from error
        self.paths = self.paths.with_plan()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._wanted is None and not unfinished_plan(self.out) and not (self.paths.dataset / FILE_NAME).is_file():
            self.discard()
        self._lock.close()

    def clear(self) -> None:
        """Removes shards and lists, finished or not, and the dataset that was replaced."""
        for name in (_REPLACED, PARTS, "notes", "dataset"):
            remove(self.paths.folder / name)

    def commit(self, manifest: Manifest, *, replaces: str | None = None) -> None:
        """Writes the manifest, and moves the dataset, or the files of a new version, to the destination; cleans up.

        ``replaces`` is :attr:`Manifest.contents` of the dataset that a new one may replace; None: none may be.

        Raises:
            BuildError: if writing fails, the destination contains something that may not be replaced, or has another
                version meanwhile. If that is the same dataset, another part has committed it.
        """
        with reported(self.out):
            text = manifest.dumps().encode("utf-8", "backslashreplace")
            write_blocks(self.paths, self.paths.dataset / FILE_NAME, [text])
            if manifest.versions:
                add_to_dataset(self.paths.dataset, self.out, manifest)
            else:
                self._place(manifest, replaces)
            self.discard()

    def complete_version(self) -> bool:
        """Completes a new version that a process was adding when it was killed, or is adding; returns whether."""
        with suppress(BuildError, StoreError, FileNotFoundError):
            self.paths.check_there()
            new, is_there = self.paths.dataset, (self.out / FILE_NAME).is_file()
            if is_there and (new / FILE_NAME).is_file() and (manifest := read(new)).versions:
                add_to_dataset(new, self.out, manifest)
                return True
        return False

    # The folder: creation, lock and removal.

    def _enter(self) -> None:
        """Acquires the lock; creates the folder if there is none."""
        folder = self.paths.folder
        for _ in range(_TRIES):
            with suppress(FileNotFoundError):  # the build that held the lock has removed the folder meanwhile
                if not os.path.lexists(folder):
                    self._create()
                check_made_by_build(folder)
                with ExitStack() as stack:
                    self._lock = stack.enter_context(open_lock(folder / MARK_NAME))
                    if self._is_usable():
                        stack.pop_all()
                        return
        raise BuildError(f"{folder} appears and disappears; look which builds of {self.out} run at once")

    def _create(self) -> None:
        """Creates the folder under a temporary name and renames it; if another process was faster, its folder stays."""
        folder = self.paths.folder
        new = _set_aside(folder)
        new.mkdir(parents=True)
        try:
            write_atomically(new / MARK_NAME, MARK)
            if self._wanted is not None:
                (new / "dataset").mkdir()
                write_atomically(new / PLAN_NAME, json.dumps(self._wanted))
            with suppress(OSError):  # it is there already
                new.rename(folder)
        finally:
            remove(new)
        sync_folder(folder.parent)

    def _is_usable(self) -> bool:
        """Locks the folder; returns whether it can be used; if False, it was removed and has to be created."""
        folder = self.paths.folder
        if not lock(self._lock, shared=self.shared):
            other = "a build without --part" if self.shared else "another build"
            raise BuildError(f"{other} is writing {self.out}; wait for it to end")
        if not os.path.samestat(os.fstat(self._lock.fileno()), (folder / MARK_NAME).stat()):
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
        if self._wanted is None or self._suits(self._wanted):
            return True
        self.discard()
        return False

    def _suits(self, plan: Mapping[str, Any]) -> bool:
        """Returns whether a build of the plan goes on with what the folder holds; False: it may be discarded."""
        begun = unfinished_plan(self.out)
        if not begun:  # what a command without a plan has left
            return False
        self.committed = has_same_recipe(begun, plan) and not self.paths.dataset.exists()
        if self.committed or all(begun.get(key) == value for key, value in plan.items() if key != COMMAND):
            return True
        if self.shared or not (self._overwrite or UPDATES in begun or not has_finished_shards(self.paths)):
            drop = "remove that folder" if self.shared else "add --overwrite"  # no part removes the shards of others
            difference = _unlike_begun(begun, plan)
            raise BuildError(f"{self.paths.folder} holds an unfinished build {difference}; {drop} to drop it")
        return False

    def discard(self) -> None:
        """Renames the folder, if the lock file still belongs to it; removes it, and those that others have renamed."""
        folder = self.paths.folder
        with suppress(OSError if self.shared else FileNotFoundError):  # another part, or an earlier call, has done so
            if os.path.samestat(os.fstat(self._lock.fileno()), (folder / MARK_NAME).stat()):
                if not self.shared:
                    self.clear()  # the plan last: with it, a build that was killed here knows that it was done
                folder.rename(_set_aside(folder))
        remove_set_aside(folder)

    # Replacement of the old dataset by the new one.

    def _place(self, manifest: Manifest, replaces: str | None) -> None:
        """Moves the dataset to the destination, in place of the one that it replaces."""
        there = dataset_at(self.out)
        if there is None:
            self.paths.dataset.rename(self.out)
        elif there.contents == replaces:
            _check_replaceable(self.out, there)
            self._swap(manifest)
        else:
            raise BuildError(
                f"the dataset at {self.out} appeared during the build; move it elsewhere, "
                "then run the same command again"
            )
        sync_folder(self.out.parent)

    def _swap(self, manifest: Manifest) -> None:
        """Exchanges the dataset at the destination for the new one; if that takes two renames, it is absent in between.

        The folder's lock keeps a report from being recorded in one manifest and written to the other.
        """
        replaced = self.paths.folder / _REPLACED
        write_atomically(self.paths.folder / _SWAP, manifest.contents)
        with folder_lock(self.out):
            if exchange(self.paths.dataset, self.out):
                self.paths.dataset.rename(replaced)
            else:
                self.out.rename(replaced)
                self.paths.dataset.rename(self.out)
        remove(self.paths.folder / _SWAP)

    def _recover(self) -> None:
        """Completes what a build or an update was doing that was killed during its commit, or just after it."""
        dataset, replaced, swap = (self.paths.folder / name for name in ("dataset", _REPLACED, _SWAP))
        if not swap.exists() and self.complete_version():  # else this may be the old dataset
            self.clear()
            remove(self.paths.folder / PLAN_NAME)
        if swap.exists() and (dataset / FILE_NAME).is_file() and read(dataset).contents != swap.read_text():
            dataset.rename(replaced)  # already exchanged: this is the old one
        if replaced.exists() and not self.out.exists():
            done = (dataset / FILE_NAME).is_file()
            (dataset if done else replaced).rename(self.out)
            sync_folder(self.out.parent)
        remove(swap)
        remove(replaced)


def add_to_dataset(new: Path, out: Path, manifest: Manifest) -> None:
    """Moves the files of a new version into a dataset, its manifest last; does what is left to do, if called again.

    Nothing that the dataset has is changed or removed: a reader goes on. A kill leaves the old version or the new one.

    Raises:
        BuildError: if the dataset has another version meanwhile, or a file of the new version is missing.
        StoreError: if a folder that is written to is a link.
        OSError: if a file system operation fails.
    """
    with folder_lock(out):
        current = read(out)
        if (current.contents, current.version) == (manifest.contents, manifest.version):
            return
        before = manifest.versions[-2]
        if (current.contents, current.version) != (before.contents, before.number):
            raise BuildError(f"{out} was changed by another command meanwhile; run this one again")
        moved, kept = list[str](), {file.name for file in dataset_files(current)}
        for file in dataset_files(manifest):
            if file.name in kept:
                continue  # whatever is there: no file of the dataset changes
            if (new / file.name).exists():
                moved.append(file.name)
            elif not (out / file.name).is_file():  # an earlier call has not moved it either
                raise BuildError(f"{file.name} of the new version of {out} is missing; run the command again")
        check_no_links(out, (f"{VERSIONS}/{current.version}.json", *moved))
        for name in moved:
            (out / name).parent.mkdir(parents=True, exist_ok=True)
            try:
                os.replace(new / name, out / name)
            except FileNotFoundError:
                if not (out / name).is_file():  # else another part has moved it, where folders have no locks
                    raise
        for folder in {(out / name).parent for name in moved}:
            sync_folder(folder)
        with suppress(FileNotFoundError):  # only updates bring one
            os.replace(new / SOURCE_NAME, out / SOURCE_NAME)
        versions = out / VERSIONS
        versions.mkdir(exist_ok=True)
        write_atomically(versions / f"{current.version}.json", current.dumps(), beside=new / FILE_NAME)
        numbers = {version.number for version in versions_of(current, out)}  # gc may have dropped some meanwhile
        own = tuple(version for version in manifest.versions[:-1] if version.number in numbers)
        manifest = msgspec.structs.replace(manifest, versions=(*own, manifest.versions[-1]))
        write_atomically(out / FILE_NAME, manifest.dumps(), beside=new / FILE_NAME)
        (new / FILE_NAME).unlink(missing_ok=True)


@contextmanager
def working_folder(out: Path) -> Iterator[Staging]:
    """Yields the empty working folder of a command that makes no plan.

    Raises:
        BuildError: if another command works there, or has finished shards.
    """
    with Staging(out) as staging:
        if unfinished_plan(out) and has_finished_shards(staging.paths):
            raise BuildError(f"{staging.paths.folder} holds an unfinished build; run it again, or remove that folder")
        staging.clear()
        remove(staging.paths.folder / PLAN_NAME)
        yield staging


def has_finished_shards(paths: BuildPaths) -> bool:
    """Returns whether the build in a working folder has finished at least one shard."""
    return any((paths.folder / "notes").glob("*/*.json"))


# Whose a folder is.


def check_made_by_build(folder: Path) -> None:
    """Rejects a folder without the mark, or with a link.

    Raises:
        BuildError: naming what is in it.
        FileNotFoundError: if another process has removed the folder.
    """
    advice = "a build works there: rename it, or remove it"
    kind, mark = folder.lstat().st_mode, b""  # one look at it: another process may remove it
    if not stat.S_ISDIR(kind):
        raise BuildError(f"{folder} is {'a link' if stat.S_ISLNK(kind) else 'a file'}; {advice}")
    with suppress(OSError):
        mark = read_regular(folder / MARK_NAME)
    others = sorted(entry.name for entry in os.scandir(folder) if mark != MARK or entry.is_symlink())
    if others or mark != MARK:
        raise BuildError(f"{folder} holds {listed(others)}, which no build made; {advice}")


def _set_aside(folder: Path) -> Path:
    """Returns a new name for a working folder that is being made or removed: its 64 random bits are the mark then."""
    return folder.with_name(f"{folder.name}.{secrets.token_hex(TOKEN_BYTES)}.partial")


def remove_set_aside(folder: Path) -> None:
    """Removes the folders beside a working folder that builds have prepared or given up.

    Each is renamed first, so that nobody who may still be making it writes there any more.
    """
    with suppress(OSError):  # a folder that may not be listed
        for leftover in folder.parent.iterdir():
            if is_partial(leftover.name, folder.name) and not leftover.is_symlink():
                own = _set_aside(folder)
                with suppress(OSError):  # another process is removing it, too
                    leftover.rename(own)
                shutil.rmtree(own, ignore_errors=True)


# How a plan differs from another one.


def has_same_recipe(begun: Mapping[str, Any], plan: Mapping[str, Any]) -> bool:
    """Returns whether a build has this recipe and source, regardless of versions."""
    return all(begun.get(key) == plan[key] for key in ("recipe", "fingerprint"))


_DIFFERENCES = {
    "recipe": "of another recipe ({})",
    "fingerprint": "of a source that has changed since",
    "versions": "by other packages ({}), which may make other pixels",
}


def _unlike_begun(begun: Mapping[str, Any], plan: Mapping[str, Any]) -> str:
    """Formats how an unfinished build differs from a planned one."""
    key = next((key for key in _DIFFERENCES if begun.get(key) != plan.get(key)), "fingerprint")
    difference = unlike(begun[key], plan[key]) if key in ("recipe", "versions") else ""
    return _DIFFERENCES[key].format(difference)


# The destination: what is there, and which files are a dataset's own: those of its manifests. No other is removed.


def check_apart(kind: str, root: Path | Location, out: Path) -> None:
    """Rejects a destination that is equal to the source, contains it, or is inside it, or inside another dataset.

    Folders are compared by device and inode, so links, mounts and case-insensitive names are resolved. The root of a
    "python" source is only the import path of modules, often the current folder: it may contain the dataset.

    Raises:
        UsageError: naming both folders.
    """
    check_no_url(out, "a build writes here; copy the dataset with mmload push afterwards")
    target = Path(os.path.realpath(out))
    for folder in () if (target / FILE_NAME).exists() else target.parents:  # what is there already stays
        with suppress(OSError), open(folder / FILE_NAME, "rb", opener=open_regular) as manifest:
            if FORMAT.encode() in manifest.read(_FIRST_BYTES):
                raise UsageError(f"OUT {out} lies in the dataset {folder}; choose a place beside it")
    if isinstance(root, Location):
        return
    source, advice = Path(os.path.realpath(root)), "choose a place apart from the source"
    if is_within(source, target):
        what = "is" if is_same(source, target) else "lies in"
        raise UsageError(f"the source {root} {what} {target}, where the build would write; {advice}")
    if kind != "python" and is_within(target, source):
        raise UsageError(f"OUT {out} lies in the source {root}; {advice}")


def source_of(out: Path) -> Path | Location:
    """Returns where the source of a dataset lay when that was built or updated.

    Raises:
        UsageError: if that is unknown, or nothing is there any more.
    """
    found = ""
    with suppress(OSError):
        found = os.fsdecode(read_regular(out / SOURCE_NAME))
    if not (is_url(found) or os.path.exists(found)):
        what = f"the source of {out} is no longer at {found}" if found else f"{out} does not say where its source is"
        raise UsageError(f"{what}; give its place: mmload update {out} ROOT")
    return place(found)


def is_up_to_date(out: Path, manifest: Manifest, plan: Mapping[str, Any], *, overwrite: bool, skip: bool) -> bool:
    """Returns whether the dataset at a destination is what a build would make; else the build may replace it.

    With ``overwrite`` it is always replaced; with ``skip`` the build may skip samples.

    Raises:
        BuildError: if it may not be replaced; the message says what to do.
    """
    if overwrite:
        _check_replaceable(out, manifest)
        return False
    skipped = sum(split.skipped_count for split in manifest.splits.values())
    if (was := canonical(manifest.recipe)) != plan["recipe"]:
        found = f"was built by another recipe ({unlike(was, plan['recipe'])}); "
    elif manifest.fingerprint != plan["fingerprint"]:
        found = "its source has changed since; run mmload update to build only what has changed, or "
    elif skipped and not skip:
        found = f"left out {counted(skipped, 'sample')} that could not be read; add --on-error skip to accept that, or "
    else:
        return True
    raise BuildError(f"{out} exists and {found}add --overwrite to build it again")


def _check_replaceable(out: Path, manifest: Manifest) -> None:
    """Rejects to replace a dataset whose folder has other files than its own, or is worked in."""
    if others := foreign(out, manifest):
        raise BuildError(
            f"{out} holds more than its dataset: {listed(others)}; --overwrite removes a dataset's own files only: "
            "move the others elsewhere, then run the same command again"
        )
    if is_within(Path.cwd(), out):
        raise BuildError(f"the working directory lies in {out}, which --overwrite replaces; run it from elsewhere")


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


def listed(names: list[str]) -> str:
    """Formats entries for a message: only the first few."""
    return ", ".join(names[:_SHOWN]) + (" and more" if len(names) > _SHOWN else "")


def owned_files(folder: Path, manifest: Manifest, *, strict: bool = False) -> set[str]:
    """Returns the files of all kept versions of a dataset but ``dataset.json``, as paths relative to its folder.

    With ``strict``, the manifests of all of them must be readable.
    """
    files = {f"{VERSIONS}/{version.number}.json" for version in manifest.versions[:-1]}
    for kept in kept_manifests(folder, manifest, strict=strict):
        files |= {file.name for file in dataset_files(kept)}
    return files


def foreign(folder: Path, manifest: Manifest) -> list[str]:
    """Returns the entries in a dataset's folder that its manifests do not list, as relative paths."""
    own = owned_files(folder, manifest) | {FILE_NAME, SOURCE_NAME}
    own |= {parent.as_posix() for name in own for parent in PurePosixPath(name).parents}
    found = list[str]()
    for inside, folders, files in os.walk(folder):
        paths = {name: Path(inside, name).relative_to(folder).as_posix() for name in (*folders, *files)}
        found += sorted(path for path in paths.values() if path not in own and not is_partial(path, FILE_NAME))
        folders[:] = [name for name in folders if paths[name] in own]
    return found
