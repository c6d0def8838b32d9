"""The ``mmload bench build`` command."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path
from typing import Annotated

import typer

from mmload.cli.bench_options import JsonFile
from mmload.cli.interrupt import interruptible
from mmload.cli.options import DecodingThreads, on_a_disk
from mmload.cli.terminal import check_target, show, status_line
from mmload.errors import MmloadError, counted
from mmload.runtime.byte_sizes import bytes_text

MOST_LINKS = 1_000_000
"""Links to photographs that ``bench build`` makes, one an image."""

_ROOM = 1.25  # times the pixels of all rows: labels, links and file systems need some, too


def bench_build(
    source: Annotated[Path, typer.Option(help="A folder of class folders of images.", callback=on_a_disk)],
    size: Annotated[int, typer.Option(help="Pixels of the square rows.")] = 256,
    images: Annotated[int, typer.Option(help="Images of a round at least; fewer are repeated.")] = 1200,
    rounds: Annotated[int, typer.Option(help="Measured rounds, after one to warm up.")] = 5,
    threads: DecodingThreads = None,
    ray: Annotated[
        bool, typer.Option("--ray", help="Also Ray Data, and mmload's build as Ray tasks, on this machine.")
    ] = False,
    json_file: JsonFile = None,
) -> None:
    """Measure building: a bare decode loop, the tensordict tutorial's loop, FFCV's writer where it is, and mmload."""
    check_target("--json", json_file, source)
    from mmload.bench.options import check_count
    from mmload.runtime.thread_pools import check_threads

    check_count("--size", size)
    check_count("--images", images, MOST_LINKS)
    check_count("--rounds", rounds)
    check_threads(threads)
    _check_room(size, images)
    from mmload.bench.building import run

    with interruptible("nothing was changed"), status_line() as progress:
        record = run(source, size=size, images=images, rounds=rounds, threads=threads, on_ray=ray, progress=progress)
    written = []
    if json_file is not None:
        from mmload.bench.record import write_json

        write_json(record.as_json(), json_file)
        written = [f"record: {json_file}"]
    show(*record.table().split("\n"), *written)


def _check_room(size: int, images: int) -> None:
    """Whether the rows fit where temporary files go: the tutorial's loop maps its file; a full disk would kill it."""
    place = Path(tempfile.gettempdir())
    need, free = int(_ROOM * images * 3 * size * size), shutil.disk_usage(place).free
    if need > free:
        raise MmloadError(
            f"{counted(images, 'image')} of {size} x {size} take {bytes_text(need)} of temporary files, "
            f"{bytes_text(free)} are free in {place}; set TMPDIR to a place with more, or lower --images or --size"
        )
