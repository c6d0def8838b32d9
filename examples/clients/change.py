"""Makes a training script of another project read from mmload: writes the script with a few lines replaced.

    python examples/clients/change.py examples/clients/imagenet_main.toml main.py > main_mmload.py

A .toml file here names the script by project, commit and git blob hash, and the lines that it replaces by their
numbers. It holds none of that project's code. A script of another version is refused.
"""

from __future__ import annotations

import hashlib
import sys
import tomllib
from pathlib import Path
from typing import Any


def blob_of(script: bytes) -> str:
    """Returns the hash that git gives a file of these bytes."""
    return hashlib.sha1(b"blob %d\0" % len(script) + script).hexdigest()


def places_of(replacement: dict[str, Any]) -> tuple[int, int]:
    """Returns the lines that are replaced, counted from 1: (the first, the one after the last)."""
    if "after" in replacement:
        return replacement["after"] + 1, replacement["after"] + 1
    first, last = replacement["lines"]
    return first, last + 1


def changed(script: bytes, change: dict[str, Any]) -> str:
    """Returns the script with its lines replaced.

    Raises:
        ValueError: if it is not the script that the change was written for.
    """
    upstream = change["upstream"]
    if blob_of(script) != upstream["blob"]:
        raise ValueError(
            f"this is another version of {upstream['path']}: its git blob is {blob_of(script)}, expected "
            f"{upstream['blob']}; take it from {upstream['repository']} at commit {upstream['commit']}, or edit yours "
            "by hand: put the lines of the .toml file where yours makes datasets and loaders"
        )
    lines = script.decode().splitlines(keepends=True)
    for replacement in sorted(change["replace"], key=places_of, reverse=True):
        first, after = places_of(replacement)
        lines[first - 1 : after - 1] = replacement["by"].splitlines(keepends=True)
    at = 1 if lines[0].startswith("#!") else 0
    lines[at:at] = [
        f"# {upstream['path']} of {upstream['repository']} at commit {upstream['commit']}, changed for mmload.\n",
        "# To edit another version by hand, put the lines of the .toml file where yours makes datasets and loaders.\n",
    ]
    return "".join(lines)


def main(arguments: list[str]) -> str | int:
    """Writes the changed script to the output; returns an error, or 0."""
    if len(arguments) != 2:
        return "usage: python examples/clients/change.py CHANGE.toml SCRIPT.py > CHANGED.py"
    change, script = map(Path, arguments)
    try:
        sys.stdout.write(changed(script.read_bytes(), tomllib.loads(change.read_text(encoding="utf-8"))))
    except (OSError, ValueError) as error:
        return str(error)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
