"""What bench_versions runs with each of its two versions of mmload: ``python version_side.py HOME``.

For each line of its input, a case as JSON, it prints a list of turns as JSON, each with images, seconds and seconds of
processor time. It uses only what both versions have.
"""

from __future__ import annotations

import json
import resource
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import noise_rows
from torch.utils.data import ConcatDataset

import mmload
from mmload import presets
from mmload.augment import Normalize, RandomCrop, RandomHorizontalFlip, RandomResizedCrop

LISTS: dict[str, Callable[[], Any]] = {
    "crop": lambda: mmload.Collate(RandomCrop(224), RandomHorizontalFlip(), Normalize.imagenet()),
    "resized crop": lambda: mmload.Collate(RandomResizedCrop(224), RandomHorizontalFlip(), Normalize.imagenet()),
    "small": lambda: mmload.Collate(RandomCrop(32, padding=4), RandomHorizontalFlip(), Normalize.imagenet()),
    "reference": lambda: presets.torchvision_reference(num_classes=1000),
    "simclr": presets.simclr,
}

Turn = tuple[int, float, float]


def make_loader(rows: Any, order: str, **options: Any) -> mmload.Loader:
    """Makes a loader, whose order may be "shuffle"."""
    return mmload.Loader(rows, **({"shuffle": True} if order == "shuffle" else {"order": order}), **options)


def processor_seconds() -> float:
    """Returns the processor time of this process and of those that it has waited for."""
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(each.ru_utime + each.ru_stime for each in used)


def turn(work: Callable[[], int]) -> Turn:
    """Runs work that returns a number of images; returns it with what it took."""
    began, used = time.perf_counter(), processor_seconds()
    images = work()
    return images, time.perf_counter() - began, processor_seconds() - used


def count_epoch(loader: mmload.Loader) -> int:
    """Reads an epoch; returns its number of images."""
    return sum(len(batch[0] if isinstance(batch, tuple) else batch) for batch in loader)


@contextmanager
def limited_memory(most: int) -> Iterator[None]:
    """Keeps this process in a control group of so many bytes, page cache included; 0: no limit."""
    if not most:
        yield
        return
    group = Path("/sys/fs/cgroup/memory") / f"mmload-bench-{time.time_ns()}"
    group.mkdir()
    (group / "cgroup.procs").write_text("0")
    (group / "memory.limit_in_bytes").write_text(str(most))
    try:
        yield
    finally:
        (group.parent / "cgroup.procs").write_text("0")
        with suppress(OSError):
            group.rmdir()


def load(case: dict[str, Any]) -> list[Turn]:
    """Reads epochs; what has to be compiled is compiled with a few rows before."""
    split = mmload.open(case["path"])["train"]
    options = {"batch_size": case["batch"], "collate": LISTS[case["list"]](), "threads": case["threads"]}
    few = split.subset(list(range(0, len(split), max(1, len(split) // 128))))
    with make_loader(few, "shuffle", tier="disk", **options) as loader:
        count_epoch(loader)
    rows = split.subset(list(range(len(split) // case["part"]))) if case["part"] > 1 else split
    rows = ConcatDataset([rows] * -(-case["least"] // len(rows))) if case["least"] else rows
    for_batches = 2**26 + case["batch"] * 4 * 224 * 224 * 3 * 6
    with (
        limited_memory(case["limit"] and case["limit"] + for_batches),
        make_loader(rows, case["order"], tier=case["tier"], **options) as loader,
    ):
        return [turn(lambda: count_epoch(loader)) for _ in range(case["epochs"])]


def build(case: dict[str, Any]) -> list[Turn]:
    """Builds photographs as squares, once."""
    photos, out = Path(case["photos"]), Path(case["path"])
    return [turn(lambda: len(mmload.open(noise_rows.build_photographs(photos, out))["train"]))]


def make_data(case: dict[str, Any]) -> list[Turn]:
    """Builds the dataset that cases read."""
    out = Path(case["path"])
    if "side" in case:
        noise_rows.make_dataset(out, case["rows"], case["side"])
    else:
        noise_rows.build_photographs(Path(case["photos"]), out, case["encode"])
    return []


def main() -> None:
    """Answers each case with its turns, or with the error that ended it."""
    if not Path(mmload.__file__).is_relative_to(sys.argv[1]):
        sys.exit(f"{mmload.__file__} is not in {sys.argv[1]}")
    for line in sys.stdin:
        case = json.loads(line)
        try:
            answer: Any = {"load": load, "build": build, "make": make_data}[case["does"]](case)
        except Exception as error:  # bench_versions reports it
            answer = f"{type(error).__name__}: {error}"
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
