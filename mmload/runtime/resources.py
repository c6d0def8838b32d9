"""Cores and memory that this process may use, packages, threads for this rank, pools of single-threaded workers.

Limits of cgroups, version 2 or 1, are read from /proc and /sys; those of all ancestor groups apply, too.

Inside the threads of a pool torch uses a single intra-op thread. Otherwise every pool thread would start its own team
of OpenMP threads, and they would compete for the cores.
"""

from __future__ import annotations

import os
import platform
import re
import sys
import threading
import warnings
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from itertools import islice
from pathlib import Path
from typing import NamedTuple, TypeVar

from mmload.errors import UsageError, counted

T = TypeVar("T")
R = TypeVar("R")

ROOT = Path("/")

_UNLIMITED = 2**60  # version 1 represents "no limit" as a number just below 2**63

MOST_THREADS = 1024
"""Upper bound on threads, or worker processes, that catches typing errors: more would overload the machine."""


def available_cores() -> int:
    """Returns the cores this process may use: the smaller of affinity mask and cgroup quota, at least 1."""
    cores = len(_affinity(0)) or os.cpu_count() or 1
    return max(1, round(min(cores, cpu_quota() or cores)))


def binding() -> str | None:
    """Returns the variable by which OpenMP leaves this thread one or two cores, and what to do; None if none does.

    GNU's OpenMP binds the thread that loads it, and the threads which that one starts inherit the cores.
    """
    bound, cores = len(_affinity(0)), os.cpu_count() or 1
    for name in ("OMP_PROC_BIND", "OMP_PLACES", "GOMP_CPU_AFFINITY", "KMP_AFFINITY"):
        value = os.environ.get(name, "").lower()
        if value not in ("", "false", "none", "disabled") and 0 < bound < min(3, cores):
            return f"{name}={value} is set, and mmload's threads may use {bound} of {cores} cores: unset it"
    return None


def processor_name() -> str:
    """Returns the model of the processor, or its kind where the system does not name the model."""
    return cpu_fact("model name") or platform.processor() or platform.machine()


def cpu_fact(name: str) -> str:
    """Returns what /proc/cpuinfo says of the first core, such as its flags; empty if it does not say it."""
    found = re.search(rf"^{name}\s*: (.*)$", _text(ROOT / "proc/cpuinfo"), re.MULTILINE)
    return found[1].strip() if found else ""


def installed_version(package: str) -> str | None:
    """Returns the version of an installed package, which is not imported; None if it is not installed."""
    from importlib.metadata import PackageNotFoundError, version  # takes 20 ms, which few commands need

    try:
        return version(package)
    except PackageNotFoundError:
        return None


def check_threads(threads: int | None) -> None:
    """Checks the number of threads; None is valid and means all available cores.

    Raises:
        UsageError: if it is not from 1 to :data:`MOST_THREADS`.
    """
    if threads is not None and (type(threads) is not int or not 1 <= threads <= MOST_THREADS):
        raise UsageError(f"threads is {threads!r}; use 1 to {MOST_THREADS}, or leave it out for the cores available")


@contextmanager
def single_op(size: int) -> Iterator[Callable[[], None]]:
    """Yields what each of ``size`` new threads calls first; at the end, waits until all have done so.

    ``torch.set_num_threads`` in a thread also sets the number for threads created later, so the caller's own number is
    restored once every thread has its own. A thread reads the stored number at its first parallel operation, or when
    its number is queried, as here: otherwise that first operation would undo the setting.

    Raises:
        UsageError: if the system cannot start so many threads.
    """
    if (bound := binding()) is not None:
        warnings.warn(bound, stacklevel=4)
    (lower, restore), started = _intra_op(), threading.Barrier(size + 1)

    def settle() -> None:
        lower()
        started.wait()

    try:
        yield settle
        started.wait()
    except BaseException as error:
        started.abort()  # threads waiting at the barrier would wait forever, and Python at its end for them
        if isinstance(error, RuntimeError):
            raise UsageError(f"{size} threads cannot be started here ({error}); use fewer") from error
        raise  # Ctrl-C
    finally:
        restore()


def _intra_op() -> tuple[Callable[[], None], Callable[[], None]]:
    """Returns what sets torch's intra-op parallelism to 1 in a new thread, and what restores the caller's.

    Both do nothing in a program that has not loaded torch, as a build: what it may load torch for later, in a thread,
    is the antialiased resize of one image, which has no such parallelism.
    """
    if "torch" not in sys.modules:
        return (lambda: None), (lambda: None)
    import torch

    def lower() -> None:
        torch.set_num_threads(1)
        torch.get_num_threads()

    return lower, partial(torch.set_num_threads, torch.get_num_threads())


def in_threads(
    parts: Iterable[T], make: Callable[[T], R], threads: int | None = None, ended: threading.Event | None = None
) -> Generator[R]:
    """Yields ``make(part)`` for each part, in order, computed by threads; at most two parts per thread are ahead.

    Parts are read in the caller's thread; ``make`` is thread-safe, and releases the interpreter lock for its work. When
    the results are not needed any more, ``ended`` is set, by which ``make`` may end early. Torch's intra-op parallelism
    is 1 in the threads.

    Raises:
        UsageError: if the system cannot start so many threads.
    """
    count, remaining = threads or available_cores(), iter(parts)
    with ThreadPoolExecutor(count, thread_name_prefix="mmload-parts") as pool:
        with single_op(count) as settle:
            for _ in range(count):
                pool.submit(settle)
        waiting = deque[Future[R]]()
        try:
            waiting.extend(pool.submit(make, part) for part in islice(remaining, 2 * count))
            while waiting:
                yield waiting.popleft().result()
                waiting.extend(pool.submit(make, part) for part in islice(remaining, 1))
        finally:
            if ended is not None:
                ended.set()
            pool.shutdown(wait=False, cancel_futures=True)


def local_ranks() -> int:
    """Returns the number of ranks on this machine (``LOCAL_WORLD_SIZE``, set by torchrun); 1 if it is not set."""
    ranks = os.environ.get("LOCAL_WORLD_SIZE", "")
    return max(1, int(ranks)) if ranks.isdecimal() else 1


class CoreShare(NamedTuple):
    """Cores that the ranks of this machine share.

    Attributes:
        ranks: number of ranks here.
        cores: cores that all of them may use, or their CPU quota.
        bound: cores that this rank may use.
        is_quota: whether ``cores`` is a quota.
    """

    ranks: int
    cores: float
    bound: int
    is_quota: bool = False

    @property
    def threads(self) -> int:
        """Number of threads that this rank should use."""
        return max(1, min(self.bound, int(self.cores // self.ranks)))

    @property
    def reason(self) -> str:
        """Why it should use so many."""
        what = f"a quota of {self.cores:g} cores" if self.is_quota else counted(int(self.cores), "core")
        if self.ranks == 1:
            return f"{what} available"
        binding = f", bound to {self.bound}" if self.bound < self.cores else ""
        return f"{what} for {self.ranks} ranks here{binding}"


def core_share() -> CoreShare:
    """Returns this rank's share of the cores.

    The cores that the launcher may use, or the CPU quota of the container, are divided among the ranks. A rank that is
    bound to some of them (``numactl``, ``taskset``) uses at most these: other ranks may be bound to the same.
    """
    ranks, own = local_ranks(), available_cores()
    if ranks == 1:
        return CoreShare(ranks, own, own)
    bound = _affinity(0) or set(range(own))
    cores, quota = len(bound | _affinity(os.getppid())), cpu_quota()
    if quota is not None and quota < cores:
        return CoreShare(ranks, quota, len(bound), is_quota=True)
    return CoreShare(ranks, cores, len(bound))


def _affinity(process: int) -> set[int]:
    """Returns the cores that a process may use; empty where unknown: another user's, or not on Linux."""
    try:
        return os.sched_getaffinity(process) if hasattr(os, "sched_getaffinity") else set()
    except OSError:
        return set()


def cpu_quota() -> float | None:
    """Returns the most cores that may be used at a time, such as 1.5; None if there is no limit."""
    quotas = []
    for group in _groups("cpu"):
        version_1 = _words(group / "cpu.cfs_quota_us") + _words(group / "cpu.cfs_period_us")
        words = _words(group / "cpu.max") or version_1
        if len(words) == 2 and "".join(words).isdigit() and int(words[1]):  # otherwise "max" or -1
            quotas.append(int(words[0]) / int(words[1]))
    return min(quotas, default=None)


def free_memory() -> int:
    """Returns the bytes that this process can still allocate: what the system has or its cgroups allow, if less.

    Page cache is reclaimable and counts as free, but shared memory does not. 0 if nothing is known.
    """
    known = [size for size in (_system_memory(), allowed_memory()) if size is not None]
    return max(0, min(known, default=0))


def _system_memory() -> int | None:
    found = re.search(r"^MemAvailable: *(\d+) kB", _text(ROOT / "proc/meminfo"), re.MULTILINE)
    return int(found[1]) * 1024 if found else None


def allowed_memory() -> int | None:
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
    """Yields the folders of this process's group and of all its ancestors for a controller.

    In a container the group may be mounted as the root, while /proc/self/cgroup contains the host's path; that path
    does not exist in the container, but its ancestors do and are read.
    """
    for line in _text(ROOT / "proc/self/cgroup").splitlines() or ["0::/"]:
        _, controllers, path = (line.split(":", 2) + ["", ""])[:3]
        if not controllers or controller in controllers.split(","):
            mount = ROOT / "sys/fs/cgroup" / (controller if controllers else "")
            parts = [part for part in path.split("/") if part not in ("", "..")]
            yield from (mount.joinpath(*parts[:length]) for length in range(len(parts) + 1))


def _words(path: Path) -> list[str]:
    return _text(path).split()


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
