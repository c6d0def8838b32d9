"""Options of a build are declared once: the command, recipe files, the functions and the page's recipe agree."""

from __future__ import annotations

import tomllib
from dataclasses import FrozenInstanceError, fields
from inspect import signature
from pathlib import Path

import pytest

from mmload.builder.pipeline import build, build_part
from mmload.builder.recipe import BuildOptions, declarations, from_mapping, recipe_keys
from mmload.cli import build as command
from mmload.errors import UsageError

PAGE = Path(__file__).parents[2] / "docs" / "recipes.md"


def test_the_recipe_on_the_page_has_every_key() -> None:
    page = PAGE.read_text(encoding="utf-8")
    indented = page[page.index('    out = "DATASET"') : page.index("## Transforms")]
    text = indented.replace("# raw_share", "raw_share").replace('encode = "jpeg"', 'encode = "mixed"')
    body = tomllib.loads(text)
    assert body["decode"].keys() == set(recipe_keys("decode"))
    assert body["store"].keys() == set(recipe_keys("store"))
    assert from_mapping(body).variable_layout is not None


def test_the_command_has_every_option_with_its_default() -> None:
    on_the_page = {name for name, its in declarations(BuildOptions).items() if its.flag or not its.table}
    taken = signature(command.build).parameters
    assert taken.keys() == on_the_page
    assert BuildOptions(**{name: parameter.default for name, parameter in taken.items()}) == BuildOptions()


@pytest.mark.parametrize("function", [build, build_part])
def test_arguments_of_functions_have_the_defaults_of_the_options(function: object) -> None:
    defaults = {option.name: option.default for option in fields(BuildOptions)}
    arguments = signature(function).parameters  # type: ignore[arg-type]
    shared = defaults.keys() & arguments.keys() - {"part", "engine"}
    assert shared >= {"on_error", "max_errors", "exclude", "threads", "processes"}
    assert {name: arguments[name].default for name in shared} == {name: defaults[name] for name in shared}


def test_options_that_are_given_are_the_keys_of_their_tables() -> None:
    options = BuildOptions(seed=0, task="detection", exif_orient=True, shard_size="1MiB")
    assert options.table("source") == {"seed": 0, "task": "detection"}
    assert options.table("decode") == {"exif_orient": True}
    assert options.table("store") == {"shard_size": "1MiB"}
    with pytest.raises(FrozenInstanceError):
        options.seed = 1  # type: ignore[misc]


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (
            {"config": Path("a.toml"), "raw_share": 0.5},
            "--raw-share and --config are both given; leave --raw-share out and set it in a.toml",
        ),
        ({"advise": True, "encode": "jpeg"}, "--advise compares all layouts, and --encode is given"),
        ({"part": "1/2", "commit": True}, "--part and --commit are both given"),
        ({"commit": True, "overwrite": True}, "--overwrite with --part or --commit"),
        ({"address": "a:1"}, "--address names a Ray cluster"),
        ({"engine": "ray", "commit": True}, "--part and --commit build without a cluster"),
        ({"engine": "ray", "processes": 2}, "--processes builds without a cluster"),
    ],
)
def test_options_options_that_exclude_each_other_are_refused(given: dict[str, object], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        BuildOptions(**given)  # type: ignore[arg-type]
