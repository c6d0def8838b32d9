"""The ``mmload info`` command, and how every command shows a dataset."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mmload.cli import options
from mmload.cli.terminal import show, warn

if TYPE_CHECKING:
    from mmload.store.dataset import Dataset


def info(dataset: options.Dataset) -> None:
    """Show what is in a dataset."""
    from mmload.store.dataset import open as open_dataset

    show_dataset(open_dataset(dataset))


def show_dataset(dataset: Dataset) -> None:
    """Show a dataset's splits on stdout, and its warnings on stderr."""
    from mmload.cli import summary

    show(*summary.of_dataset(dataset))
    warn(summary.warnings(dataset.manifest))
