"""The commands ``mmload preview``, ``mmload report`` and ``mmload browse``."""

from __future__ import annotations

import os
import re
import sys
import threading
import webbrowser
from pathlib import Path, PurePath
from typing import TYPE_CHECKING, Annotated

import typer

from mmload.cli import options
from mmload.cli.terminal import check_target, doing, interruptible, progress, show, write_result
from mmload.errors import UsageError, counted

if TYPE_CHECKING:
    from mmload.augment import Views
    from mmload.augment.collate import Collate

_FORMATS = {".png": "PNG", ".jpg": "JPEG", ".jpeg": "JPEG", ".webp": "WEBP"}


def preview(
    dataset: options.DatasetOrUrl,
    out: Annotated[Path, typer.Option("-o", "--out", metavar="FILE.png", help="The picture.")] = Path("preview.png"),
    split: Annotated[str | None, typer.Option(help="Split to show; the first by default.")] = None,
    of_class: Annotated[str | None, typer.Option("--class", help="Only rows of the class of this name.")] = None,
    rows: Annotated[
        list[int] | None, typer.Option("--row", metavar="N", min=0, help="Only this row; can be repeated.")
    ] = None,
    grid: Annotated[str, typer.Option(metavar="ROWSxCOLUMNS", help="Rows and columns of pictures.")] = "6x8",
    seed: options.Seed = 0,
    augment: options.Augment = None,
) -> None:
    """Draw a contact sheet of stored rows, or of what training sees.

    Boxes, masks and keypoints are drawn, too.
    """
    if rows and of_class is not None:
        raise UsageError("--row and --class are both given; choose one")
    check_target("--out", out, dataset, endings=_FORMATS)
    lines, columns = _grid(grid)
    from mmload.pictures.contact_sheet import contact_sheet
    from mmload.pictures.drawing import encoded
    from mmload.store.dataset import cells_of_rows, first_rows

    doing("drawing")
    with options.dataset_at(dataset) as opened:
        chosen = opened[split] if split is not None else next(iter(opened.values()))
        try:
            if augment is None:
                title = f"{PurePath(chosen.folder.title).name}, {chosen.name}"
                drawn = rows or first_rows(chosen, lines * columns, seed=seed, of_class=of_class)
                cells = cells_of_rows(chosen, drawn)
                picture = contact_sheet(cells, columns, title=title, classes=chosen.classes)
            else:
                from mmload.augment.collate import collates_of  # torch, which stored rows do not need
                from mmload.view.training import augmented_sheet

                collate = options.training_of(augment, max(1, len(chosen.classes))).collate(chosen)
                drawn = rows or first_rows(chosen, lines, seed=seed, of_class=of_class)
                draws = max(1, (columns - 1) // len(collates_of(collate)))
                picture = augmented_sheet(chosen, collate, drawn, draws=draws, seed=seed)
        except IndexError as error:
            raise UsageError(f"--row: {error}") from error
    write_result(out, encoded(picture, _FORMATS[out.suffix.lower()]))
    show(f"{out}: {picture.width} x {picture.height} pixels")


def _grid(text: str) -> tuple[int, int]:
    from mmload.pictures.contact_sheet import MOST_CELLS

    found = re.fullmatch(r"([0-9]{1,3})x([0-9]{1,3})", text)
    if not found or not 1 <= int(found[1]) * int(found[2]) <= MOST_CELLS:
        raise UsageError(f"--grid is {text!r}; give lines x columns, as in 6x8, of at most {MOST_CELLS:,} pictures")
    return int(found[1]), int(found[2])


def report(
    dataset: options.DatasetOrUrl,
    out: Annotated[Path, typer.Option("-o", "--out", metavar="FILE.html", help="The page.")] = Path("report.html"),
    augment: options.Augment = None,
    findings: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Also write copies and outliers as a list, for mmload subset or --exclude."),
    ] = None,
) -> None:
    """Write a page about a dataset: rows, classes, copies, outliers.

    Rows of all splits are shown as they are stored and as training sees them.
    """
    check_target("--out", out, dataset, endings=(".html", ".htm"))
    check_target("--findings", findings, dataset)
    from mmload.view.facts import facts
    from mmload.view.report import findings_list
    from mmload.view.report import report as look
    from mmload.view.report_page import page

    with options.dataset_at(dataset) as opened:
        classes = max((len(split.classes) for split in opened.values()), default=0)
        training = options.training_of(augment, max(1, classes))
        with interruptible("nothing was changed"):
            found = look(opened, progress=progress("report"))
            text = page(opened, facts(opened.folder.title, opened.manifest), found, training)
            listed = "" if findings is None else findings_list(opened, found)
    write_result(out, text)
    if findings is not None:
        write_result(findings, listed)
    across = sum(one.is_across for one in found.copied)
    show(
        f"{out}: {counted(len(found.copied), 'picture')} in several rows, {across:,} of them in two splits; "
        f"{counted(len(found.outliers), 'outlier')}"
    )


def browse(
    dataset: options.Dataset,
    source: Annotated[
        Path | None, typer.Option(help="What it was built from, to see the photographs.", callback=options.on_a_disk)
    ] = None,
    augment: options.Augment = None,
    seed: options.Seed = 0,
    marks: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Where marks are written; DATASET.excluded.txt by default.")
    ] = None,
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port of the page; any free one by default.")] = 0,
    no_open: Annotated[bool, typer.Option("--no-open", help="Show the address, and open no browser.")] = False,
) -> None:
    """Look at rows one by one in a page, and mark what is wrong.

    The page is on this machine. The marks are a list for mmload build --exclude.
    """
    if source is not None and not source.exists():
        raise UsageError(
            f"--source is {source}, which is not a folder; give the folder that the dataset was built from"
        )
    from mmload.view.browse_pages import Pages
    from mmload.view.browse_server import Server

    def collate_for(classes: int) -> Collate | Views | None:
        return options.training_of(augment, classes).made

    collate_for(1)  # what is wrong with the options is said at once
    folder = Path(os.path.realpath(dataset))  # a link to itself stays, and is refused when it is opened
    file = folder.with_name(f"{folder.name}.excluded.txt") if marks is None else marks
    pages = Pages(dataset, file, source=source, augmentation=augment or "", collate_for=collate_for, seed=seed)
    check_target("--marks", file, dataset, source)
    screens = os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY")
    has_screen = sys.platform == "darwin" or bool(screens)  # else a browser would open in this terminal
    with Server(pages, port) as server, interruptible(f"marks that were made are in {file}"):
        show(f"{dataset} is shown at {server.address}", f"marks go to {file}; Ctrl-C stops it")
        sys.stdout.flush()
        if not no_open and has_screen:
            threading.Thread(target=webbrowser.open, args=(server.address,), daemon=True).start()
        server.serve_forever()
