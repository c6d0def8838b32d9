"""What comes in the middle of a command: Ctrl-C, a kill, another command."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from mmload.builder.engines import LocalEngine


class Killed(BaseException):
    """Stands for SIGKILL: nothing of the package catches it."""


@contextmanager
def dying_at(where: object, name: str, error: type[BaseException] = Killed) -> Iterator[None]:
    """Expects that what is done here calls a function and dies of that."""

    def die(*_: object, **__: object) -> None:
        raise error

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(where, name, die)
        with pytest.raises(error):
            yield


def interrupt_after(samples: int) -> Callable[[int, int], None]:
    """Returns a progress function that interrupts when so many samples are done."""

    def interrupt(done: int, total: int) -> None:
        if done >= samples:
            raise KeyboardInterrupt

    return interrupt


def interrupted(work: Callable[..., object], *given: object, after: int, **more: object) -> None:
    """Builds or updates until Ctrl-C comes after so many samples; finished shards stay."""
    with pytest.raises(KeyboardInterrupt):
        work(*given, progress=interrupt_after(after), engine=LocalEngine(threads=1, processes=1), **more)


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
