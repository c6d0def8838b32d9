"""Arguments and options that several commands share."""

from __future__ import annotations

import functools
import inspect
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import MISSING, fields
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, get_type_hints

import typer

from mmload.builder.options import declarations
from mmload.errors import UsageError, choices
from mmload.remote.urls import check_no_url, is_url


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
    hints, declared = get_type_hints(options, include_extras=True), declarations(options)
    for option in sorted(fields(options), key=lambda each: each.name not in options.__annotations__):
        annotation: Any = hints[option.name]
        if (its := declared.get(option.name)) is not None:  # any other is an Annotated of typer, as below
            if not its.flag and its.table:
                continue
            info: Any = typer.Option if its.flag else typer.Argument
            words = (its.flag,) if its.flag else ()
            info = info(*words, help=its.help, metavar=its.metavar or None, hidden=not its.help)
            annotation = Annotated[annotation, info]
        default = inspect.Parameter.empty if option.default is MISSING else option.default
        yield inspect.Parameter(option.name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation)


def dataset_on_a_disk(dataset: Path | None) -> Path | None:
    """Rejects the URL of a dataset for commands that read all of it, or write to it; raises UsageError."""
    if dataset is not None:
        check_no_url(dataset, "copy it there first, with mmload pull URL FOLDER")
    return dataset


Dataset = Annotated[Path, typer.Argument(help="A built dataset.", callback=dataset_on_a_disk)]

Version = Annotated[
    int | None, typer.Option(metavar="N", help="A version of the dataset, as mmload log lists them; the current one.")
]

DatasetOrUrl = Annotated[str, typer.Argument(metavar="DATASET", help="A built dataset, or the URL of one.")]


@contextmanager
def opened_at(place: str) -> Iterator[tuple[Folder, Manifest]]:
    """Opens a dataset's folder, or what is at a URL; what is read of that lies in a temporary folder until the end.

    Raises:
        StoreError: if there is no finished dataset.
        RemoteError: if object storage cannot be read.
    """
    if is_url(place):
        with dataset_at(place) as dataset:
            yield dataset.folder, dataset.manifest
        return
    from mmload.store.dataset_folder import open_folder  # without torch, which takes a second to import

    yield open_folder(place)


@contextmanager
def dataset_at(place: str) -> Iterator[OpenDataset]:
    """Opens a dataset at a path or a URL, as :func:`opened_at` does."""
    from mmload.remote.opening import open as open_dataset

    if not is_url(place):
        yield open_dataset(place)
        return
    with tempfile.TemporaryDirectory(prefix="mmload-", ignore_cleanup_errors=True) as cache:
        yield open_dataset(place, cache=cache)


def on_a_disk(source: Path | None) -> Path | None:
    """Rejects a URL; raises UsageError."""
    if source is not None:
        check_no_url(source, "copy what it was built from to a disk")
    return source


Source = Annotated[Path, typer.Option(help="What it was built from.", callback=on_a_disk)]

SourceOrUrl = Annotated[str, typer.Option(metavar="PATH_OR_URL", help="What it was built from.")]

DecodingThreads = Annotated[int | None, typer.Option(help="Decoding threads; the cores available by default.")]

Trust = Annotated[
    bool,
    typer.Option(
        "--trust", help="Let the dataset's own recipe run code, download, or read files outside of the source."
    ),
]
"""Option of every command that reads the source of a dataset again, by the recipe of the dataset."""


if TYPE_CHECKING:
    from mmload.augment import Views
    from mmload.augment.collate import Collate
    from mmload.store.dataset import Dataset as OpenDataset
    from mmload.store.dataset_folder import Folder
    from mmload.store.manifest import Manifest
    from mmload.view.training import Training

Augment = Annotated[
    str | None, typer.Option(metavar="STEPS", help='Augmentation to show: "RandomCrop(24), ColorJitter(0.4)".')
]
Recipe = Annotated[
    str | None, typer.Option(metavar="NAME", help="Augmentation of a training recipe to show, such as simclr.")
]


def check_seed(seed: int) -> None:
    """Raises UsageError if it is no seed."""
    if not 0 <= seed < 2**63:
        raise UsageError(f"--seed is {seed}; use an integer from 0 to 2**63 - 1")


def check_one(augment: str | None, recipe: str | None) -> None:
    """Raises UsageError if both are given."""
    if augment is not None and recipe is not None:
        raise UsageError("--augment and --recipe are both given; choose one")


def collate_of(augment: str | None, recipe: str | None, classes: int) -> Collate | Views | None:
    """Returns the collate that the options describe; None if neither is given.

    Raises:
        UsageError: if an option is invalid; the message names it.
    """
    if augment is not None:
        from mmload.augment.collate import Collate
        from mmload.view.training import steps_of

        try:
            return Collate(*steps_of(augment))
        except (TypeError, ValueError) as error:
            raise UsageError(f"--augment is {augment!r}: {error}") from error
    if recipe is None:
        return None
    from mmload import presets

    if recipe not in presets.__all__:
        raise UsageError(f"--recipe is {recipe!r}; use one of {choices(presets.__all__)}")
    make = getattr(presets, recipe)
    made: Collate | Views = make(num_classes=classes) if _mixes(recipe) else make()
    return made


def training_of(augment: str | None, recipe: str | None, classes: int) -> Training:
    """Returns the steps that the options describe, with their Python text; by default those of a split's fields.

    Raises:
        UsageError: as :func:`collate_of`.
    """
    from mmload.view.training import Training

    made = collate_of(augment, recipe, classes)
    if recipe is None:
        return Training(steps=augment or "", made=made)
    return Training(recipe=f"{recipe}({f'num_classes={classes}' if _mixes(recipe) else ''})", made=made)


def _mixes(recipe: str) -> bool:
    """Returns whether a training recipe mixes samples, and so takes the number of classes."""
    from mmload import presets

    return "num_classes" in inspect.signature(getattr(presets, recipe)).parameters
