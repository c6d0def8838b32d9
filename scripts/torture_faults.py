"""Do files that change under running loaders ever give a wrong epoch without an error?

Each round opens a copy of a dataset, harms one of its files at a random moment of three epochs, and compares all
batches with those of the original: all of an epoch are right, or an exception names the folder or the URL. Rounds go
over all tiers and layouts, in processes of their own. A file that is truncated while it is in use may end one by
SIGBUS; these are counted, and another process goes on with the next round.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from itertools import product
from pathlib import Path

import torch
from torture_builds import DifferenceError, make_wide_source

import mmload
from mmload.augment import RandomCrop, RandomResizedCrop
from mmload.builder.pipeline import build
from mmload.builder.recipe import BuildRecipe, VariableLayout, square
from mmload.errors import MmloadError
from mmload.remote.copies import push

IMAGES, SIZE, EPOCHS = 48, 160, 3
LAYOUTS = ("squares", "raw", "jpeg")
TIERS = ("disk", "memory", "cache")
HARMS = ("rewrite", "truncate", "shorten", "replace", "unlink", "unreadable", "folder")
"""What is done to a file; the first not to a cache, which does not look at files that it has mapped."""

PATIENCE_S = 3600.0


def torture(folder: Path, rounds: int, seed: int) -> str:
    """Harms datasets under their readers; returns what was done, in words.

    Raises:
        DifferenceError: if a reader saw a wrong epoch, an error that names no file, or a signal other than SIGBUS.
    """
    make_datasets(folder)
    pairs = list(product(LAYOUTS, TIERS))
    counts: Counter[str] = Counter()
    for number, (layout, tier) in enumerate(pairs):
        some = rounds * (number + 1) // len(pairs) - rounds * number // len(pairs)
        found: Counter[str] = Counter()
        while found["rounds"] < some:
            found.update(in_process(folder, layout, tier, range(found["rounds"], some), seed + number))
        print(f"{layout} in tier {tier}: {dict(found)}", flush=True)
        counts.update(found)
    return (
        f"{counts['rounds']} rounds over {len(pairs)} pairs of layout and tier: {counts['epochs']} right epochs, "
        f"{counts['errors']} errors that name the file, {counts['signals']} processes ended by SIGBUS; "
        + ", ".join(f"{counts[harm]} x {harm}" for harm in HARMS)
    )


def in_process(folder: Path, layout: str, tier: str, numbers: range, seed: int) -> Counter[str]:
    """Runs rounds in another process, until all are done or it ends by SIGBUS; returns the counts of what was seen."""
    command = [sys.executable, __file__, str(folder), layout, tier, str(numbers.start), str(numbers.stop), str(seed)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=PATIENCE_S)
    found = sum((Counter(json.loads(line)) for line in done.stdout.splitlines()), Counter[str]())
    if done.returncode == -signal.SIGBUS:
        return found + Counter(rounds=1, signals=1)
    if done.returncode:
        raise DifferenceError(f"{layout} in tier {tier}: exit code {done.returncode}: {done.stderr[-2000:]}")
    return found


def make_datasets(folder: Path) -> None:
    """Builds a dataset of each layout from the same images of noise, and copies it to a folder as object storage."""
    source = make_wide_source(folder / "source", IMAGES, SIZE, SIZE)
    options = {"kind": "imagefolder", "root": source, "shard_bytes": 12 * SIZE * SIZE * 3}
    for layout in LAYOUTS:
        out = folder / layout
        if layout == "squares":
            build(BuildRecipe(**options, out=out, transforms=square(SIZE)), threads=1)
        else:
            build(
                BuildRecipe(**options, out=out, transforms=(), variable_layout=VariableLayout(encode=layout)), threads=1
            )
        push(out, f"file://{folder}/pushed-{layout}")


class Rounds:
    """The rounds of one layout and tier.

    Args:
        folder: where the datasets are.
        layout: one of :data:`LAYOUTS`.
        tier: one of :data:`TIERS`.

    Attributes:
        counts: how often each thing was seen.
    """

    def __init__(self, folder: Path, layout: str, tier: str) -> None:
        self.folder, self.layout, self.tier = folder, layout, tier
        self.original = folder / layout
        self.url = f"file://{folder}/pushed-{layout}"
        self.collate = mmload.Collate(RandomCrop(96) if layout == "squares" else RandomResizedCrop(96))
        self.counts: Counter[str] = Counter()
        began = time.monotonic()
        self.expected = list(self._epochs(mmload.open(self.original)["train"]))
        self.seconds = time.monotonic() - began

    def one(self, number: int, harm: str, moment: float, draw: random.Random) -> None:
        """Opens a copy, harms it so many seconds later (negative: before its first batch), and compares.

        Raises:
            DifferenceError: if an epoch is wrong, or an exception names no file of the copy.
        """
        copy = self.folder / f"copy-{self.layout}-{self.tier}-{number}"
        if self.tier == "cache":
            limit = draw.choice((None, IMAGES * SIZE * SIZE * 2))
            split = mmload.open(self.url, cache=copy, cache_limit=limit)["train"]
        else:
            split = mmload.open(shutil.copytree(self.original, copy))["train"]
        timer = threading.Timer(max(0.0, moment), _harm, (copy, harm, draw, self.tier == "cache"))
        timer.start()
        if moment < 0:
            timer.join()
        try:
            for found, wanted in zip(self._epochs(split), self.expected, strict=True):
                if not torch.equal(found, wanted):
                    raise DifferenceError(f"round {number}: a wrong epoch after {harm} of a file at {moment:.4f} s")
                self.counts["epochs"] += 1
        except MmloadError as error:
            if str(copy) not in str(error) and self.url not in str(error):
                raise DifferenceError(f"round {number}: an error that names no file after {harm}: {error}") from error
            self.counts["errors"] += 1
        timer.join()
        self.counts.update({harm: 1, "rounds": 1})
        if self.tier == "cache":
            split.folder.cache.close()
        shutil.rmtree(copy, ignore_errors=True)

    def _epochs(self, split: object) -> Iterator[torch.Tensor]:
        """Yields the images of each of some epochs, which are the same for all copies."""
        tier = "disk" if self.tier == "cache" else self.tier
        options = {"batch_size": 8, "shuffle": True, "seed": 1, "threads": 2, "tier": tier, "collate": self.collate}
        with mmload.Loader(split, **options) as loader:
            for _ in range(EPOCHS):
                yield torch.cat([batch.images for batch in loader])


def _harm(folder: Path, harm: str, draw: random.Random, is_cache: bool) -> None:
    """Harms a random file below a folder, as users and disks do; what has gone meanwhile is left alone.

    A cache notices files of other lengths when it opens them, and not other bytes in a file of the same length.
    """
    with suppress(OSError):
        file = draw.choice(sorted(folder.rglob("*.chunk" if is_cache else "*.memmap")) or [folder / "none"])
        size = file.stat().st_size + is_cache * draw.randrange(1, 9)
        match harm:
            case "truncate":
                os.truncate(file, 0)
            case "shorten":
                os.truncate(file, draw.randrange(max(1, file.stat().st_size)))
            case "rewrite":
                file.write_bytes(draw.randbytes(size))
            case "replace":
                file.with_suffix(".new").write_bytes(draw.randbytes(size))
                file.with_suffix(".new").rename(file)
            case "unlink":
                file.unlink()
            case "unreadable":
                file.chmod(0)
            case "folder":
                shutil.rmtree(file.parent)


def main(folder: Path, layout: str, tier: str, numbers: range, seed: int) -> None:
    """Runs rounds of one layout and tier, and prints after each the counts of what was seen in it."""
    rounds = Rounds(folder, layout, tier)
    for number in numbers:
        draw = random.Random(f"{seed} {number}")
        moment = draw.choice((-1.0, *[draw.random() * rounds.seconds] * 3))
        rounds.counts.clear()
        rounds.one(number, draw.choice(HARMS[tier == "cache" :]), moment, draw)
        print(json.dumps(rounds.counts), flush=True)


if __name__ == "__main__":
    try:
        first, stop, drawn_by = map(int, sys.argv[4:])
        main(Path(sys.argv[1]), sys.argv[2], sys.argv[3], range(first, stop), drawn_by)
    except DifferenceError as error:
        sys.exit(str(error))
