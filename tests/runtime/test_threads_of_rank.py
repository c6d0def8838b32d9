"""The part of a machine's cores that is a rank's."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from mmload.loader import Loader
from mmload.runtime import resources
from mmload.store.dataset import Dataset


def set_machine(monkeypatch: pytest.MonkeyPatch, ranks: str, bound: int, launcher: int, quota: float | None) -> None:
    """A rank that may use ``bound`` cores, of a launcher that may use ``launcher``, in a container with a quota."""
    monkeypatch.setenv("LOCAL_WORLD_SIZE", ranks)
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(launcher if pid else bound)), raising=False)
    monkeypatch.setattr(resources, "cpu_quota", lambda: quota)


def share_said() -> tuple[int, str]:
    share = resources.core_share()
    return share.threads, share.reason


@pytest.mark.parametrize(
    ("ranks", "bound", "launcher", "quota", "threads", "reason"),
    [
        ("", 16, 16, None, 16, "16 cores available"),
        ("many", 16, 16, None, 16, "16 cores available"),
        ("1", 16, 16, 2.4, 2, "2 cores available"),
        ("8", 64, 64, None, 8, "64 cores for 8 ranks here"),
        ("8", 16, 16, None, 2, "16 cores for 8 ranks here"),  # the launcher is bound, and all ranks with it
        ("8", 8, 64, None, 8, "64 cores for 8 ranks here, bound to 8"),
        ("8", 4, 64, None, 4, "64 cores for 8 ranks here, bound to 4"),
        ("8", 32, 64, None, 8, "64 cores for 8 ranks here, bound to 32"),  # a socket for four of them
        ("4", 64, 64, 10.5, 2, "a quota of 10.5 cores for 4 ranks here"),
        ("4", 2, 64, 10.5, 2, "a quota of 10.5 cores for 4 ranks here, bound to 2"),
        ("4", 8, 8, 10.5, 2, "8 cores for 4 ranks here"),
        ("4", 2, 2, None, 1, "2 cores for 4 ranks here"),
    ],
)
def test_ranks_use_each_core_once(
    monkeypatch: pytest.MonkeyPatch,
    ranks: str,
    bound: int,
    launcher: int,
    quota: float | None,
    threads: int,
    reason: str,
) -> None:
    set_machine(monkeypatch, ranks, bound, launcher, quota)
    assert share_said() == (threads, reason)


def test_a_launcher_that_cannot_be_asked_and_a_system_without_affinity(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(pid: int) -> set[int]:
        if pid:
            raise ProcessLookupError
        return set(range(12))

    set_machine(monkeypatch, "4", 12, 12, None)
    monkeypatch.setattr(os, "sched_getaffinity", refused, raising=False)
    assert share_said() == (3, "12 cores for 4 ranks here")
    monkeypatch.delattr(os, "sched_getaffinity")
    monkeypatch.setattr(os, "cpu_count", lambda: 8)
    assert resources.available_cores() == 8
    assert share_said() == (2, "8 cores for 4 ranks here")


def test_a_loader_says_its_threads(dataset: Dataset, monkeypatch: pytest.MonkeyPatch) -> None:
    set_machine(monkeypatch, "4", 12, 12, None)
    stats = Loader(dataset).stats()
    assert (stats["threads"], stats["threads_reason"]) == (3, "12 cores for 4 ranks here")
    assert Loader(dataset, threads=2).stats()["threads_reason"] == "as asked"


@pytest.mark.parametrize(
    ("name", "value", "bound", "cores", "is_named"),
    [
        ("OMP_PROC_BIND", "true", 1, 8, True),
        ("OMP_PLACES", "cores", 2, 8, True),  # two threads of a core
        ("GOMP_CPU_AFFINITY", "0-7", 1, 2, True),
        ("OMP_PROC_BIND", "FALSE", 1, 8, False),
        ("OMP_PLACES", "sockets", 8, 16, False),
        ("OMP_PROC_BIND", "true", 1, 1, False),
        ("OMP_NUM_THREADS", "1", 1, 8, False),
    ],
)
def test_binding_names_the_variable_that_leaves_few_cores(
    monkeypatch: pytest.MonkeyPatch, name: str, value: str, bound: int, cores: int, is_named: bool
) -> None:
    set_machine(monkeypatch, "1", bound, cores, None)
    monkeypatch.setattr(os, "cpu_count", lambda: cores)
    monkeypatch.setenv(name, value)
    found = resources.binding()
    assert (found is not None and name in found and "unset it" in found) == is_named


@pytest.mark.skipif(len(getattr(os, "sched_getaffinity", lambda pid: ())(0)) < 2, reason="needs two cores")
def test_loader_in_a_process_that_openmp_has_bound_warns_once(dataset: Dataset) -> None:
    program = (
        "import sys; from mmload import Loader; loader = Loader(sys.argv[1], batch_size=4); list(loader); list(loader)"
    )
    environment = {**os.environ, "OMP_PROC_BIND": "true"}
    done = subprocess.run(
        [sys.executable, "-c", program, dataset.path], env=environment, capture_output=True, text=True, check=True
    )
    assert done.stderr.count("OMP_PROC_BIND=true is set") == 1, done.stderr
