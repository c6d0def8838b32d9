from __future__ import annotations

import zlib

from hypothesis import given
from hypothesis import strategies as st

from mmload.store.joined_checksums import joined_checksum


@given(st.lists(st.binary(max_size=300), max_size=6))
def test_it_is_the_checksum_of_all_parts_together(parts: list[bytes]) -> None:
    assert joined_checksum([(zlib.crc32(part), len(part)) for part in parts]) == zlib.crc32(b"".join(parts))
