"""Does a build on a Ray cluster survive the death of a node? Kill one a round, at any moment; compare every byte.

Starts a cluster of four nodes on this machine. In each round a node, or now and then only one of its workers, is killed
at a random moment, while it builds a shard; a new node takes its place. Every dataset must be, byte for byte, that of a
local build, with nothing left beside it.
"""

from __future__ import annotations

import os
import random
import shutil
import signal
import sys
import threading
import time
from collections import Counter
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests" / "helpers"))

from PIL import Image
from ray_cluster import add_node, builders, ray_cluster
from torture_builds import DifferenceError, check_equal, tree

from mmload.builder import ray_engine
from mmload.builder.pipeline import build
from mmload.builder.ray_engine import RayEngine
from mmload.builder.recipe import BuildRecipe, square
from mmload.builder.shards import ShardPlan

_SIZE = 24
_ROWS = 4  # of a shard
_WORKER_SHARE = 0.25  # of the rounds in which only a worker dies


def make_source(root: Path, images: int) -> Path:
    """Makes an image folder of photographs that take some 20 ms each to decode."""
    (root / "ant").mkdir(parents=True)
    for number in range(images):
        file = root / "ant" / f"{number:04d}.jpg"
        if number < 8:
            Image.effect_noise((1400, 1100), 20 + number).convert("RGB").save(file)
        else:
            os.link(root / "ant" / f"{number % 8:04d}.jpg", file)
    return root


def recipe(source: Path, out: Path) -> BuildRecipe:
    """Returns what is built: small squares in shards of four."""
    shard_bytes = _ROWS * (3 * _SIZE * _SIZE + 8)
    return BuildRecipe(kind="imagefolder", root=source, out=out, transforms=square(_SIZE), shard_bytes=shard_bytes)


class Killer(threading.Thread):
    """Kills a node that builds a shard, or only its worker, once a build has done a share of its samples."""

    def __init__(self, cluster: Any, nodes: list[Any], share: float, only_worker: bool) -> None:
        super().__init__(daemon=True)
        self._cluster, self._nodes, self._share, self._only_worker = cluster, nodes, share, only_worker
        self._reached, self.stopped = threading.Event(), threading.Event()
        self.killed = ""

    def progress(self, done: int, total: int) -> None:
        """Notes how far the build is, which calls this."""
        if done >= self._share * total:
            self._reached.set()

    def run(self) -> None:
        """Waits for the moment, then for a node that works."""
        self._reached.wait()
        while not self.stopped.is_set():
            for node in self._nodes:
                if workers := builders(node):
                    self._kill(node, workers[0])
                    return
            time.sleep(0.002)

    def _kill(self, node: Any, worker: int) -> None:
        if self._only_worker:
            os.kill(worker, signal.SIGKILL)
            self.killed = "worker"
        else:
            self._cluster.remove_node(node, allow_graceful=False)
            self._nodes.remove(node)
            self.killed = "node"


def torture(folder: Path, rounds: int, seed: int, images: int, nodes: int = 4) -> str:
    """Runs all rounds; returns what was done, in a line.

    Raises:
        DifferenceError: at the first thing that is not as it must be.
    """
    import ray

    source, draw, kills, again = make_source(folder / "photos", images), random.Random(seed), Counter[str](), 0
    build(recipe(source, folder / "local" / "out"))
    wanted = tree(folder / "local" / "out")
    begin_again = ray_engine._Tasks._begin_again

    def counted(tasks: Any, plan: ShardPlan, cause: str) -> None:
        nonlocal again
        again += 1
        begin_again(tasks, plan, cause)

    ray_engine._Tasks._begin_again = counted  # type: ignore[method-assign]
    with ray_cluster(0) as cluster:
        alive = [add_node(cluster, 1) for _ in range(nodes)]
        ray.init(address=cluster.address, log_to_driver=False, logging_level="ERROR")
        for number in range(rounds):
            out = folder / "rounds" / "out"
            killer = Killer(cluster, alive, draw.random() * 0.9, draw.random() < _WORKER_SHARE)
            killer.start()
            began = time.monotonic()
            build(recipe(source, out), engine=RayEngine(), progress=killer.progress)
            seconds = time.monotonic() - began
            killer.stopped.set()
            killer.join()
            check_equal(out, wanted)
            if left := [path.name for path in out.parent.iterdir() if path != out]:
                raise DifferenceError(f"{', '.join(left)} is left beside {out}")
            shutil.rmtree(out.parent)
            kills[killer.killed or "nothing"] += 1
            print(
                f"round {number + 1}/{rounds}: {killer.killed or 'nothing'} killed, {seconds:.1f} s, equal", flush=True
            )
            while len(alive) < nodes and number + 1 < rounds:
                alive.append(add_node(cluster, 1))
        ray.shutdown()
    ray_engine._Tasks._begin_again = begin_again  # type: ignore[method-assign]
    return (
        f"{rounds} rounds, {kills['node']} nodes and {kills['worker']} workers killed, {again} shards begun again: "
        "every dataset equals the local one, byte for byte"
    )
