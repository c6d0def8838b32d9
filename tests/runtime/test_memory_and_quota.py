"""Limits of control groups, from made-up /proc and /sys trees."""

from __future__ import annotations

from pathlib import Path

import pytest

from mmload.runtime import resources
from mmload.runtime.resources import available_cores

GROUPS = "sys/fs/cgroup"


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(resources, "ROOT", tmp_path)
    return tmp_path


def write(folder: Path, files: dict[str, str]) -> None:
    """Files of one line or more, by name."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        (folder / name).write_text(f"{text}\n")


def write_quota(folder: Path, quota: int) -> None:
    """Version 1: microseconds of processor time in each tenth of a second."""
    write(folder, {"cpu.cfs_quota_us": f"{quota}", "cpu.cfs_period_us": "100000"})


def test_no_control_groups_limit_nothing(root: Path) -> None:
    assert resources.cpu_quota() is None
    assert resources.free_memory() == 0


def test_version_2_takes_the_least_of_all_groups_above(root: Path) -> None:
    write(root / "proc/self", {"cgroup": "0::/user/job"})
    write(root / GROUPS / "user/job", {"cpu.max": "max 100000"})
    write(root / GROUPS / "user", {"cpu.max": "150000 100000"})
    write(root / GROUPS, {"cpu.max": "800000 100000"})
    assert resources.cpu_quota() == 1.5
    write(root / GROUPS / "user/job", {"memory.max": "max"})
    memory = {"memory.max": "1000", "memory.current": "700", "memory.stat": "anon 500\nfile 250\nshmem 50"}
    write(root / GROUPS / "user", memory)
    assert resources.free_memory() == 500


@pytest.mark.parametrize(("system", "allowed", "free"), [(5, 4096, 4096), (3, 4096, 3072), (3, None, 3072)])
def test_the_smaller_of_system_and_group_counts(root: Path, system: int, allowed: int | None, free: int) -> None:
    write(root / "proc", {"meminfo": f"MemTotal: 9 kB\nMemAvailable: {system} kB"})
    if allowed is not None:
        write(root / GROUPS, {"memory.max": f"{allowed}", "memory.current": "0", "memory.stat": ""})
    assert resources.free_memory() == free


def test_version_1(root: Path) -> None:
    write(root / "proc/self", {"cgroup": "5:memory:/docker/abc\n4:cpu,cpuacct:/docker/abc\n1:name=systemd:/\n0::/"})
    write_quota(root / GROUPS / "cpu/docker/abc", 250_000)
    write_quota(root / GROUPS / "cpu", -1)
    assert resources.cpu_quota() == 2.5
    memory = {"memory.usage_in_bytes": "3000", "memory.stat": "cache 1\ntotal_cache 700\ntotal_shmem 200"}
    write(root / GROUPS / "memory/docker/abc", {"memory.limit_in_bytes": "4000", **memory})
    unlimited = {"memory.limit_in_bytes": "9223372036854771712", "memory.usage_in_bytes": "8000"}
    write(root / GROUPS / "memory", unlimited)
    assert resources.free_memory() == 1500


def test_a_container_that_sees_its_group_as_the_root(root: Path) -> None:
    """/proc gives the host's path, which does not exist here."""
    write(root / "proc/self", {"cgroup": "4:cpu:/host/only\n0::/../elsewhere"})
    write_quota(root / GROUPS / "cpu", 50_000)
    assert resources.cpu_quota() == 0.5
    assert available_cores() == 1


@pytest.mark.parametrize("text", ["", "max", "x y", "100000", "0 0", "\xff\xfe", "-1 100000"])
def test_files_that_say_nothing_limit_nothing(root: Path, text: str) -> None:
    write(root / "proc/self", {"cgroup": text})
    write(root / GROUPS, {"cpu.max": text, "memory.max": text})
    assert resources.cpu_quota() is None
    assert resources.free_memory() == 0
