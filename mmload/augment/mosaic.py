"""Mosaic: samples composed of several rows on a canvas that is seen through one random map, as YOLO models train.

It is the first step of a list. Which rows a sample is composed of is drawn from its seed before images are read; a
loader reads these rows, and without one they are rows of the batch. All tiles go straight from their images through one
map to the output, in the pass that the steps after it join.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from mmload.augment.arguments import LARGEST, argument_error, chance, integer, number, pair, per_channel
from mmload.augment.boxes import Fields, Trail, check_counts, following_fields
from mmload.augment.draws import Draws, beta, whole_numbers
from mmload.augment.step import DeclaredStep
from mmload.augment.tile_fields import composed_boxes
from mmload.augment.tile_geometry import MAP_NUMBERS, MapRanges, TileRows, listed_tiles, placed_tiles
from mmload.batch import Batch, fields_of
from mmload.pictures.instance_masks import ALL_SEGMENTS, segment_fields
from mmload.records import PER_BOX
from mmload.render.plan import Plan
from mmload.render.plan_parts import Canvas
from mmload.runtime.random_words import Numbers

_MOST_CHANNELS = 4
"""Upper bound on the channels of images: a pixel is packed into one word."""


_LEAST_SIDE = 16
"""Lower bound of a mosaic's sides: a smaller number is ``tiles``, given for ``size``."""


class Tiles(NamedTuple):
    """Tiles that samples are composed of: their rows, and the sizes and boxes of these.

    Attributes:
        rows: int64 [T], row of each tile, with its place in its sample.
        sizes: int64 [T, 2], height and width of each image.
        fields: their ``boxes`` [T, M, 4], perhaps ``counts`` [T], masks of instances, and others with an element per
            box, [T, M, ...].
    """

    rows: TileRows
    sizes: Numbers
    fields: Mapping[str, Tensor]


def box_fields(shapes: Mapping[str, Sequence[int]]) -> list[str]:
    """Returns the names of the fields that a composed sample has of all its rows; it has others of its own.

    Args:
        shapes: shape of each field, without the batch's size.

    Raises:
        ValueError: if fields of masks of instances are incomplete.
    """
    most = shapes["boxes"][0] if "boxes" in shapes else 0
    per_box = [name for name in PER_BOX if name in shapes and tuple(shapes[name][:1]) == (most,)]
    return [name for name in ("boxes", "counts") if name in shapes] + segment_fields(shapes) + per_box


class Mosaic(DeclaredStep):
    """Four or nine images side by side, then a random affine or perspective map, and perhaps a blend with another one.

    Each image is resized to fit into ``size``, as Letterbox does. Four meet in a point that is uniform in the middle
    half of a canvas of twice the size, each with a corner; of nine, one lies with its middle at such a point, one
    beside each of its sides, and one at each of its corners. Without a mosaic the image alone lies in the middle of a
    canvas of ``size``. Then the canvas is warped around its middle: a perspective, a rotation and scale, a shear and a
    translation, in this order, and ``size`` of it is kept. Boxes are clipped to the canvas, warped, and clipped again;
    keypoints and corners of rotated boxes are moved, and keypoints outside are not labeled any more. Masks of instances
    are moved as polygons, clipped to the canvas and the output.

    The sample's own row is one of the images; the others are drawn from all rows that the loader reads, or from the
    rows of the batch if there is no loader. They depend on the sample's seed alone, and not on the batch, except where
    they come from it.

    It must be the first step. There is no antialiasing, as in OpenCV's bilinear warp.

    Args:
        size: (height, width) of the output, or one number for both; at least 16.
        tiles: 4 or 9.
        p: probability of a mosaic.
        degrees: greatest angle either way.
        translate: greatest translation either way, as a share of the output's sides, 0 to 1.
        scale: the scale is drawn from 1 - ``scale`` to 1 + ``scale``, below 1.
        shear: greatest angle of the shears in x and y either way, in degrees below 90.
        perspective: greatest change of a point's depth per pixel, either way, up to 0.001.
        mixup: probability that the sample is blended with another one, composed in the same way of a row drawn for it,
            with the boxes of both.
        alpha: both parameters of the Beta distribution of the blend's share.
        fill: fill beside the images, levels from 0 to 255; one number or one per channel.
        stop_epoch: first epoch without mosaic and blend; None: all have them.

    Raises:
        ValueError: if an argument is out of range, or (when run) images are not uint8 on a CPU or have more than four
            channels, or the batch has masks of classes or no boxes, or masks of instances and ``tiles`` is 9.
    """

    needs_boxes = "for detection"
    leaves_behind = {"masks": "composes images and boxes, but not masks; leave masks out of fields"}

    def __init__(
        self,
        size: int | Sequence[int],
        tiles: int = 4,
        p: float = 1.0,
        degrees: float = 0.0,
        translate: float = 0.1,
        scale: float = 0.5,
        shear: float = 0.0,
        perspective: float = 0.0,
        mixup: float = 0.0,
        alpha: float = 32.0,
        fill: float | Sequence[float] = 114,
        stop_epoch: int | None = None,
    ) -> None:
        super().__init__()
        self.size = pair(size)
        if min(self.size) < _LEAST_SIDE:
            raise argument_error("size", size, f"{_LEAST_SIDE} pixels or more; the number of images is tiles")
        self.tiles = integer("tiles", tiles, least=4, greatest=9, expected="4 or 9")
        if self.tiles not in _LAYOUTS:
            raise argument_error("tiles", tiles, "4 or 9")
        self.p = chance(p)
        self.degrees = number("degrees", degrees, least=0.0, greatest=360.0, expected="degrees from 0 to 360")
        self.translate = number("translate", translate, least=0.0, greatest=1.0, expected="a share from 0 to 1")
        self.scale = number("scale", scale, least=0.0, greatest=0.999, expected="a number from 0, below 1")
        self.shear = number("shear", shear, least=0.0, greatest=89.0, expected="degrees from 0, below 90")
        self.perspective = number(
            "perspective", perspective, least=0.0, greatest=0.001, expected="a number from 0 to 0.001"
        )
        self.mixup = number("mixup", mixup, least=0.0, greatest=1.0, expected="a probability, 0 to 1")
        self.alpha = number("alpha", alpha, least=1e-12, greatest=LARGEST, expected="a positive number")
        self.fill = per_channel("fill", fill)
        self.stop_epoch = None if stop_epoch is None else integer("stop_epoch", stop_epoch, least=0)

    def tile_rows(self, draws: Draws, own: Numbers, total: int, ids: Callable[[Numbers], Numbers]) -> TileRows:
        """Draws the rows that samples are composed of.

        Args:
            draws: the step's.
            own: int64 [B], row of each sample.
            total: number of rows to draw from.
            ids: returns the row at each of these places, int64 [...].
        """
        active = self.stop_epoch is None or draws.epoch("stop_epoch") < self.stop_epoch
        rows, composed, blended = [], [], []
        for layer in range(2 if active and self.mixup else 1):
            own_draws = draws.branch(layer)
            composed.append(own_draws.chance(self.p if active else 0.0))
            blended.append(own_draws.chance(self.mixup))
            rows.append(ids(whole_numbers(own_draws.uniform(self.tiles), total)))
        rows[0][:, -1] = own
        return listed_tiles(rows, composed, blended)

    def tiles_of(
        self, batch: Batch, draws: Draws, shape: Sequence[int], source: torch.dtype, sizes: Numbers | None
    ) -> Tiles:
        """Draws the rows that samples are composed of among those of a batch.

        Args:
            batch: everything but the images.
            draws: the step's.
            shape: (C, H, W) of the images.
            source: their dtype.
            sizes: int64 [B, 2], of variable-size images; None: images are fixed-size.

        Raises:
            ValueError: if images are not uint8 on a CPU.
        """
        values, count = fields_of(batch), batch.batch_size[0]
        names = box_fields({name: value.shape[1:] for name, value in values.items()})
        device = values["boxes"].device
        if source != torch.uint8 or device.type != "cpu":
            raise ValueError(f"Mosaic takes uint8 images on a CPU, these are {source} on {device}")
        rows = self.tile_rows(draws, np.arange(count), count, lambda places: places)
        sizes = np.full((count, 2), shape[1:], np.int64) if sizes is None else sizes
        chosen = torch.from_numpy(rows.numbers)
        return Tiles(rows, sizes[rows.numbers], {name: values[name][chosen] for name in names})

    def composed(self, tiles: Tiles, draws: Draws, channels: int) -> tuple[Plan, Fields, Trail]:
        """Draws the geometry of a batch; returns the plan that begins with it, and the fields of all boxes.

        Args:
            tiles: the tiles' rows.
            draws: the step's.
            channels: number of channels of the images.

        Raises:
            ValueError: if images have more than four channels, instances have masks and images may overlap, or a tile
                has a number of boxes that there is no room for.
        """
        if channels > _MOST_CHANNELS:
            raise ValueError(f"Mosaic takes images of at most {_MOST_CHANNELS} channels, these have {channels}")
        if self.tiles == 9 and "rings" in tiles.fields:
            raise ValueError(
                "Mosaic's nine images overlap, which hides parts of masks; use tiles=4, or leave "
                f"{ALL_SEGMENTS} out of fields"
            )
        if "counts" in tiles.fields:
            check_counts(tiles.fields["counts"], tiles.fields["boxes"].shape[1])
        rows, count = tiles.rows, len(draws.seeds)
        layers = 1 + int(rows.layers.max()) if len(rows.layers) else 1
        uniform = np.stack([draws.branch(2 + layer).uniform(MAP_NUMBERS) for layer in range(layers)])
        shares = np.full(count, math.nan, np.float32)
        if layers == 2:
            blended = rows.samples[rows.layers == 1]
            shares[blended] = beta(draws.branch(4), self.alpha)[blended]
        records, needed, moving = placed_tiles(rows, tiles.sizes, uniform, self._ranges, _LAYOUTS[self.tiles])
        parts = Canvas(
            height=self.size[0],
            width=self.size[1],
            samples=moving.samples,
            tiles=records,
            needed=needed,
            fill=self.fill,
            shares=shares,
        )
        plan = Plan.composed(count, channels, parts)
        return plan, *composed_boxes(following_fields(tiles.fields), moving, plan)

    @property
    def _ranges(self) -> MapRanges:
        angle, shear = math.pi / 180 * self.degrees, math.pi / 180 * self.shear
        return MapRanges(*self.size, self.perspective, angle, self.scale, shear, self.translate)


_FOUR = [[(1, 0), (1, 0)], [(1, 0), (0, 0)], [(0, 0), (1, 0)], [(0, 0), (0, 0)]]
_NINE = [
    [(0, 0), (0, 0)],
    [(1, 0), (0, 0)],
    [(0, 0), (0, 1)],
    [(0, 1), (1, 1)],
    [(1, 1), (1, 0)],
    [(1, 0), (1, 0)],
    [(1, 0), (0, 1)],
    [(0, 1), (0, 1)],
    [(0, 1), (1, 0)],
]
_LAYOUTS = {4: np.array(_FOUR), 9: np.array(_NINE)}
"""Layouts as :func:`~mmload.augment.tile_geometry.placed_tiles` takes them. Of nine, the point where images meet is the
corner of the one in the middle; 1 to 4 are above, right, below and left, 5 to 8 at the corners."""
