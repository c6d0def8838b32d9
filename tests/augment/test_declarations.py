"""A step's class declares it: its arguments are attributes, its repr makes it again, the documents list it."""

from __future__ import annotations

import inspect
import re
from pathlib import Path

import pytest
from every_step import PUBLIC_STEPS, STEPS
from torch import nn

from mmload import augment
from mmload.augment.step import arguments_of

PAGE = (Path(__file__).parents[2] / "docs" / "augment.md").read_text(encoding="utf-8")
TABLE = "\n".join(line for line in PAGE.splitlines() if line.startswith("|"))
MADE = {name: make() for name, make in STEPS.items()}


@pytest.mark.parametrize("name", MADE)
def test_every_argument_is_an_attribute(name: str) -> None:
    parameters = set(inspect.signature(type(MADE[name])).parameters) - {"expand"}  # which RandomRotation refuses
    assert arguments_of(MADE[name]).keys() == parameters


@pytest.mark.parametrize("name", [name for name, step in MADE.items() if not list(step.children())])
def test_the_repr_of_a_step_makes_it_again(name: str) -> None:
    step: nn.Module = eval(repr(MADE[name]), vars(augment))
    assert type(step) is type(MADE[name])
    assert repr(step) == repr(MADE[name])


def test_the_table_of_the_documents_has_every_step_with_its_arguments() -> None:
    for name in PUBLIC_STEPS:
        found = re.findall(rf"`{name}(?:\(([^`]*)\))?`", TABLE)
        assert found, name
        flat = [re.sub(r"\([^()]*\)|\[.*\]|\.\.\.", "", arguments) for arguments in found]  # without values
        words = {word for arguments in flat for word in re.findall(r"(\w+)=?(?:,|$)", arguments)}
        assert words <= set(inspect.signature(getattr(augment, name)).parameters), name
