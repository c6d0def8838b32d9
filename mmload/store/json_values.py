"""Checks plain JSON values: each is of the type that is expected, or an error names the file and the key."""

from __future__ import annotations

from collections.abc import Mapping, Set
from typing import Any

from mmload.errors import DamagedError
from mmload.store.manifest_text import shown


class JsonValues:
    """Takes values out of JSON.

    Args:
        path: the file, for messages.
        strict: refuse keys that are not expected.
    """

    def __init__(self, path: str, *, strict: bool = True) -> None:
        self.path, self.strict = path, strict

    def fail(self, where: str, expected: str, got: object) -> DamagedError:
        """The error of a value that is not the expected one."""
        what = f"{where} is {shown(got)}, expected {expected}"
        return DamagedError(f"{self.path} is damaged: {what}; rebuild the dataset")

    def mapping(self, body: object, where: str) -> Mapping[str, Any]:
        """An object."""
        if not isinstance(body, dict):
            raise self.fail(where, "an object", body)
        return body

    def keys(self, body: object, where: str, keys: Set[str]) -> Mapping[str, Any]:
        """An object of these keys."""
        record = self.mapping(body, where)
        if self.strict and record.keys() != keys:
            raise self.fail(where, f"an object of {', '.join(sorted(keys))}", sorted(record))
        return record

    def items(self, body: object, where: str) -> list[Any]:
        """A list."""
        if not isinstance(body, list):
            raise self.fail(where, "a list", body)
        return body

    def count(self, body: object, where: str) -> int:
        """An integer from 0 on."""
        if type(body) is not int or not 0 <= body < 2**62:
            raise self.fail(where, "an integer from 0 on, below 2**62", body)
        return body

    def text(self, body: object, where: str) -> str:
        """A text."""
        if not isinstance(body, str):
            raise self.fail(where, "text", body)
        return body

    def number(self, body: object, where: str) -> float:
        """A number from 0 to 1."""
        if not isinstance(body, int | float) or isinstance(body, bool) or not 0 <= body <= 1:
            raise self.fail(where, "a number from 0 to 1", body)
        return float(body)
