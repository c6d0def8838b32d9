"""The commands that change a dataset after its build: ``mmload subset`` and ``mmload add-field``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from mmload.cli import options
from mmload.cli.terminal import interruptible, show
from mmload.errors import UsageError, counted

Key = Annotated[
    Literal["row", "id"] | None,
    typer.Option(help="FILE names rows by number or by sample id; by default what it has."),
]


def subset(
    dataset: options.Dataset,
    name: Annotated[str, typer.Argument(help="Name of the subset, which opens as a split.")],
    rows: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Rows: a list, .csv, .parquet, .npy or .npz of row numbers or sample ids."),
    ] = None,
    split: Annotated[str | None, typer.Option(help="Split of the rows; the only one by default.")] = None,
    key: Key = None,
    remove: Annotated[bool, typer.Option("--remove", help="Remove the subset.")] = False,
) -> None:
    """Save rows of a split under a name, as a new version.

    The subset opens as a split, and no pixel is copied.
    """
    if remove == (rows is not None):
        raise UsageError("give --rows FILE or --remove, one of them; see mmload subset --help")
    from mmload.builder.dataset_change import only_split, open_to_change, remove_subset, save_subset

    with interruptible("the dataset is as it was; run the command again"):
        if rows is None:
            changed = remove_subset(dataset, name)
            show(f"{dataset}: removed subset {name}, in version {changed.manifest.version}")
            return
        from mmload.builder.row_files import rows_in

        opened = open_to_change(dataset, by_number=True)
        chosen = only_split(opened, split)
        changed = save_subset(opened, name, rows_in(rows, chosen, key), split=chosen.name)
    saved = f"{counted(len(changed[name]), 'row')} of split {chosen.name}"
    show(f"{dataset}: saved {saved} as subset {name}, in version {changed.manifest.version}")


def add_field(
    dataset: options.Dataset,
    name: Annotated[str, typer.Argument(help="Name of the field.")],
    file: Annotated[
        Path | None,
        typer.Argument(help="Values: .npy or .npz by order of rows; .npz, .csv or .parquet by key."),
    ] = None,
    split: Annotated[str | None, typer.Option(help="Split of the rows; the only one by default.")] = None,
    key: Key = None,
    remove: Annotated[bool, typer.Option("--remove", help="Remove a field that was added.")] = False,
) -> None:
    """Add a field with a value for each row, as a new version.

    A field that was added before is replaced. No other file of the dataset changes.
    """
    if remove == (file is not None):
        raise UsageError("give FILE or --remove, one of them; see mmload add-field --help")
    from mmload.builder import columns
    from mmload.builder.dataset_change import only_split, open_to_change

    with interruptible("the dataset is as it was; run the command again"):
        if file is None:
            changed = columns.remove_field(dataset, name, split=split)
            show(f"{dataset}: removed field {name}, in version {changed.manifest.version}")
            return
        from mmload.builder.row_files import values_in

        opened = open_to_change(dataset, by_number=True)
        chosen = only_split(opened, split)
        changed = columns.add_field(opened, name, values_in(file, chosen, key), split=chosen.name)
    spec = changed[chosen.name].record.fields[name]
    show(f"{dataset}: added field {name}, {spec}, to split {chosen.name}, in version {changed.manifest.version}")
