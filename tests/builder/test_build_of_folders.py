"""``mmload.build`` with two folders in place of a recipe."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from conftest import contents

import mmload
from mmload.builder.recipe import BuildRecipe
from mmload.cli.app import app
from mmload.errors import RecipeError, UsageError


def test_build_of_a_folder_stores_squares_of_256_pixels(source: Path, tmp_path: Path) -> None:
    report = mmload.build(str(source), tmp_path / "small")
    assert report.out == tmp_path / "small"
    split = next(iter(mmload.open(report.out).values()))
    assert split.fields["images"].shape == (3, 256, 256)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"size": 24}, "--size 24"),
        ({"size": 24, "shuffle_seed": 3, "shard_size": "9kB", "mode": "L"}, None),
        (
            {"layout": "variable", "size": 20, "encode": "jpeg", "quality": 80, "val_fraction": 0.2, "seed": 1},
            "--layout variable --size 20 --encode jpeg --quality 80 --val-fraction 0.2 --seed 1",
        ),
        ({"size": "24", "setting": {"allow_empty": True}}, "--size 24 --set allow_empty=true"),
    ],
)
def test_build_with_options_by_name_makes_what_the_command_makes(
    source: Path, tmp_path: Path, options: dict[str, Any], words: str | None
) -> None:
    mmload.build(source, tmp_path / "function", **options)
    if words is not None:
        app(["build", "imagefolder", str(source), str(tmp_path / "command"), *words.split()], standalone_mode=False)
        assert contents(tmp_path / "function") == contents(tmp_path / "command")
    else:
        (split,) = mmload.open(tmp_path / "function").values()
        assert (split.fields["images"].shape, len(split.record.shards)) == ((1, 24, 24), 1)


def test_build_with_a_recipe_file_and_another_kind(source: Path, tmp_path: Path) -> None:
    (tmp_path / "recipe.toml").write_text(
        f'out = "{tmp_path / "a"}"\n[source]\nkind = "imagefolder"\nroot = "{source}"\n'
    )
    with pytest.raises(RecipeError, match="every row has one shape"):
        mmload.build(source, config=tmp_path / "recipe.toml", processes=1)
    with pytest.raises(RecipeError, match="unknown source kind 'imagefoldr'"):
        mmload.build(source, tmp_path / "b", kind="imagefoldr")


@pytest.mark.parametrize(
    ("options", "enlarged"),
    [({"size": 300}, True), ({"size": 8}, False), ({"size": 300, "layout": "variable"}, False)],
)
def test_build_says_what_it_writes_and_that_it_enlarges(
    source: Path, tmp_path: Path, options: dict[str, Any], enlarged: bool
) -> None:
    notes: list[str] = []
    built = mmload.build(source, tmp_path / "out", on_note=notes.append, **options)
    assert notes[0].startswith("writes ")
    assert notes[0].endswith(f"iB in 1 shard to {built.out}")
    assert ["15 of 15 images that were tried are enlarged to --size 300" in note for note in notes[1:]] == [
        True
    ] * enlarged
    assert mmload.build(source, tmp_path / "out", on_note=notes.append, **options).built == 0
    assert len(notes) == 1 + enlarged


def test_build_with_an_unknown_option_says_which_it_may_be(source: Path, tmp_path: Path) -> None:
    with pytest.raises(TypeError, match=r"unexpected keyword argument 'sise'\. Did you mean size\?"):
        mmload.build(source, tmp_path / "out", sise=24)


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
