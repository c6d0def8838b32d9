"""Does a build survive SIGKILL at any moment? Kill it, many times over, continue it, compare every byte.

Makes a small image folder and builds it once undisturbed. Each round builds the same again: it is killed at a random
moment, or just before a random one of its file operations, and started again until it finishes. Then the dataset must
be, byte for byte, the undisturbed one, with nothing left beside it. Every other round replaces an older dataset, of
which or of the new one a complete copy must exist after each kill.
"""

from __future__ import annotations

import hashlib
import os
import random
import shutil
import signal
import sys
import time
import traceback
import warnings
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from PIL import Image

from mmload.builder.pipeline import build
from mmload.builder.recipe import BuildRecipe, VariableLayout, square
from mmload.builder.shards import BuildPaths
from mmload.store.manifest import FILE_NAME

SIZE, OLD_SIZE = 24, 20  # pixels of a side of the new dataset and of the one it replaces
SHARD_BYTES = 4 * (3 * SIZE * SIZE + 8)
Tree = dict[str, str]


class DifferenceError(Exception):
    """A dataset is not what it must be."""


@dataclass(frozen=True, kw_only=True)
class Build:
    """How builds are run.

    Attributes:
        source: the image folder.
        processes: of each build; with more than one, a kill may leave its workers behind.
        variable_size: images keep their sizes, some as pixels and some as JPEGs, not squares.
    """

    source: Path
    processes: int = 1
    variable_size: bool = False

    def start(self, out: Path, overwrite: bool, die_at: int) -> int:
        """Starts a build as :func:`forked` does."""
        wanted = recipe(self.source, out, variable_size=self.variable_size)
        return forked(lambda: build(wanted, overwrite=overwrite, threads=2, processes=self.processes), die_at)


def forked(command: Callable[[], object], die_at: int = 0) -> int:
    """Starts a command in a fork, in a process group of its own; returns its process id.

    Unless ``die_at`` is 0, the process is killed as :class:`Doom` does it. It ends with 1 if the command fails.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # other threads: none of them is in use here
        pid = os.fork()
    if pid:
        return pid
    code = 1
    try:
        os.setpgid(0, 0)
        if die_at:
            sys.addaudithook(Doom(die_at))
        command()
        code = 0
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(code)


class Doom:
    """An audit hook: kills this process just before its n-th change to the file system; -n: the n-th of its commit."""

    CHANGES = frozenset({"os.mkdir", "os.remove", "os.rename", "os.rmdir", "os.truncate"})

    def __init__(self, die_at: int) -> None:
        self.left, self.counting = abs(die_at), die_at > 0

    def __call__(self, event: str, args: tuple[object, ...]) -> None:
        """Counts one event."""
        if event in self.CHANGES or (event == "open" and isinstance(args[2], int) and args[2] & os.O_CREAT):
            self.counting = self.counting or (event == "os.rename" and str(args[1]).endswith(FILE_NAME))
            self.left -= self.counting
            if self.left == 0:
                os.kill(os.getpid(), signal.SIGKILL)


def make_source(root: Path, images: int) -> Path:
    """Makes an image folder of two splits with noise in JPEG and PNG files."""
    draw = np.random.default_rng(0)
    for number in range(images):
        split = "val" if number % 4 == 3 else "train"
        folder = root / split / f"class{number % 3}"
        folder.mkdir(parents=True, exist_ok=True)
        height, width = draw.integers(28, 60, 2)
        pixels = draw.integers(0, 256, (height, width, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(folder / f"{number:04d}.{'png' if number % 5 else 'jpg'}")
    return root


def make_wide_source(root: Path, images: int, side: int, least: int) -> Path:
    """Makes an image folder of PNGs of noise, ``side`` lines high and from ``least`` to twice ``side`` wide."""
    draw = np.random.default_rng(0)
    for number in range(images):
        folder = root / "train" / f"class{number % 3}"
        folder.mkdir(parents=True, exist_ok=True)
        pixels = draw.integers(0, 256, (side, int(draw.integers(least, 2 * side)), 3), dtype=np.uint8)
        Image.fromarray(pixels).save(folder / f"{number:04d}.png")
    return root


def recipe(source: Path, out: Path, size: int = SIZE, variable_size: bool = False) -> BuildRecipe:
    """Returns what is built: tiny images in shards of about four rows."""
    options = {"kind": "imagefolder", "root": source, "out": out, "shard_bytes": SHARD_BYTES}
    if variable_size:
        return BuildRecipe(
            **options, transforms=({"step": "Shrink", "size": size},), variable_layout=VariableLayout(encode="mixed")
        )
    return BuildRecipe(**options, transforms=square(size))


def tree(folder: Path) -> Tree:
    """Returns every file under a folder -> the SHA-256 of its bytes."""
    files = (path for path in sorted(folder.rglob("*")) if path.is_file())
    return {path.relative_to(folder).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


def differences(found: Tree, wanted: Tree) -> list[str]:
    """Returns the files in which two folders differ."""
    return sorted(name for name in found.keys() | wanted.keys() if found.get(name) != wanted.get(name))


def check_equal(folder: Path, wanted: Tree) -> None:
    """Checks that a folder is the wanted one.

    Raises:
        DifferenceError: naming the files that differ.
    """
    if names := differences(tree(folder), wanted):
        raise DifferenceError(f"{folder} differs from the undisturbed build in {', '.join(names[:5])}")


def check_whole(out: Path, old: Tree | None, new: Tree) -> None:
    """Checks after a kill that the destination is complete, and that no dataset was lost before its successor exists.

    Raises:
        DifferenceError: if not.
    """
    aside = build_paths_of(out).folder / "replaced"
    if out.exists():
        if tree(out) not in (old, new):
            raise DifferenceError(f"{out} is neither the old nor the new dataset after a kill")
    elif old is not None and (found := tree(aside)) not in (old, new):  # new: an earlier start may have replaced it
        lacking = differences(found, old)
        raise DifferenceError(f"the old dataset is gone from {out} and {aside} lacks {', '.join(lacking[:5])}")


def build_paths_of(out: Path) -> BuildPaths:
    """Returns where a build of ``out`` writes."""
    return BuildPaths(out.parent / f".{out.name}.building")


def stage(out: Path) -> str:
    """Returns how far a build was that has been killed."""
    paths = build_paths_of(out)
    if (paths.folder / "replaced").exists():
        return "cleaning up" if out.exists() else "between the two renames"
    if (paths.dataset / FILE_NAME).exists():
        return "before its renames"
    if not paths.folder.exists():
        return "before its first or after its last file"
    if not (paths.folder / "plan.json").exists():
        return "beginning or cleaning up"
    return "writing shards"


def run_until(pid: int, seconds: float) -> bool:
    """Lets a build run for some time, then kills it; returns whether it finished.

    Raises:
        DifferenceError: if it failed.
    """
    until = time.monotonic() + seconds
    ended, status = os.waitpid(pid, os.WNOHANG)
    while not ended and time.monotonic() < until:
        time.sleep(0.0005)
        ended, status = os.waitpid(pid, os.WNOHANG)
    if not ended:
        os.kill(pid, signal.SIGKILL)
        _, status = os.waitpid(pid, 0)
    code = os.waitstatus_to_exitcode(status)
    if code not in (0, -signal.SIGKILL):
        raise DifferenceError(f"a build that was started again failed with exit code {code}")
    return code == 0


def moment(draw: random.Random, seconds: float, operations: int) -> tuple[float, int]:
    """Draws when to kill: after (seconds, 0), or as (no limit, the number of a file operation for Doom)."""
    kind = draw.random()
    if kind < 0.5:
        return draw.uniform(0, seconds * 0.5), 0
    if kind < 0.65:
        return 60.0, -draw.randint(1, 4)
    return 60.0, draw.randint(1, draw.choice((operations // 2, 40)))


def one_round(
    how: Build, out: Path, old: Path | None, new: Tree, seconds: float, draw: random.Random, stages: Counter[str]
) -> int:
    """Builds, kills and starts again until it is done; returns the number of kills.

    Args:
        how: how builds are run.
        out: the destination; nothing is there.
        old: an older dataset to be replaced, or None.
        new: the undisturbed dataset.
        seconds: that an undisturbed build takes.
        draw: for the moments.
        stages: counts how far the builds were.

    Raises:
        DifferenceError: if anything is not as it must be.
    """
    before = None if old is None else tree(Path(shutil.copytree(old, out)))
    operations, kills = 12 * len(new), 0
    while True:
        after, die_at = moment(draw, seconds, operations)
        if run_until(how.start(out, old is not None, die_at), after):
            break
        kills += 1
        stages[stage(out)] += 1
        check_whole(out, before, new)
    check_equal(out, new)
    if build(recipe(how.source, out, variable_size=how.variable_size)).built:
        raise DifferenceError(f"{out} was finished, and was built again")
    if left := [path.name for path in out.parent.iterdir() if path != out]:
        raise DifferenceError(f"{', '.join(left)} is left beside {out}")
    return kills


def torture(folder: Path, rounds: int, seed: int, images: int, processes: int = 1, variable_size: bool = False) -> int:
    """Runs all rounds; returns the number of kills.

    Raises:
        DifferenceError: at the first thing that is not as it must be.
    """
    how = Build(source=make_source(folder / "photos", images), processes=processes, variable_size=variable_size)
    old, place = folder / "old" / "out", folder / "rounds"
    began = time.monotonic()
    if not run_until(how.start(folder / "new" / "out", False, 0), 600):
        raise DifferenceError("the undisturbed build took more than 10 minutes")
    seconds, new = time.monotonic() - began, tree(folder / "new" / "out")
    build(recipe(how.source, old, OLD_SIZE, variable_size=variable_size), threads=1)
    print(f"undisturbed: {images} images, {len(new)} files, {seconds:.2f} s")
    draw, stages, kills = random.Random(seed), Counter[str](), 0
    for number in range(rounds):
        place.mkdir()
        now = one_round(how, place / "out", old if number % 2 else None, new, seconds, draw, stages)
        shutil.rmtree(place)
        kills += now
        print(f"round {number + 1}/{rounds}: {now} kills, {'replaced' if number % 2 else 'built'}, equal", flush=True)
    for name, count in stages.most_common():
        print(f"  killed {name}: {count}")
    return kills
