"""``mmload bench`` and ``mmload bench build``: the commands that measure. :mod:`mmload.cli` has the others."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from mmload.errors import MmloadError, UsageError
from mmload.interrupt import fail, interruptible
from mmload.terminal import check_target, status_line

if TYPE_CHECKING:
    from collections.abc import Callable

    from mmload.bench import Options, Record

MOST_LINKS = 1_000_000
"""Links to photographs that ``bench build`` makes, one an image."""

_ROOM = 1.25  # times the pixels of all rows: labels, links and file systems need some, too


def bench(
    dataset: Annotated[Path | None, typer.Argument(help="A built dataset; write ./build for one called build.")] = None,
    source: Annotated[
        Path | None,
        typer.Option(help="The folder it was built from. Without DATASET: what a build of it would gain."),
    ] = None,
    compare: Annotated[
        tuple[Path, Path] | None,
        typer.Option(metavar="A.json B.json", help="Show two records side by side; measures nothing."),
    ] = None,
    split: Annotated[str | None, typer.Option(help="Which split; the first by default.")] = None,
    augment: Annotated[str, typer.Option(help="crop, resized-crop, or none (the stored rows).")] = "crop",
    crop: Annotated[int | None, typer.Option(help="Pixels of the square crop; 7/8 of the stored side.")] = None,
    padding: Annotated[int, typer.Option(help="Pixels around the image before a random crop, as for CIFAR.")] = 0,
    size: Annotated[
        int | None, typer.Option(help="Without DATASET: pixels of the stored square; 256 for image folders.")
    ] = None,
    batch_size: Annotated[int, typer.Option(help="Images a batch.")] = 64,
    epochs: Annotated[
        int | None, typer.Option(help="Measured epochs of each, after one to warm up; 3, or 1 with --quick.")
    ] = None,
    images: Annotated[
        int | None,
        typer.Option(help="Images an epoch at least, a smaller split is repeated; 2000, or 500 with --quick."),
    ] = None,
    workers: Annotated[str, typer.Option(help="Worker processes of the stock DataLoader, as a list.")] = "0,2,4",
    threads: Annotated[int | None, typer.Option(help="Loader threads; the cores available by default.")] = None,
    device: Annotated[str | None, typer.Option(help="Where batches go: cpu or cuda; cuda if there is one.")] = None,
    cold: Annotated[
        bool, typer.Option("--cold", help="Evict all files from the page cache before every epoch, and prove it.")
    ] = False,
    train: Annotated[
        str | None,
        typer.Option(metavar="MODEL", help="Train this torchvision model from each: how long does it wait for data?"),
    ] = None,
    time_budget: Annotated[float | None, typer.Option(help="Seconds for measuring; 300, or 60 with --quick.")] = None,
    quick: Annotated[bool, typer.Option("--quick", help="Fewer images, one epoch: a first look.")] = False,
    json_file: Annotated[Path | None, typer.Option("--json", help="Write the record here, too.")] = None,
    plot: Annotated[Path | None, typer.Option(metavar="FILE.png", help="Draw a chart; needs matplotlib.")] = None,
) -> None:
    """Measure the stored dataset against stock and other loaders, like for like, and say where the limit is.

    Building is measured by: mmload bench build --help
    """
    if compare is not None:
        _compare(compare, unused=(dataset, source, json_file, plot))
        return
    if dataset is None and source is None:
        raise UsageError("bench needs a DATASET and its --source ROOT, or --source ROOT alone; see mmload bench --help")
    if dataset is not None and size is not None:
        raise UsageError(f"--size is {size}, and {dataset} has its size already; leave one of them out")
    _check_outputs(json_file, plot)
    from mmload.bench import Options, table
    from mmload.bench.options import check_count

    check_count("--size", size)
    options = Options(
        split=split,
        augment=augment,
        crop=crop,
        padding=padding,
        batch_size=batch_size,
        images=images,
        epochs=epochs,
        workers=_numbers(workers),
        threads=threads,
        device=device,
        cold=cold,
        train=train,
        time_budget=time_budget,
        quick=quick,
    )
    with interruptible("nothing was changed"), status_line() as progress:
        record = _measure(dataset, source, size, options, progress)
    written = _write(record, json_file, plot)  # first: what took minutes to measure is not lost to a full stdout
    typer.echo(table(record) + written)
    if not any(row.rate for row in record.contenders):
        fail(_all_failed(record), 1)


def bench_build(
    root: Annotated[Path, typer.Argument(help="A folder of class folders of images.")],
    size: Annotated[int, typer.Option(help="Pixels of the square rows.")] = 256,
    images: Annotated[int, typer.Option(help="Images of a round at least; fewer are repeated.")] = 1200,
    rounds: Annotated[int, typer.Option(help="Measured rounds, after one to warm up.")] = 5,
    threads: Annotated[int | None, typer.Option(help="Decoding threads; the cores available by default.")] = None,
    json_file: Annotated[Path | None, typer.Option("--json", help="Write the record here, too.")] = None,
) -> None:
    """Measure building: a bare decode loop, the tensordict tutorial's loop, FFCV's writer where it is, and mmload."""
    _check_outputs(json_file, None)
    from mmload.bench.options import check_count
    from mmload.threads import check_threads

    check_count("--size", size)
    check_count("--images", images, MOST_LINKS)
    check_count("--rounds", rounds)
    check_threads(threads)
    _check_room(size, images)
    from mmload.bench.building import run

    with interruptible("nothing was changed"), status_line() as progress:
        record = run(root, size=size, images=images, rounds=rounds, threads=threads, progress=progress)
    text = record.table()
    if json_file is not None:
        from mmload.bench.record import write_json

        write_json(record.as_json(), json_file)
        text += f"\nrecord: {json_file}"
    typer.echo(text)


def _check_room(size: int, images: int) -> None:
    """Whether the rows fit where temporary files go: the tutorial's loop maps its file; a full disk would kill it."""
    place = Path(tempfile.gettempdir())
    need, free = int(_ROOM * images * 3 * size * size), shutil.disk_usage(place).free
    if need > free:
        raise MmloadError(
            f"{images} images of {size} x {size} take {need / 2**20:,.1f} MiB of temporary files, "
            f"{free / 2**20:,.1f} MiB are free in {place}; set TMPDIR to a place with more, or lower --images or --size"
        )


def _measure(
    dataset: Path | None, source: Path | None, size: int | None, options: Options, progress: Callable[[str], None]
) -> Record:
    from mmload.bench import run, run_on_sample

    if dataset is not None:
        return run(dataset, source, options, progress=progress)
    if source is None:
        raise UsageError("bench needs --source ROOT where there is no DATASET")
    return run_on_sample(source, options, side=size, progress=progress)


def _all_failed(record: Record) -> str:
    first, *more = dict.fromkeys(row.failure or "it was not run" for row in record.contenders)
    count = len(more)
    others = f"; {count} more reason{'s are' if count > 1 else ' is'} in the table" if more else ""
    return f"none of {len(record.contenders)} loaders could be measured: {first}{others}"


def _compare(files: tuple[Path, Path], unused: tuple[Path | None, ...]) -> None:
    if any(each is not None for each in unused):
        raise UsageError("--compare shows two records and measures nothing; leave the other arguments out")
    from mmload.bench import read_record
    from mmload.bench.compare import compare

    records = [read_record(file) for file in files]
    typer.echo(compare(records[0], records[1], (str(files[0]), str(files[1]))))


def _write(record: Record, json_file: Path | None, plot: Path | None) -> str:
    """Write what was asked for; lines that name it."""
    from mmload.bench import write_record

    text = ""
    if json_file is not None:
        write_record(record, json_file)
        text += f"\nrecord: {json_file}"
    if plot is not None:
        from mmload.bench.chart import draw

        draw(record, plot)
        text += f"\nchart: {plot}"
    return text


def _check_outputs(json_file: Path | None, plot: Path | None) -> None:
    """What is found wrong after minutes of measuring could have been found before."""
    for name, path in (("--json", json_file), ("--plot", plot)):
        check_target(name, path)
    if plot is not None:
        from mmload.bench.chart import check_plot

        check_plot(plot)


def _numbers(text: str) -> tuple[int, ...]:
    try:
        numbers = [int(part) for part in text.split(",")]
    except ValueError:
        numbers = [-1]
    if min(numbers) < 0:
        raise UsageError(f"--workers is {text!r}; give whole numbers, as in 0,2,4")
    return tuple(numbers)
