"""The ways of ``mmload bench build --ray``: Ray Data's own decode and resize, and mmload's build as Ray tasks.

Takes a folder of images and where to write; returns how many images were read. Both use the Ray cluster that this
process is connected to, or an instance on this machine with as many CPUs as the run has threads, started in the
warm-up round.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from mmload.builder.pipeline import build
from mmload.builder.ray_engine import RayEngine, start_local
from mmload.builder.recipe import BuildRecipe


@contextmanager
def ended() -> Iterator[None]:
    """Stop Ray at the end, if it was started in between."""
    import ray

    before = ray.is_initialized()
    try:
        yield
    finally:
        if not before:
            ray.shutdown()


def ray_data(train: Path, out: Path, size: int, threads: int) -> int:
    """Ray Data's ``read_images``, which decodes and resizes without keeping the aspect, written as Parquet."""
    data = _ray(threads).data
    context = data.DataContext.get_current()
    context.enable_progress_bars = False
    logging.getLogger("ray.data").setLevel(logging.ERROR)
    data.read_images(str(train), size=(size, size), mode="RGB").write_parquet(str(out))
    return sum(1 for _ in train.rglob("*.*"))


def build_on_ray(recipe: BuildRecipe, threads: int) -> int:
    """Build with mmload, a task of one CPU a shard."""
    _ray(threads)
    return build(recipe, engine=RayEngine()).built


def _ray(threads: int) -> Any:
    """Ray, connected."""
    import ray
    import ray.data

    if not ray.is_initialized():
        start_local(ray, threads)
    return ray
