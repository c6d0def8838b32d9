"""A step's class declares it: its arguments are attributes, its repr makes it again, the documents list it."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import Any

import pytest
from every_step import STEPS
from torch import nn
from torchvision.transforms import v2

from mmload import augment
from mmload.augment.step import DeclaredStep, arguments_of

PAGE = (Path(__file__).parents[2] / "docs" / "augment.md").read_text(encoding="utf-8")
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


def row_of(kind: Any) -> str:
    """The row of a step in the table: what torchvision has of its name, and what is the same or else."""
    name, ours = kind.__name__, list(inspect.signature(kind).parameters)
    described = " ".join(kind.__doc__.split("\n\n")[0].split()).replace("``", "`")
    if not hasattr(v2, name):
        return f"| none | `{name}({', '.join(ours)})`: {described} |"
    known = inspect.signature(getattr(v2, name)).parameters
    more = ", ".join(f"`{argument}`" for argument in ours if argument not in known)
    same = f"the same, with {more}" if more else "the same"
    shared = ", ".join(argument for argument in ours if argument in known)
    return f"| `{name}({shared})` | {same if kind.is_drop_in else described} |"


def test_the_table_of_the_documents_is_what_the_steps_declare() -> None:
    declared = [kind for kind in vars(augment).values() if isinstance(kind, type) and issubclass(kind, DeclaredStep)]
    missing = {row_of(kind) for kind in declared if kind is not augment.PerSample} - set(PAGE.splitlines())
    assert not missing, "\n".join(sorted(missing))
