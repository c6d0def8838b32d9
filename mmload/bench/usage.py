"""Processor time and memory of a process and all its descendants.

Linux reports both in ``/proc``. On other systems, processor time excludes children that are still running, and memory
is unknown.
"""

from __future__ import annotations

import os
import time
from pathlib import Path

_PROC = Path("/proc")
_KIB = 1024


def tree(root: int) -> list[int]:
    """``root`` and all its live descendants; only ``root`` if there is no ``/proc``."""
    children: dict[int, list[int]] = {}
    for name in os.listdir(_PROC) if _PROC.is_dir() else []:
        fields = _stat(int(name)) if name.isdigit() else None
        if fields is not None:
            children.setdefault(int(fields[1]), []).append(int(name))
    found = [root]
    for process in found:  # the loop appends to it
        found.extend(children.get(process, ()))
    return found


def own_seconds() -> float:
    """Processor seconds used so far by this process, all its threads, and its children, ended or running."""
    living = sum(_seconds(process) for process in tree(os.getpid())[1:])
    return time.process_time() + _ended_seconds() + living


def memory(root: int) -> int | None:
    """Bytes of memory used by ``root`` and its descendants; None if the system does not report it.

    A page that several of them share counts once: their proportional shares of anonymous and shared memory are added
    up. Of mapped files, only the largest resident set counts, as all map the same libraries.
    """
    private = files = 0
    for process in tree(root):
        shares = _fields(process, "smaps_rollup")
        resident = _fields(process, "status")
        private += shares.get("Pss_Anon", 0) + shares.get("Pss_Shmem", 0)
        files = max(files, resident.get("RssFile", 0))
    return (private + files) * _KIB if private else None


def _stat(process: int) -> list[str] | None:
    """The fields of ``/proc/PID/stat`` after the name (which may contain spaces); None if the process has ended."""
    try:
        return (_PROC / str(process) / "stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()
    except OSError:
        return None


def _seconds(process: int) -> float:
    """Processor seconds of a process and its ended children: utime, stime, cutime and cstime of ``/proc/PID/stat``."""
    fields = _stat(process)
    return sum(map(int, fields[11:15])) / os.sysconf("SC_CLK_TCK") if fields else 0.0


def _ended_seconds() -> float:
    """Processor seconds of the children that have ended and were waited for."""
    try:
        import resource
    except ImportError:  # Windows
        return 0.0
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def _fields(process: int, file: str) -> dict[str, int]:
    """``Name:  123 kB`` lines as numbers; empty if the process has ended or the file is not readable."""
    try:
        lines = (_PROC / str(process) / file).read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return {}
    pairs = (line.partition(":") for line in lines)
    return {name: int(rest.split()[0]) for name, _, rest in pairs if rest.endswith(" kB")}
