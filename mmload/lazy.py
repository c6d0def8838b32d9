"""What is made on its first use: names of a package (PEP 562), and properties."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cached_property
from importlib import import_module
from importlib.util import find_spec
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, TypeVar

Value = TypeVar("Value")


def importer(package: str, homes: Mapping[str, str] = MappingProxyType({})) -> Callable[[str], Any]:
    """Makes the ``__getattr__`` of a package, which imports what is asked for.

    Args:
        package: its ``__name__``. Each of its modules is an attribute, as if it had been imported before.
        homes: public name -> module that defines it.
    """

    def imported(name: str) -> Any:
        if name in homes:
            return getattr(import_module(homes[name]), name)
        if not name.startswith("_") and find_spec(f"{package}.{name}") is not None:
            return import_module(f"{package}.{name}")
        raise AttributeError(f"module {package!r} has no attribute {name!r}")

    return imported


class lazy_property(cached_property[Value]):  # noqa: N801  # a decorator
    """Computes a value on first use and stores it in the instance. Threads may compute it twice: it must be pure.

    It has no lock, as ``functools.cached_property`` has before Python 3.12. That lock is shared by all instances of a
    class: threads wait for each other, and a process that is forked while another thread holds it deadlocks.
    """

    if not TYPE_CHECKING:  # its type is that of the other

        def __get__(self, instance: Any, owner: Any = None) -> Any:
            """Returns the value, or the property itself for a class."""
            if instance is None:
                return self
            value = vars(instance)[self.attrname] = self.func(instance)
            return value
