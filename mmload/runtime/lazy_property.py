"""A property that is computed lazily and once, without the lock of ``functools.cached_property`` before Python 3.12.

That lock is shared by all instances of a class: threads wait for each other, and a process that is forked while another
thread holds it deadlocks.
"""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING, Any, TypeVar

Value = TypeVar("Value")


class lazy_property(cached_property[Value]):  # noqa: N801  # a decorator
    """Computes a value on first use and stores it in the instance. Threads may compute it twice: it must be pure."""

    if not TYPE_CHECKING:  # its type is that of the other

        def __get__(self, instance: Any, owner: Any = None) -> Any:
            """Returns the value, or the property itself for a class."""
            if instance is None:
                return self
            value = vars(instance)[self.attrname] = self.func(instance)
            return value
