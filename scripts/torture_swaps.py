"""Is a batch ever mixed of two datasets, when one replaces the other under its readers?

Every build has a generation, and its pixels are all ``10 * generation + class``. Readers check that the pixels and
labels of each batch agree, and are of one generation; an error may say that the dataset was replaced: then they open it
again.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
from PIL import Image
from torture_builds import DifferenceError

import mmload
from mmload.builder.recipe import BuildRecipe, square
from mmload.errors import StoreError

SIDE, CLASSES, ROWS, GENERATIONS = 32, 4, 48, 20
START = 240.0  # seconds that readers may take to start on a busy machine
PAUSE = 0.05  # seconds between two swaps: readers need some of the cores
EPOCHS = 20  # before a reader opens the dataset again, if no error makes it do so


def torture(folder: Path, seconds: float) -> str:
    """Readers and a build that replaces what they read; what was done, in words.

    Raises:
        DifferenceError: if a reader saw a mixed batch, or failed.
    """
    place = folder / "out"
    replace(folder, place, 0)
    readers = [
        subprocess.Popen([sys.executable, __file__, str(place), tier, str(seconds)], stdout=-1, stderr=-1, text=True)
        for tier in ("disk", "memory")
    ]
    swaps, until = 0, time.monotonic() + seconds + START
    while any(reader.poll() is None for reader in readers):
        if time.monotonic() > until:
            for reader in readers:
                reader.kill()
            raise DifferenceError(f"a reader was not done {START:g} s after its time")
        swaps += 1
        replace(folder, place, swaps % GENERATIONS)
        time.sleep(PAUSE)
    lines = []
    for reader in readers:
        out, err = reader.communicate()
        if reader.returncode:
            raise DifferenceError((out + err).strip())
        lines.append(out.strip())
    return f"{swaps} swaps; {'; '.join(lines)}; none mixed"


def replace(folder: Path, place: Path, generation: int) -> None:
    """Builds a generation over what is there."""
    source = folder / "photos"
    shutil.rmtree(source, ignore_errors=True)
    for number in range(ROWS):
        name = source / f"class{number % CLASSES}"
        name.mkdir(parents=True, exist_ok=True)
        value = 10 * generation + number % CLASSES
        Image.new("RGB", (SIDE, SIDE), (value,) * 3).save(name / f"{number}.png")
    shard_bytes = 8 * (3 * SIDE * SIDE + 8)
    wanted = BuildRecipe(kind="imagefolder", root=source, out=place, transforms=square(SIDE), shard_bytes=shard_bytes)
    mmload.build(wanted, overwrite=True, threads=1)


def read(place: Path, tier: str, seconds: float) -> str:
    """Reads epochs until the time is over, a batch at least; opens the dataset again when it was replaced.

    Returns:
        What was seen, in words.

    Raises:
        DifferenceError: if a batch is mixed.
    """
    until = time.monotonic() + seconds
    batches = opened = 0
    while time.monotonic() < until or not batches:
        opened += 1
        try:
            with mmload.Loader(place, batch_size=12, shuffle=True, tier=tier, threads=1, prefetch=0) as loader:
                for _ in range(EPOCHS):
                    for batch in loader:
                        check(batch)
                        batches += 1
        except StoreError as error:
            if "\n" in str(error):
                raise DifferenceError(f"more than a line: {error}") from error
    return f"{tier}: {batches} batches, opened {opened} times"


def check(batch: mmload.Batch) -> None:
    """Checks that pixels and labels of a batch agree and are of one generation.

    Raises:
        DifferenceError: if not.
    """
    pixels = batch.images.flatten(1).numpy()
    values = pixels[:, 0].astype(np.int64)
    mixed = (pixels != pixels[:, :1]).any() or len(set((values // 10).tolist())) > 1
    if mixed or (values % 10 != batch.targets.numpy()).any():
        raise DifferenceError(f"a mixed batch: pixels {values.tolist()}, labels {batch.targets.tolist()}")


if __name__ == "__main__":
    try:
        print(read(Path(sys.argv[1]), sys.argv[2], float(sys.argv[3])))
    except DifferenceError as error:
        sys.exit(str(error))
