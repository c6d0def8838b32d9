"""The ``mmload report`` command."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from mmload.cli import augmentations, options
from mmload.cli.interrupt import interruptible
from mmload.cli.terminal import check_target, progress_bar, show, write_result
from mmload.errors import UsageError, counted


def report(
    dataset: options.Dataset,
    out: Annotated[Path, typer.Option("-o", "--out", metavar="FILE.html", help="The page.")] = Path("report.html"),
    augment: augmentations.Augment = None,
    recipe: augmentations.Recipe = None,
) -> None:
    """Write a page about a dataset: rows of all splits, stored and augmented, classes, sizes, copies, outliers."""
    augmentations.check_one(augment, recipe)
    check_target("--out", out, dataset)
    if out.suffix.lower() not in (".html", ".htm"):
        raise UsageError(f"--out is {out}; give a name that ends in .html")
    from mmload.inspection.facts import facts
    from mmload.inspection.page import page
    from mmload.inspection.report import report as look
    from mmload.store.dataset import open as open_dataset

    opened = open_dataset(dataset)
    classes = max((len(split.classes) for split in opened.values()), default=0)
    training = augmentations.training_of(augment, recipe, max(1, classes))
    with interruptible("nothing was changed"), progress_bar("report", "img") as progress:
        found = look(opened, progress=progress)
        text = page(opened, facts(opened.path, opened.manifest), found, training)
    write_result(out, text)
    copied = found.copied
    show(
        f"{out}: {counted(copied.count, 'picture')} in several rows, {copied.across:,} of them in two splits; "
        f"{counted(len(found.outliers), 'outlier')}"
    )
