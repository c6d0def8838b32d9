"""Shared segments: found by other processes, by nobody else, and gone with the last holder, however it dies."""

from __future__ import annotations

import errno
import fcntl
import gc
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from other_process import OtherProcess

from mmload.loader import shared_segment
from mmload.loader.shared_segment import NotSharedError, holders, open_segment, unfilled_bytes

pytestmark = pytest.mark.skipif(not hasattr(os, "memfd_create"), reason="the system cannot share memory")

SIZE = 1 << 20


@pytest.fixture
def key(tmp_path: Path) -> str:
    """A key that no other test has."""
    return str(tmp_path)


def hold(kept: dict[str, Any], key: str) -> None:
    kept["segment"] = open_segment(key, SIZE)


def write(kept: dict[str, Any], data: bytes, offset: int) -> None:
    kept["segment"].write(memoryview(data), offset)


def read(kept: dict[str, Any], offset: int, count: int) -> bytes:
    return bytes(kept["segment"].memory[offset : offset + count])


def others(kept: dict[str, Any]) -> list[int]:
    found: list[int] = kept["segment"].others()
    return found


def die_in_the_lock(kept: dict[str, Any], key: str) -> None:
    with shared_segment.exclusive_name(shared_segment._prefix(shared_segment._digest(key, SIZE)) + "lock"):
        os._exit(9)


def fork(kept: dict[str, Any]) -> int:
    """The number of a child that holds the segment, too, and publishes it."""
    told, tells = os.pipe()
    child = os.fork()
    if not child:
        kept["segment"].publish()
        os.write(tells, b".")
        os.read(os.pipe()[0], 1)
    os.read(told, 1)
    return child


def test_what_one_process_writes_all_see_until_the_last_is_killed(key: str, monkeypatch: pytest.MonkeyPatch) -> None:
    published, own = shared_segment._published_holders, shared_segment._digest(key, SIZE)
    monkeypatch.setattr(
        shared_segment, "_published_holders", lambda digest=own: published(digest)
    )  # not those of other tests
    with OtherProcess() as first, OtherProcess() as second, OtherProcess() as third:
        first.do(hold, key)
        first.do(write, b"row", 5000)
        second.do(hold, key)
        assert second.do(read, 4999, 5) == b"\0row\0"
        assert first.do(others) == [second.pid]
        first.kill()  # whoever joins now finds it by the second
        third.do(hold, key)
        assert third.do(read, 5000, 3) == b"row"
        assert holders(key, SIZE) == sorted([second.pid, third.pid])
        assert holders(key, 2 * SIZE) == holders(f"{key}, another", SIZE) == []
        assert 0 < unfilled_bytes() <= SIZE - 4096  # counted once
        second.kill()
        third.kill()
    assert shared_segment.published_names(shared_segment._prefix(shared_segment._digest(key, SIZE))) == []
    fresh = open_segment(key, SIZE)
    assert bytes(fresh.memory[5000:5003]) == b"\0\0\0"
    assert fresh.others() == []


def test_shared_segment_partial_writes_are_completed(key: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The system may write less than it was asked to."""
    segment, whole = open_segment(key, SIZE), os.pwrite
    monkeypatch.setattr(os, "pwrite", lambda handle, data, offset: whole(handle, data[:3], offset))
    segment.write(memoryview(b"a row of pixels"), 5)
    assert bytes(segment.memory[4:21]) == b"\0a row of pixels\0"


def test_a_descriptor_that_was_reused_meanwhile_is_another_segment(key: str, monkeypatch: pytest.MonkeyPatch) -> None:
    first = open_segment(key, SIZE)
    monkeypatch.setattr(shared_segment._Holder, "status", lambda self: os.stat(__file__))  # as it was when it was asked
    second = open_segment(key, SIZE)
    second.write(memoryview(b"row"), 0)
    assert bytes(first.memory[:3]) == b"\0\0\0"


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_a_forked_process_is_a_holder_of_its_own(key: str) -> None:
    with OtherProcess() as parent:
        parent.do(hold, key)
        parent.do(write, b"row", 0)
        child = parent.do(fork)
        try:
            assert holders(key, SIZE) == sorted([parent.pid, child])
            parent.kill()
            assert holders(key, SIZE) == [child]
            assert bytes(open_segment(key, SIZE).memory[:3]) == b"row"
        finally:
            os.kill(child, 9)


def announce_again(kept: dict[str, Any]) -> None:
    """As a segment with the numbers of an earlier one does, whose name a child still holds."""
    child = fork(kept)
    kept["segment"]._published_by = 0
    kept["segment"].publish()
    os.kill(child, 9)
    os.waitpid(child, 0)


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_a_name_that_a_child_still_holds_is_not_in_the_way(key: str) -> None:
    with OtherProcess() as other:
        other.do(hold, key)
        other.do(announce_again)
        assert holders(key, SIZE) == [other.pid]


def test_a_process_that_dies_while_it_opens_blocks_nobody(key: str) -> None:
    with OtherProcess() as other, pytest.raises(EOFError):
        other.do(die_in_the_lock, key)
    assert open_segment(key, SIZE).others() == []


def test_shared_segment_name_of_a_stopped_process_raises_after_the_limit(
    key: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shared_segment, "SECONDS_TO_WAIT", 0.01)
    with (
        shared_segment.exclusive_name(shared_segment._prefix(shared_segment._digest(key, SIZE)) + "lock"),
        pytest.raises(NotSharedError, match="Address already in use"),
    ):
        open_segment(key, SIZE)


def occupy_as_nobody(kept: dict[str, Any], name: str) -> None:
    """Take a name as another user."""
    if os.geteuid() == 0:
        os.setuid(65534)
    kept["lock"] = shared_segment.publish_name(name)


def test_a_lock_that_another_user_holds_is_not_waited_for(key: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shared_segment, "SECONDS_TO_WAIT", 0.0)
    name = shared_segment._prefix(shared_segment._digest(key, SIZE))
    with OtherProcess() as stranger, OtherProcess() as other:
        stranger.do(occupy_as_nobody, f"{name}lock")
        for forged in ("", "x", "1.2", f"{stranger.pid}.0.x", f"{os.getpid()}.0.x", "a b", "1\n2"):
            stranger.do(occupy_as_nobody, f"{name}lock.{forged}")
        segment = open_segment(key, SIZE)
        other.do(hold, key)
        assert segment.others() == [other.pid]


def test_the_number_of_a_process_of_another_user_is_ignored(key: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Root's processes among them: /proc shows also those of this user as root's if they must not be traced."""
    look = os.readlink

    def forbidden(path: str) -> str:
        if path == "/proc/1/fd/0":
            raise PermissionError(errno.EACCES, "Permission denied", path)
        return look(path)

    monkeypatch.setattr(os, "readlink", forbidden)
    other = os.geteuid() + 1
    monkeypatch.setattr(os, "geteuid", lambda: other)  # process 1 is root's
    foreign = announce_as(shared_segment._digest(key, SIZE), 1, 0)
    assert holders(key, SIZE) == []
    assert open_segment(key, SIZE).others() == []
    os.close(foreign)


def announce_as(digest: str, process: int, handle: int) -> int:
    return shared_segment.publish_name(f"{shared_segment._prefix(digest)}{process}.{handle}.0")


def unsealed(name: str) -> int:
    handle = os.memfd_create(name, os.MFD_CLOEXEC)
    os.ftruncate(handle, SIZE)
    return handle


def short(name: str) -> int:
    handle = os.memfd_create(name, os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    fcntl.fcntl(handle, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW)
    return handle


def pipe(name: str) -> int:
    return os.pipe()[0]


@pytest.mark.parametrize("made", [unsealed, short, pipe])
def test_what_only_says_that_it_is_a_segment_is_not_taken(key: str, made: Any) -> None:
    digest = shared_segment._digest(key, SIZE)
    handle = made(shared_segment._memfd_name(digest))
    name = announce_as(digest, os.getpid(), handle)
    with OtherProcess() as other:
        other.do(hold, key)
        assert other.do(read, 0, 3) == b"\0\0\0"  # of an unsealed or short one it would be the end of the process
        other.do(write, b"row", 0)
        assert bytes(open_segment(key, SIZE).memory[:3]) == b"row"
        assert made is pipe or os.pread(handle, 3, 0) != b"row"
    os.close(name)
    os.close(handle)


def hold_as_nobody(kept: dict[str, Any], key: str) -> None:
    """Hold a segment as another user, who says that it is of this process's user."""
    name = shared_segment._prefix(shared_segment._digest(key, SIZE))
    os.setuid(65534)
    kept["handle"] = shared_segment._created(shared_segment._digest(key, SIZE), SIZE)
    kept["name"] = shared_segment.publish_name(f"{name}{os.getpid()}.{kept['handle']}.0")


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() != 0, reason="needs to become another user")
def test_a_segment_of_another_user_is_not_taken(key: str) -> None:
    with OtherProcess() as stranger:
        stranger.do(hold_as_nobody, key)
        assert shared_segment.published_names(shared_segment._prefix(shared_segment._digest(key, SIZE)))
        assert holders(key, SIZE) == []
        assert open_segment(key, SIZE).others() == []


def test_shared_segment_holder_without_permission_is_named(key: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """As where the holder has more capabilities than this process, or must not be traced."""

    def forbidden(path: str) -> str:
        raise PermissionError(errno.EACCES, "Permission denied", path)

    kept = open_segment(key, SIZE)
    monkeypatch.setattr(os, "readlink", forbidden)
    expected = f"process {os.getpid()} keeps a copy that this process may not open"
    with pytest.raises(NotSharedError, match=expected):
        open_segment(key, SIZE)
    with pytest.raises(NotSharedError, match=expected):
        holders(key, SIZE)
    assert kept.others() == []


@pytest.fixture
def tried_again() -> Iterator[None]:
    shared_segment._problem.cache_clear()
    yield
    shared_segment._problem.cache_clear()


@pytest.mark.usefixtures("tried_again")
@pytest.mark.parametrize(
    ("missing", "reason"),
    [("memfd_create", "cannot share memory"), ("list", "No such file"), ("open", r"Permission denied: '/proc/\d+/fd")],
)
def test_systems_that_cannot_share_say_why(
    key: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, missing: str, reason: str
) -> None:
    if missing == "memfd_create":
        monkeypatch.delattr(os, "memfd_create")
    elif missing == "list":
        monkeypatch.setattr(shared_segment, "_LISTED", tmp_path / "none")
    else:
        real = os.open

        def refusing(path: Any, flags: int, *rest: Any, **named: Any) -> int:
            if str(path).startswith("/proc/"):
                raise PermissionError(errno.EACCES, "Permission denied", str(path))
            return real(path, flags, *rest, **named)

        monkeypatch.setattr(os, "open", refusing)
    with pytest.raises(NotSharedError, match=reason):
        open_segment(key, SIZE)
    with pytest.raises(NotSharedError, match=reason):
        holders(key, SIZE)


def test_shared_segment_beyond_the_memory_raises(key: str) -> None:
    with pytest.raises(NotSharedError, match="of shared memory cannot be had"):
        open_segment(key, 1 << 62)


def test_no_memory_left_is_an_error_not_the_end_of_the_process(key: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    segment = open_segment(key, SIZE)
    monkeypatch.setattr(os, "pwrite", full)
    with pytest.raises(OSError, match="No space left"):
        segment.write(memoryview(b"row"), 0)


def test_descriptors_are_closed_with_the_segment(key: str) -> None:
    open_segment(key, SIZE)
    gc.collect()  # files of other tests are closed now, and not between the two counts
    before = os.listdir("/proc/self/fd")
    segment = open_segment(key, SIZE)
    assert len(os.listdir("/proc/self/fd")) == len(before) + 3  # one is the mapping's
    del segment
    assert len(os.listdir("/proc/self/fd")) == len(before)
