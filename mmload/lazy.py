"""Names of a package that are imported on their first use (PEP 562)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib import import_module
from importlib.util import find_spec
from typing import Any


def importer(package: str, homes: Mapping[str, str] | None = None) -> Callable[[str], Any]:
    """Makes the ``__getattr__`` of a package, which imports what is asked for.

    Args:
        package: its ``__name__``. Each of its modules is an attribute, as if it had been imported before.
        homes: public name -> module that defines it.
    """

    def imported(name: str) -> Any:
        if homes and name in homes:
            return getattr(import_module(homes[name]), name)
        if not name.startswith("_") and find_spec(f"{package}.{name}") is not None:
            return import_module(f"{package}.{name}")
        raise AttributeError(f"module {package!r} has no attribute {name!r}")

    return imported
