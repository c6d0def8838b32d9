"""Ways in which another dataset takes the place of one that is being read, for the fuzz of loading."""

from __future__ import annotations

import shutil
from pathlib import Path

HOW = ("rename", "remove and copy", "copy into", "manifest last", "shards alone")


def take_the_place(path: Path, other: Path, how: str) -> None:
    """Put ``other`` where ``path`` is, as users do."""
    match how:
        case "rename":
            new = Path(shutil.copytree(other, path.with_name("new")))
            path.rename(path.with_name("old"))
            new.rename(path)
        case "remove and copy":
            shutil.rmtree(path)
            shutil.copytree(other, path)
        case "copy into":
            shutil.copytree(other, path, dirs_exist_ok=True)
        case "manifest last":
            shutil.copytree(other / "train", path / "train", dirs_exist_ok=True)
            shutil.copy(other / "dataset.json", path)
        case "shards alone":
            shutil.copytree(other / "train", path / "train", dirs_exist_ok=True)
