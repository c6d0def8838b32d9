"""Only regular files are opened: anything else is an OSError at once, never a wait."""

from __future__ import annotations

import gc
import os
import socket
from pathlib import Path

import pytest

from mmload.runtime.files import open_regular, read_regular


def test_a_regular_file_and_a_link_to_one_are_read(tmp_path: Path) -> None:
    file = tmp_path / "a"
    file.write_bytes(b"x\r\ny" * 1000)
    (tmp_path / "link").symlink_to(file)
    assert read_regular(file) == read_regular(tmp_path / "link") == file.read_bytes()


def test_it_serves_pythons_open_also_for_writing(tmp_path: Path) -> None:
    with open(tmp_path / "a", "ab", opener=open_regular) as file:
        file.write(b"x")
        assert not os.get_inheritable(file.fileno())
    with open(tmp_path / "a", encoding="utf-8", opener=open_regular) as file:
        assert file.read() == "x"
    assert not (tmp_path / "a").stat().st_mode & 0o111


@pytest.mark.parametrize(
    ("name", "error", "message"),
    [
        ("nothing", FileNotFoundError, "No such file"),
        (".", IsADirectoryError, "Is a directory"),
        ("pipe", OSError, "it is a FIFO, not a regular file"),
        ("socket", OSError, "a socket.* not a regular file"),
        ("/dev/zero", OSError, "it is a device, not a regular file"),
    ],
)
def test_what_is_no_regular_file_is_an_error_at_once_and_leaves_no_descriptor(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, error: type[OSError], message: str
) -> None:
    monkeypatch.chdir(tmp_path)
    os.mkfifo("pipe")
    with socket.socket(socket.AF_UNIX) as server:
        server.bind("socket")
        gc.collect()  # files of other tests are closed now, and not between the two counts
        before = len(os.listdir("/dev/fd"))
        with pytest.raises(error, match=message):
            read_regular(tmp_path / name)
        assert len(os.listdir("/dev/fd")) == before


def test_a_fifo_is_not_opened_for_writing(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(OSError, match="not a regular file"):
        open(tmp_path / "pipe", "ab", opener=open_regular).close()
