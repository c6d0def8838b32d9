"""Pads values whose length differs between samples to the longest, with their count, so that rows have one shape."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(kw_only=True)
class Ragged:
    """The shape of one field's values; all values have to be seen before the first is padded.

    Attributes:
        count: the field that holds how many are real; None: another field's count applies.
        fill: the value of the padding.
        most: the length of the longest.
        like: dtype and further sizes of the first that is not empty.
        beside: whether every value had the length of the boxes of its sample.
    """

    count: str | None
    fill: int = 0
    most: int = 0
    like: tuple[torch.dtype, tuple[int, ...]] | None = None
    beside: bool = True

    def see(self, value: Tensor, boxes: int | None) -> None:
        """Register a value of a sample with this many boxes (None: it has none)."""
        self.beside = self.beside and value.ndim > 0 and len(value) == boxes
        if value.ndim and value.numel():
            self.most = max(self.most, len(value))
            self.like = self.like or (value.dtype, tuple(value.shape[1:]))

    def pad(self, name: str, value: Tensor) -> Tensor:
        """A value padded to the common shape.

        Raises:
            ValueError: if it is longer than any that was seen, or of another dtype or shape.
        """
        dtype, tail = self.like or (torch.float32, ())
        if value.ndim and value.numel() and (value.dtype, tuple(value.shape[1:])) != (dtype, tail):
            raise ValueError(f"{name} is {value.dtype} {list(value.shape)}, others are {dtype} [any, {list(tail)}]")
        if not value.ndim or (value.numel() and len(value) > self.most):
            raise ValueError(
                f"{name} is {list(value.shape)}, the longest of the split was {self.most} before the build"
            )
        padded = torch.full((max(1, self.most), *tail), self.fill, dtype=dtype)
        if value.numel():
            padded[: len(value)] = value
        return padded


def as_text(value: str) -> Tensor:
    """The UTF-8 of a text: uint8 [bytes]."""
    return torch.tensor(list(value.encode("utf-8", "surrogatepass")), dtype=torch.uint8)


def same_length(name: str, values: Iterable[Tensor]) -> None:
    """Raises ValueError unless values that belong together are of one length."""
    if len({len(value) for value in values}) > 1:
        raise ValueError(f"{name} are not of one length; each box needs its label")
