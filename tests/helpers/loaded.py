"""What a loader gave: its rows and images, an epoch that has begun, a loader that goes on from a state."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import torch

from mmload.batch import Batch
from mmload.loader import Loader


def rows_of(batches: Iterable[Batch]) -> list[int]:
    """Returns the rows of all batches that are left."""
    return [row for batch in batches for row in batch.ids.tolist()]


def images_of(batches: Iterable[Batch]) -> dict[int, torch.Tensor]:
    """Returns the image of each row, of which none comes twice."""
    pairs = [(int(row), image) for batch in batches for row, image in zip(batch.ids, batch.images, strict=True)]
    images = dict(pairs)
    assert len(images) == len(pairs)
    return images


def are_equal(found: Mapping[int, torch.Tensor], expected: Mapping[int, torch.Tensor]) -> bool:
    """Whether both have the same rows with the same images."""
    return found.keys() == expected.keys() and all(torch.equal(found[row], expected[row]) for row in found)


def begun(loader: Loader, batches: int = 1) -> Iterator[Batch]:
    """Begins an epoch and takes batches of it; returns the rest."""
    rest = iter(loader)
    for _ in range(batches):
        next(rest)
    return rest


def resumed(loader: Loader, state: dict[str, Any]) -> Loader:
    """Returns the loader, in that state."""
    loader.load_state_dict(state)
    return loader
