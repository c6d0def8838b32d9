"""The pause of the garbage collector ends, and changes nothing for who has it off."""

from __future__ import annotations

import gc

import pytest

from mmload.runtime.paused_collector import paused_collector


def test_it_is_on_again_after_an_error() -> None:
    @paused_collector()
    def fail() -> None:
        raise KeyError(gc.isenabled())

    with pytest.raises(KeyError, match="False"):
        fail()
    assert gc.isenabled()


def test_who_has_it_off_finds_it_off() -> None:
    gc.disable()
    try:
        with paused_collector():
            pass
        assert not gc.isenabled()
    finally:
        gc.enable()
