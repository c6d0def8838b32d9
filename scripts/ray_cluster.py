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
    os.environ.setdefault("RAY_raylet_start_wait_time_s", "120")  # a node takes six seconds of a core to start
    from ray.cluster_utils import Cluster

    head, *others = cpus
    less = {"include_dashboard": False, "include_log_monitor": False, "no_monitor": True}
    cluster = Cluster(initialize_head=True, head_node_args=_node(head) | less)
    try:
        for each in others:
            cluster.add_node(wait=False, **_node(each))
        cluster.wait_for_nodes()
        yield cluster
    finally:
        cluster.shutdown()


def add_node(cluster: Any, cpus: int) -> Any:
    """A further node of a cluster."""
    return cluster.add_node(wait=True, **_node(cpus))


def builders(node: Any) -> list[int]:
    """The process ids of a node's workers that build a shard at this moment: they are named after their task."""
    found = []
    for process in psutil.Process(node.all_processes["raylet"][0].process.pid).children(recursive=True):
        with suppress(psutil.Error):
            if process.cmdline()[:1] and process.cmdline()[0].startswith("ray::build_shard"):
                found.append(process.pid)
    return found


def _node(cpus: int) -> dict[str, Any]:
    return {"num_cpus": cpus, "object_store_memory": _STORE}
