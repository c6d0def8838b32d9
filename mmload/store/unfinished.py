"""Recognizes the working folder of an unfinished build, and says how to continue it."""

from __future__ import annotations

import json
import os
import shlex
from pathlib import Path
from typing import Any

from mmload.runtime.regular_files import read_regular

PLAN_NAME = "plan.json"
MARK_NAME = "lock"
COMMAND = "command"
"""Key of the plan for the command of the build: ``words`` after ``mmload``, and the working ``folder``."""

_PREFIX, _SUFFIX = ".", ".building"
_MOST_BYTES = 2**31  # names of samples that are left out are in it


def staging_folder(out: Path) -> Path:
    """Returns the working folder for a build of this destination."""
    return out.parent / f"{_PREFIX}{out.name}{_SUFFIX}"


def is_staging_folder(folder: Path) -> bool:
    """Returns whether a folder is a build's working folder, by its name and its mark."""
    named = folder.name.startswith(_PREFIX) and folder.name.endswith(_SUFFIX)
    return named and (folder / MARK_NAME).is_file()


def unfinished_plan(out: Path) -> dict[str, Any]:
    """Returns the plan of the unfinished build of a destination; empty if there is none."""
    return _mapping(_parsed(staging_folder(out) / PLAN_NAME))


def how_to_go_on(folder: Path) -> str | None:
    """Returns the message on a folder without a dataset, if a build of it has begun and not ended; else None.

    The folder is the destination of a build, its working folder, or the unfinished dataset in that.
    """
    place = Path(os.path.abspath(folder))
    staging = next((one for one in (staging_folder(place), place, place.parent) if is_staging_folder(one)), None)
    if staging is None:
        return None
    out = staging.with_name(staging.name[len(_PREFIX) : -len(_SUFFIX)])
    return f"the build of {out} is unfinished; if it no longer runs, continue it with: {_command(staging, out)}"


def _command(staging: Path, out: Path) -> str:
    """Returns the command of the build, as far as the plan records it."""
    command = _mapping(_mapping(_parsed(staging / PLAN_NAME)).get(COMMAND))
    words, folder = command.get("words"), command.get("folder")
    if isinstance(words, list) and all(isinstance(word, str) for word in words) and isinstance(folder, str):
        line = shlex.join(["mmload", *words])
        return line if os.path.abspath("") == folder else f"cd {shlex.quote(folder)} && {line}"
    return f"mmload build KIND ROOT {shlex.quote(str(out))}, with the recipe that it was begun with"


def _parsed(file: Path) -> Any:
    try:
        return json.loads(read_regular(file, most=_MOST_BYTES))
    except (OSError, ValueError, RecursionError):
        return None


def _mapping(body: Any) -> dict[str, Any]:
    return body if isinstance(body, dict) else {}
