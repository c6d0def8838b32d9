"""The files at a build's destination and in its working folder: which are a dataset's or a build's own, and removal.

A dataset's own files are those listed in its manifest, a build's own are recognized by their names. No other file is
ever removed.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from mmload.builder.build_plans import UPDATES
from mmload.builder.recipe import canonical
from mmload.errors import BuildError, StoreError, UsageError, counted
from mmload.remote.urls import Location, check_no_url
from mmload.runtime.durable_files import is_partial, remove
from mmload.runtime.regular_files import is_same, is_within
from mmload.store.dataset_folder import dataset_files, first_link
from mmload.store.manifest import FILE_NAME, Manifest, read
from mmload.store.manifest_text import VERSIONS
from mmload.store.unfinished import PLAN_NAME, is_staging_folder, staging_folder
from mmload.store.versions import kept_manifests

_SHOWN = 3  # upper bound on the entries listed in a message
_IMPORTED = ("python",)  # kinds whose root is the import path of modules, often the current folder


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


@dataclass(frozen=True, kw_only=True)
class Existing:
    """The content of a destination before a build.

    Attributes:
        manifest: manifest of the dataset there; None if the destination is empty.
        equal: whether the dataset is up to date, so that there is nothing to build; else the build replaces it.
    """

    manifest: Manifest | None
    equal: bool = False

    @property
    def finished(self) -> Manifest | None:
        """The manifest of an up-to-date dataset, else None."""
        return self.manifest if self.equal else None

    @property
    def contents(self) -> str | None:
        """The checksum that identifies the dataset; None if there is none."""
        return None if self.manifest is None else self.manifest.contents


def inspect_destination(
    out: Path, plan: Mapping[str, object], *, overwrite: bool, skip: bool, manifest: Manifest | None = None
) -> Existing:
    """Inspects a destination before a build, which may replace a dataset there, or skip samples.

    ``manifest`` is the dataset's, if it was read before.

    Raises:
        BuildError: if the destination contains something that may not be replaced; the message says what to do.
    """
    manifest = dataset_at(out) if manifest is None else manifest
    if manifest is None:
        return Existing(manifest=None)
    others = foreign(out, manifest)
    if overwrite:
        if others:
            raise BuildError(
                f"{out} holds more than its dataset: {listed(others)}; --overwrite removes a dataset's own files only: "
                "move the others elsewhere"
            )
        if is_within(Path.cwd(), out):
            raise BuildError(f"the working directory lies in {out}, which --overwrite replaces; run it from elsewhere")
        return Existing(manifest=manifest)
    unlike = _unlike(manifest, plan, skip)
    if unlike is None:
        return Existing(manifest=manifest, equal=True)
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


def _unlike(manifest: Manifest, plan: Mapping[str, object], skip: bool) -> tuple[str, str] | None:
    """Formats the difference of a dataset from the planned build, and an alternative to a rebuild."""
    if canonical(manifest.recipe) != plan["recipe"]:
        return "was built by another recipe", ""
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


MARK = b"mmload build: this folder is removed when the build beside it is done\n"
"""The content of ``lock``, which identifies a working folder."""

PLAN, SWAP, VERSION = PLAN_NAME, "swap.json", "version.json"
_FILES = ("lock", "workers", PLAN, SWAP, VERSION)
PARTS = "parts"
_BUILT = ("notes", "dataset", PARTS)
_FOLDERS = (*_BUILT, "replaced")
_ADVICE = "a build works there: rename it, or remove it"
_SHOWN_OTHERS = 4

_NAME, _SHARD, _PARTIAL = "[A-Za-z0-9][A-Za-z0-9_-]*", "[0-9]{6,}", r"((\.[0-9a-f]{16})?\.partial)?"
_LISTS = r"((samples|skipped|origins)(\.[0-9]+)?\.jsonl|rows\.[0-9]+\.memmap)"
_PART = r"(\.(bytes|offsets|sizes|encodings|[0-9]+))?"  # of a variable-size field, or of one that was added
_OWN = re.compile(
    rf"({PARTS}/[0-9a-f]{{16}}/)?("
    rf"notes/{_NAME}/{_SHARD}\.(json{_PARTIAL}|(samples|skipped|origins)\.jsonl)"
    rf"|notes/({_LISTS}|dataset\.json|{_NAME}\.[0-9]+\.memmap){_PARTIAL}"
    rf"|dataset/{_NAME}/{_SHARD}/({_NAME}{_PART}\.memmap|meta\.json{_PARTIAL})"
    rf"|dataset/{_NAME}/{_LISTS}"
    rf"|dataset/dataset\.json{_PARTIAL})"
)
"""Pattern of all file names that a build writes in ``notes``, ``dataset`` and ``parts``."""


def check_made_by_build(folder: Path, has_plan: bool) -> None:
    """Rejects a folder that was not created by a build: work in it begins with removing its content.

    A folder was created by a build if it contains the mark, or a plan as older builds wrote it without a mark, or
    nothing but folders and files with the names of a build's: that is what a build leaves that is killed before it
    writes the mark, or after it has removed it.

    Raises:
        BuildError: naming the unknown files.
        FileNotFoundError: if another process has removed the folder.
    """
    kind = folder.lstat().st_mode  # one look at it: another process may remove it
    if not stat.S_ISDIR(kind):
        raise BuildError(f"{folder} is {'a link' if stat.S_ISLNK(kind) else 'a file'}; {_ADVICE}")
    found = entries_of(folder)
    others = [entry.name for entry in found if not _is_known(entry)]
    if others:
        raise BuildError(f"{folder} holds {listed(others)}, which no build made; {_ADVICE}")
    sizes = {entry.name: entry.stat(follow_symlinks=False).st_size for entry in found if entry.name not in _BUILT}
    marked = 0 < sizes.get("lock", 0) <= len(MARK) and MARK.startswith((folder / "lock").read_bytes())
    if marked or has_plan:
        return
    if not sizes.keys() <= {"lock", "workers"} or any(sizes.values()):
        raise BuildError(f"{folder} holds {listed(sorted(sizes))}, and no sign of a build; {_ADVICE}")
    check_only_own(folder)


def check_only_own(folder: Path) -> None:
    """Rejects files in the folders of a build that no build wrote. The caller holds the folder's lock.

    Raises:
        BuildError: naming them.
    """
    others = list(islice((name for name, own in _files(folder) if not own), _SHOWN_OTHERS))
    if others:
        raise BuildError(f"{folder} holds {listed(others)}, which no build made; {_ADVICE}")


def remove_own(folder: Path) -> None:
    """Removes a build's own files from ``notes`` and ``dataset``, and the folders that become empty.

    Raises:
        OSError: if a file system operation fails.
    """
    for name, own in _files(folder):
        if own:
            (folder / name).unlink(missing_ok=True)
    for top in _BUILT:
        for path, _, _ in os.walk(folder / top, topdown=False):
            with suppress(OSError):  # it contains other files
                os.rmdir(path)


def remove_set_aside(folder: Path) -> None:
    """Removes the folders beside a working folder that parts of a build have prepared, or set aside to be removed."""
    leftovers: list[Path] = []
    with suppress(OSError):  # a folder that may not be listed
        leftovers += [path for path in folder.parent.iterdir() if is_partial(path.name, folder.name)]
    for leftover in leftovers:
        with suppress(OSError, BuildError):  # another process is removing it, too, or no build made it
            check_made_by_build(leftover, has_plan=False)
            remove_working_folder(leftover)


def remove_working_folder(folder: Path) -> None:
    """Removes a build's own files and the folder; the plan late, as it tells whose they are, and the lock last.

    Raises:
        OSError: if a file system operation fails.
    """
    leftovers = [path for path in folder.iterdir() if is_leftover(path.name)]
    for path in (*leftovers, folder / "workers", folder / SWAP, folder / VERSION):
        remove(path)
    remove_own(folder)
    for name in (PLAN, "lock"):
        remove(folder / name)
    with suppress(OSError):  # another build may be waiting for its lock
        folder.rmdir()


def is_leftover(name: str) -> bool:
    """Returns whether this is a temporary file that a killed build left when it wrote the plan or the swap."""
    return any(is_partial(name, of) for of in (PLAN, SWAP, VERSION))


def _files(folder: Path) -> Iterator[tuple[str, bool]]:
    """Yields every file and link of a working folder, relative to it, and whether it belongs to a build."""
    for top in _BUILT:
        waiting = [top] if os.path.lexists(folder / top) else []
        while waiting:
            parent = waiting.pop()
            for entry in entries_of(folder / parent):
                name = f"{parent}/{entry.name}"
                if entry.is_dir(follow_symlinks=False):
                    waiting.append(name)
                else:
                    yield name, entry.is_file(follow_symlinks=False) and _OWN.fullmatch(name) is not None


def _is_known(entry: os.DirEntry[str]) -> bool:
    """Returns whether a build creates entries with this name and kind."""
    if entry.name in _FOLDERS:
        return entry.is_dir(follow_symlinks=False)
    return (entry.name in _FILES or is_leftover(entry.name)) and entry.is_file(follow_symlinks=False)
