"""Differences of rows from their references, measured and added up per property."""

from __future__ import annotations

import math
from dataclasses import dataclass
from operator import itemgetter

import torch
from torch import Tensor

from mmload.errors import counted
from mmload.parity.report import Verdict


def apart(found: Tensor, right: Tensor) -> Tensor:
    """Returns the absolute differences, float64; infinite for other shapes, and where only one of them is NaN."""
    if found.shape != right.shape:
        return torch.tensor(torch.inf, dtype=torch.float64, device="cpu")
    if torch.equal(found, right):
        return torch.zeros(1, dtype=torch.float64, device="cpu")
    a, b = found.to(torch.float64), right.to(torch.float64)
    same = (a == b) | (a.isnan() & b.isnan())
    return torch.where(same, 0.0, (a - b).abs().nan_to_num(nan=torch.inf))


@dataclass
class Tally:
    """Differences of one property from its reference, added up over rows.

    Attributes:
        unit: the unit of a difference, after a space.
        rows: number of rows compared.
        wrong: number of rows that differ by more than their limit.
        greatest: the largest difference; infinite for another shape or number of values.
        limit: the largest limit of a row.
        worst: how far the worst row is beyond its limit, and the row as text.
    """

    unit: str = ""
    rows: int = 0
    wrong: int = 0
    greatest: float = 0.0
    limit: float = 0.0
    worst: tuple[float, str] = (0.0, "")

    def add(self, difference: float, row: str, limit: float = 0.0) -> None:
        """Adds the difference of a row."""
        self.rows += 1
        self.wrong += difference > limit
        self.greatest = max(self.greatest, difference)
        self.limit = max(self.limit, limit)
        self.worst = max(self.worst, (difference - limit, row), key=itemgetter(0))

    def verdict(self, part: str, name: str) -> Verdict:
        """Returns the verdict: a property holds if every row is within its limit."""
        text = rows = counted(self.rows, "row")
        if self.wrong:
            unit = self.unit.removesuffix("s") if self.greatest == 1 else self.unit
            by = f"by up to {self.greatest:.4g}{unit}" if math.isfinite(self.greatest) else "in size or number"
            text = f"{self.wrong:,} of {rows} differ {by}; the worst: {self.worst[1]}"
        else:
            text += f" within {self.greatest:.2g}{self.unit}, limit {self.limit:g}" if self.greatest else " equal"
        numbers = {"rows": self.rows, "wrong": self.wrong, "greatest": self.greatest, "limit": self.limit}
        return Verdict.judged(part, name, not self.wrong, text, **numbers)
