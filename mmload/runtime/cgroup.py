"""Resource limits of containers: the CPU quota and the memory limit of this process's cgroups, version 2 or 1.

Read from /proc and /sys; None if there is no limit or the system has no cgroups. The limits of all ancestor groups
apply, too, so all are read.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

ROOT = Path("/")

_UNLIMITED = 2**60  # version 1 represents "no limit" as a number just below 2**63


def cores() -> float | None:
    """The most cores that may be used at a time, such as 1.5."""
    quotas = []
    for group in _groups("cpu"):
        quota, period = (_words(group / "cpu.max") + ["", ""])[:2]
        if not quota:
            quota = "".join(_words(group / "cpu.cfs_quota_us"))
            period = "".join(_words(group / "cpu.cfs_period_us"))
        if quota.isdigit() and period.isdigit() and int(period):  # otherwise "max" or -1
            quotas.append(int(quota) / int(period))
    return min(quotas, default=None)


def free_memory() -> int | None:
    """Bytes that may still be allocated; page cache is reclaimable and counts as free, but shared memory does not."""
    left = []
    for group in _groups("memory"):
        for limit, used, cache, shared in (
            ("memory.max", "memory.current", "file", "shmem"),
            ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_cache", "total_shmem"),
        ):
            allowed, taken = "".join(_words(group / limit)), "".join(_words(group / used))
            if allowed.isdigit() and taken.isdigit() and int(allowed) < _UNLIMITED:  # otherwise "max"
                words = _words(group / "memory.stat")
                held = dict(zip(words[::2], words[1::2], strict=False))
                reclaimable = int(held.get(cache, "0")) - int(held.get(shared, "0"))  # cache includes shared memory
                left.append(int(allowed) - int(taken) + reclaimable)
    return min(left, default=None)


def _groups(controller: str) -> Iterator[Path]:
    """The folders of this process's group and of all its ancestors, for a controller, without duplicates.

    A container often sees its own group as the root, while /proc/self/cgroup contains the host's path of it, which does
    not exist there; its ancestors are read nevertheless.
    """
    mounts = ROOT / "sys/fs/cgroup"
    lines = _text(ROOT / "proc/self/cgroup").splitlines() or ["0::/"]
    seen = set()
    for line in lines:
        _, controllers, path = (line.split(":", 2) + ["", ""])[:3]
        if controllers and controller not in controllers.split(","):
            continue
        for mount in (mounts / controllers, mounts / controller) if controllers else (mounts, mounts / "unified"):
            parts = [part for part in path.split("/") if part not in ("", "..")]
            for length in range(len(parts), -1, -1):
                group = mount.joinpath(*parts[:length])
                if group not in seen:
                    seen.add(group)
                    yield group


def _words(path: Path) -> list[str]:
    return _text(path).split()


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="ascii", errors="replace")
    except OSError:
        return ""
