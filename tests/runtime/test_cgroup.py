"""Limits of control groups, from made-up /proc and /sys trees."""

from __future__ import annotations

from pathlib import Path

import pytest

from mmload.loader import tiers
from mmload.runtime import cgroup
from mmload.runtime.thread_pools import available_cores


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(cgroup, "ROOT", tmp_path)
    return tmp_path


def write(root: Path, name: str, text: str) -> None:
    (root / name).parent.mkdir(parents=True, exist_ok=True)
    (root / name).write_text(text)


def test_no_control_groups_limit_nothing(root: Path) -> None:
    assert cgroup.cores() is None
    assert cgroup.free_memory() is None


def test_version_2_takes_the_least_of_all_groups_above(root: Path) -> None:
    write(root, "proc/self/cgroup", "0::/user/job\n")
    write(root, "sys/fs/cgroup/user/job/cpu.max", "max 100000\n")
    write(root, "sys/fs/cgroup/user/cpu.max", "150000 100000\n")
    write(root, "sys/fs/cgroup/cpu.max", "800000 100000\n")
    assert cgroup.cores() == 1.5
    write(root, "sys/fs/cgroup/user/job/memory.max", "max\n")
    write(root, "sys/fs/cgroup/user/memory.max", "1000\n")
    write(root, "sys/fs/cgroup/user/memory.current", "700\n")
    write(root, "sys/fs/cgroup/user/memory.stat", "anon 500\nfile 200\n")
    assert cgroup.free_memory() == 500
    assert tiers.free_memory() == 500


def test_version_1(root: Path) -> None:
    write(root, "proc/self/cgroup", "5:memory:/docker/abc\n4:cpu,cpuacct:/docker/abc\n1:name=systemd:/\n0::/\n")
    write(root, "sys/fs/cgroup/cpu,cpuacct/docker/abc/cpu.cfs_quota_us", "250000\n")
    write(root, "sys/fs/cgroup/cpu,cpuacct/docker/abc/cpu.cfs_period_us", "100000\n")
    write(root, "sys/fs/cgroup/cpu,cpuacct/cpu.cfs_quota_us", "-1\n")
    write(root, "sys/fs/cgroup/cpu,cpuacct/cpu.cfs_period_us", "100000\n")
    assert cgroup.cores() == 2.5
    write(root, "sys/fs/cgroup/memory/docker/abc/memory.limit_in_bytes", "4000\n")
    write(root, "sys/fs/cgroup/memory/docker/abc/memory.usage_in_bytes", "3000\n")
    write(root, "sys/fs/cgroup/memory/docker/abc/memory.stat", "cache 1\ntotal_cache 500\n")
    write(root, "sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n")
    write(root, "sys/fs/cgroup/memory/memory.usage_in_bytes", "8000\n")
    assert cgroup.free_memory() == 1500


def test_a_container_that_sees_its_group_as_the_root(root: Path) -> None:
    """/proc tells the host's path, which is not there."""
    write(root, "proc/self/cgroup", "4:cpu:/host/only\n0::/../elsewhere\n")
    write(root, "sys/fs/cgroup/cpu/cpu.cfs_quota_us", "50000\n")
    write(root, "sys/fs/cgroup/cpu/cpu.cfs_period_us", "100000\n")
    assert cgroup.cores() == 0.5
    assert available_cores() == 1


@pytest.mark.parametrize("text", ["", "max", "x y", "100000", "0 0", "\xff\xfe", "-1 100000"])
def test_files_that_say_nothing_limit_nothing(root: Path, text: str) -> None:
    for name in ("proc/self/cgroup", "sys/fs/cgroup/cpu.max", "sys/fs/cgroup/memory.max"):
        write(root, name, text)
    assert cgroup.cores() is None
    assert cgroup.free_memory() is None
