"""CopyPaste: objects of another row of the dataset, pasted over each sample with their masks.

The step gets a batch with more samples: the own ones, then a partner of each that is pasted into, made by the steps
before it with draws of its own. It pastes chosen objects of the partners and returns the own samples.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
import torch
from torch import Tensor

from mmload.augment.arguments import chance
from mmload.augment.boxes import BoxRule, Fields, names_per_box, padded
from mmload.augment.step import AfterStep, Draws, Flags, branch_seeds, following_fields, whole_numbers, with_following
from mmload.batch import Batch, fields_of
from mmload.lazy import lazy_property
from mmload.pictures.instance_masks import masks_of_boxes, parts_of, runs_of_mask, without_padding
from mmload.records import ALL_SEGMENTS, PADDING, PER_BOX, SEGMENT_FIELDS, SEGMENTS, segment_fields
from mmload.render.level_operations import Array
from mmload.runtime.random_words import Numbers

_PARTNER = 1 << 20
"""Number of the view whose seeds partners are drawn with; the branches of a step's draws have smaller numbers."""

_NOTHING = np.zeros(0, np.int64)


class CopyPaste(AfterStep):
    """Objects of another image pasted with their masks (Ghiasi et al. 2021, "Simple Copy-Paste").

    A sample that is pasted into gets a partner: a row drawn from all that the loader reads, or from the batch if there
    is no loader, made by the steps before this one with draws of its own. Large scale jitter and a flip before it give
    the paper's list. The rest is done as in torchvision's ``references/detection`` (``_copy_paste``, without the blur
    of edges):

    - Of the partner's n objects, n are drawn with replacement, and those that come up are pasted. Crowds, and objects
      of which no pixel shows, are not.
    - The pixels of their masks replace those of the sample, also in ``masks`` of classes.
    - The masks of the sample's own objects lose these pixels. An object that lost some gets the box around what is
      left, and its share of ``area``; hidden keypoints get the visibility 1. It is dropped if nothing is left, or not
      as much as the collate's ``box_rule`` asks for: ``min_visible`` is compared with the share of its pixels.
    - The pasted objects come after the own ones, with all that belongs to them. Everything that belongs to the image,
      such as targets, is the sample's own.

    The result depends on the sample's seed alone. A sample that is pasted into costs what two do. It runs on a CPU.

    Args:
        p: probability that objects are pasted into a sample.

    Raises:
        ValueError: if ``p`` is no probability, or (when run) samples have no boxes, counts or masks of instances, have
            corners of rotated boxes, which cannot be cut, or are not on a CPU.
    """

    needs_boxes = "with task instances"

    def __init__(self, p: float = 1.0) -> None:
        super().__init__()
        self.p = chance(p)

    def check_fields(self, fields: Mapping[str, Tensor]) -> None:
        """Raises a ValueError if a batch does not have the fields of objects that can be pasted."""
        super().check_fields(fields)
        names = _names(fields)
        if "rings" not in names:
            raise ValueError(
                "CopyPaste needs masks of instances, and the batches have none: build the dataset with task instances, "
                f"and leave {ALL_SEGMENTS} in fields"
            )
        if "counts" not in fields:
            raise ValueError("CopyPaste needs counts, to tell objects from padding; leave counts in fields")
        if "corners" in names:
            raise ValueError("CopyPaste cuts boxes, and not the corners of rotated ones; leave corners out of fields")

    def partners(self, draws: Draws, total: int, ids: Callable[[Numbers], Numbers]) -> tuple[Numbers, Numbers]:
        """Draws which samples are pasted into, and a partner of each of these.

        Args:
            draws: the step's.
            total: number of rows to draw from.
            ids: returns the row at each of these places, int64 [...].

        Returns:
            Rows of the P partners, int64 [P], uniform over all rows, and their seeds, int64 [P].
        """
        drawn, applied = draws.branch(0).uniform(1)[:, 0], draws.chance(self.p)
        return ids(whole_numbers(drawn[applied], total)), branch_seeds(draws.seeds, _PARTNER)[applied]

    def applied(self, draws: Draws) -> Flags:
        """Returns which samples of a batch are pasted into, bool [B]; their P partners are behind them.

        Args:
            draws: the step's, of B + P samples.
        """
        drawn = draws.chance(self.p)
        lengths = np.arange(1, len(drawn) + 1) + drawn.cumsum()
        return drawn[: int((lengths <= len(drawn)).sum())]  # so many that they and their partners are all

    def changed(self, batch: Batch, draws: Draws, box_rule: BoxRule) -> Batch:
        """Pastes objects of the partners in a batch into the samples before them, and returns these."""
        if batch.images.device.type != "cpu":
            raise ValueError(f"CopyPaste runs on a CPU, and the images are on {batch.images.device}")
        stored = fields_of(batch)
        fields, names, size = following_fields(stored), _names(stored), batch.images.shape[2:]
        applied, chosen = self.applied(draws), draws.uniform(fields["boxes"].shape[1])
        rows = [{name: fields[name][k] for name in names} for k in range(len(batch))]
        count, place = len(applied), len(applied) - 1
        made = []
        for k, is_applied in enumerate(applied.tolist()):
            own = partner = _Objects(rows[k], size)
            pasted = _NOTHING
            if is_applied:
                place += 1
                partner = _Objects(rows[place], size)
                pasted = partner.drawn(chosen[k])
            if len(pasted):
                hidden: Array = np.any(partner.masks[pasted], axis=0)
                # In place, in the memory that this batch was rendered into.
                left, top, right, bottom = _bounds(hidden)
                part = ..., slice(top, bottom), slice(left, right)
                where = torch.from_numpy(hidden)[part]
                for pixels in (batch.images, batch.masks):
                    if pixels is not None:
                        pixels[k][part] = torch.where(where, pixels[place][part], pixels[k][part])
                own.hide(hidden, box_rule)
            made.append(_joined(own.chosen(own.remaining), partner.chosen(pasted)))
        first = {name: value[:count] for name, value in fields.items()}
        first_batch: Batch = batch[:count]
        return with_following(first_batch, first | _padded(made, fields), first)


def _names(fields: Mapping[str, Tensor]) -> list[str]:
    """Returns the names of the fields of objects."""
    segments = segment_fields({name: fields[name].shape[1:] for name in SEGMENT_FIELDS.keys() & fields.keys()})
    return ["boxes", "counts", *names_per_box(fields), *segments]


class _Objects:
    """Objects of one image.

    Attributes:
        fields: the image's fields of objects, without padding.
        remaining: int64 [n], the objects that were not dropped.
    """

    def __init__(self, row: Mapping[str, Array], size: torch.Size) -> None:
        self.fields = without_padding(row)
        self.remaining = np.arange(int(row["counts"]))
        self._row, self._size = row, size
        self._hidden: set[int] = set()

    @lazy_property
    def masks(self) -> Array:
        """Masks of the objects, bool [n, H, W]."""
        return masks_of_boxes(self._row, *self._size).view(np.bool_)

    def drawn(self, uniform: Array) -> Array:
        """Returns which objects are pasted, int64 ascending, by draws [M], float64 and uniform in [0, 1)."""
        can_be = _pixels_of(self.masks) > 0
        if "iscrowd" in self.fields:
            can_be &= ~self.fields["iscrowd"].astype(np.bool_)
        candidates = np.flatnonzero(can_be)
        count = len(candidates)
        return np.unique(candidates[(uniform[:count] * count).astype(np.int64)])

    def hide(self, hidden: Array, rule: BoxRule) -> None:
        """Takes pixels, bool [H, W], from all masks; objects that lost some get new boxes, or are dropped."""
        before = _pixels_of(self.masks)
        np.logical_and(self.masks, ~hidden, out=self.masks)
        after, boxes = _pixels_of(self.masks), self.fields["boxes"].copy()
        changed = np.flatnonzero(after < before)
        for box in changed[after[changed] > 0]:
            boxes[box] = _bounds(self.masks[box])
        share = after / np.maximum(before, 1)
        stays = (after > 0) & (share >= rule.min_visible) & rule.permits(boxes)
        self.remaining = np.flatnonzero(stays | (after == before))
        self._hidden = set(changed.tolist())
        self.fields["boxes"] = boxes
        if "area" in self.fields:
            self.fields["area"] = np.where(after < before, self.fields["area"] * share, self.fields["area"])
        if "keypoints" in self.fields:
            self.fields["keypoints"] = _hidden_keypoints(self.fields["keypoints"], hidden)

    def chosen(self, objects: Array) -> tuple[Fields, dict[str, list[tuple[int, Array]]]]:
        """Returns the fields of some objects, [m, ...] each, and their polygons and run lengths with their indexes."""
        values = {name: self.fields[name][objects] for name in self.fields if name == "boxes" or name in PER_BOX}
        index = dict(zip(objects.tolist(), range(len(objects)), strict=True))
        parts: dict[str, list[tuple[int, Array]]] = {}
        for owners, name in SEGMENTS:
            every = parts_of(self.fields, owners, name) if owners in self.fields else []
            parts[owners] = [(index[box], part) for box, part in every if box in index and box not in self._hidden]
        parts["run_boxes"] += [
            (place, runs_of_mask(self.masks[box])) for box, place in index.items() if box in self._hidden
        ]
        return values, parts


def _bounds(mask: Array) -> tuple[int, int, int, int]:
    """Returns the box x0, y0, x1, y1 around the pixels of a mask, bool [H, W], which has some."""
    columns, rows = (np.flatnonzero(mask.any(axis)) for axis in (0, 1))
    return int(columns[0]), int(rows[0]), int(columns[-1]) + 1, int(rows[-1]) + 1


def _pixels_of(masks: Array) -> Array:
    """Returns the number of pixels of each mask, int64 [n]."""
    return np.array(list(map(np.count_nonzero, masks)), np.int64)


def _hidden_keypoints(points: Array, hidden: Array) -> Array:
    """Returns keypoints [n, K, 3], of which those under hidden pixels, bool [H, W], are no more than labeled."""
    height, width = hidden.shape
    x, y = (np.clip(points[..., axis].astype(np.int64), 0, side - 1) for axis, side in ((0, width), (1, height)))
    shown = np.where(hidden[y, x], np.minimum(points[..., 2], 1), points[..., 2])
    return np.concatenate((points[..., :2], shown[..., None]), -1).astype(points.dtype)


_EMPTY = {"polygons": np.zeros((0, 2)), "runs": np.zeros(0, np.int32)}
"""Points of no polygon, and lengths of no run."""

_Chosen = tuple[Fields, dict[str, list[tuple[int, Array]]]]


def _joined(first: _Chosen, second: _Chosen) -> Fields:
    """Returns the fields of an image with the objects of both."""
    count = len(first[0]["boxes"])
    joined = {name: np.concatenate((values, second[0][name])) for name, values in first[0].items()}
    for owners, name in SEGMENTS:
        parts = first[1][owners] + [(count + box, part) for box, part in second[1][owners]]
        entries = [(box, len(part)) for box, part in parts]
        joined[owners] = np.array(entries, np.int32).reshape(-1, 2)
        joined[name] = np.concatenate([_EMPTY[name], *(part for _, part in parts)])
    return joined


def _padded(images: list[Fields], before: Fields) -> Fields:
    """Pads the fields of images to the most elements, one at least: [B, M, ...], in the dtypes that they had."""
    made: Fields = {"counts": np.array([len(fields["boxes"]) for fields in images], np.int64)}
    for name in images[0] if images else ():
        rows = padded([fields[name] for fields in images], PADDING.get(name, 0))
        stored: Array = before.get(name, rows)
        made[name] = rows.astype(stored.dtype, copy=False)
    return made
