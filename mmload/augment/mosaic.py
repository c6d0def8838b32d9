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
import numpy.typing as npt
import torch
from torch import Tensor, nn

from mmload.augment.arguments import LARGEST, argument_error, chance, integer, number, pair, per_channel
from mmload.augment.boxes import Trail, composed_boxes
from mmload.augment.draws import Draws, beta, whole_numbers
from mmload.augment.points import MovingTiles
from mmload.augment.step import arguments_of
from mmload.batch import Batch, fields_of
from mmload.pictures.instance_masks import SEGMENTS
from mmload.records import PER_BOX
from mmload.render.antialiased_resize import SHRINKS
from mmload.render.kernel_arguments import NEEDED, TILE, Numbers, Places, Records
from mmload.render.plan import Plan
from mmload.render.plan_parts import Canvas

_MOST_CHANNELS = 4
"""Upper bound on the channels of images: a pixel is packed into one word."""

_NUMBERS = 10
"""Numbers drawn per canvas: place of the mosaic (2), perspective (2), angle, scale, shear (2), translation (2)."""


class TileRows(NamedTuple):
    """Rows that the samples of a batch are composed of: one per tile, sample after sample.

    Attributes:
        numbers: int64 [T], row of each tile.
        samples: int64 [T], sample of each tile.
        layers: int64 [T], 0, or 1 for the tiles of the image that is blended in.
        places: int64 [T], place of each tile in its mosaic, descending; 0 is the sample's own.
        alone: bool [T], whether the tile is the only one of its canvas.
    """

    numbers: Tensor
    samples: Tensor
    layers: Tensor
    places: Tensor
    alone: Tensor


class Tiles(NamedTuple):
    """Rows of tiles, with what was read of them.

    Attributes:
        rows: the rows.
        sizes: int64 [T, 2], height and width of each image.
        fields: their ``boxes`` [T, M, 4], perhaps ``counts`` [T], masks of instances, and others with an element per
            box, [T, M, ...].
    """

    rows: TileRows
    sizes: Tensor
    fields: Mapping[str, Tensor]


def box_fields(batch: Batch) -> list[str]:
    """Returns the names of a batch's fields that a composed sample has of all its rows; it has others of its own."""
    fields, boxes = fields_of(batch), batch.boxes
    most = 0 if boxes is None else boxes.shape[1]
    per_box = [name for name in PER_BOX if name in fields and fields[name].shape[1:2] == (most,)]
    segments = [name for pair in SEGMENTS for name in pair]
    return [name for name in ("boxes", "counts", *segments) if name in fields] + per_box


class Mosaic(nn.Module):
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
        size: (height, width) of the output, or one number for both.
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

    def extra_repr(self) -> str:
        return ", ".join(f"{name}={value!r}" for name, value in arguments_of(self).items())

    def check_fields(self, *, boxes: bool, masks: bool) -> None:
        """Raises a ValueError if there are masks, or no boxes."""
        if not boxes:
            raise ValueError("Mosaic needs boxes, and the batches have none; build the dataset for detection")
        if masks:
            raise ValueError("Mosaic composes images and boxes, but not masks; leave masks out of fields")

    def tile_rows(self, draws: Draws, own: Tensor, total: int, ids: Callable[[Tensor], Tensor]) -> TileRows:
        """Draws the rows that samples are composed of.

        Args:
            draws: the step's.
            own: int64 [B], row of each sample.
            total: number of rows to draw from.
            ids: returns the row at each of these places, int64 [...].
        """
        active = self.stop_epoch is None or draws.epoch("stop_epoch") < self.stop_epoch
        places = torch.arange(self.tiles).flip(0)
        rows, shown, alone = [], [], []
        for layer in range(2 if active and self.mixup else 1):
            own_draws = draws.branch(layer)
            composed = own_draws.chance(self.p if active else 0.0)
            blended = own_draws.chance(self.mixup)
            drawn = ids(whole_numbers(own_draws.uniform(self.tiles), total))
            if layer == 0:
                drawn[:, -1] = own
            used = (places < torch.where(composed, self.tiles, 1)[:, None]) & (blended[:, None] | (layer == 0))
            rows.append(drawn)
            shown.append(used)
            alone.append(~composed)
        samples, layers, columns = torch.stack(shown, 1).nonzero(as_tuple=True)
        numbers = torch.stack(rows, 1)[samples, layers, columns]
        return TileRows(numbers, samples, layers, places[columns], torch.stack(alone, 1)[samples, layers])

    def tiles_of(
        self, batch: Batch, draws: Draws, shape: Sequence[int], source: torch.dtype, sizes: Tensor | None
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
        count = batch.batch_size[0]
        if source != torch.uint8 or draws.device.type != "cpu":
            raise ValueError(f"Mosaic takes uint8 images on a CPU, these are {source} on {draws.device}")
        rows = self.tile_rows(draws, torch.arange(count), count, lambda places: places)
        sizes = torch.tensor(shape[1:]).expand(count, 2) if sizes is None else sizes
        values = fields_of(batch)
        return Tiles(rows, sizes[rows.numbers], {name: values[name][rows.numbers] for name in box_fields(batch)})

    def composed(self, batch: Batch, tiles: Tiles, draws: Draws, channels: int) -> tuple[Plan, Batch, Trail]:
        """Draws the geometry of a batch; returns the plan that begins with it, and the batch with all boxes.

        Args:
            batch: everything but the images; its boxes are replaced.
            tiles: the tiles' rows.
            draws: the step's.
            channels: number of channels of the images.

        Raises:
            ValueError: if images have more than four channels, or instances have masks and images may overlap.
        """
        if channels > _MOST_CHANNELS:
            raise ValueError(f"Mosaic takes images of at most {_MOST_CHANNELS} channels, these have {channels}")
        if self.tiles == 9 and "rings" in tiles.fields:
            raise ValueError(
                "Mosaic's nine images overlap, which hides parts of masks; use tiles=4, or leave rings and polygons "
                "out of fields"
            )
        rows, count = tiles.rows, batch.batch_size[0]
        layers = 1 + int(rows.layers.max()) if len(rows.layers) else 1
        uniform = torch.stack([draws.branch(2 + layer).uniform(_NUMBERS) for layer in range(layers)], 1)
        own = uniform[rows.samples, rows.layers]
        canvas = torch.tensor(self.size) * torch.where(rows.alone, 1, 2)[:, None]
        corners, placed = self._placed(tiles, own, layers)
        factors = placed.to(torch.float64) / tiles.sizes
        forward = self._maps(own, canvas)
        shares = torch.full((count,), math.nan)
        if layers == 2:
            blended = torch.zeros(count, dtype=torch.bool).index_fill_(0, rows.samples[rows.layers == 1], True)
            shares = torch.where(blended, beta(draws.branch(4), self.alpha).to(torch.float32), shares)
        records, needed = _records(rows, tiles.sizes.numpy(), _Geometry(corners, factors, canvas, forward), self.size)
        parts = Canvas(
            height=self.size[0],
            width=self.size[1],
            samples=rows.samples.numpy(),
            tiles=records,
            sizes=tiles.sizes.numpy(),
            needed=needed,
            fill=self.fill,
            shares=shares.numpy(),
        )
        heights = tiles.sizes[:, 0]
        moving = MovingTiles(rows.samples, heights, factors.flip(1), corners.flip(1), canvas.flip(1), forward)
        batch, trail = composed_boxes(batch, tiles.fields, moving, self.size)
        return Plan.composed(count, channels, parts), batch, trail

    def _placed(self, tiles: Tiles, uniform: Tensor, layers: int) -> tuple[Tensor, Tensor]:
        """Returns where tiles lie on their canvases: top left corners and sizes, int64 [T, 2]."""
        rows, size = tiles.rows, torch.tensor(self.size)
        share = (size / tiles.sizes.to(torch.float64)).amin(1, keepdim=True)
        placed = torch.minimum((tiles.sizes * share).round().to(torch.int64).clamp(min=1), size)
        sides = torch.zeros((int(rows.samples.max()) + 1 if len(placed) else 0, layers, 2), dtype=torch.int64)
        middle = rows.places == 0
        sides[rows.samples[middle], rows.layers[middle]] = placed[middle]
        inner = sides[rows.samples, rows.layers]
        meeting = ((0.5 + uniform[:, :2]) * size).to(torch.int64)
        before, within = torch.tensor(_LAYOUTS[self.tiles])[rows.places].unbind(1)
        if self.tiles == 9:
            meeting = meeting - inner // 2
        corners = meeting - before * placed + within * inner
        return torch.where(rows.alone[:, None], (size - placed) // 2, corners), placed

    def _maps(self, uniform: Tensor, canvas: Tensor) -> Tensor:
        """Returns matrices from canvas to output, float64 [T, 3, 3], of numbers [T, 10] and canvas sizes [T, 2]."""
        signed = 2 * uniform - 1
        height, width = (float(side) for side in self.size)
        nothing, one = torch.zeros(len(uniform), dtype=torch.float64), torch.ones(len(uniform), dtype=torch.float64)

        def matrix(*rows: tuple[Tensor, Tensor, Tensor]) -> Tensor:
            return torch.stack([torch.stack(row, 1) for row in rows], 1)

        center = matrix((one, nothing, -canvas[:, 1] / 2), (nothing, one, -canvas[:, 0] / 2), (nothing, nothing, one))
        seen = matrix(
            (one, nothing, nothing),
            (nothing, one, nothing),
            (self.perspective * signed[:, 2], self.perspective * signed[:, 3], one),
        )
        angle, scale = (math.pi / 180) * self.degrees * signed[:, 4], 1 + self.scale * signed[:, 5]
        cos, sin = scale * angle.cos(), scale * angle.sin()
        turned = matrix((cos, sin, nothing), (-sin, cos, nothing), (nothing, nothing, one))
        across, over = ((math.pi / 180 * self.shear * signed[:, place]).tan() for place in (6, 7))
        sheared = matrix((one, across, nothing), (over, one, nothing), (nothing, nothing, one))
        right, down = (0.5 + self.translate * signed[:, place] for place in (8, 9))
        moved = matrix((one, nothing, right * width), (nothing, one, down * height), (nothing, nothing, one))
        return moved @ sheared @ turned @ seen @ center


_LAYOUTS = {
    4: [[[1, 1], [0, 0]], [[1, 0], [0, 0]], [[0, 1], [0, 0]], [[0, 0], [0, 0]]],
    9: [
        [[0, 0], [0, 0]],
        [[1, 0], [0, 0]],
        [[0, 0], [0, 1]],
        [[0, 1], [1, 1]],
        [[1, 1], [1, 0]],
        [[1, 1], [0, 0]],
        [[1, 0], [0, 1]],
        [[0, 0], [1, 1]],
        [[0, 1], [1, 0]],
    ],
}
"""Rows and columns of each place of a mosaic: how many times its size the tile lies before the point where images
meet, and how many times the size of the one in the middle behind it. Of nine, the point is the corner of that one; 1 to
4 are above, right, below and left, 5 to 8 at the corners."""


class _Geometry(NamedTuple):
    """Geometry of tiles; rows come before columns.

    Attributes:
        corners: int64 [T, 2], where they lie on their canvases.
        factors: float64 [T, 2], factors by which their images are resized.
        canvas: int64 [T, 2], sizes of their canvases.
        forward: float64 [T, 3, 3], from (x, y, 1) of the canvas to the output.
    """

    corners: Tensor
    factors: Tensor
    canvas: Tensor
    forward: Tensor


def _records(rows: TileRows, sizes: Numbers, geometry: _Geometry, frame: Sequence[int]) -> tuple[Records, Places]:
    """Returns tiles and the lines that they need of their images, as kernels take them.

    Args:
        rows: the tiles' rows.
        sizes: int64 [T, 2], of their images.
        geometry: the tiles' geometry.
        frame: height and width of the output.
    """
    count = len(sizes)
    corners, canvas = geometry.corners.numpy().astype(np.float64), geometry.canvas.numpy()
    scale = 1 / geometry.factors.numpy()
    to_image = np.zeros((count, 3, 3))
    to_image[:, 0, 0], to_image[:, 0, 2] = scale[:, 1], -corners[:, 1] * scale[:, 1]
    to_image[:, 1, 1], to_image[:, 1, 2] = scale[:, 0], -corners[:, 0] * scale[:, 0]
    to_image[:, 2, 2] = 1
    maps = to_image @ np.linalg.inv(geometry.forward.numpy())
    tiles, needed = np.zeros(count, TILE), np.zeros(count, NEEDED)
    tiles["layer"] = rows.layers.numpy()
    key = 2 * rows.samples.numpy() + tiles["layer"]
    tiles["begins"] = np.diff(key, prepend=-1) != 0
    for name, value in zip("abcdefghi", maps.reshape(-1, 9).T, strict=True):
        tiles[name] = value
    limits = np.maximum(-corners * scale, 0), np.minimum((canvas - corners) * scale, sizes)
    tiles["v0"], tiles["u0"] = limits[0].T
    tiles["v1"], tiles["u1"] = limits[1].T
    ends = np.array([[0, frame[1], 0, frame[1]], [0, 0, frame[0], frame[0]], [1, 1, 1, 1]], np.float64)
    shown = maps @ ends
    in_front: npt.NDArray[np.bool_] = np.all(shown[:, 2] > 1e-6, axis=1)
    points = (shown[:, :2] / np.where(in_front[:, None], shown[:, 2], 1)[:, None])[:, ::-1]
    least = np.maximum(np.where(in_front[:, None], points.min(2), -np.inf), limits[0])
    most = np.minimum(np.where(in_front[:, None], points.max(2), np.inf), limits[1])
    visible: npt.NDArray[np.bool_] = np.all(least < most, axis=1)
    first = np.clip(np.floor(np.where(visible[:, None], least, 0) - 0.5).astype(np.int64), 0, sizes - 1)
    stop = np.clip(np.floor(np.where(visible[:, None], most, 0) - 0.5).astype(np.int64) + 2, first + 1, sizes)
    tiles["top"], tiles["left"] = np.where(visible[:, None], first, 0).T
    tiles["bottom"], tiles["right"] = np.where(visible[:, None], stop, 0).T
    needed["first"], needed["stop"], needed["shrink"] = first[:, 0], stop[:, 0], _shrinks(maps)
    return tiles, needed


def _shrinks(maps: npt.NDArray[np.float64]) -> Numbers:
    """Returns by how many times images may be decoded smaller: they stay as large as they show, at least."""
    linear = maps[:, :2, :2]
    total, area = (linear**2).sum((1, 2)), np.abs(linear[:, 0, 0] * linear[:, 1, 1] - linear[:, 0, 1] * linear[:, 1, 0])
    least = np.sqrt(np.maximum(total - np.sqrt(np.maximum(total**2 - 4 * area**2, 0)), 0) / 2)
    allowed = np.ones(len(maps), np.int64)
    for shrink in SHRINKS:
        allowed[(least >= shrink) & (maps[:, 2, :2] == 0).all(1)] = shrink
    return allowed
