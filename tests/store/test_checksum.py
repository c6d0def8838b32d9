"""The checksum is zlib's, whoever makes it."""

from __future__ import annotations

import importlib
import sys
import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mmload.store import checksum


@given(st.lists(st.binary(max_size=5000), max_size=4))
def test_it_is_zlibs_and_goes_on(parts: list[bytes]) -> None:
    crc = 0
    for part in parts:
        crc = checksum.crc32(memoryview(part), crc)
    assert crc == zlib.crc32(b"".join(parts))


def test_without_isal_it_is_zlib_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "isal.isal_zlib", None)
    try:
        assert importlib.reload(checksum).crc32 is zlib.crc32
    finally:
        monkeypatch.undo()
        importlib.reload(checksum)
