"""CPU quota and free memory of this process: the limits of its cgroups, version 2 or 1, and what the system has.

Read from /proc and /sys. The limits of all ancestor groups apply, too, so all are read.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

ROOT = Path("/")

_UNLIMITED = 2**60  # version 1 represents "no limit" as a number just below 2**63


def cores() -> float | None:
    """Returns the most cores that may be used at a time, such as 1.5; None if there is no limit."""
    quotas = []
    for group in _groups("cpu"):
        quota, period = (_words(group / "cpu.max") + ["", ""])[:2]
        if not quota:
            quota = "".join(_words(group / "cpu.cfs_quota_us"))
            period = "".join(_words(group / "cpu.cfs_period_us"))
        if quota.isdigit() and period.isdigit() and int(period):  # otherwise "max" or -1
            quotas.append(int(quota) / int(period))
    return min(quotas, default=None)


def free_memory() -> int:
    """Returns the bytes that this process can still allocate: what the system has or its cgroups allow, if less.

    Page cache is reclaimable and counts as free, but shared memory does not. 0 if nothing is known.
    """
    known = [size for size in (_system_memory(), _allowed_memory()) if size is not None]
    return max(0, min(known)) if known else 0


def _system_memory() -> int | None:
    try:
        for line in (ROOT / "proc/meminfo").read_text(encoding="ascii").splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    except (OSError, ValueError):
        pass
    return None


def _allowed_memory() -> int | None:
    """Returns the bytes that the cgroups still allow; None if there is no limit."""
    allowances = []
    for group in _groups("memory"):
        for limit, used, cache, shared in (
            ("memory.max", "memory.current", "file", "shmem"),
            ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_cache", "total_shmem"),
        ):
            allowed, in_use = "".join(_words(group / limit)), "".join(_words(group / used))
            if allowed.isdigit() and in_use.isdigit() and int(allowed) < _UNLIMITED:  # otherwise "max"
                words = _words(group / "memory.stat")
                held = dict(zip(words[::2], words[1::2], strict=False))
                reclaimable = int(held.get(cache, "0")) - int(held.get(shared, "0"))  # cache includes shared memory
                allowances.append(int(allowed) - int(in_use) + reclaimable)
    return min(allowances, default=None)


def _groups(controller: str) -> Iterator[Path]:
    """Yields the folders of this process's group and of all its ancestors for a controller, without duplicates.

    In a container the group may be mounted as the root, while /proc/self/cgroup contains the host's path; that path
    does not exist in the container, but its ancestors do and are read.
    """
    mounts = ROOT / "sys/fs/cgroup"
    lines = _text(ROOT / "proc/self/cgroup").splitlines() or ["0::/"]
    visited = set()
    for line in lines:
        _, controllers, path = (line.split(":", 2) + ["", ""])[:3]
        if controllers and controller not in controllers.split(","):
            continue
        for mount in (mounts / controllers, mounts / controller) if controllers else (mounts, mounts / "unified"):
            parts = [part for part in path.split("/") if part not in ("", "..")]
            for length in range(len(parts), -1, -1):
                group = mount.joinpath(*parts[:length])
                if group not in visited:
                    visited.add(group)
                    yield group


def _words(path: Path) -> list[str]:
    return _text(path).split()


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="ascii", errors="replace")
    except OSError:
        return ""
