"""Only regular files are opened: anything else is an OSError at once, never a wait."""

from __future__ import annotations

import gc
import os
import socket

import pytest

from mmload.runtime.regular_files import check_regular, open_regular, read_regular

unix = pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="there are no FIFOs here")


def test_a_regular_file_and_a_link_to_one_are_read(tmp_path):
    file = tmp_path / "a"
    file.write_bytes(b"x\r\ny" * 1000)
    (tmp_path / "link").symlink_to(file)
    assert read_regular(file) == read_regular(tmp_path / "link") == file.read_bytes()


def test_it_serves_pythons_open_also_for_writing(tmp_path):
    with open(tmp_path / "a", "ab", opener=open_regular) as file:
        file.write(b"x")
    with open(tmp_path / "a", encoding="utf-8", opener=open_regular) as file:
        assert file.read() == "x"
    assert not (tmp_path / "a").stat().st_mode & 0o111


def test_children_do_not_inherit_the_descriptor(tmp_path):
    (tmp_path / "a").write_bytes(b"")
    handle = open_regular(tmp_path / "a")
    try:
        assert not os.get_inheritable(handle)
    finally:
        os.close(handle)


def test_what_is_missing_or_a_folder_is_as_of_open(tmp_path):
    with pytest.raises(FileNotFoundError):
        read_regular(tmp_path / "nothing")
    with pytest.raises(IsADirectoryError):
        read_regular(tmp_path)


@unix
@pytest.mark.parametrize("mode", ["rb", "ab"])
def test_a_fifo_is_an_error_at_once(tmp_path, mode):
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(OSError, match="not a regular file"):
        open(tmp_path / "pipe", mode, opener=open_regular).close()


@unix
def test_a_fifo_with_a_writer_is_an_error_too(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    reading = os.open(tmp_path / "pipe", os.O_RDONLY | os.O_NONBLOCK)
    writing = os.open(tmp_path / "pipe", os.O_WRONLY)
    try:
        with pytest.raises(OSError, match="is a FIFO, not a regular file"):
            read_regular(tmp_path / "pipe")
    finally:
        os.close(reading)
        os.close(writing)


@unix
def test_devices_and_sockets_are_errors(tmp_path, monkeypatch):
    with pytest.raises(OSError, match="is a device"):
        read_regular("/dev/zero")
    monkeypatch.chdir(tmp_path)
    with socket.socket(socket.AF_UNIX) as server:
        server.bind("s")
        with pytest.raises(OSError, match="socket"):
            read_regular("s")


@unix
def test_no_descriptor_is_left_open(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    gc.collect()  # files of other tests are closed now, and not between the two counts
    before = len(os.listdir("/proc/self/fd")) if os.path.isdir("/proc/self/fd") else 0
    for path in ("pipe", "."):
        with pytest.raises(OSError, match="regular file|directory"):
            read_regular(tmp_path / path)
    after = len(os.listdir("/proc/self/fd")) if os.path.isdir("/proc/self/fd") else 0
    assert after == before


@unix
def test_a_file_is_checked_without_being_opened(tmp_path):
    (tmp_path / "a").write_bytes(b"")
    check_regular(tmp_path / "a")
    with pytest.raises(IsADirectoryError):
        check_regular(tmp_path)
    with pytest.raises(FileNotFoundError):
        check_regular(tmp_path / "gone")
    os.mkfifo(tmp_path / "fifo")
    with pytest.raises(OSError, match="it is a FIFO, not a regular file"):
        check_regular(tmp_path / "fifo")
