"""Arguments and options that several commands share."""

from __future__ import annotations

import functools
import inspect
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import MISSING, fields
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, get_type_hints

import typer

from mmload.builder.recipe import declarations
from mmload.errors import UsageError
from mmload.remote.urls import check_no_url, is_url

if TYPE_CHECKING:
    from mmload.store.dataset import Dataset as OpenDataset
    from mmload.view.training import Training


def takes(options: type[Any]) -> Callable[[Callable[[Any], None]], Callable[..., None]]:
    """Gives a command the parameters that a dataclass declares; the command is called with an instance of it."""

    def with_parameters(command: Callable[[Any], None]) -> Callable[..., None]:
        @functools.wraps(command)
        def called(**values: Any) -> None:
            command(options(**values))

        parameters = list(_parameters(options))
        called.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]  # inspect.signature reads it
        called.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
        return called

    return with_parameters


def _parameters(options: type[Any]) -> Iterator[inspect.Parameter]:
    """Yields the parameters for typer: all options except keys that only recipe files have, inherited ones last."""
    hints, declared = get_type_hints(options), declarations(options)
    for option in sorted(fields(options), key=lambda each: each.name not in options.__annotations__):
        its = declared[option.name]
        if not its.flag and its.table:
            continue
        kind: Any = typer.Option if its.flag else typer.Argument
        shown = {"help": its.help, "metavar": its.metavar or None, "rich_help_panel": its.group or None}
        info = kind(*filter(None, [its.flag]), hidden=not its.help, **shown)
        default = inspect.Parameter.empty if option.default is MISSING else option.default
        annotation: Any = Annotated[hints[option.name], info]
        yield inspect.Parameter(option.name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation)


def on_a_disk(place: Path | None) -> Path | None:
    """Rejects a URL for commands that read all of a dataset or a source, or write to it; raises UsageError."""
    if place is not None:
        check_no_url(place, "copy it to a disk first, a dataset with mmload pull URL FOLDER")
    return place


Dataset = Annotated[Path, typer.Argument(help="A built dataset.", callback=on_a_disk)]

Version = Annotated[
    int | None, typer.Option(metavar="N", help="A version of the dataset, as mmload info --versions lists them.")
]

DatasetOrUrl = Annotated[str, typer.Argument(metavar="DATASET", help="A built dataset, or the URL of one.")]


@contextmanager
def dataset_at(place: str) -> Iterator[OpenDataset]:
    """Opens a dataset at a path or a URL; what is read of a URL lies in a temporary folder until the end.

    Raises:
        StoreError: if there is no finished dataset.
        RemoteError: if object storage cannot be read.
    """
    from mmload.remote.opening import open as open_dataset  # imports no torch, which takes a second

    temporary = partial(tempfile.TemporaryDirectory, prefix="mmload-", ignore_cleanup_errors=True)
    with temporary() if is_url(place) else nullcontext() as cache:
        yield open_dataset(place, cache=cache)


Source = Annotated[Path, typer.Option(help="What it was built from.", callback=on_a_disk)]

DecodingThreads = Annotated[int | None, typer.Option(help="Decoding threads; the cores available by default.")]

TRUST_HELP = "Let the dataset's own recipe run code, download, or read files outside of the source."

Trust = Annotated[bool, typer.Option("--trust", help=TRUST_HELP)]
"""Option of every command that reads the source of a dataset again, by the recipe of the dataset."""

Augment = Annotated[
    str | None,
    typer.Option(
        metavar="STEPS", help='Augmentation to show: "RandomCrop(24), ColorJitter(0.4)", or a preset, such as simclr.'
    ),
]

Seed = Annotated[int, typer.Option(min=0, max=2**63 - 1, help="Seed that selects rows and random draws.")]


def training_of(augment: str | None, classes: int) -> Training:
    """Returns the steps or the preset of an option with their collate; without the option, a split's usual steps.

    Raises:
        UsageError: if the option is invalid; the message names it.
    """
    from mmload import presets
    from mmload.augment.collate import Collate
    from mmload.view.training import Training, steps_of

    if augment is None:
        return Training()
    if augment in presets.__all__:
        make = getattr(presets, augment)
        if "num_classes" in inspect.signature(make).parameters:  # it mixes labels
            return Training(preset=f"{augment}(num_classes={classes})", made=make(num_classes=classes))
        return Training(preset=f"{augment}()", made=make())
    try:
        return Training(steps=augment, made=Collate(*steps_of(augment)))
    except (TypeError, ValueError) as error:
        raise UsageError(f"--augment is {augment!r}: {error}") from error
