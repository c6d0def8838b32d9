"""Recipes with a value of any kind under any key: a recipe, or a RecipeError."""

from __future__ import annotations

import contextlib
import datetime
import inspect
from pathlib import Path
from typing import Any

import pytest

from mmload.builder.recipe import _settings, from_mapping
from mmload.builder.transforms import TransformChain
from mmload.builder.trust import FILE_KINDS
from mmload.errors import RecipeError
from mmload.sources import _factory_of, make_source
from mmload.sources.decode import Decoder

ODD: list[Any] = [
    *(None, True, 0, -1, 2**70, 1.5, float("nan"), float("inf"), "", "x", "\0", "\ud800", "a/b", [], [[]], [1], [None]),
    *([["x"]], ["x", 1], {}, {"x": 1}, {"x": []}, {"x": {}}, {"": "x"}, {"x": [["y"]]}, {"x": [1]}, [{}], [1.5, "x"]),
    *(datetime.date(2020, 1, 1), datetime.time(1)),
]


@pytest.mark.parametrize("kind", [*FILE_KINDS, "python"])
def test_options_of_sources(kind: str, tmp_path: Path) -> None:
    if kind == "huggingface":
        pytest.importorskip("datasets")
    names = [name for name in inspect.signature(_factory_of(kind)).parameters if name not in ("root", "decoder")]
    for options in [{name: value} for name in [*names, "unknown"] for value in ODD]:
        for base in ({}, {"task": "single-label", "class_map": {"cat": "pet"}}, {"dataset": "a:b"}):
            with contextlib.suppress(RecipeError):
                make_source(kind, tmp_path, Decoder(), {**base, **options})


@pytest.mark.parametrize("file", [False, 0, [], {}])
def test_a_list_that_is_no_path(file: Any, tmp_path: Path) -> None:
    with pytest.raises(RecipeError, match="file is .*; use a path"):
        make_source("list", tmp_path, Decoder(), {"file": file})


@pytest.mark.parametrize("text", ["1" * 5000, "[" * 3000, '1\nother = "x"'])
def test_settings_that_are_no_toml_value_are_text(text: str) -> None:
    assert _settings([f"year={text}"]) == {"year": text}


def test_tables_and_their_keys() -> None:
    whole = {
        "source": {"kind": "voc", "root": "x"},
        "decode": {"mode": "L"},
        "store": {"shard_size": 1},
        "transforms": [],
    }
    tables: list[dict[str, Any]] = [{**whole, key: value} for key in [*whole, "out"] for value in ODD]
    for table, keys in (
        ("source", ("kind", "root")),
        ("decode", ("mode", "exif_orient", "background")),
        ("store", ("shard_size", "shuffle_seed")),
    ):
        tables += [{**whole, table: {**whole[table], key: value}} for key in keys for value in ODD]  # type: ignore[dict-item]
    for body in tables:
        with contextlib.suppress(RecipeError):
            recipe = from_mapping(body)
            Decoder(**recipe.decode)
            TransformChain(recipe.transforms)
            recipe.resolved()


def test_arguments_of_transforms() -> None:
    for name, step in TransformChain.STEPS.items():
        for key in [*step.__struct_fields__, "step", "unknown"]:
            for value in ODD:
                with contextlib.suppress(RecipeError):
                    TransformChain(
                        [{"step": name, "size": 8, key: value} if key != "size" else {"step": name, key: value}]
                    )
