"""Counts what a build loses of its source, sample by sample, and describes it in sentences.

A source counts in :attr:`mmload.records.Sample.losses` what it left out of a sample; :func:`with_box_losses` adds what
the transforms dropped. Counts are integers by fixed names, so their sums do not depend on the order.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from itertools import islice

from mmload.errors import counted
from mmload.records import CLIPPED, OTHER_SIZE, SWAPPED_SIZE, Sample

BOXES = "boxes"
"""Count of the boxes that the source gave."""
DROPPED = "boxes_dropped"
"""Count of boxes of which the transforms keep no pixel."""
CUT = "boxes_cut"
"""Count of boxes of which the transforms keep a part."""
EMPTIED = "images_emptied"
"""Count of images that had boxes and have none after the transforms."""

_NAMED = (OTHER_SIZE, SWAPPED_SIZE)
"""Losses whose first samples are named, as a person has to look at them."""
_FIRST = 3


def with_box_losses(read: Sample, done: Sample) -> Sample:
    """Returns a transformed sample with all its losses: those of its source, and the boxes that transforms dropped.

    Args:
        read: the sample as its source read it.
        done: the sample after the transforms.
    """
    if "boxes" not in read.fields or "counts" not in read.fields:
        return replace(done, losses=read.losses) if read.losses else done
    before, after = int(read.fields["counts"]), int(done.fields["counts"])
    cut = 0 if done.cut is None else int(done.cut.sum())
    of_boxes = {BOXES: before, DROPPED: before - after, CUT: cut, EMPTIED: int(before > 0 and after == 0)}
    return replace(done, losses={**read.losses, **of_boxes})


def total_losses(parts: Iterable[Mapping[str, int]]) -> dict[str, int]:
    """Returns the sum of the losses of several samples, chunks or shards, sorted by name, without zeros."""
    total: dict[str, int] = {}
    for losses in parts:
        for name, count in losses.items():
            total[name] = total.get(name, 0) + count
    return {name: total[name] for name in sorted(total) if total[name]}


def first_names(found: Iterable[tuple[str, Iterable[str]]]) -> dict[str, list[str]]:
    """Returns the first samples of each loss that is reported with names.

    Args:
        found: (loss, samples that added to it), in the order of the rows.
    """
    first: dict[str, list[str]] = {}
    for name, samples in found:
        if name in _NAMED:
            shown = first.setdefault(name, [])
            shown.extend(islice(samples, _FIRST - len(shown)))
    return first


def warnings(losses: Mapping[str, int], images: int) -> tuple[str, ...]:
    """Returns warnings on what the transforms dropped of a split; empty if nothing is lost.

    Args:
        losses: the sum over the split.
        images: rows of the split.
    """
    dropped, emptied = losses.get(DROPPED, 0), losses.get(EMPTIED, 0)
    if not dropped:
        return ()
    were = "was" if dropped == 1 else "were"
    bare = f", and {emptied:,} of {counted(images, 'image')} lost all of theirs" if emptied else ""
    boxes = counted(losses.get(BOXES, 0), "box", "boxes")
    return (
        f"{dropped:,} of {boxes} {were} dropped: the transforms keep no pixel of them{bare}; "
        "a Letterbox or an exact Resize keeps the whole image",
    )


def sentences(losses: Mapping[str, int], first: Mapping[str, list[str]], images: int) -> tuple[str, ...]:
    """Returns notes on what a split lost or what looks wrong; empty if there is nothing to report.

    Args:
        losses: the sum over the split.
        first: for some losses, the first samples.
        images: rows of the split.
    """
    of_images = f"of {counted(images, 'image')}"
    boxes = f"of {counted(losses.get(BOXES, 0), 'box', 'boxes')}"
    notes = []
    if clipped := losses.get(CLIPPED, 0):
        were = "was" if clipped == 1 else "were"
        notes.append(f"{clipped:,} {boxes} reached over the edge of the image and {were} cut there (clip_boxes)")
    if cut := losses.get(CUT, 0):
        were = "was" if cut == 1 else "were"
        notes.append(f"{cut:,} {boxes} {were} cut: the transforms keep only a part of the object")
    if other := losses.get(OTHER_SIZE, 0):
        have = "has" if other == 1 else "have"
        notes.append(
            f"{other:,} {of_images} {have} another size than the annotation gives, so that boxes may be in the wrong "
            f"place: {_first_of(first.get(OTHER_SIZE, []), other)}"
        )
    if swapped := losses.get(SWAPPED_SIZE, 0):
        examples = _first_of(first.get(SWAPPED_SIZE, []), swapped)
        have = "has" if swapped == 1 else "have"
        notes.append(
            f"{swapped:,} {of_images} {have} an annotation with width and height swapped: boxes that were drawn on the "
            f"picture as its EXIF orientation shows it are in the wrong place: {examples}"
        )
    return tuple(notes)


def _first_of(names: list[str], count: int) -> str:
    return ", ".join(names) + (", ..." if count > len(names) else "")
