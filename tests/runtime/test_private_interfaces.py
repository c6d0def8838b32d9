"""Private interfaces of numba: one module uses them, and a bound on its version is there."""

from __future__ import annotations

import re
import tomllib
from importlib.metadata import version
from pathlib import Path

from packaging.requirements import Requirement

import mmload

PACKAGE = Path(mmload.__file__).parent


def test_only_the_intrinsics_use_private_interfaces() -> None:
    private = re.compile(r"^\s*(from|import) (numba\.(core|np|cpython|extending)|llvmlite import .*\bir\b)", re.M)
    assert [file.name for file in PACKAGE.rglob("*.py") if private.search(file.read_text())] == ["numba_intrinsics.py"]


def test_numba_has_an_upper_bound_that_the_installed_version_satisfies() -> None:
    project = tomllib.loads((PACKAGE.parent / "pyproject.toml").read_text())
    [extra] = map(Requirement, project["project"]["optional-dependencies"]["compile"])
    assert {bound.operator for bound in extra.specifier} == {">=", "<"}
    assert version(extra.name) in extra.specifier
    assert str(extra) in [str(Requirement(need)) for need in project["build-system"]["requires"]]
