"""The changes in examples/clients, and the script that applies them."""

from __future__ import annotations

import tomllib
from functools import cache
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import Any

CLIENTS = Path(__file__).parents[2] / "examples" / "clients"


def path_of(name: str) -> Path:
    """The file of a change."""
    return CLIENTS / f"{name}.toml"


def change_of(name: str) -> dict[str, Any]:
    """A change by its name."""
    return tomllib.loads(path_of(name).read_text(encoding="utf-8"))


@cache
def apply() -> ModuleType:
    """``change.py`` as a module."""
    spec = spec_from_file_location("change", CLIENTS / "change.py")
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
