"""The ``mmload browse`` command."""

from __future__ import annotations

import os
import sys
import threading
import webbrowser
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from mmload.cli import augmentations, options
from mmload.cli.interrupt import interruptible
from mmload.cli.terminal import check_target, show
from mmload.errors import UsageError

if TYPE_CHECKING:
    from mmload.augment import Views
    from mmload.augment.collate import Collate


def browse(
    dataset: options.Dataset,
    source: Annotated[
        Path | None, typer.Option(help="What it was built from, to see the photographs.", callback=options.on_a_disk)
    ] = None,
    augment: augmentations.Augment = None,
    recipe: augmentations.Recipe = None,
    seed: Annotated[int, typer.Option(help="What random draws are made of.")] = 0,
    marks: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Where marks are written; DATASET.excluded.txt by default.")
    ] = None,
    port: Annotated[int, typer.Option(help="Of the page; any free one by default.")] = 0,
    no_open: Annotated[bool, typer.Option("--no-open", help="Show the address, and open no browser.")] = False,
) -> None:
    """Look at rows one by one in a page on this machine, and mark what is wrong, for build --exclude."""
    augmentations.check_one(augment, recipe)
    if not 0 <= port < 65536:
        raise UsageError(f"--port is {port}; use an integer from 0 to 65535")
    if not 0 <= seed < 2**63:
        raise UsageError(f"--seed is {seed}; use an integer from 0 to 2**63 - 1")
    if source is not None and not source.exists():
        raise UsageError(f"--source is {source}, and there is no such folder; give what the dataset was built from")
    from mmload.browse.pages import Pages
    from mmload.browse.server import Server

    def collate_for(classes: int) -> Collate | Views | None:
        return augmentations.collate_of(augment, recipe, classes)

    collate_for(1)  # what is wrong with the options is said at once
    folder = Path(os.path.realpath(dataset))  # a link to itself stays, and is refused when it is opened
    file = folder.with_name(f"{folder.name}.excluded.txt") if marks is None else marks
    pages = Pages(
        dataset, file, source=source, augmentation=recipe or augment or "", collate_for=collate_for, seed=seed
    )
    check_target("--marks", file, dataset, source)
    with Server(pages, port) as server, interruptible(f"marks are in {file}"):
        show(f"{dataset} is shown at {server.address}", f"marks go to {file}; Ctrl-C ends it")
        sys.stdout.flush()
        if not no_open and _has_screen():
            threading.Thread(target=webbrowser.open, args=(server.address,), daemon=True).start()
        server.serve_forever()


def _has_screen() -> bool:
    """Whether a browser would open in a window, and not in this terminal."""
    return sys.platform in ("darwin", "win32") or bool(os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY"))
