"""Kills whatever changes a dataset at random moments, beside a reader and a second process that changes it.

Updates, clean-ups, compactions, added fields and subsets are killed. After each kill every version is whole, or not
there at all; no file of a kept version has changed; a field's values and a subset's rows are those of their samples;
and a reader that was opened before gets the pixels that it got then. Now and then everything is brought to an end and
compared with a fresh build.
"""

from __future__ import annotations

import os
import random
import shutil
import signal
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch import Tensor
from torture_builds import DifferenceError, forked

import mmload
from mmload.builder.columns import add_field, remove_field
from mmload.builder.dataset_change import compact, remove_subset, remove_unused, save_subset
from mmload.builder.pipeline import LocalEngine, build, update
from mmload.builder.previous_version import UpdateOptions
from mmload.builder.recipe import BuildRecipe, square
from mmload.builder.verify import verify
from mmload.errors import MmloadError
from mmload.store.dataset import Dataset, Split
from mmload.store.manifest import staging_folder

_SIDE, _EACH, _COMPARED = 24, 12, 25
_FIELD, _SUBSETS = "score", ("hard", "marked")
_MOST = 10  # times the rounds, where none of them killed anything before its end


def torture(folder: Path, rounds: int, seed: int) -> str:
    """Runs the attack and says what was done.

    Raises:
        DifferenceError: if something is not as it must be.
    """
    draw = random.Random(seed)
    source = folder / "photos"
    for number in range(3 * _EACH):
        _picture(draw, source / "train" / f"class{number % 3}" / f"{number:03}.png")
    recipe = BuildRecipe(
        kind="imagefolder", root=source, out=folder / "out", transforms=square(_SIDE), shard_bytes=6 * 3 * _SIDE**2
    )
    build(recipe)
    killed = committed = done = 0
    reader = _Reader(recipe.out)
    longest = _seconds_of_update(recipe, draw)
    while done < rounds or (not killed and done < _MOST * rounds):
        done += 1
        _change(draw, source)
        work = draw.choice(_WORK)
        children = [_started(work, recipe, draw) for _ in range(draw.choice((1, 1, 2)))]
        time.sleep(draw.random() * longest)
        for child in children:
            if draw.random() < 0.8:
                os.kill(child, signal.SIGKILL)
        for child in children:
            ended = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
            if ended > 0:
                raise DifferenceError("a command ended with an error that is none of mmload's; see above")
            killed += ended < 0
        committed += _check(recipe.out, reader)
        if draw.random() < 0.2:
            reader = _Reader(recipe.out)
        if done % _COMPARED == 0:
            _compare(recipe, folder)
    _compare(recipe, folder)
    return (
        f"{done} rounds, {killed} kills, {committed} versions checked: each whole or not there, no file of one "
        "changed, the reader's pixels unchanged, and the dataset that of a fresh build"
    )


def _seconds_of_update(recipe: BuildRecipe, draw: random.Random) -> float:
    """Returns how long an update takes in a process of its own that nobody kills."""
    assert isinstance(recipe.root, Path)
    _change(draw, recipe.root)
    began = time.monotonic()
    os.waitpid(_started(_update, recipe, draw), 0)
    return time.monotonic() - began


def _update(recipe: BuildRecipe, draw: random.Random) -> None:
    options = UpdateOptions(append=draw.random() < 0.3, checksum=draw.random() < 0.1)
    update(recipe, options, engine=LocalEngine(threads=1, processes=1))


def _remove(recipe: BuildRecipe, draw: random.Random) -> None:
    assert recipe.out is not None
    remove_unused(recipe.out, keep=draw.randint(2, 6))


def _compact(recipe: BuildRecipe, _: random.Random) -> None:
    assert recipe.out is not None
    compact(recipe.out)


def _add_field(recipe: BuildRecipe, draw: random.Random) -> None:
    assert recipe.out is not None
    if draw.random() < 0.2:
        remove_field(recipe.out, _FIELD, split="train")
    else:
        _finish_field(recipe.out)


def _finish_field(out: Path) -> None:
    """Adds the field; goes on with it where a killed process has begun it."""
    add_field(out, _FIELD, lambda batch: _sums(batch.images), batch_size=8, split="train")


def _save_subset(recipe: BuildRecipe, draw: random.Random) -> None:
    assert recipe.out is not None
    name = draw.choice(_SUBSETS)
    if draw.random() < 0.2:
        remove_subset(recipe.out, name)
    else:
        dataset = mmload.open(recipe.out)
        rows = len(dataset["train"])
        save_subset(dataset, name, draw.sample(range(rows), draw.randint(1, rows)), split="train")


_WORK: tuple[Callable[[BuildRecipe, random.Random], None], ...] = (
    _update,
    _update,
    _update,
    _remove,
    _compact,
    _add_field,
    _save_subset,
)


def _started(work: Callable[[BuildRecipe, random.Random], None], recipe: BuildRecipe, draw: random.Random) -> int:
    """Starts work in a forked process, in which errors of mmload are expected: another process may be at work."""
    own = random.Random(draw.random())

    def tried() -> None:
        with suppress(MmloadError):
            work(recipe, own)

    return forked(tried)


class _Reader:
    """Open dataset, with what its rows were when it was opened, and what all files of its version were."""

    def __init__(self, path: Path) -> None:
        self.split = mmload.open(path)["train"]
        self.images = self.split[:].images.clone()
        self.opened = time.monotonic()

    def check(self) -> None:
        """Compares all rows with what they were."""
        if not torch.equal(self.split[:].images, self.images):
            raise DifferenceError(f"a reader of version {self.split.version} got other pixels than before")


def _check(out: Path, reader: _Reader) -> int:
    """Checks all versions that there are; returns their number."""
    manifest = mmload.open(out).manifest
    numbers = [version.number for version in manifest.versions] or [1]
    for number in numbers:
        if faults := verify(out, number):
            raise DifferenceError(f"version {number} of {numbers}: {faults[0]}")
        _check_rows(mmload.open(out, version=number))
    if reader.split.version in numbers:
        reader.check()
    return len(numbers)


def _check_rows(dataset: Dataset) -> None:
    """Checks the field of a version, and that its subsets have the rows of their samples."""
    train = dataset["train"]
    rows = train[:]
    if _FIELD in train.fields:
        values = rows.extra[_FIELD]
        if not torch.equal(values.nan_to_num(-1), torch.where(values.isnan(), -1, _sums(rows.images))):
            raise DifferenceError(f"version {train.version}: a row has the value of another one")
    places = {train.source(row).id: row for row in range(len(train))}
    for name in dataset:
        if name in _SUBSETS:
            subset = dataset[name]
            of_train = [places[subset.source(row).id] for row in range(len(subset))]
            if not torch.equal(subset[:].images, rows.images[of_train]):
                raise DifferenceError(f"version {train.version}: {name} has other pixels than its samples")


def _sums(images: Tensor) -> Tensor:
    """Returns the sum of each row's pixels, float32 [B]."""
    return images.flatten(1).sum(1).float()


def _compare(recipe: BuildRecipe, folder: Path) -> None:
    """Ends what was begun, and compares the dataset with a fresh build."""
    assert recipe.out is not None
    if staging_folder(recipe.out).exists():
        with suppress(MmloadError):  # another command was killed
            _finish_field(recipe.out)
    update(recipe)
    shutil.rmtree(folder / "fresh", ignore_errors=True)
    build(replace(recipe, out=folder / "fresh"))
    ours, fresh = mmload.open(recipe.out), mmload.open(folder / "fresh")
    if sorted(ours.built_splits) != sorted(fresh):
        raise DifferenceError("an updated dataset has other splits than a fresh build")
    for name in fresh:
        _compare_split(ours[name], fresh[name])
    leftovers = [entry.name for entry in recipe.out.parent.iterdir() if ".building" in entry.name]
    if leftovers:
        raise DifferenceError(f"{leftovers} were left beside the dataset")


def _compare_split(ours: Split, fresh: Split) -> None:
    places = {ours.source(row).id: row for row in range(len(ours))}
    names = [fresh.source(row).id for row in range(len(fresh))]
    if sorted(places) != sorted(names):
        raise DifferenceError("an updated dataset has other samples than a fresh build")
    rows = [places[name] for name in names]
    for field in ("images", "targets"):
        if not torch.equal(getattr(ours[rows], field), getattr(fresh[:], field)):
            raise DifferenceError(f"an updated dataset has other {field} than a fresh build")
    if (ours.mean, ours.std, ours.record.class_counts) != (fresh.mean, fresh.std, fresh.record.class_counts):
        raise DifferenceError("an updated dataset has other statistics than a fresh build")


def _change(draw: random.Random, source: Path) -> None:
    """Adds, changes, removes or renames a few pictures; each class keeps some. A second split comes and goes."""
    if draw.random() < 0.2:
        if (source / "val").exists():
            shutil.rmtree(source / "val")
        else:
            for number in range(6):
                _picture(draw, source / "val" / f"class{number % 3}" / f"{number:03}.png")
    for _ in range(draw.randint(1, 4)):
        files = sorted((source / "train").rglob("*.png"))
        file = draw.choice(files)
        kind = draw.choice(("add", "add", "change", "remove", "rename", "touch"))
        few = len([*file.parent.iterdir()]) < 6
        if kind == "add" or few:
            _picture(draw, file.with_name(f"n{draw.randrange(10**6)}.png"))
        elif kind == "change":
            _picture(draw, file)
        elif kind == "remove":
            file.unlink()
        elif kind == "rename":
            file.rename(file.with_name(f"r{draw.randrange(10**6)}.png"))
        else:
            os.utime(file)


def _picture(draw: random.Random, file: Path) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    pixels = np.random.default_rng(draw.randrange(2**32)).integers(0, 256, (30, 32, 3), dtype=np.uint8)
    Image.fromarray(pixels).save(file)
