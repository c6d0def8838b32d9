"""Lines of ``origins.jsonl``: read again as they were written, whatever bytes a file's name has."""

from __future__ import annotations

import pytest

from mmload.builder.origins import SampleOrigin, origins_lines, parsed_origins


@pytest.mark.parametrize("revision", ["3 1200 1700000000000000000", "été.png 1", "\udcff.png 1", 'a"\\\n 1'])
def test_lines_of_origins_are_read_as_they_were_written(revision: str) -> None:
    origins = [
        SampleOrigin(revision=revision, checksum="0f", sums=[2**40], squares=[2**50], pixels=9, losses={"clip": 2}),
        SampleOrigin(revision=revision),
    ]
    lines = origins_lines(origins)
    assert parsed_origins(lines) == origins
    assert lines.count(b"\n") == len(origins)
