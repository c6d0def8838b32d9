"""What another command does in the middle of this one."""

from __future__ import annotations

from collections.abc import Callable

import pytest


def once(
    monkeypatch: pytest.MonkeyPatch,
    where: object,
    name: str,
    *,
    before: Callable[[], object] | None = None,
    after: Callable[[], object] | None = None,
) -> None:
    """Does something before or after the next call of a function."""
    real = getattr(where, name)

    def called(*words: object, **more: object) -> object:
        monkeypatch.setattr(where, name, real)
        if before is not None:
            before()
        result = real(*words, **more)
        if after is not None:
            after()
        return result

    monkeypatch.setattr(where, name, called)
