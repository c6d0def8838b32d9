"""Finds the folders and lists of a VOCdevkit: its years, the lists of a split, and the images of a list.

It opens no image and no XML.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from mmload.errors import SourceError
from mmload.runtime.regular_files import read_regular


def read_list(path: Path) -> list[str]:
    """The image names in a list of ImageSets. Of a class's list (``name 1``, ``name -1``) those that have the class.

    Raises:
        SourceError: if it cannot be read, or a line in it is no plain name.
    """
    try:
        lines = read_regular(path).decode("utf-8").splitlines()
    except OSError as error:
        lists = sorted(other.stem for other in path.parent.glob("*.txt"))
        raise SourceError(f"cannot read the list {path} ({error.strerror}); there are {', '.join(lists)}") from error
    except UnicodeDecodeError as error:
        raise SourceError(f"the list {path} is not UTF-8 text") from error
    listed = (_listed_name(line, f"{path}, line {number}") for number, line in enumerate(lines, 1))
    return [name for name in listed if name]


def _listed_name(line: str, where: str) -> str:
    """The image name in a line of a list, "" if there is none or the image does not have the list's class."""
    name, *flag = line.split() or [""]
    if len(flag) > 1 or (flag and flag[0] not in ("-1", "0", "1")):
        raise SourceError(f"{where}: {line[:60]!r} is no image name")
    if name and not is_stem(name):
        raise SourceError(f"{where}: {name[:60]!r} is no plain file name")
    return name if flag in ([], ["1"]) else ""


def is_stem(name: str) -> bool:
    """Whether this is a file name without a folder."""
    return not set(name) & set("/\\\0") and name not in ("", ".", "..")


def find_years(root: Path) -> tuple[Path, dict[str, str]]:
    """The folder that holds the year folders, and year -> folder name."""
    if _is_year(root):
        resolved = root.resolve()
        return resolved.parent, {resolved.name.removeprefix("VOC"): resolved.name}
    for devkit in (root, root / "VOCdevkit", root / "TrainVal" / "VOCdevkit"):
        if devkit.is_dir():
            names = sorted(folder.name for folder in devkit.iterdir() if _is_year(folder))
            if names:
                return devkit, {name.removeprefix("VOC"): name for name in names}
    return root / "VOCdevkit", {}


def _is_year(folder: Path) -> bool:
    return (folder / "JPEGImages").is_dir() and (folder / "ImageSets").is_dir()


def default_sets(folders: list[Path], lists: str) -> dict[str, list[str]]:
    """Split -> ``year/list`` entries: train, val and test as far as they are there, else trainval as train."""

    def having(name: str) -> list[str]:
        there = [folder for folder in folders if (folder / "ImageSets" / lists / f"{name}.txt").is_file()]
        return [f"{folder.name.removeprefix('VOC')}/{name}" for folder in there]

    sets = {name: having(name) for name in ("train", "val", "test") if having(name)}
    if sets:
        return sets
    if having("trainval"):
        return {"train": having("trainval")}
    raise SourceError(
        f"{folders[0] / 'ImageSets' / lists} has none of train.txt, val.txt, test.txt, trainval.txt; give image_set"
    )


def located(entries: Sequence[str], chosen: list[str], years: Mapping[str, str]) -> list[tuple[str, str]]:
    """(year folder, list) of each entry, which is ``year/list``, or ``list`` for every chosen year."""
    found = []
    for entry in entries:
        only, _, name = entry.rpartition("/")
        if only and only not in years:
            raise SourceError(f"image_set {entry!r}: there is no year {only!r}; there are {', '.join(years)}")
        found += [(years[year], name) for year in ([only] if only else chosen)]
    return found
