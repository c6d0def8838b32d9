"""Do `parity --record` and `verify --repair` survive SIGKILL before each of their changes, and at random moments?

After each kill the dataset must be readable and every file that was whole must still be; run again undisturbed, the
command must leave what it leaves without a kill, and nothing else.
"""

from __future__ import annotations

import itertools
import json
import os
import random
import shutil
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from torture_builds import DifferenceError, check_equal, forked, make_source, recipe, run_until, tree

from mmload.builder.dataset_change import write_card
from mmload.builder.pipeline import build
from mmload.builder.verify import repair, verify
from mmload.store.manifest import FILE_NAME, read

IMAGES = 24
PATIENCE = 60.0  # seconds
LEAST = 2  # kills of each command, however slow the machine is
_MOST = 10  # times the rounds, where none of them killed the command before its end
CARD = {"date": "2000-01-01T00:00:00+00:00"}  # the same manifest whenever it is written


def torture(folder: Path, seconds: float, rounds: int, seed: int) -> str:
    """Attacks both commands; returns what was done, in words.

    Raises:
        DifferenceError: at the first thing that is not as it must be.
    """
    source = make_source(folder / "photos", IMAGES)
    build(recipe(source, folder / "whole" / "out"), threads=1)
    contents = read(folder / "whole" / "out").contents
    attacks = {
        "parity --record": undisturbed(folder, lambda out: write_card(out, "parity", CARD, contents), lambda out: None),
        "repair": undisturbed(folder, lambda out: repair(out, source, threads=1), damage),
    }
    draw, said = random.Random(seed), []
    for name, attack in attacks.items():
        each = every_kill(attack, time.monotonic() + seconds / 4)
        more = random_kills(attack, rounds, draw, time.monotonic() + seconds / 4)
        said.append(f"{each} kills of {name} and {more} at random moments")
    return f"{', '.join(said)}: each dataset whole after the next run"


@dataclass(frozen=True, kw_only=True)
class Attack:
    """A command to be killed.

    Attributes:
        folder: where to work; ``whole/out`` in it is an undamaged dataset.
        command: what runs on a copy of it.
        before: is called with the copy first, to damage it.
        wanted: what the command leaves without a kill.
        seconds: that it takes.
    """

    folder: Path
    command: Callable[[Path], object]
    before: Callable[[Path], None]
    wanted: dict[str, str]
    seconds: float


def undisturbed(folder: Path, command: Callable[[Path], object], before: Callable[[Path], None]) -> Attack:
    """Runs the command once without a kill; returns how to attack it."""
    out = folder / "undisturbed" / "out"
    shutil.copytree(folder / "whole" / "out", out)
    before(out)
    began = time.monotonic()
    if not run_until(forked(lambda: command(out)), PATIENCE):
        raise DifferenceError("the undisturbed command took more than a minute")
    seconds, wanted = time.monotonic() - began, tree(out)
    shutil.rmtree(out.parent)
    return Attack(folder=folder, command=command, before=before, wanted=wanted, seconds=seconds)


def every_kill(attack: Attack, until: float) -> int:
    """Kills a command before its first change to a file, its second, and so on until it ends; returns the kills."""
    for die_at in itertools.count(1):
        if not is_killed(attack, die_at, PATIENCE):
            return die_at - 1
        if die_at >= LEAST and time.monotonic() > until:
            return die_at
    raise AssertionError("unreachable")


def random_kills(attack: Attack, rounds: int, draw: random.Random, until: float) -> int:
    """Kills a command at random moments, until one came before its end; returns how often that was."""
    kills = 0
    for number in range(_MOST * rounds):
        kills += is_killed(attack, 0, draw.uniform(0, attack.seconds))
        if kills and (number + 1 >= rounds or time.monotonic() > until):
            break
    return kills


def is_killed(attack: Attack, die_at: int, seconds: float) -> bool:
    """Runs the command on a copy; if it is killed, checks the copy, runs it again undisturbed, and checks that.

    Raises:
        DifferenceError: if anything is not as it must be.
    """
    place = attack.folder / "killed"
    out = place / "out"
    shutil.copytree(attack.folder / "whole" / "out", out)
    attack.before(out)
    damaged = {fault.file for fault in verify(out)}
    killed = not run_until(forked(lambda: attack.command(out), die_at), seconds)
    if killed:
        after_kill(out, damaged, attack.wanted)
        if not run_until(forked(lambda: attack.command(out)), PATIENCE):
            raise DifferenceError("a command that was started again took more than a minute")
    check_equal(out, attack.wanted)
    if left := [path.name for path in place.iterdir() if path != out]:
        raise DifferenceError(f"after a kill and another run, {', '.join(left)} is left beside {out}")
    shutil.rmtree(place)
    return killed


def after_kill(out: Path, damaged: set[str], wanted: dict[str, str]) -> None:
    """Checks that the manifest can be read, and nothing is damaged that was not before.

    Raises:
        DifferenceError: if not.
    """
    json.loads((out / FILE_NAME).read_text())
    read(out)
    worse = {fault.file for fault in verify(out)} - damaged
    if worse:
        raise DifferenceError(f"a kill damaged {', '.join(sorted(worse))}")
    changed = [name for name, digest in tree(out).items() if name in wanted and digest != wanted[name]]
    if unexpected := set(changed) - damaged - {FILE_NAME}:
        raise DifferenceError(f"a kill changed {', '.join(sorted(unexpected))}")


def damage(out: Path) -> None:
    """Changes a byte of one shard, truncates another one, and removes a file of a third."""
    shards = sorted(path for path in (out / "train").iterdir() if path.is_dir())
    first = shards[0] / "images.memmap"
    first.write_bytes(b"\xff" + first.read_bytes()[1:])
    os.truncate(shards[1] / "targets.memmap", 1)
    (shards[2] / "images.memmap").unlink()
