"""A Ray cluster of several nodes on this machine: each with its own raylet, object store and workers."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

import psutil  # which accelerate brings

_STORE = 80 * 2**20  # bytes; ray takes no less


@contextmanager
def ray_cluster(*cpus: int) -> Iterator[Any]:
    """A cluster with a node for each number of CPUs; the first is the head, which drivers connect to."""
    from ray.cluster_utils import Cluster

    head, *others = cpus
    cluster = Cluster()
    os.environ.setdefault("RAY_worker_niceness", "0")  # ray's 15 gets no core beside other processes
    try:
        _start(cluster, head, include_dashboard=False, include_log_monitor=False, no_monitor=True)
        for each in others:
            add_node(cluster, each)
        yield cluster
    finally:
        cluster.shutdown()


def add_node(cluster: Any, cpus: int) -> Any:
    """A further node of a cluster."""
    return _start(cluster, cpus)


def builders(node: Any) -> list[int]:
    """The process ids of a node's workers that build a shard at this moment: they are named after their task."""
    found = []
    for process in psutil.Process(node.all_processes["raylet"][0].process.pid).children(recursive=True):
        with suppress(psutil.Error):
            if process.cmdline()[:1] and process.cmdline()[0].startswith("ray::build_shard"):
                found.append(process.pid)
    return found


def _start(cluster: Any, cpus: int, **options: Any) -> Any:
    """Start a node; again if it was late: it takes six seconds of a core, and ray gives it thirty of the clock."""
    for left in (2, 1, 0):
        try:
            return cluster.add_node(num_cpus=cpus, object_store_memory=_STORE, **options)
        except Exception as error:  # which ray raises without a class of its own
            if "timed out during startup" not in str(error) or not left:
                raise
    raise AssertionError
