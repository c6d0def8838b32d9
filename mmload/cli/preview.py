"""The ``mmload preview`` command."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from mmload.cli import augmentations, options
from mmload.cli.terminal import check_target, show, write_result
from mmload.errors import UsageError

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt
    from PIL import Image

    from mmload.augment import Views
    from mmload.augment.collate import Collate
    from mmload.store.dataset import Split

_FORMATS = {".png": "PNG", ".jpg": "JPEG", ".jpeg": "JPEG", ".webp": "WEBP"}


def preview(
    dataset: options.Dataset,
    out: Annotated[Path, typer.Option("-o", "--out", metavar="FILE.png", help="The picture.")] = Path("preview.png"),
    split: Annotated[str | None, typer.Option(help="Which split; the first by default.")] = None,
    of_class: Annotated[str | None, typer.Option("--class", help="Only rows of the class of this name.")] = None,
    rows: Annotated[str | None, typer.Option(metavar="0,7,12", help="These rows; drawn from all by default.")] = None,
    grid: Annotated[str, typer.Option(metavar="ROWSxCOLUMNS", help="How many pictures.")] = "6x8",
    seed: Annotated[int, typer.Option(help="Which rows are drawn, and what random draws are made of.")] = 0,
    augment: augmentations.Augment = None,
    recipe: augmentations.Recipe = None,
) -> None:
    """Draw a contact sheet: stored rows with boxes and masks, or what training sees of them."""
    lines, columns = _grid(grid)
    augmentations.check_one(augment, recipe)
    if rows is not None and of_class is not None:
        raise UsageError("--rows and --class are both given; choose one")
    if not 0 <= seed < 2**63:
        raise UsageError(f"--seed is {seed}; use an integer from 0 to 2**63 - 1")
    check_target("--out", out, dataset)
    if out.suffix.lower() not in _FORMATS:
        raise UsageError(f"--out is {out}; give a name that ends in {', '.join(_FORMATS)}")
    from mmload.pictures.png import encoded
    from mmload.store.dataset import open as open_dataset

    opened = open_dataset(dataset)
    chosen = opened[split] if split is not None else next(iter(opened.values()))
    collate = augmentations.collate_of(augment, recipe, max(1, len(chosen.classes)))
    picture = _picture(chosen, collate, _numbers(rows), of_class, lines, columns, seed)
    write_result(out, encoded(picture, _FORMATS[out.suffix.lower()]))
    show(f"{out}: {picture.width} x {picture.height} pixels")


def _picture(
    split: Split,
    collate: Collate | Views | None,
    rows: list[int] | None,
    of_class: str | None,
    lines: int,
    columns: int,
    seed: int,
) -> Image.Image:
    from mmload.pictures.contact_sheet import contact_sheet
    from mmload.store.row_cells import cells_of_rows, first_rows

    def drawn(count: int) -> npt.NDArray[np.int64] | list[int]:
        return rows if rows is not None else first_rows(split, count, seed=seed, of_class=of_class)

    try:
        if collate is None:
            title = f"{split.path.name}, {split.name}"
            return contact_sheet(
                cells_of_rows(split, drawn(lines * columns)), columns, title=title, classes=split.classes
            )
        from mmload.inspection.augmented import augmented_sheet

        views = len(getattr(collate, "collates", [collate]))
        return augmented_sheet(split, collate, drawn(lines), draws=max(1, (columns - 1) // views), seed=seed)
    except IndexError as error:
        raise UsageError(f"--rows: {error}") from error


def _grid(text: str) -> tuple[int, int]:
    from mmload.pictures.contact_sheet import MOST_CELLS

    found = re.fullmatch(r"([0-9]{1,3})x([0-9]{1,3})", text)
    if not found or not 1 <= int(found[1]) * int(found[2]) <= MOST_CELLS:
        raise UsageError(f"--grid is {text!r}; give lines x columns, as in 6x8, of at most {MOST_CELLS:,} pictures")
    return int(found[1]), int(found[2])


def _numbers(text: str | None) -> list[int] | None:
    if text is None:
        return None
    if not re.fullmatch(r"[0-9]{1,18}(,[0-9]{1,18})*", text):
        raise UsageError(f"--rows is {text!r}; give numbers from 0, as in 0,7,12")
    return [int(number) for number in text.split(",")]
