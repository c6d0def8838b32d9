"""A property that is computed lazily and once, without the lock of ``functools.cached_property`` before Python 3.12.

That lock is shared by all instances of a class: threads wait for each other, and a process that is forked while another
thread holds it deadlocks.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Generic, TypeVar, overload

Value = TypeVar("Value")


class lazy_property(Generic[Value]):  # noqa: N801  # a decorator
    """Computes a value on first use and stores it in the instance. Threads may compute it twice: it must be pure."""

    def __init__(self, compute: Callable[[Any], Value]) -> None:
        self._compute = compute
        self.__doc__ = compute.__doc__

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    @overload
    def __get__(self, instance: None, owner: type) -> lazy_property[Value]: ...

    @overload
    def __get__(self, instance: object, owner: type) -> Value: ...

    def __get__(self, instance: object, owner: type) -> lazy_property[Value] | Value:
        if instance is None:
            return self
        value = self._compute(instance)
        vars(instance)[self._name] = value
        return value
