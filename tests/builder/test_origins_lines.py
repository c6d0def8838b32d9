"""Lines of ``origins.jsonl``: read again as they were written, whatever bytes a file's name has."""

from __future__ import annotations

import pytest

from mmload.builder.previous_version import origin_now, parsed_lines
from mmload.builder.shards import SampleOrigin, origins_lines
from mmload.errors import DamagedError


@pytest.mark.parametrize("revision", ["3 1200 @1700000000000000000", "été.png 1", "\udcff.png 1", 'a"\\\n 1'])
def test_lines_of_origins_are_read_as_they_were_written(revision: str) -> None:
    origins = [
        SampleOrigin(revision=revision, checksum="0f", sums=[2**40], squares=[2**50], pixels=9, losses={"clip": 2}),
        SampleOrigin(revision=revision),
    ]
    lines = origins_lines(origins)
    assert parsed_lines(lines.splitlines(), SampleOrigin) == origins
    assert lines.count(b"\n") == len(origins)


@pytest.mark.parametrize("line", [b'{"revision": 3}', b"none", b'{"checksum": ""}'])
def test_a_line_that_is_no_origin_is_rejected(line):
    message = "a line that is no object of the keys checksum, .*revision.*; build the dataset again"
    with pytest.raises(DamagedError, match=message):
        parsed_lines([origins_lines([SampleOrigin(revision="a")]), line], SampleOrigin)


@pytest.mark.parametrize(
    ("stored", "now", "kept"),
    [
        ("0 10 @1700000000000000000", "0 10 @1700000000000000000", True),
        ("0 10 @1700000000000000000", "0 10 @1800000000000000000", True),  # of equal content
        ("0 10 1700000000000000000", "0 10 1800000000000000000", False),
        ("0 10 1700000000000000000", "0 10 @1700000000000000000", False),  # times of earlier datasets have no mark
    ],
)
def test_only_marked_words_of_a_revision_are_times(stored, now, kept):
    class OneFile:
        classes = ()
        __len__ = lambda self: 1  # noqa: E731
        id = lambda self, index: "a"  # noqa: E731
        revision = lambda self, index: now  # noqa: E731
        checksum = lambda self, index: "0f"  # noqa: E731
        read = None

    before = SampleOrigin(revision=stored, checksum="0f")
    assert (origin_now(OneFile(), 0, before, 2 * 10**18, False) is not None) == kept
