"""Measures building: the same photographs decoded, resized and cut to squares in several ways, in alternating rounds.

Takes a folder of photographs and returns a :class:`BuildingRecord`. All ways except the bare loops store their rows.
Never prints, and removes all files that it creates.
"""

from __future__ import annotations

import io
import logging
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, redirect_stderr
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import torch
from tensordict import MemoryMappedTensor
from torch import Tensor
from torch.utils.data import DataLoader
from torchvision.datasets import ImageFolder
from torchvision.io import ImageReadMode, decode_image
from torchvision.transforms import v2
from torchvision.transforms.v2 import functional as F

from mmload.bench.contenders.entry import not_installed
from mmload.bench.contenders.source import check_image
from mmload.bench.contenders.tutorial import ImageNetData
from mmload.bench.machine import machine
from mmload.bench.options import check_count
from mmload.builder.pipeline import build
from mmload.builder.ray_engine import RayEngine, start_local
from mmload.builder.recipe import BuildRecipe, square
from mmload.errors import MmloadError, SourceError, UsageError, bytes_text, counted
from mmload.runtime.regular_files import open_regular
from mmload.runtime.resources import available_cores, check_threads, single_op_pool
from mmload.sources.files import EXTENSIONS

_BATCH = 64  # as in the tutorial
_OURS = "mmload build"
_ROOM = 1.25  # times the pixels of all rows: labels, links and file systems need some, too
_SHARDS = 8  # a thread, of builds on Ray: enough that no CPU waits long for the last


MOST_LINKS = 1_000_000
"""Links to photographs that are made, one an image."""


@dataclass(frozen=True, kw_only=True)
class Work:
    """The work of each way: an ImageFolder's ``train``, the rows' side, and the number of threads or processes."""

    train: Path
    out: Path
    size: int
    threads: int


@dataclass
class Way:
    """One way to build, with its images per second in each round; ``missing`` is why it did not run, "" if it ran."""

    name: str
    build: Callable[[Work], int]
    missing: str = ""
    rates: list[float] = field(default_factory=list)


@dataclass(frozen=True, kw_only=True)
class BuildingRecord:
    """The result of a run: its settings, and each way with its rates."""

    settings: dict[str, Any]
    ways: list[Way]

    def as_json(self) -> dict[str, Any]:
        """Settings, machine, versions and every sample as plain data for JSON."""
        results = [
            {"name": way.name, "images_per_second": median(way.rates), "rounds": way.rates}
            if way.rates
            else {"name": way.name, "missing": way.missing}
            for way in self.ways
        ]
        return {"settings": self.settings, "machine": machine(), "results": results}

    def table(self) -> str:
        """Returns lines of at most 80 columns: median and range of images per second, and mmload's speedup."""
        ours = next(way for way in self.ways if way.name == _OURS)
        lines = [f"{'':<38}{'images/s':>10}{'lowest..highest':>18}{'mmload is':>12}"]
        for way in self.ways:
            if not way.rates:
                lines.append(f"{way.name:<38}  {way.missing}"[:80])
                continue
            spread = f"{min(way.rates):,.0f}..{max(way.rates):,.0f}"
            ratio = median(own / other for own, other in zip(ours.rates, way.rates, strict=True))
            lines.append(f"{way.name:<38}{median(way.rates):>10,.0f}{spread:>18}{ratio:>11.2f}x")
        return "\n".join(lines)


def measure_builds(
    root: str | Path,
    *,
    size: int = 256,
    images: int = 1200,
    rounds: int = 5,
    threads: int | None = None,
    on_ray: bool = False,
    progress: Callable[[str], None] | None = None,
) -> BuildingRecord:
    """Measures every way on links to the same photographs, at any depth below a folder, after one warm-up round.

    Fewer photographs than ``images`` are repeated, more are subsampled evenly.

    Raises:
        UsageError: if a number is too small or large, or Ray is requested and not installed.
        SourceError: if there are no photographs.
        MmloadError: if the rows do not fit where temporary files go.
    """
    check_count("--size", size)
    check_count("--images", images, MOST_LINKS)
    check_count("--rounds", rounds)
    check_threads(threads)
    _check_room(size, images)
    count = available_cores() if threads is None else threads
    missing = [why for name in ("ray", "pyarrow") if (why := not_installed(name, "pip install 'ray[data]'"))]
    if on_ray and missing:
        raise UsageError(f"--ray: {missing[0]}")
    ways = _ways(count, on_ray)
    settings = {"images": images, "size": size, "rounds": rounds, "threads": count, "cache": "warm"}
    with tempfile.TemporaryDirectory(prefix="mmload-bench-") as folder, ExitStack() as stack:
        if on_ray:
            stack.enter_context(ended())
        train = linked(Path(root), images, Path(folder) / "photos" / "train")
        work = Work(train=train, out=Path(folder) / "out", size=size, threads=count)
        for turn in range(rounds + 1):
            first = turn % len(ways)  # rotate the order, so that no way always runs after the same other one
            for way in (*ways[first:], *ways[:first]):
                if way.missing:
                    continue
                if progress is not None:
                    progress(f"{way.name}: {f'round {turn} of {rounds}' if turn else 'warm-up'}")
                rate = _rate(way, work)
                if turn:
                    way.rates.append(rate)
    return BuildingRecord(settings=settings, ways=ways)


def _check_room(size: int, images: int) -> None:
    """Checks that the rows fit where temporary files go; a full disk would kill the tutorial's loop."""
    place = Path(tempfile.gettempdir())
    need, free = int(_ROOM * images * 3 * size * size), shutil.disk_usage(place).free
    if need > free:
        raise MmloadError(
            f"{counted(images, 'image')} of {size} x {size} take {bytes_text(need)} of temporary files, "
            f"{bytes_text(free)} are free in {place}; set TMPDIR to a place with more, or lower --images or --size"
        )


def linked(root: Path, images: int, train: Path) -> Path:
    """Creates an ImageFolder of links to ``images`` photographs below ``root``, and keeps their class folders.

    Raises:
        SourceError: if there are no photographs, or one is not a regular file.
    """
    files = sorted(path for path in root.rglob("*") if path.suffix.lower() in EXTENSIONS and not path.is_dir())
    if not files:
        raise SourceError(f"no photographs below {root}; give a folder that holds some, as a build does")
    for number in range(images):
        source = files[number * len(files) // images if len(files) > images else number % len(files)]
        check_image(source)
        folder = train / source.parent.name
        folder.mkdir(parents=True, exist_ok=True)
        (folder / f"{number:09d}{source.suffix}").symlink_to(source.resolve())
    return train


def bare(work: Work) -> int:
    """Decodes every n-th image on one thread, counted as n, and stores nothing: others add the cost of storing."""
    files = _files(work)[:: work.threads]
    with _one_thread():
        for file in files:
            _pixels(file, work.size)
    return len(files) * work.threads


def side_by_side(work: Work) -> int:
    """Decodes all images on n threads and stores nothing: the throughput when all cores are busy."""
    files = _files(work)
    with _one_thread(), single_op_pool(work.threads, "bare") as pool:
        for _ in pool.map(lambda file: _pixels(file, work.size), files):
            pass
    return len(files)


def tutorial(work: Work) -> int:
    """Copies a DataLoader's batches into a memory-mapped tensorclass, as tensordict's tutorial does."""
    dataset = ImageFolder(str(work.train), v2.Compose([*_middle(work), v2.PILToTensor()]))
    work.out.mkdir()
    shape = (len(dataset), 3, work.size, work.size)
    made: Any = ImageNetData
    data = made(
        images=MemoryMappedTensor.empty(shape, dtype=torch.uint8, filename=str(work.out / "images.memmap")),
        targets=MemoryMappedTensor.empty(shape[:1], dtype=torch.int64, filename=str(work.out / "targets.memmap")),
        batch_size=[len(dataset)],
    )
    start = 0
    for images, targets in DataLoader(dataset, batch_size=_BATCH, num_workers=work.threads):
        stop = start + len(images)
        data[start:stop] = made(images=images, targets=targets, batch_size=[stop - start])
        start = stop
    return start


def ffcv(work: Work) -> int:
    """Writes raw images with FFCV's writer."""
    from ffcv.fields import IntField, RGBImageField
    from ffcv.writer import DatasetWriter

    dataset = ImageFolder(str(work.train), v2.Compose(_middle(work)))
    fields = {"image": RGBImageField(write_mode="raw"), "label": IntField()}
    writer = DatasetWriter(str(work.out), fields, num_workers=work.threads)
    with redirect_stderr(io.StringIO()):  # its progress bars, one a round, would fill the screen
        writer.from_indexed_dataset(dataset)
    return len(dataset)


def ours(work: Work) -> int:
    """Builds with this package, including checksums, statistics and fsync."""
    return build(_recipe(work), threads=work.threads, processes=1).built


def small_shards(work: Work) -> int:
    """Builds with this package in eight shards per thread, like the build on Ray, whose tasks are shards."""
    return build(_in_shards(work), threads=work.threads, processes=1).built


def _recipe(work: Work) -> BuildRecipe:
    return BuildRecipe(
        kind="imagefolder",
        root=work.train.parent,
        out=work.out,
        options={"allow_outside": True},  # the folder consists of links
        transforms=square(work.size),
    )


def _in_shards(work: Work) -> BuildRecipe:
    row = 3 * work.size**2 + 8
    return replace(_recipe(work), shard_bytes=row * max(1, len(_files(work)) // (_SHARDS * work.threads)))


def _on_ray(threads: int) -> list[Way]:
    """Returns the ways that need Ray, and the build on this machine that they are compared with."""
    return [
        Way(
            f"Ray Data read_images, {counted(threads, 'CPU')}",
            lambda work: ray_data(work.train, work.out, work.size, work.threads),
        ),
        Way(f"mmload build, {_SHARDS * threads} shards", small_shards),
        Way(
            f"mmload build --engine ray, {_SHARDS * threads} shards",
            lambda work: build_on_ray(_in_shards(work), work.threads),
        ),
    ]


def _ways(threads: int, on_ray: bool) -> list[Way]:
    return [
        Way(f"bare decode + resize, 1 thread x {threads}", bare),
        Way(f"bare decode + resize, {counted(threads, 'thread')}", side_by_side),
        Way(f"tensordict tutorial, {counted(threads, 'worker')}", tutorial),
        Way(f"FFCV DatasetWriter, {counted(threads, 'worker')}", ffcv, not_installed("ffcv", "pip install ffcv")),
        Way(_OURS, ours),
        *(_on_ray(threads) if on_ray else []),
    ]


def _middle(work: Work) -> list[Any]:
    """Returns the resize and center crop of a build for PIL images."""
    return [v2.Resize(work.size), v2.CenterCrop(work.size)]


def _files(work: Work) -> list[Path]:
    return sorted(work.train.rglob("*.*"))


def _pixels(file: Path, size: int) -> Tensor:
    """Decodes, resizes and crops a photograph with torchvision's functions on tensors: the minimum of any build."""
    with open(file, "rb", opener=open_regular) as opened:
        image = decode_image(torch.from_numpy(np.fromfile(opened, dtype=np.uint8)), ImageReadMode.RGB)
    middle: Tensor = F.center_crop(F.resize(image, [size], antialias=True), [size])
    return middle


@contextmanager
def _one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _rate(way: Way, work: Work) -> float:
    """Measures the images per second of one build from scratch."""
    if work.out.is_dir():
        shutil.rmtree(work.out)
    work.out.unlink(missing_ok=True)
    began = time.perf_counter()
    images = way.build(work)
    return images / (time.perf_counter() - began)


@contextmanager
def ended() -> Iterator[None]:
    """Stops Ray at the end, if it was started in between."""
    import ray

    before = ray.is_initialized()
    try:
        yield
    finally:
        if not before:
            ray.shutdown()


def ray_data(train: Path, out: Path, size: int, threads: int) -> int:
    """Writes Parquet with Ray Data's ``read_images``, which decodes and resizes without keeping the aspect."""
    data = _ray(threads).data
    context = data.DataContext.get_current()
    context.enable_progress_bars = False
    logging.getLogger("ray.data").setLevel(logging.ERROR)
    data.read_images(str(train), size=(size, size), mode="RGB").write_parquet(str(out))
    return sum(1 for _ in train.rglob("*.*"))


def build_on_ray(recipe: BuildRecipe, threads: int) -> int:
    """Builds with mmload, one task of one CPU per shard."""
    _ray(threads)
    return build(recipe, engine=RayEngine()).built


def _ray(threads: int) -> Any:
    """Returns Ray, connected."""
    import ray
    import ray.data

    if not ray.is_initialized():
        start_local(ray, threads)
    return ray
