"""Quiet blocks of several threads leave the filters as they were."""

from __future__ import annotations

import threading
import warnings

import pytest

from mmload.sources.decode import pillow_guarded


def test_warnings_inside_are_ignored_and_those_after_are_not() -> None:
    with pillow_guarded:
        warnings.warn("inside", stacklevel=1)
    with pytest.warns(UserWarning, match="after"):
        warnings.warn("after", stacklevel=1)


def test_blocks_that_overlap_put_back_what_was_there() -> None:
    before = list(warnings.filters)
    first, second = threading.Event(), threading.Event()

    def enters_first() -> None:
        with pillow_guarded:
            first.set()
            second.wait(10)

    def leaves_last() -> None:
        first.wait(10)
        with pillow_guarded:
            second.set()
            thread.join(10)
            warnings.warn("the other has left", stacklevel=1)

    thread = threading.Thread(target=enters_first)
    thread.start()
    leaves_last()
    assert warnings.filters == before


def test_an_exception_leaves_too() -> None:
    before = list(warnings.filters)
    with pytest.raises(ValueError, match="inside"), pillow_guarded:
        raise ValueError("inside")
    assert warnings.filters == before
