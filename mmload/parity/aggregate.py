"""Aggregates the comparisons of rows with their references into verdicts, by kind of file and reference.

The rows with the largest differences are returned with their pixels and a diagnosis; pixels of other rows are dropped.
"""

from __future__ import annotations

import heapq
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from torch import Tensor
from torchvision.transforms import InterpolationMode

from mmload.errors import counted
from mmload.parity.known_faults import looks_like, swapped_rows
from mmload.parity.pixel_differences import EXACT, NVJPEG, PILLOW, PILLOW_BICUBIC, Difference, Limits, difference_text
from mmload.parity.reference import Reference, ReferenceMaker
from mmload.parity.verdict import Verdict, WorstRow
from mmload.parity.whole_rows import loss_verdicts
from mmload.store.dataset import Split

WORST = 8
"""Upper bound on the rows that are kept with their pixels, and diagnosed."""

_BOX_LIMIT = 1e-3  # pixels
_PADDED_BOX_LIMIT = 1.001  # torchvision's CenterCrop shifts the boxes of a padded image by up to a pixel too far


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
        loss: PSNR in dB of a row that is a JPEG against the pixels before; None: it is none.
        signatures: of the stored and of the expected image.
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
class _Counted:
    """A further field: rows compared, rows that differ, the largest difference."""

    rows: int = 0
    wrong: int = 0
    greatest: float = 0.0
    first: str = ""


@dataclass
class RowAggregate:
    """Aggregates the comparisons of a split's rows.

    Attributes:
        split: the split of the rows.
        references: creates the references.
        quality: of rows that are JPEGs; None: there are none.
    """

    split: Split
    references: ReferenceMaker
    quality: int | None = None
    tensor: dict[str, Difference] = field(default_factory=lambda: defaultdict(Difference))
    encoded: dict[str, Difference] = field(default_factory=lambda: defaultdict(Difference))
    pillow: dict[str, Difference] = field(default_factory=lambda: defaultdict(Difference))
    losses: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))
    fields: dict[str, _Counted] = field(default_factory=lambda: defaultdict(_Counted))
    differs: Counter[str] = field(default_factory=Counter)
    unread: list[str] = field(default_factory=list)
    shapes: list[str] = field(default_factory=list)
    heap: list[tuple[int, float, int, RowComparison]] = field(default_factory=list)
    signatures: list[tuple[int, Tensor, Tensor]] = field(default_factory=list)

    def add(self, seen: RowComparison) -> None:
        """Add the comparison of one row."""
        reference = seen.reference
        if reference is None:
            self.unread.append(seen.reason)
            return
        if seen.reason:
            self.shapes.append(seen.reason)
        if reference.differs:
            self.differs[reference.differs] += 1
        for name, apart in seen.faults:
            self._count(name, apart, seen)
        if seen.pillow is not None:
            self.pillow[reference.kind] += seen.pillow
        if seen.tensor is None:
            return
        if seen.loss is None:
            self.tensor[reference.kind] += seen.tensor
        else:
            self.encoded[reference.kind] += seen.tensor
            self.losses[reference.kind].append(seen.loss)
        if seen.signatures is not None:
            self.signatures.append((seen.row, *seen.signatures))
        entry = (seen.tensor.total, seen.pillow.mean if seen.pillow else 0.0, -seen.row, seen)
        (heapq.heappushpop if len(self.heap) >= WORST else heapq.heappush)(self.heap, entry)

    def _count(self, name: str, apart: float, seen: RowComparison) -> None:
        counted = self.fields[name]
        counted.rows += 1
        counted.greatest = max(counted.greatest, apart)
        if apart > _limit_of(name, seen.reference):
            counted.wrong += 1
            counted.first = counted.first or f"row {seen.row} ({seen.sample})"

    def worst(self) -> list[WorstRow]:
        """The rows with the largest differences from the tensor reference; if all are equal to it, from Pillow's."""
        compared = [seen for *_, seen in sorted(self.heap, reverse=True, key=lambda entry: entry[:3])]
        rows = [row for row, *_ in self.signatures]
        bad = [rows.index(seen.row) for seen in compared if seen.tensor is not None and seen.tensor.greatest]
        mine, theirs = [stored for _, stored, _ in self.signatures], [reference for *_, reference in self.signatures]
        swapped = {rows[row]: rows[other] for row, other in swapped_rows(mine, theirs, bad).items()}
        return [row for seen in compared if (row := self._worst_row(seen, swapped)) is not None]

    def _worst_row(self, seen: RowComparison, swapped: Mapping[int, int]) -> WorstRow | None:
        reference = seen.reference
        if reference is None or reference.images is None or seen.tensor is None:
            return None
        diagnosis = ""
        if seen.tensor.greatest:
            diagnosis = looks_like(seen.stored["images"], reference, self.references.transforms)
            if not diagnosis and seen.row in swapped:
                diagnosis = f"the picture of row {swapped[seen.row]}" if len(self.signatures) else ""
        return WorstRow(
            split=self.split.name,
            row=seen.row,
            sample=seen.sample,
            file=reference.file,
            kind=reference.kind,
            greatest=seen.tensor.greatest,
            mean=seen.tensor.mean,
            psnr=seen.tensor.psnr,
            diagnosis=diagnosis,
            stored=seen.stored["images"],
            reference=reference.images,
        )

    def verdicts(self, worst: Sequence[WorstRow]) -> list[Verdict]:
        """One verdict per kind of file and reference, per further field, and for rows that could not be compared."""
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
        lines += loss_verdicts(self.split.name, self.quality or 0, self.losses)
        lines += [self._field(name, seen) for name, seen in sorted(self.fields.items())]
        for name, reasons in (("shapes", self.shapes), ("reading", self.unread)):
            if reasons:
                text = f"{counted(len(reasons), 'row')} cannot be compared; the first: {reasons[0]}"
                lines.append(Verdict(part=self.split.name, name=name, state="fail", text=text))
        if self.references.on_cuda:
            text = "JPEGs were decoded by a CUDA device, not as a CPU decodes them: their mean difference is limited"
            lines.append(Verdict(part=self.split.name, name="by design", state="note", text=text))
        for reason, count in sorted(self.differs.items()):
            text = f"{counted(count, 'row')} unlike torchvision's ImageFolder on purpose: {reason} (docs/images.md)"
            lines.append(Verdict(part=self.split.name, name="by design", state="note", text=text))
        return lines

    def _limits(self, kind: str, limits: Limits) -> Limits:
        """Upper bounds on pixel differences for a kind of file: looser if another decoder was used."""
        return NVJPEG if self.references.on_cuda and kind in ("jpeg", "jpeg gray") else limits

    def _near(self) -> Limits:
        """Upper bounds on pixel differences from Pillow's result."""
        modes = [getattr(step, "interpolation", None) for step in self.references.transforms.transforms]
        return PILLOW_BICUBIC if InterpolationMode.BICUBIC in modes else PILLOW

    def _pixels(self, kind: str, reference: str, found: Difference, limits: Limits, diagnosis: str) -> Verdict:
        right = limits.hold(found)
        numbers: dict[str, float | int | str] = {
            "rows": found.rows,
            "unequal": found.unequal,
            "greatest": found.greatest,
            "mean": found.mean,
            "share_over_1": found.share_over,
            "psnr": found.psnr if found.squares else "equal",
        }
        return Verdict(
            part=self.split.name,
            name=f"pixels of {kind}, {reference}",
            state="pass" if right else "fail",
            text=difference_text(found, limits),
            diagnosis="" if right else diagnosis,
            numbers=numbers,
        )

    def _field(self, name: str, seen: _Counted) -> Verdict:
        text = f"{counted(seen.rows, 'row')} equal"
        if seen.wrong:
            text = f"{seen.wrong:,} of {counted(seen.rows, 'row')} differ, by {seen.greatest:g} at most; {seen.first}"
        elif seen.greatest:
            text = f"{counted(seen.rows, 'row')} within {seen.greatest:.3g}"
        return Verdict(
            part=self.split.name,
            name=name,
            state="fail" if seen.wrong else "pass",
            text=text,
            numbers={"rows": seen.rows, "wrong": seen.wrong, "greatest": seen.greatest},
        )


def _limit_of(name: str, reference: Reference | None) -> float:
    """Upper bound on a field's difference from its reference."""
    if name != "boxes":
        return 0.0
    return _PADDED_BOX_LIMIT if reference is not None and reference.padded else _BOX_LIMIT


def _most_common_diagnosis(names: Sequence[str]) -> str:
    """The most common diagnosis of the worst rows, and how many of them have it."""
    named = Counter(name for name in names if name)
    if not named:
        return ""
    name, count = named.most_common(1)[0]
    return f"looks like {name} ({count} of the {len(names)} worst rows)"
