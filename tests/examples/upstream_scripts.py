"""Scripts of other projects, taken from the clones that a developer has: their code is not in this repository."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path, PurePosixPath

import change_scripts
import pytest

FOLDER = "MMLOAD_UPSTREAM"


def changed_script(name: str, folder: Path) -> Path:
    """Writes a script of another project into ``folder``, changed to read from mmload, with the modules beside it.

    Skips the test if there is no clone of the project that has the commit of the change.
    """
    upstream = change_scripts.change_of(name)["upstream"]
    path = PurePosixPath(upstream["path"])
    clone = clone_of(upstream)
    beside = "" if path.parent == PurePosixPath() else path.parent
    for entry in git(clone, "ls-tree", f"{upstream['commit']}:{beside}").decode().splitlines():
        described, module = entry.split("\t")
        _, kind, blob = described.split()
        if kind == "blob" and module.endswith(".py"):
            (folder / module).write_bytes(git(clone, "cat-file", "blob", blob))
    script = folder / path.name
    script.write_text(change_scripts.apply().changed(script.read_bytes(), change_scripts.change_of(name)))
    return script


def clone_of(upstream: dict[str, str]) -> Path:
    """The clone of a project, which holds the commit of the change."""
    project = upstream["repository"].rpartition("/")[2]
    wanted = f"a folder with a clone of {upstream['repository']} that has commit {upstream['commit'][:7]}"
    if FOLDER not in os.environ:
        pytest.skip(f"set {FOLDER} to {wanted}")
    clone = Path(os.environ[FOLDER]) / project
    try:
        git(clone, "cat-file", "-e", upstream["commit"])
    except (OSError, subprocess.CalledProcessError):
        pytest.skip(f"{FOLDER} is {os.environ[FOLDER]}, expected {wanted}")
    return clone


def git(clone: Path, *words: str) -> bytes:
    return subprocess.run(["git", "-C", clone, *words], check=True, capture_output=True).stdout
