"""What a build loses of what its source holds: counted sample by sample, said in sentences.

A source counts in :attr:`mmload.records.Sample.tally` what it had to leave out of a sample; :func:`tallied` adds what
the transforms dropped. Counts are integers under fixed names, so that they add up alike in any order.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from itertools import islice

from mmload.errors import counted
from mmload.records import Sample

BOXES = "boxes"
"""Boxes of the samples as their source gave them."""
CLIPPED = "boxes_clipped"
"""Of these, boxes that the source cut at the edge of the image."""
DROPPED = "boxes_dropped"
"""Of these, boxes of which the transforms keep no pixel."""
CUT = "boxes_cut"
"""Of these, boxes of which the transforms keep a part."""
EMPTIED = "images_emptied"
"""Images that had boxes and have none after the transforms."""
OTHER_SIZE = "sizes_other"
"""Images of another size than their annotation gives, to which their boxes belong."""
TURNED = "sizes_turned"
"""Images whose annotation gives their height as the width, and their width as the height."""

_NAMED = (OTHER_SIZE, TURNED)
"""The first samples of these are named, as a person has to look at them."""
_FIRST = 3


def tallied(read: Sample, done: Sample) -> Sample:
    """``done``, with its tally: what its source left out, and the boxes that the transforms dropped.

    Args:
        read: the sample as its source read it.
        done: the same after the transforms.
    """
    if "boxes" not in read.fields or "counts" not in read.fields:
        return replace(done, tally=read.tally) if read.tally else done
    had, kept = int(read.fields["counts"]), int(done.fields["counts"])
    cut = 0 if done.cut is None else int(done.cut.sum())
    own = {BOXES: had, DROPPED: had - kept, CUT: cut, EMPTIED: int(had > 0 and kept == 0)}
    return replace(done, tally={**read.tally, **own})


def add_up(tallies: Iterable[Mapping[str, int]]) -> dict[str, int]:
    """The sum of several tallies, its names in order, without zeros."""
    total: dict[str, int] = {}
    for tally in tallies:
        for name, count in tally.items():
            total[name] = total.get(name, 0) + count
    return {name: total[name] for name in sorted(total) if total[name]}


def first_names(found: Iterable[tuple[str, Iterable[str]]]) -> dict[str, list[str]]:
    """The first samples of each count that has to name some.

    Args:
        found: (count, samples that added to it), in the order of the rows.
    """
    first: dict[str, list[str]] = {}
    for name, samples in found:
        if name in _NAMED:
            own = first.setdefault(name, [])
            own.extend(islice(samples, _FIRST - len(own)))
    return first


def sentences(tally: Mapping[str, int], first: Mapping[str, list[str]], images: int) -> tuple[str, ...]:
    """What was lost or looks wrong, for the notes of a split; nothing where nothing was.

    Args:
        tally: the sum over the split.
        first: of some counts, the first samples.
        images: rows of the split.
    """
    of_images = f"of {counted(images, 'image')}"
    boxes = f"of {counted(tally.get(BOXES, 0), 'box', 'boxes')}"
    said = []
    if clipped := tally.get(CLIPPED, 0):
        were = "was" if clipped == 1 else "were"
        said.append(f"{clipped:,} {boxes} reached over the edge of the image and {were} cut there (clip_boxes)")
    if dropped := tally.get(DROPPED, 0):
        were = "was" if dropped == 1 else "were"
        emptied = tally.get(EMPTIED, 0)
        bare = f", and {emptied:,} {of_images} lost all of theirs" if emptied else ""
        said.append(
            f"{dropped:,} {boxes} {were} dropped: the transforms keep no pixel of them{bare}; "
            "a Letterbox or an exact Resize keeps the whole image"
        )
    if cut := tally.get(CUT, 0):
        were = "was" if cut == 1 else "were"
        said.append(f"{cut:,} {boxes} {were} cut: the transforms keep only a part of the object")
    if other := tally.get(OTHER_SIZE, 0):
        have = "has" if other == 1 else "have"
        said.append(
            f"{other:,} {of_images} {have} another size than the annotation gives, so that boxes may be in the wrong "
            f"place: {_some(first.get(OTHER_SIZE, []), other)}"
        )
    if turned := tally.get(TURNED, 0):
        have = "has" if turned == 1 else "have"
        said.append(
            f"{turned:,} {of_images} {have} an annotation with width and height swapped: boxes that were drawn on the "
            f"picture as its EXIF orientation shows it are in the wrong place: {_some(first.get(TURNED, []), turned)}"
        )
    return tuple(said)


def _some(names: list[str], count: int) -> str:
    return ", ".join(names) + (", ..." if count > len(names) else "")
