"""Do processes that share one small cache of object storage ever read a wrong row, or store more than its limit?

Readers open two datasets, squares and photographs, through one cache with room for half of one. They read random rows
and whole epochs, and compare them with the local datasets. Meanwhile this process kills, stops and starts readers,
deletes files of the cache, removes whole folders of it, and fills the disk, where it may mount one.
"""

from __future__ import annotations

import random
import re
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from unittest.mock import patch

import numpy as np
from torture_builds import DifferenceError, make_wide_source

import mmload
from mmload.builder.pipeline import build
from mmload.builder.recipe import BuildRecipe, VariableLayout, square
from mmload.errors import StoreError
from mmload.remote import chunk_map, chunks
from mmload.remote.copies import push

IMAGES, SIZE, READERS = 60, 160, 3
LIMIT = IMAGES * SIZE * SIZE * 3 // 3
CHUNK_BYTES = 200_000  # as small as the datasets
START_S, PATIENCE_S = 400.0, 120.0


def torture(folder: Path, seconds: float, seed: int) -> str:
    """Attacks readers for some time; returns what was done, in words.

    Raises:
        DifferenceError: if a reader saw a wrong row or failed, the limit was exceeded, or a file of others was touched.
    """
    squares, photographs = datasets(folder)
    urls = [f"file://{folder}/pushed-{path.name}" for path in (squares, photographs)]
    with patch.object(chunks, "CHUNK_BYTES", CHUNK_BYTES):
        for path, url in zip((squares, photographs), urls, strict=True):
            push(path, url)
    cache = folder / "cache"
    is_mounted = mount(cache)
    try:
        return _attack(folder, cache, [str(squares), urls[0], str(photographs), urls[1]], seconds, seed, is_mounted)
    finally:
        if is_mounted:
            subprocess.run(["umount", "-l", str(cache)], check=False)


def datasets(folder: Path) -> tuple[Path, Path]:
    """Builds the two datasets from the same images of noise."""
    source = make_wide_source(folder / "source", IMAGES, SIZE, 40)
    options = {"kind": "imagefolder", "root": source, "shard_bytes": 20 * SIZE * SIZE * 3}
    squares, photographs = folder / "squares", folder / "photographs"
    build(BuildRecipe(**options, out=squares, transforms=square(SIZE)))
    build(BuildRecipe(**options, out=photographs, transforms=(), variable_layout=VariableLayout(encode="mixed")))
    return squares, photographs


def mount(cache: Path) -> bool:
    """Mounts a small file system for the cache, so that its disk can be filled; returns whether that is allowed."""
    cache.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", f"size={20 * LIMIT}", "tmpfs", str(cache)]
    try:
        return subprocess.run(command, capture_output=True, check=False).returncode == 0
    except FileNotFoundError:
        return False


def _attack(folder: Path, cache: Path, words: list[str], seconds: float, seed: int, is_mounted: bool) -> str:
    draw = random.Random(seed)
    logs = folder / "logs"
    logs.mkdir()
    done: Counter[str] = Counter()
    readers = [Reader(cache, words, logs / str(number), number) for number in range(READERS)]
    for reader in readers:
        reader.wait_for_start()
    foreign = _foreign_files(cache)
    until = time.monotonic() + seconds
    try:
        while time.monotonic() < until:
            time.sleep(draw.random() * 0.1)
            reader = draw.choice(readers)
            act = draw.choice(("kill", "stop", *["delete"] * 10, "folder", "fill"))
            done[act] += _act(act, reader, cache, draw, is_mounted)
            stored = sum(size for _, size in chunks_of(cache))
            if stored > LIMIT:
                raise DifferenceError(f"{stored:,} bytes of chunks are kept, the limit is {LIMIT:,}")
            for each in readers:
                each.check()
        rows = [reader.end() for reader in readers]
    finally:
        for reader in readers:
            reader.process.kill()
            reader.process.wait()
    if lost := [path for path in foreign if not path.exists()]:
        raise DifferenceError(f"files that the cache did not write are gone: {lost}")
    acts = ", ".join(f"{count} x {act}" for act, count in sorted(done.items()))
    return f"{sum(rows):,} rows read by {READERS} processes, none wrong, the limit kept; {acts}"


def _foreign_files(cache: Path) -> list[Path]:
    """Writes files that are not the cache's."""
    datasets = [path for path in cache.iterdir() if re.fullmatch("[0-9a-f]{32}", path.name)]
    paths = [cache / "checkpoints" / "last.pt", datasets[0] / "notes.txt", cache / ("e" * 32) / "train" / "1.chunk"]
    for path in paths:
        path.parent.mkdir(exist_ok=True, parents=True)
        path.write_text("the only copy")
    return paths


def _act(act: str, reader: Reader, cache: Path, draw: random.Random, is_mounted: bool) -> int:
    """Does one thing to the readers or their cache; returns whether it was done."""
    if act == "kill":
        if not reader.log.read_text():  # it starts
            return 0
        reader.restart()
    elif act == "stop":
        reader.process.send_signal(signal.SIGSTOP)
        time.sleep(draw.choice((0.01, 0.1, 0.3)))
        reader.process.send_signal(signal.SIGCONT)
    elif act == "fill":
        return int(is_mounted) and _fill(cache, draw)
    else:
        files = [path for path, _ in chunks_of(cache)]
        if not files:
            return 0
        with suppress(OSError):
            path = draw.choice(files)
            if act == "delete":
                path.unlink()
            else:
                shutil.rmtree(path.parent, ignore_errors=True)
    return 1


def _fill(cache: Path, draw: random.Random) -> int:
    """Fills the disk for a moment; readers may say so meanwhile, and go on."""
    path = cache / "filling"
    with suppress(OSError), open(path, "wb", buffering=0) as file:
        while True:
            file.write(bytes(1 << 20))
    time.sleep(draw.random() * 0.2)
    path.unlink()
    return 1


def chunks_of(cache: Path) -> list[tuple[Path, int]]:
    """Lists the files of chunks that a cache keeps, and their sizes."""
    found = []
    for path in cache.glob("*/chunks/*/*/*/*.chunk"):
        with suppress(OSError):
            found.append((path, path.stat().st_size))
    return found


class Reader:
    """A process that reads and compares until its standard input ends."""

    def __init__(self, cache: Path, words: list[str], log: Path, number: int) -> None:
        self.command = [sys.executable, __file__, str(cache), str(log), *words]
        self.log, self.number, self.rows = log, number, 0
        self.start()

    def start(self) -> None:
        """Starts the process."""
        self.log.write_text("")
        self.process = subprocess.Popen(
            [*self.command, str(self.number)], stdin=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )

    def restart(self) -> None:
        """Kills the process, and starts another one."""
        self.process.kill()
        self.process.communicate()
        self.rows += int(self.log.read_text() or 0)
        self.number += READERS
        self.start()

    def wait_for_start(self) -> None:
        """Waits until the first rows are read."""
        until = time.monotonic() + START_S
        while not self.log.read_text():
            self.check()
            if time.monotonic() > until:
                raise DifferenceError(f"a reader had read nothing after {START_S:g} s")
            time.sleep(0.05)

    def check(self) -> None:
        """Raises a DifferenceError if the process has ended."""
        if self.process.poll() is not None:
            raise DifferenceError(f"a reader failed: {self.process.communicate()[1].strip()[-2000:]}")

    def end(self) -> int:
        """Ends the process; returns how many rows were read."""
        try:
            _, error = self.process.communicate("", timeout=PATIENCE_S)
        except subprocess.TimeoutExpired as expired:
            raise DifferenceError(f"a reader was not done after {PATIENCE_S:g} s") from expired
        if self.process.returncode:
            raise DifferenceError(f"a reader failed: {error.strip()[-2000:]}")
        return self.rows + int(self.log.read_text() or 0)


def read(cache: Path, log: Path, squares: str, squares_url: str, photographs: str, url: str, seed: int) -> None:
    """Reads rows of both datasets and compares them, until standard input ends; a reader's whole life."""
    import select

    chunks.CHUNK_BYTES, chunk_map.MOST_IDLE, chunk_map.CHUNKS_OF_WINDOW = CHUNK_BYTES, 2, 4
    draw, rows = random.Random(seed), 0
    open_remote = lambda url: mmload.open(url, cache=cache, cache_limit=LIMIT, parallel=4)["train"]  # noqa: E731
    local = [mmload.open(path)["train"] for path in (squares, photographs)]
    expected = [[split[row].images.numpy() for row in range(IMAGES)] for split in local]
    targets = local[0].reader.array("targets", np.arange(IMAGES))
    remote = [open_remote(each) for each in (squares_url, url)]
    while not select.select([sys.stdin], [], [], 0)[0]:
        number = draw.randrange(2)
        with expected_errors():
            if draw.random() < 0.1:
                order = draw.choice((None, "block"))
                with mmload.Loader(
                    remote[0],
                    batch_size=8,
                    shuffle=order is None,
                    order=order,
                    tier="disk",
                    threads=1,
                    seed=draw.randrange(99),
                ) as loader:
                    for batch in loader:
                        for row, target, image in zip(batch.ids.tolist(), batch.targets, batch.images, strict=True):
                            compare(image.numpy(), expected[0][row], row)
                            if int(target) != int(targets[row]):
                                raise DifferenceError(f"row {row} has the label {int(target)}, not {targets[row]}")
                        rows += len(batch)
            else:
                wanted = draw.sample(range(IMAGES), draw.randrange(1, 12))
                for row, image in zip(wanted, images_of(remote[number], wanted, number), strict=True):
                    compare(image, expected[number][row], row)
                rows += len(wanted)
        log.write_text(str(rows))


def images_of(split: mmload.Split, rows: list[int], number: int) -> list[np.ndarray]:
    """Reads the images of rows, of squares or of photographs."""
    if number == 0:
        return list(split.reader.array("images", np.array(rows)))
    return list(split.reader.rows("images", np.array(rows)))


def compare(image: np.ndarray, expected: np.ndarray, row: int) -> None:
    """Raises an error if a row has other pixels than locally."""
    if not np.array_equal(image, expected):
        raise DifferenceError(f"row {row} is wrong: {int((image != expected).sum())} of {image.size} values differ")


@contextmanager
def expected_errors() -> Iterator[None]:
    """Suppresses what a full disk may cause, and a file that is truncated while a batch is rendered from it."""
    try:
        yield
    except StoreError as error:
        if not re.search("No space left on device|read the batch again", str(error)):
            raise


if __name__ == "__main__":
    read(Path(sys.argv[1]), Path(sys.argv[2]), *sys.argv[3:7], int(sys.argv[7]))
