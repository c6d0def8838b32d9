"""Differences of stored rows from their references, and the verdicts on them by kind of file and reference.

Differences are counted in levels of 255. They are sums, so those of several rows can be added. The rows with the
largest differences are returned with their pixels and a diagnosis; pixels of other rows are dropped.
"""

from __future__ import annotations

import heapq
import math
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Self

import torch
from torch import Tensor
from torchvision.transforms import InterpolationMode

from mmload.errors import counted
from mmload.parity.known_faults import looks_like, swapped_rows
from mmload.parity.reference import Reference, ReferenceMaker
from mmload.parity.report import Verdict, WorstRow
from mmload.store.dataset import Split

WORST = 8
"""Upper bound on the rows that are diagnosed, with their pixels in memory."""

_MOVED = ("boxes", "keypoints", "corners", "polygons")
_BOX_LIMIT = 1e-3  # pixels
_PADDED_BOX_LIMIT = 1.001  # torchvision's CenterCrop shifts the boxes of a padded image by up to a pixel too far


@dataclass(frozen=True, kw_only=True)
class Difference:
    """Summed differences of values; two of them can be added.

    Attributes:
        rows: number of images compared.
        unequal: number of these with any difference.
        values: number of values compared.
        greatest: the largest difference, in levels.
        total: the sum of all differences.
        squares: the sum of their squares.
        over: number of values that differ by more than one level.
    """

    rows: int = 0
    unequal: int = 0
    values: int = 0
    greatest: int = 0
    total: int = 0
    squares: int = 0
    over: int = 0

    @classmethod
    def between(cls, stored: Tensor, reference: Tensor) -> Self:
        """Measures the difference of one row; both are uint8 [C, H, W]."""
        difference = (stored.to(torch.int16) - reference.to(torch.int16)).abs().to(torch.int64)
        greatest = int(difference.max()) if difference.numel() else 0
        return cls(
            rows=1,
            unequal=int(greatest > 0),
            values=difference.numel(),
            greatest=greatest,
            total=int(difference.sum()),
            squares=int((difference * difference).sum()),
            over=int((difference > 1).sum()),
        )

    def __add__(self, other: Difference) -> Difference:
        sums = {name: value + getattr(other, name) for name, value in vars(self).items()}
        return Difference(**sums | {"greatest": max(self.greatest, other.greatest)})

    @property
    def mean(self) -> float:
        """The mean difference in levels."""
        return self.total / max(self.values, 1)

    @property
    def share_over(self) -> float:
        """The share of values that differ by more than one level."""
        return self.over / max(self.values, 1)

    @property
    def psnr(self) -> float:
        """Peak signal-to-noise ratio, 10 log10(255^2 / mean square), in dB; infinite for equal pixels."""
        if not self.squares:
            return math.inf
        return 10.0 * math.log10(255.0**2 * self.values / self.squares)


@dataclass(frozen=True, kw_only=True)
class Limits:
    """Upper bounds on pixel differences: the largest difference, the share over one level, the mean."""

    greatest: int
    share_over: float
    mean: float

    def hold(self, found: Difference) -> bool:
        """Returns whether the differences are within the limits."""
        near = found.share_over <= self.share_over and found.mean <= self.mean
        return found.greatest <= self.greatest and near

    def __str__(self) -> str:
        if not self.greatest:
            return "has to be equal"
        if self.greatest == 255:
            return f"limit: mean {self.mean:g}"
        levels = counted(self.greatest, "level")
        return f"limits: {levels}, {self.share_over:.0%} over 1, mean {self.mean:g}"


EXACT = Limits(greatest=0, share_over=0.0, mean=0.0)
"""For torchvision's uint8 tensor kernels, which a build uses."""

PILLOW = Limits(greatest=2, share_over=0.01, mean=0.1)
"""For Pillow's own bilinear resize: 1 level at most on 88 photographs at 7 sizes, 2 on pure noise."""

PILLOW_BICUBIC = Limits(greatest=16, share_over=0.02, mean=0.5)
"""For Pillow's bicubic resize: 2 levels at most on the same photographs; on pure noise 2 with Pillow 12, 15 with 13."""

NVJPEG = Limits(greatest=255, share_over=1.0, mean=2.0)
"""For JPEGs decoded by a CUDA device: the tolerance between its two decoders in torchvision's own tests."""


def difference_text(found: Difference, limits: Limits) -> str:
    """Formats a difference as text for a verdict."""
    if not found.greatest:
        return f"{counted(found.rows, 'row')} equal in every value"
    noise = f"PSNR {found.psnr:.1f} dB"
    return (
        f"{found.unequal:,} of {counted(found.rows, 'row')} differ: at most {found.greatest}, "
        f"{found.share_over:.2%} over 1 level, mean {found.mean:.3f}, {noise} ({limits})"
    )


@dataclass(frozen=True, kw_only=True)
class RowComparison:
    """A comparison of one row with its reference.

    Attributes:
        row: its index.
        sample: the id of its sample.
        stored: its fields.
        reference: None if the sample is unreadable.
        reason: why it cannot be compared; empty if it can.
        tensor: the pixel difference from torchvision's tensor result; None without an image of that shape.
        pillow: the pixel difference from Pillow's result.
        loss: PSNR in dB of a row that is a JPEG against the pixels before; None for a row of pixels.
        signatures: signatures of the stored and of the expected image.
        faults: every other field, and its largest difference.
    """

    row: int
    sample: str
    stored: Mapping[str, Tensor]
    reference: Reference | None
    reason: str = ""
    tensor: Difference | None = None
    pillow: Difference | None = None
    loss: float | None = None
    signatures: tuple[Tensor, Tensor] | None = None
    faults: tuple[tuple[str, float], ...] = ()


@dataclass
class _FieldCounts:
    """A further field: rows compared, rows that differ, the largest difference."""

    rows: int = 0
    wrong: int = 0
    greatest: float = 0.0
    first: str = ""


@dataclass
class RowAggregate:
    """Sum of the comparisons of a split's rows; ``quality`` is that of rows that are JPEGs."""

    split: Split
    references: ReferenceMaker
    quality: int | None = None
    tensor: dict[str, Difference] = field(default_factory=lambda: defaultdict(Difference))
    encoded: dict[str, Difference] = field(default_factory=lambda: defaultdict(Difference))
    pillow: dict[str, Difference] = field(default_factory=lambda: defaultdict(Difference))
    losses: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))
    fields: dict[str, _FieldCounts] = field(default_factory=lambda: defaultdict(_FieldCounts))
    differs: Counter[str] = field(default_factory=Counter)
    unread: list[str] = field(default_factory=list)
    shapes: list[str] = field(default_factory=list)
    heap: list[tuple[int, float, int, RowComparison]] = field(default_factory=list)
    signatures: list[tuple[int, Tensor, Tensor]] = field(default_factory=list)

    def add(self, compared: RowComparison) -> None:
        """Adds the comparison of one row."""
        reference = compared.reference
        if reference is None:
            self.unread.append(compared.reason)
            return
        if compared.reason:
            self.shapes.append(compared.reason)
        if reference.differs:
            self.differs[reference.differs] += 1
        for name, difference in compared.faults:
            self._count(name, difference, compared)
        if compared.pillow is not None:
            self.pillow[reference.kind] += compared.pillow
        if compared.tensor is None:
            return
        if compared.loss is None:
            self.tensor[reference.kind] += compared.tensor
        else:
            self.encoded[reference.kind] += compared.tensor
            self.losses[reference.kind].append(compared.loss)
        if compared.signatures is not None:
            self.signatures.append((compared.row, *compared.signatures))
        entry = (compared.tensor.total, compared.pillow.mean if compared.pillow else 0.0, -compared.row, compared)
        (heapq.heappushpop if len(self.heap) >= WORST else heapq.heappush)(self.heap, entry)

    def _count(self, name: str, difference: float, compared: RowComparison) -> None:
        counted = self.fields[name]
        counted.rows += 1
        counted.greatest = max(counted.greatest, difference)
        if difference > _limit_of(name, compared.reference):
            counted.wrong += 1
            counted.first = counted.first or f"row {compared.row} ({compared.sample})"

    def worst(self) -> list[WorstRow]:
        """Returns the rows with the largest differences from the tensor reference, or from Pillow's if all equal it."""
        largest = [entry[-1] for entry in sorted(self.heap, reverse=True, key=lambda entry: entry[:3])]
        rows = [row for row, *_ in self.signatures]
        bad = [rows.index(each.row) for each in largest if each.tensor is not None and each.tensor.greatest]
        mine, theirs = [stored for _, stored, _ in self.signatures], [reference for *_, reference in self.signatures]
        swapped = {rows[row]: rows[other] for row, other in swapped_rows(mine, theirs, bad).items()}
        return [row for each in largest if (row := self._worst_row(each, swapped)) is not None]

    def _worst_row(self, compared: RowComparison, swapped: Mapping[int, int]) -> WorstRow | None:
        reference = compared.reference
        if reference is None or reference.images is None or compared.tensor is None:
            return None
        diagnosis = ""
        if compared.tensor.greatest:
            diagnosis = looks_like(compared.stored["images"], reference, self.references.transforms)
            if not diagnosis and compared.row in swapped:
                diagnosis = f"the picture of row {swapped[compared.row]}"
        return WorstRow(
            split=self.split.name,
            row=compared.row,
            sample=compared.sample,
            file=reference.file,
            kind=reference.kind,
            greatest=compared.tensor.greatest,
            mean=compared.tensor.mean,
            psnr=compared.tensor.psnr,
            diagnosis=diagnosis,
            stored=compared.stored["images"],
            reference=reference.images,
        )

    def verdicts(self, worst: Sequence[WorstRow]) -> list[Verdict]:
        """Returns a verdict per kind of file and reference, per further field, and for rows without a comparison."""
        diagnosis = _most_common_diagnosis([row.diagnosis for row in worst if row.greatest])
        lines = [
            self._pixels(kind, name, differences, self._limits(kind, limits), diagnosis)
            for name, found, limits in (
                ("tensor", self.tensor, EXACT),
                ("as JPEGs", self.encoded, EXACT),
                ("Pillow", self.pillow, self._near()),
            )
            for kind, differences in sorted(found.items())
        ]
        lines += _loss_verdicts(self.split.name, self.quality or 0, self.losses)
        lines += [self._field(name, counts) for name, counts in sorted(self.fields.items())]
        for name, reasons in (("shapes", self.shapes), ("reading", self.unread)):
            if reasons:
                text = f"{counted(len(reasons), 'row')} cannot be compared; the first: {reasons[0]}"
                lines.append(Verdict.judged(self.split.name, name, False, text))
        if self.references.on_cuda:
            text = "JPEGs were decoded by a CUDA device, not as a CPU decodes them: their mean difference is limited"
            lines.append(Verdict.note(self.split.name, "by design", text))
        for reason, count in sorted(self.differs.items()):
            text = f"{counted(count, 'row')} unlike torchvision's ImageFolder on purpose: {reason} (docs/images.md)"
            lines.append(Verdict.note(self.split.name, "by design", text))
        return lines

    def _limits(self, kind: str, limits: Limits) -> Limits:
        """Returns the upper bounds on pixel differences for a kind of file: looser if another decoder was used."""
        return NVJPEG if self.references.on_cuda and kind in ("jpeg", "jpeg gray") else limits

    def _near(self) -> Limits:
        """Returns the upper bounds on pixel differences from Pillow's result."""
        modes = [getattr(step, "interpolation", None) for step in self.references.transforms.transforms]
        return PILLOW_BICUBIC if InterpolationMode.BICUBIC in modes else PILLOW

    def _pixels(self, kind: str, reference: str, found: Difference, limits: Limits, diagnosis: str) -> Verdict:
        return Verdict.judged(
            self.split.name,
            f"pixels of {kind}, {reference}",
            limits.hold(found),
            difference_text(found, limits),
            diagnosis,
            rows=found.rows,
            unequal=found.unequal,
            greatest=found.greatest,
            mean=found.mean,
            share_over_1=found.share_over,
            psnr=found.psnr if found.squares else "equal",
        )

    def _field(self, name: str, counts: _FieldCounts) -> Verdict:
        text = f"{counted(counts.rows, 'row')} equal"
        if counts.wrong:
            wrong = f"{counts.wrong:,} of {counted(counts.rows, 'row')} differ"
            text = f"{wrong}, by {counts.greatest:g} at most; {counts.first}"
        elif counts.greatest:
            text = f"{counted(counts.rows, 'row')} within {counts.greatest:.3g}"
        numbers = {"rows": counts.rows, "wrong": counts.wrong, "greatest": counts.greatest}
        return Verdict.judged(self.split.name, name, not counts.wrong, text, **numbers)


def _loss_verdicts(split: str, quality: int, ratios: Mapping[str, list[float]]) -> list[Verdict]:
    """Returns a note for each kind of file on what JPEGs of this quality lose, from the PSNR of each row in dB."""
    found = []
    for kind, each in sorted(ratios.items()):
        lossy = [one for one in each if math.isfinite(one)]
        text = f"all {len(each):,} rows are the source's own JPEGs"
        numbers: dict[str, float | int | str] = {"rows": len(each), "lossy": len(lossy)}
        if lossy:
            mean, least = sum(lossy) / len(lossy), min(lossy)
            text = f"JPEGs of quality {quality}: PSNR {mean:.1f} dB on average, {least:.1f} dB at least"
            numbers |= {"psnr_mean": mean, "psnr_least": least}
        found.append(Verdict.note(split, f"loss of {kind}", text, **numbers))
    return found


def _limit_of(name: str, reference: Reference | None) -> float:
    """Returns the upper bound on a field's difference from its reference."""
    if name not in _MOVED:
        return 0.0
    return _PADDED_BOX_LIMIT if reference is not None and reference.padded else _BOX_LIMIT


def _most_common_diagnosis(names: Sequence[str]) -> str:
    """Returns the most common diagnosis of the worst rows, and how many of them have it."""
    named = Counter(name for name in names if name)
    if not named:
        return ""
    name, count = named.most_common(1)[0]
    return f"looks like {name} ({count} of the {len(names)} worst rows)"
