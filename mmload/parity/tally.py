"""What was seen of the rows, in numbers, and the worst of them with their pixels.

Comes in: looks at rows, one after the other. Goes out: verdicts by kind of file and reference, and the rows that differ
most, with the names of what they look like. Only the worst rows' pixels are kept.
"""

from __future__ import annotations

import heapq
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from torch import Tensor
from torchvision.transforms import InterpolationMode

from mmload.dataset import Split
from mmload.parity.pixels import EXACT, NVJPEG, PILLOW, PILLOW_BICUBIC, Difference, Limits, shown
from mmload.parity.reference import Referee, Reference
from mmload.parity.variants import looks_like, whose
from mmload.parity.verdict import Verdict, WorstRow

WORST = 8
"""How many rows are kept with their pixels, and looked at for what is wrong with them."""

_BOX_LIMIT = 1e-3  # pixels
_PADDED_BOX_LIMIT = 1.001  # torchvision's CenterCrop moves the boxes of a padded image by up to a pixel more than it


@dataclass(frozen=True, kw_only=True)
class Look:
    """One row beside its reference.

    Attributes:
        row: its number.
        sample: its sample's id.
        stored: its fields.
        reference: None where the sample cannot be read.
        reason: why it cannot be compared; empty if it can.
        tensor: how far the pixels are from torchvision's on tensors; None without an image of that shape.
        pillow: the same from Pillow's.
        signatures: of the stored and of the right picture.
        faults: every other field, and its greatest difference.
    """

    row: int
    sample: str
    stored: Mapping[str, Tensor]
    reference: Reference | None
    reason: str = ""
    tensor: Difference | None = None
    pillow: Difference | None = None
    signatures: tuple[Tensor, Tensor] | None = None
    faults: tuple[tuple[str, float], ...] = ()


@dataclass
class _Counted:
    """A further field: rows compared, rows that differ, the greatest difference."""

    rows: int = 0
    wrong: int = 0
    greatest: float = 0.0
    first: str = ""


@dataclass
class Tally:
    """Adds up looks.

    Attributes:
        split: whose rows they are.
        referee: who made the references.
    """

    split: Split
    referee: Referee
    tensor: dict[str, Difference] = field(default_factory=lambda: defaultdict(Difference))
    pillow: dict[str, Difference] = field(default_factory=lambda: defaultdict(Difference))
    fields: dict[str, _Counted] = field(default_factory=lambda: defaultdict(_Counted))
    differs: Counter[str] = field(default_factory=Counter)
    unread: list[str] = field(default_factory=list)
    shapes: list[str] = field(default_factory=list)
    heap: list[tuple[int, float, int, Look]] = field(default_factory=list)
    signatures: list[tuple[int, Tensor, Tensor]] = field(default_factory=list)

    def add(self, look: Look) -> None:
        """Count one row."""
        reference = look.reference
        if reference is None:
            self.unread.append(look.reason)
            return
        if look.reason:
            self.shapes.append(look.reason)
        if reference.differs:
            self.differs[reference.differs] += 1
        for name, apart in look.faults:
            self._count(name, apart, look)
        if look.pillow is not None:
            self.pillow[reference.kind] += look.pillow
        if look.tensor is None:
            return
        self.tensor[reference.kind] += look.tensor
        if look.signatures is not None:
            self.signatures.append((look.row, *look.signatures))
        entry = (look.tensor.total, look.pillow.mean if look.pillow else 0.0, -look.row, look)
        (heapq.heappushpop if len(self.heap) >= WORST else heapq.heappush)(self.heap, entry)

    def _count(self, name: str, apart: float, look: Look) -> None:
        counted = self.fields[name]
        counted.rows += 1
        counted.greatest = max(counted.greatest, apart)
        if apart > _limit_of(name, look.reference):
            counted.wrong += 1
            counted.first = counted.first or f"row {look.row} ({look.sample})"

    def worst(self) -> list[WorstRow]:
        """The rows that differ most, named; if all are equal to the tensor reference, those farthest from Pillow's."""
        looks = [look for *_, look in sorted(self.heap, reverse=True, key=lambda entry: entry[:3])]
        rows = [row for row, *_ in self.signatures]
        bad = [rows.index(look.row) for look in looks if look.tensor is not None and look.tensor.greatest]
        mine, theirs = [one for _, one, _ in self.signatures], [one for *_, one in self.signatures]
        swapped = {rows[row]: rows[other] for row, other in whose(mine, theirs, bad).items()}
        return [made for look in looks if (made := self._worst_row(look, swapped)) is not None]

    def _worst_row(self, look: Look, swapped: Mapping[int, int]) -> WorstRow | None:
        reference = look.reference
        if reference is None or reference.images is None or look.tensor is None:
            return None
        looks = ""
        if look.tensor.greatest:
            looks = looks_like(look.stored["images"], reference, self.referee.transforms)
            if not looks and look.row in swapped:
                looks = f"the picture of row {swapped[look.row]}" if len(self.signatures) else ""
        return WorstRow(
            split=self.split.name,
            row=look.row,
            sample=look.sample,
            file=reference.file,
            kind=reference.kind,
            greatest=look.tensor.greatest,
            mean=look.tensor.mean,
            psnr=look.tensor.psnr,
            diagnosis=looks,
            stored=look.stored["images"],
            reference=reference.images,
        )

    def verdicts(self, worst: Sequence[WorstRow]) -> list[Verdict]:
        """One line for each kind of file and reference, each further field, and what could not be compared."""
        looks = _summed([row.diagnosis for row in worst if row.greatest])
        lines = [
            self._pixels(kind, name, differences, self._limits(kind, limits), looks)
            for name, found, limits in (("tensor", self.tensor, EXACT), ("Pillow", self.pillow, self._near()))
            for kind, differences in sorted(found.items())
        ]
        lines += [self._field(name, counted) for name, counted in sorted(self.fields.items())]
        for name, reasons in (("shapes", self.shapes), ("reading", self.unread)):
            if reasons:
                text = f"{len(reasons):,} rows cannot be compared; the first: {reasons[0]}"
                lines.append(Verdict(part=self.split.name, name=name, state="fail", text=text))
        if self.referee.on_cuda:
            text = "JPEGs were decoded by a CUDA device, not as a CPU decodes them: their mean difference is limited"
            lines.append(Verdict(part=self.split.name, name="by design", state="note", text=text))
        for reason, count in sorted(self.differs.items()):
            text = f"{count:,} rows differ on purpose from torchvision's ImageFolder: {reason} (docs/images.md)"
            lines.append(Verdict(part=self.split.name, name="by design", state="note", text=text))
        return lines

    def _limits(self, kind: str, limits: Limits) -> Limits:
        """How far pixels of a kind of file may be from a reference: farther, where another decoder made them."""
        return NVJPEG if self.referee.on_cuda and kind in ("jpeg", "jpeg gray") else limits

    def _near(self) -> Limits:
        """How far pixels may be from Pillow's."""
        modes = [getattr(step, "interpolation", None) for step in self.referee.transforms.transforms]
        return PILLOW_BICUBIC if InterpolationMode.BICUBIC in modes else PILLOW

    def _pixels(self, kind: str, reference: str, found: Difference, limits: Limits, looks: str) -> Verdict:
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
            text=shown(found, limits),
            diagnosis="" if right else looks,
            numbers=numbers,
        )

    def _field(self, name: str, counted: _Counted) -> Verdict:
        text = f"{counted.rows:,} rows equal"
        if counted.wrong:
            text = (
                f"{counted.wrong:,} of {counted.rows:,} rows differ, by {counted.greatest:g} at most; {counted.first}"
            )
        elif counted.greatest:
            text = f"{counted.rows:,} rows within {counted.greatest:.3g}"
        return Verdict(
            part=self.split.name,
            name=name,
            state="fail" if counted.wrong else "pass",
            text=text,
            numbers={"rows": counted.rows, "wrong": counted.wrong, "greatest": counted.greatest},
        )


def _limit_of(name: str, reference: Reference | None) -> float:
    """How far a field may be from its reference."""
    if name != "boxes":
        return 0.0
    return _PADDED_BOX_LIMIT if reference is not None and reference.padded else _BOX_LIMIT


def _summed(names: Sequence[str]) -> str:
    """The commonest name of what the worst rows look like, and how many of them do."""
    named = Counter(name for name in names if name)
    if not named:
        return ""
    name, count = named.most_common(1)[0]
    return f"looks like {name} ({count} of the {len(names)} worst rows)"
