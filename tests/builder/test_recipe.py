"""A recipe's file and its words, right and wrong."""

from __future__ import annotations

import json
import pickle
from dataclasses import FrozenInstanceError, replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mmload.builder.recipe import BuildRecipe, from_mapping, load, square
from mmload.errors import RecipeError, parse_bytes

SOURCE = {"source": {"kind": "imagefolder"}}


@pytest.mark.parametrize(
    ("text", "size"),
    [
        (1, 1),
        ("4096", 4096),
        ("1GiB", 2**30),
        ("1 gib", 2**30),
        (" 500 MB ", 500_000_000),
        ("1.5KiB", 1536),
        ("0.001kb", 1),
        ("7B", 7),
        ("9007199254740993", 9007199254740993),
    ],
)
def test_sizes(text: str | int, size: int) -> None:
    assert parse_bytes(text) == size


WRONG = ("", "GiB", "-1", "1e9", "1 TiB", "1,5GB", ".5GB", "9" * 5000, True, 1.5, None, [1], 0, -3, "0", "0.1B")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        *((text, "size") for text in WRONG),
        *((text, "less than 4 EiB") for text in ("9" * 30 + "GiB", 2**62)),
        pytest.param(10**5000, "less than 4 EiB", id="long"),
    ],
)
def test_wrong_sizes_are_refused(text: object, message: str) -> None:
    with pytest.raises(RecipeError, match=message):
        parse_bytes(text)


@given(st.integers(1, 2**61))
def test_parse_bytes_of_an_integer_is_exact(size: int) -> None:
    assert parse_bytes(size) == parse_bytes(str(size)) == size


def test_recipe_file_with_all_tables_is_read(tmp_path: Path) -> None:
    file = tmp_path / "recipe.toml"
    file.write_text("""
        out = "~/dataset"
        [source]
        kind = "imagefolder"
        root = "photos"
        val_fraction = 0.1
        [decode]
        background = [1, 2, 3]
        [[transforms]]
        step = "Resize"
        size = 64
        [store]
        shard_size = "2MiB"
        shuffle_seed = 7
    """)
    recipe = load(file)
    assert recipe.out == Path.home() / "dataset"
    assert (recipe.kind, recipe.root, recipe.options) == ("imagefolder", Path("photos"), {"val_fraction": 0.1})
    assert recipe.decode == {"mode": "RGB", "exif_orient": False, "background": [1, 2, 3]}
    assert recipe.transforms == ({"step": "Resize", "size": 64},)
    assert (recipe.shard_bytes, recipe.shuffle_seed) == (2**21, 7)
    kept = recipe.resolved()
    assert "photos" not in json.dumps(kept)
    assert from_mapping(kept).resolved() == kept


@given(
    size=st.integers(1, 999),
    shard=st.integers(1, 2**40),
    seed=st.none() | st.integers(0, 2**63 - 1),
    gray=st.booleans(),
)
def test_a_resolved_recipe_comes_back(size: int, shard: int, seed: int | None, gray: bool) -> None:
    recipe = BuildRecipe(
        kind="voc",
        options={"task": "detection", "year": ["2007", "2012"]},
        decode={"mode": "L" if gray else "RGB"},
        transforms=square(size),
        shard_bytes=shard,
        shuffle_seed=seed,
    )
    kept = recipe.resolved()
    assert from_mapping(json.loads(json.dumps(kept))).resolved() == kept


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ({}, "kind is None; use the kind of a source"),
        ({"source": {"kind": 3}}, "kind is 3"),
        ({"source": []}, r"\[source\] is \[\]; use a table"),
        ({**SOURCE, "sink": {}}, "no key 'sink'; it has decode, exclude, out, source, store, transforms"),
        (
            {**SOURCE, "decode": {"dct": 1}},
            r"\[decode\] has no key 'dct'; it has background, exif_orient, mode",
        ),
        ({**SOURCE, "decode": "RGB"}, r"\[decode\] is 'RGB'"),
        ({**SOURCE, "store": {"shards": 1}}, r"\[store\] has no key 'shards'; it has encode, layout, quality"),
        ({**SOURCE, "store": {"layout": ["square"]}}, r"layout is \['square'\]; use 'variable'"),
        ({**SOURCE, "store": {"layout": "variable", "encode": ["raw"]}}, r"encode is \['raw'\]; use one of"),
        ({**SOURCE, "store": {"shard_size": "big"}}, "shard_size is 'big'"),
        ({**SOURCE, "store": {"shard_size": 0}}, "shard_size has to be at least one byte"),
        ({**SOURCE, "store": {"shuffle_seed": -1}}, "shuffle_seed is -1"),
        ({**SOURCE, "store": {"shuffle_seed": True}}, "shuffle_seed is True"),
        ({**SOURCE, "store": {"shuffle_seed": 2**63}}, "shuffle_seed is"),
        ({**SOURCE, "transforms": {}}, "transforms is .*; use .* a list of tables"),
        ({**SOURCE, "transforms": ["Resize"]}, "transforms is .*; use .* a list of tables"),
        ({**SOURCE, "out": 3}, "out is 3; use a path"),
        ({**SOURCE, "out": "a\0b"}, "out is 'a.x00b'; use a path"),
        ({"source": {"kind": "voc", "root": ""}}, r"\[source\] root is ''; use a path"),
    ],
)
def test_wrong_keys_and_values_are_named(body: dict[str, object], message: str) -> None:
    with pytest.raises(RecipeError, match=message):
        from_mapping(body)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (b"\xff\xfe", "is not TOML"),
        (b"kind = ", "is not TOML"),
        (b"a = 1\na = 2", "is not TOML"),
        (b"a = " + b"[" * 50_000, "is not TOML"),
        (b"[source]\nkind = 1", r"recipe\.toml: \[source\] kind is 1"),
        (None, "cannot read the recipe .*No such file"),
    ],
    ids=["encoding", "no value", "a key twice", "depth", "kind", "no file"],
)
def test_a_file_that_is_no_recipe_is_refused(tmp_path: Path, text: bytes | None, message: str) -> None:
    if text is not None:
        (tmp_path / "recipe.toml").write_bytes(text)
    with pytest.raises(RecipeError, match=message):
        load(tmp_path / "recipe.toml")


def test_a_folder_is_no_recipe(tmp_path: Path) -> None:
    with pytest.raises(RecipeError, match="cannot read the recipe"):
        load(tmp_path)


def test_a_recipe_with_a_byte_order_mark_is_read(tmp_path: Path) -> None:
    (tmp_path / "recipe.toml").write_bytes(b'\xef\xbb\xbf[source]\r\nkind = "imagefolder"\r\n')
    assert load(tmp_path / "recipe.toml").kind == "imagefolder"


@pytest.mark.parametrize("value", [float("nan"), float("inf"), object(), {1, 2}])
def test_options_that_json_cannot_hold(value: object) -> None:
    with pytest.raises(RecipeError, match="a value that JSON cannot represent"):
        BuildRecipe(kind="python", options={"x": value}).resolved()


def test_the_recipes_that_come_along_are_right() -> None:
    files = sorted((Path(__file__).parents[2] / "configs").glob("*.toml"))
    assert len(files) >= 10
    for file in files:
        kept = load(file).resolved()
        assert from_mapping(kept).resolved() == kept


def test_a_file_that_is_too_long_for_a_recipe_is_not_read_to_its_end(tmp_path: Path) -> None:
    endless = tmp_path / "recipe.toml"
    with open(endless, "wb") as file:
        file.truncate(2**40)  # a hole: to read all of it would take memory for it
    with pytest.raises(RecipeError, match=r"recipe\.toml \(it has .* bytes, at most 1,048,576 are read\)"):
        load(endless)


def test_paths_are_taken_as_text_and_are_paths_from_then_on() -> None:
    made = BuildRecipe(kind="imagefolder", root="photos", out=Path("x"))
    assert (made.root, made.out) == (Path("photos"), Path("x"))
    assert replace(made, out="y").out == Path("y")
    assert replace(made, root=None).root is BuildRecipe(kind="imagefolder").root is None
    assert pickle.loads(pickle.dumps(made)) == made == BuildRecipe(kind="imagefolder", root=Path("photos"), out="x")
    assert made != replace(made, root="other")
    with pytest.raises(FrozenInstanceError):
        made.root = "other"  # type: ignore[misc]
    with pytest.raises(RecipeError, match="root is 3; use a path"):
        BuildRecipe(kind="imagefolder", root=3)  # type: ignore[arg-type]
