"""The plan of an unfinished build: what made it and who asked for it, and its difference from that of another one."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import mmload
from mmload.store.unfinished import COMMAND

UPDATES = "updates"
"""Key of the plan of a change: contents of the version that it follows."""

COLUMN = "column"
"""Key of a plan that adds a field: what is added."""

_PACKAGES = ("torch", "torchvision", "pillow", "simplejpeg", "numba", "numpy")


def made_by() -> dict[str, str]:
    """Package -> version, for the packages that influence the stored bytes besides the recipe and the source."""
    found = {"mmload": mmload.__version__}
    for package in _PACKAGES:
        with suppress(PackageNotFoundError):
            found[package] = version(package)
    return found


def asked_by(command: Sequence[str]) -> dict[str, Any]:
    """Returns what a plan says about the command; for a part, the command that builds everything."""
    words = [word for word in command if not word.startswith("--part=") and word != "--commit"]
    if "--part" in words:
        at = words.index("--part")
        del words[at : at + 2]
    return {COMMAND: {"words": words, "folder": os.getcwd()}} if command else {}


def has_same_recipe(begun: Mapping[str, Any] | None, plan: Mapping[str, Any]) -> bool:
    """Returns whether a build has this recipe and source, regardless of versions."""
    return begun is not None and all(begun.get(key) == plan[key] for key in ("recipe", "fingerprint"))


def have_same_plan(begun: Mapping[str, Any], plan: Mapping[str, Any]) -> bool:
    """Returns whether two builds write the same bytes; their command lines may differ."""
    return all(begun.get(key) == value for key, value in plan.items() if key != COMMAND)


def difference(begun: Mapping[str, Any], plan: Mapping[str, Any], advice: str) -> str:
    """Formats what is unfinished, how it differs from this build, and what to do; ``advice`` says how to drop it."""
    if COLUMN in begun:
        return column_advice(begun[COLUMN])
    if begun.get("recipe") != plan["recipe"]:
        return f"build of another recipe; {advice} to drop it"
    if begun.get("fingerprint") != plan["fingerprint"]:
        return f"build of a source that has changed since; {advice} to drop it"
    versions = begun.get("versions")
    was, now = versions if isinstance(versions, dict) else {}, plan["versions"]
    changed = [name for name in sorted({*was, *now}) if was.get(name) != now.get(name)]
    if not changed:
        return (
            "build of a source with other pixels in files of equal names, sizes and times; "
            f"continue with that source, or {advice} to drop it"
        )
    before = ", ".join(f"{name} {was.get(name, 'unknown')}" for name in changed)
    after = ", ".join(f"{name} {now.get(name, 'none')}" for name in changed)
    return (
        f"build by {before}, and this machine has {after}, which may make other pixels; "
        f"continue with those versions, or {advice} to drop it and start again"
    )


def column_advice(column: Mapping[str, Any]) -> str:
    """Formats which field an unfinished command adds, and how to proceed."""
    return f"field {column.get('name')}; add the field again, which goes on with it, or remove that folder"


def unfinished_advice(begun: Mapping[str, Any]) -> str:
    """Formats what is unfinished, a field or a build, and how to proceed."""
    return column_advice(begun[COLUMN]) if COLUMN in begun else "build; run it again, or remove that folder"
