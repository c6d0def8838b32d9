"""``mmload.build`` with two folders in place of a recipe."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import mmload
from mmload.builder.recipe import BuildRecipe
from mmload.errors import UsageError


def test_build_of_a_folder_stores_squares_of_256_pixels(source: Path, tmp_path: Path) -> None:
    report = mmload.build(str(source), tmp_path / "small")
    assert report.out == tmp_path / "small"
    split = next(iter(mmload.open(report.out).values()))
    assert split.fields["images"].shape == (3, 256, 256)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("photos",), r"build got 'photos'; give a BuildRecipe, or two folders, as in build\('photos', 'photos-256'\)"),
        ((3, "out"), "build got 3; give a BuildRecipe"),
        ((BuildRecipe(kind="imagefolder", root=Path("a"), out=Path("b"), transforms=()), "c"), "out is 'c', and the"),
    ],
)
def test_build_of_something_else_says_how(arguments: tuple[Any, ...], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        mmload.build(*arguments)
