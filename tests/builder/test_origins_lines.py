"""Lines of ``origins.jsonl``: read again as they were written, whatever bytes a file's name has."""

from __future__ import annotations

import msgspec
import pytest

from mmload.builder.origins import SampleOrigin, origins_lines, parsed_origins, read_lists
from mmload.errors import DamagedError
from mmload.store.checksum import crc32
from mmload.store.manifest import read
from mmload.store.shard_table import FileRecord


@pytest.mark.parametrize("revision", ["3 1200 1700000000000000000", "été.png 1", "\udcff.png 1", 'a"\\\n 1'])
def test_lines_of_origins_are_read_as_they_were_written(revision: str) -> None:
    origins = [
        SampleOrigin(revision=revision, checksum="0f", sums=[2**40], squares=[2**50], pixels=9, losses={"clip": 2}),
        SampleOrigin(revision=revision),
    ]
    lines = origins_lines(origins)
    assert parsed_origins(lines) == origins
    assert lines.count(b"\n") == len(origins)


@pytest.mark.parametrize("line", [b'{"revision": 3}', b"none", b'{"checksum": ""}'])
def test_a_line_that_is_no_origin_is_named(out, line):
    file = out / "train" / "origins.jsonl"
    lines = file.read_bytes().split(b"\n")
    lines[2] = line
    file.write_bytes(b"\n".join(lines))
    written = FileRecord(bytes=file.stat().st_size, crc32=f"{crc32(file.read_bytes()):08x}")
    record = msgspec.structs.replace(read(out).splits["train"], origins=written)
    message = r"origins\.jsonl, line 3 is not an object of the keys checksum, .*revision.*; build the dataset again"
    with pytest.raises(DamagedError, match=message):
        read_lists(out, "train", record)
