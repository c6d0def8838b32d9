"""The destination of a build: what is there, which files are a dataset's own, and their removal.

A dataset's own files are those listed in its manifest. No other file is ever removed.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from mmload.builder.recipe import canonical, unlike
from mmload.builder.shards import UPDATES
from mmload.errors import BuildError, StoreError, UsageError, counted
from mmload.remote.urls import Location, check_no_url
from mmload.runtime.durable_files import is_partial
from mmload.runtime.regular_files import is_same, is_within
from mmload.store.dataset_folder import dataset_files, first_link
from mmload.store.manifest import FILE_NAME, Manifest, read
from mmload.store.manifest_text import VERSIONS
from mmload.store.unfinished import is_staging_folder, staging_folder
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
