"""Rendering of a plan: it reads each pixel once and writes the final size, dtype and memory format.

It takes a :class:`~mmload.render.plan.Plan` and images, and writes into memory that the caller owns. Compiled kernels
render uint8 images on a CPU, some samples or a batch (:mod:`mmload.render.cpu_kernels`). Torch's operations render
anything else, on the images' device, to which the plan is copied (:mod:`mmload.render.torch_rendering`). Nothing here
draws random numbers.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from mmload.lazy import lazy_property
from mmload.render.antialiased_resize import REACHES, SHRINKS, resize
from mmload.render.arrival import arrive
from mmload.render.canvas_kernels import paint as paint_tiles
from mmload.render.cpu_kernels import CROPS, copy_images, run_steps
from mmload.render.kernel_arguments import (
    BYTES,
    FLIPPED_X,
    FLIPPED_Y,
    NEEDED,
    NOWHERE,
    PADDING_MODES,
    PIXELS,
    PLACE,
    PLANES,
    RESIZED,
    WINDOW,
    Arrival,
    Bytes,
    Composed,
    Crops,
    Floats,
    Holes,
    Lines,
    Numbers,
    Operations,
    Paint,
    Pixels,
    Places,
    Records,
    Resizes,
    steps_of,
)
from mmload.render.level_kernels import run_operations
from mmload.render.mixing_kernels import MIXES, SLOTS, TURNS
from mmload.render.plan import Canvas, Mixing, Plan, Resampling, check_fill, check_levels, holes_of
from mmload.render.torch_levels import run_program
from mmload.render.torch_rendering import (
    Uploaded,
    finish_by_torch,
    placed_window,
    resized_batch,
    resized_one_by_one,
    upload,
)
from mmload.render.torch_sampling import picked, windows
from mmload.runtime.host_memory import MemoryPool, copied, past_caches, scratch, zeros
from mmload.runtime.intrinsics import LINE
from mmload.runtime.kernels import KernelCall, numba_compiled


class ImageLines(NamedTuple):
    """Lines of some images, and how they arrive.

    Attributes:
        memory: as :class:`Lines` has it, like the next two.
        places: where the lines are.
        decoded: memory of decoded images.
        arrival: what brings the images there; None: all are there.
    """

    memory: Bytes
    places: Places
    decoded: Bytes = NOWHERE
    arrival: Arrival | None = None

    @property
    def stored(self) -> Lines:
        """The lines, as kernels take them."""
        return Lines(self.memory, self.places, self.decoded)

    @classmethod
    def of_batch(cls, images: Tensor, indices: Numbers) -> ImageLines:
        """Returns all lines of some of ``images``, contiguous uint8 [N, C, H, W]."""
        _, channels, height, width = images.shape
        places = np.array([(0, 0, height, height, width, PLANES, 1)], PLACE).repeat(len(indices))
        np.multiply(indices, channels * height * width, out=places["start"])
        return cls(images.numpy().reshape(-1), places)

    @classmethod
    def of_images(cls, images: Sequence[Tensor]) -> ImageLines:
        """Returns all lines of variable-size images, uint8 [C, h, w], copied into one memory."""
        places, start = np.empty(len(images), PLACE), 0
        for k, image in enumerate(images):
            _, height, width = image.shape
            places[k] = start, 0, height, height, width, PLANES, 1
            start += image.numel()
        return cls(torch.cat([torch.from_numpy(NOWHERE), *(image.reshape(-1) for image in images)]).numpy(), places)

    def batch(self, shape: tuple[int, int, int]) -> tuple[Bytes, Numbers]:
        """Returns images of one shape as a batch: all in memory, uint8 [N, C, H, W], and their indices, int64 [B]."""
        size = math.prod(shape)
        images = self.memory[: len(self.memory) // size * size].reshape(-1, *shape)
        return images, self.places["start"] // size

    def image(self, k: int, channels: int) -> Tensor:
        """Returns the lines of image ``k`` as a view, uint8 [C, lines, W]."""
        start, _, count, _, width, layout, shrink = self.places[k].tolist()
        width = -(-width // shrink)
        memory = self.decoded if layout == PIXELS else self.memory
        flat = torch.from_numpy(memory[start : start + count * channels * width])
        return flat.as_strided((channels, count, width), steps_of(layout, count, width, channels))


EACH: Numbers = np.empty(0, np.int64)
"""Ends of samples where each row is one."""


class RenderingSteps:
    """Steps of rendering, each a kernel that does rows or samples.

    Attributes:
        rows: int64 [2], the first row that a step does when it is called, and the one after the last.
        samples: int64 [2], the same of samples.
        of_rows: steps of a row: it arrives, is resized or painted.
        of_samples: steps of a sample after those of its rows: it is cut out, its levels change, it is colored.
        failed: :attr:`~mmload.render.kernel_arguments.Arrival.failed` of rows that arrive; the first that cannot is the
            last.
    """

    def __init__(self) -> None:
        self.rows, self.samples = np.zeros(2, np.int64), np.zeros(2, np.int64)
        self.of_rows: list[KernelCall] = []
        self.of_samples: list[KernelCall] = []
        self.failed: Numbers = np.array([-1, 0])

    def run(self, count: int, ends: Numbers = EACH) -> None:
        """Runs the steps of so many rows.

        Args:
            count: number of rows.
            ends: int64 [R], the sample whose last row each is, or -1.
        """
        if not self.of_rows and len(self.of_samples) == 1:
            self.samples[1] = count
            self.of_samples[0].run()
            return
        steps = np.array([step.words for step in (*self.of_rows, *self.of_samples)], np.uintp)
        run_steps(steps, len(self.of_rows), count, ends, self.rows, self.samples, self.failed)


_POOL = MemoryPool(spare=4)
"""Memory for the levels of batches that are being rendered, each by calls in order."""


class Rendering:
    """Plan that is ready to be rendered to a dtype; the arithmetic is that of float32.

    Samples may be rendered from any number of threads, as working memory belongs to the thread; those of a plan that
    mixes or composes them in order, by one thread.
    """

    def __init__(self, plan: Plan, dtype: torch.dtype) -> None:
        _check(plan, dtype)
        self.plan = plan
        self.dtype = dtype
        self._colors = _color_map(plan, dtype)
        self._uploaded: Uploaded | None = None  # after copy_to
        unchanged = np.zeros(plan.source[0], np.float32), np.ones(plan.source[0], np.float32)
        self._shift, self._scale = self._colors or unchanged

    @lazy_property
    def needed(self) -> Places:
        """Lines that are needed of variable-size images, or for tiles.

        They are :data:`~mmload.render.kernel_arguments.NEEDED`.
        """
        return needed_lines(self.plan) if self.plan.canvas is None else self.plan.canvas.needed

    @property
    def waits(self) -> bool:
        """Whether images may arrive while they are rendered, each when it is needed."""
        return self.plan.resampling is None or self.plan.resampling.antialias

    def render_lines(self, first: int, lines: ImageLines, out: Tensor | Pixels) -> None:
        """Renders uint8 samples (of canvases: tiles) from ``first`` on from wherever their lines are, on a CPU.

        Of variable-size images, at least the lines of :attr:`needed` are there. Lines arrive meanwhile only if the
        rendering :attr:`waits`; the samples from one on that cannot arrive are not rendered. Samples of which the last
        tile is painted are finished. Samples that are mixed are written when the last of the batch is rendered.

        Args:
            first: number of the first sample or tile.
            lines: their lines.
            out: [B, C, h, w], the memory of all samples, or an array in the layout that kernels write
                (:func:`written`).
        """
        direct = written(out)
        pixels = self._floats if direct is None else direct
        self._render(first, lines, pixels)
        if direct is None:
            out[:] = torch.from_numpy(self._floats)

    def render_batch(self, images: Tensor, out: Tensor) -> None:
        """Renders all samples of images [B, C, H, W] into ``out`` [B, C, h, w]."""
        if images.dtype == torch.uint8 and images.device.type == "cpu" and self._uploaded is None:
            # np.arange gives the interpreter lock away.
            self.render_lines(0, ImageLines.of_batch(images.contiguous(), np.array(range(len(out)), np.int64)), out)
        else:
            self.by_operations(images, out)

    def rendered(self, images: Tensor, memory_format: torch.memory_format = torch.contiguous_format) -> Tensor:
        """Renders all samples of images [B, C, H, W] into new memory on their device: [B, C, h, w]."""
        out = torch.empty(self.plan.shape, dtype=self.dtype, device=images.device, memory_format=memory_format)
        self.render_batch(images, out)
        return out

    def by_operations(self, images: Tensor, out: Tensor) -> None:
        """Renders all samples, ``images`` [B, C, H, W], by torch's operations on their device.

        Windows are resized at once on a device, or by a plan that was copied; else one by one, as torchvision does it.
        """
        (plan, colors), _ = self._uploaded or self._copied(images.device)
        if plan.first_program.slots:
            changed = run_program(plan.first_program, images, plan.peak)
            images = changed.to(torch.uint8) if images.dtype == torch.uint8 else changed
        if plan.resampling is None:
            moved = picked(images, plan)
        elif self._uploaded is not None or images.device.type != "cpu":
            moved = resized_batch(images, plan, plan.resampling)
        else:
            moved = resized_one_by_one(self.plan, plan.resampling, images)
        finish_by_torch(plan, colors, moved, out)

    def copy_to(self, device: torch.device) -> list[Tensor]:
        """Copies what torch's operations need to a device, ahead of them; returns the copies."""
        self._uploaded = self._copied(device)
        return self._uploaded[1]

    def _copied(self, device: torch.device) -> Uploaded:
        return upload((self.plan, self._colors), device)

    def _render(self, first: int, lines: ImageLines, out: Pixels) -> None:
        """Renders samples into the memory of all; those that are mixed by way of their levels, without holes."""
        plan, count, steps, ends, arrival = self.plan, len(lines.places), RenderingSteps(), EACH, lines.arrival
        samples, indices, resampling = slice(first, first + count), np.zeros(1, np.int64), plan.resampling
        if arrival is not None:
            steps.failed = arrival.failed
            steps.of_rows.append(arrive.prepare(lines.stored, arrival, steps.rows))
        if plan.first_program.slots:
            lines = self._changed(steps, lines, _part(plan.first_program.for_kernels(plan.source[0]), samples))
        if plan.canvas is not None:
            samples, ends, composed = self._composed(plan.canvas, first, count)
            images = composed.canvases[:1]
            steps.of_rows.append(paint_tiles.prepare(lines.stored, composed, steps.rows))
        elif resampling is None:
            images, indices = lines.batch(plan.source)
        elif resampling.antialias:
            images = scratch("resized", (1, plan.source[0], plan.height, plan.width))
            steps.of_rows.append(resize.prepare(lines.stored, self._resizes(resampling, samples), steps.rows, images))
        else:
            images, indices = self._resized_by_torch(resampling, samples, lines), np.arange(count)
        windows = copied(self._windows[samples])
        windows["index"] = indices
        holes = self._holes._replace(sides=self._holes.sides[samples])
        ring = SLOTS, *out.shape[1:]
        own, streamed = (out, streams(out)) if plan.mixing is None else (self._levels.reshape(ring)[:TURNS], False)
        paint = Paint(self._shift, self._scale, holes, streamed)
        if plan.program.slots:
            images = self._change(
                steps, Crops(images, windows, self._fill, self._mode), _part(self._operations, samples)
            )
        crops = Crops(images, windows, self._fill, self._mode)
        steps.of_samples.append(CROPS[own.dtype].prepare(crops, paint, samples.start, steps.samples, own))
        if plan.mixing is not None:
            self._mix(steps, plan.mixing, samples.start, out)
        steps.run(count, ends)

    def _mix(self, steps: RenderingSteps, mixing: Mixing, first: int, out: Pixels) -> None:
        """Adds the step that mixes the levels of a sample, counted from ``first`` on, with those of the one before."""
        count, levels = self.plan.count, self._levels.reshape(SLOTS, *out.shape[1:])
        shares = np.ones(count, np.float32) if mixing.share is None else np.ascontiguousarray(mixing.share)
        boxes = zeros((count, 4), np.int64) if mixing.boxes is None else np.ascontiguousarray(mixing.boxes)
        holes = holes_of(self.plan.holes, count, self.plan.source[0])
        paint = Paint(self._shift, self._scale, holes, streams(out))
        steps.of_samples.append(MIXES[out.dtype].prepare(levels, paint, shares, boxes, first, steps.samples, out))

    def _changed(self, steps: RenderingSteps, lines: ImageLines, operations: Operations) -> ImageLines:
        """Adds the steps that copy a complete image and run operations on it; returns where each image is then."""
        channels, places = self.plan.source[0], copied(lines.places)
        places["start"], places["first"], places["layout"], places["shrink"] = 0, 0, PLANES, 1
        places["count"] = places["height"]
        levels = scratch("complete image", (int((places["height"] * places["width"]).max(initial=0)) * channels,))
        windows = zeros(len(places), WINDOW)
        steps.of_rows.append(copy_images.prepare(lines.stored, places, channels, levels, steps.rows))
        steps.of_rows.append(run_operations.prepare(levels, places, channels, windows, operations, steps.rows))
        return ImageLines(levels, places)

    def _change(self, steps: RenderingSteps, crops: Crops, operations: Operations) -> Bytes:
        """Adds the steps that cut a sample out and run operations on it; returns where its levels are then.

        An image that was made for the sample alone, and is no larger, is changed in place. Flips that are due after the
        operations stay in the windows.
        """
        plan, windows, levels = self.plan, crops.windows, crops.images
        is_made = plan.canvas is not None or (plan.resampling is not None and plan.resampling.antialias)
        if not is_made or (plan.canvas is not None and plan.is_cropped):
            levels = scratch("levels", (1, *plan.shape[1:]))
            whole = crops._replace(windows=copied(windows))
            whole.windows["flips"] = 0
            paint = Paint(self._shift, self._scale, holes_of((), len(windows), plan.source[0]), False)
            steps.of_samples.append(CROPS[BYTES].prepare(whole, paint, 0, steps.samples, levels))
            windows["index"], windows["top"], windows["left"] = 0, 0, 0
        _, channels, height, width = levels.shape
        places = np.array([(0, 0, height, height, width, PLANES, 1)], PLACE)
        flat = levels.reshape(-1)
        steps.of_samples.append(run_operations.prepare(flat, places, channels, windows, operations, steps.samples))
        return levels

    def _resized_by_torch(self, resampling: Resampling, samples: slice, lines: ImageLines) -> Bytes:
        """Resizes windows that no kernel does: uint8 [b, C, H, W]."""
        plan, channels = self.plan, self.plan.source[0]
        full = scratch("resized", (len(lines.places), channels, plan.height, plan.width))
        for k, (target, window) in enumerate(zip(torch.from_numpy(full), windows(plan)[samples], strict=True)):
            target.copy_(placed_window(lines.image(k, channels), window, plan, resampling))
        return full

    def _composed(self, canvas: Canvas, first: int, count: int) -> tuple[slice, Numbers, Composed]:
        """Returns the samples that end among so many tiles, the one that each of these ends or -1, and the tiles."""
        ends, shares = np.empty(count, np.int64), np.empty(count, np.float32)
        _write_ends(canvas.samples, canvas.shares, first, ends, shares)
        begin, ground = int(canvas.samples[first]) if count else 0, _filled(canvas.fill, self.plan.source[0])
        samples = slice(begin, begin + 1 + max(ends.tolist(), default=-1))
        return samples, ends, Composed(canvas.tiles[first : first + count], ground, self._canvases, shares)

    def _resizes(self, resampling: Resampling, samples: slice) -> Resizes:
        ground, reach = _filled(resampling.fill, self.plan.source[0]), REACHES[resampling.mode]
        return Resizes(self._resized_windows[samples], self._fill, self._mode, ground, reach)

    @lazy_property
    def _levels(self) -> Bytes:
        """Levels of samples that are about to be mixed."""
        return _POOL.array((SLOTS * math.prod(self.plan.shape[1:]),))

    @lazy_property
    def _floats(self) -> Floats:
        """The batch as float32, of outputs that no kernel writes: float32 [B, C, h, w]."""
        return _POOL.array(self.plan.shape, np.float32)

    @lazy_property
    def _canvases(self) -> Bytes:
        """Canvases of the sample that is being painted, whose tiles may come by several calls."""
        channels, canvas = self.plan.source[0], self.plan.canvas
        layers = 1 if canvas is None else 1 + max(canvas.tiles["layer"].tolist(), default=0)
        return _POOL.array((layers, channels, *self.plan.source[1:]))

    @lazy_property
    def _windows(self) -> Records:
        """Windows that the kernels cut out, after a resize if there is one: WINDOW [B], all of image 0."""
        plan = self.plan
        cut = zeros(plan.count, WINDOW)
        if plan.resampling is None:
            cut["top"], cut["left"] = plan.top, plan.left
        cut["flips"] = plan.flip_x * np.uint8(FLIPPED_X) + plan.flip_y * np.uint8(FLIPPED_Y)
        return cut

    @lazy_property
    def _resized_windows(self) -> Records:
        """Windows that are resized: RESIZED [B]."""
        plan, placed, resizes = self.plan, self.plan.resampling, zeros(self.plan.count, RESIZED)
        resizes["top"], resizes["left"] = plan.top, plan.left
        resizes["rows"], resizes["columns"] = plan.rows, plan.cols
        if placed is not None:
            resizes["high"], resizes["wide"] = placed.rows, placed.cols
            resizes["down"], resizes["right"] = placed.top, placed.left
        return resizes

    @lazy_property
    def _operations(self) -> Operations:
        return self.plan.program.for_kernels(self.plan.source[0])

    @lazy_property
    def _mode(self) -> int:
        return PADDING_MODES.index(self.plan.padding.mode)

    @lazy_property
    def _fill(self) -> Bytes:
        return _filled(self.plan.padding.fill, self.plan.source[0])

    @lazy_property
    def _holes(self) -> Holes:
        """Holes of samples that are not mixed later."""
        plan = self.plan
        return holes_of(plan.holes if plan.mixing is None else (), plan.count, plan.source[0])


@numba_compiled("int64[::1], float32[::1], int64, int64[::1], float32[::1]", nogil=False)
def _write_ends(samples: Numbers, of_samples: Floats, first: int, ends: Numbers, shares: Floats) -> None:
    """Writes the sample that each tile from ``first`` on ends, counted from that of the first, or -1, and its share."""
    for k in range(len(ends)):
        sample, after = samples[first + k], first + k + 1
        is_last = after == len(samples) or samples[after] != sample
        ends[k], shares[k] = (sample - samples[first], of_samples[sample]) if is_last else (-1, np.nan)


def _part(operations: Operations, samples: slice) -> Operations:
    """Returns the operations of some samples."""
    return operations._replace(codes=operations.codes[samples], numbers=operations.numbers[samples])


def _check(plan: Plan, dtype: torch.dtype) -> None:
    """Checks that the dtype can hold the output.

    Raises:
        ValueError: if floats would be cut to uint8, or a fill or a hole's value is no level of uint8 images.
    """
    for fill in [around.fill for around in (plan.canvas, plan.padding, plan.resampling) if around is not None]:
        check_fill(fill, plan.source[0], plan.peak)
    if plan.is_variable_size:
        raise ValueError("the images are variable-size: put a Resize((height, width)) before other steps")
    if dtype != torch.uint8:
        return
    if plan.peak == 1 or plan.shift is not None or plan.blends:
        raise ValueError("floats cannot be rendered as torch.uint8: give a floating dtype")
    for hole in plan.holes:
        check_levels("value", hole.value)


def _color_map(plan: Plan, dtype: torch.dtype) -> tuple[Floats, Floats] | None:
    """Returns shift and scale, float32 [C] each; None if they would change nothing."""
    if plan.shift is not None and plan.scale is not None:
        return plan.shift, plan.scale
    if plan.peak == 1.0 or not dtype.is_floating_point:
        return None
    return np.zeros(plan.source[0], np.float32), np.full(plan.source[0], 1.0 / plan.peak, np.float32)


@lru_cache(maxsize=64)
def _filled(fill: tuple[float, ...], channels: int) -> Bytes:
    """Returns a fill as the kernels take it, uint8 [C], shared by all who ask for the same."""
    return np.full(channels, fill, np.uint8)


def streams(out: Pixels) -> bool:
    """Returns whether a batch is written past the caches: it, and each sample, is too large to stay there."""
    together = math.prod(out.shape[-2:]) * out.itemsize  # that a kernel writes band by band
    is_aligned = together % LINE == 0 and out.ctypes.data % LINE == 0
    return is_aligned and past_caches(len(out), math.prod(out.shape[1:]) * out.itemsize)


RESERVE = 1.5
"""Factor by which a window has to shrink more than its decoded image: with less, pixels differ by over 2 levels on
average."""


def needed_lines(plan: Plan) -> Places:
    """Returns what each image's window needs of it: :data:`NEEDED` [B].

    A window that is larger than its canvas needs only the lines that show there. Padding may be made of any line of the
    image, unless it is constant. Where no kernel resizes, all lines are needed, whatever shows.

    Args:
        plan: plan of variable-size images.
    """
    if plan.sizes is None:
        raise ValueError("the plan is for fixed-size images")
    height, resampling = plan.sizes[:, 0], plan.resampling
    needed = np.array([(0, 0, 1)], NEEDED).repeat(plan.count)
    needed["stop"] = height
    if plan.first_program.slots or (resampling is not None and not resampling.antialias):
        return needed
    top, rows = plan.per_sample(plan.top), plan.per_sample(plan.rows)
    first, stop = top, top + rows
    if resampling is not None:
        wanted, down = resampling.rows, resampling.top
        scale = rows / wanted
        reach = max(REACHES.values()) * np.maximum(scale, 1.0) + 1
        begin, end = np.maximum(-down, 0), np.minimum(wanted, plan.height - down)
        first = top + np.floor(np.maximum(begin * scale - reach, 0)).astype(np.int64)
        stop = top + np.ceil(np.minimum(end * scale + reach, rows)).astype(np.int64)
    if plan.padding.mode != "constant":
        outside = (top < 0) | (top + rows > height)
        first, stop = np.where(outside, 0, first), np.where(outside, height, stop)
    needed["first"] = np.clip(first, 0, height)
    needed["stop"] = np.clip(stop, needed["first"], height)
    needed["shrink"] = _shrinks_of(plan, plan.sizes)
    return needed


def _shrinks_of(plan: Plan, sizes: Numbers) -> Numbers:
    """Returns the greatest number of times by which each image may be smaller for its window: int64 [B]."""
    resampling, allowed = plan.resampling, np.ones(plan.count, np.int64)
    if resampling is None:
        return allowed
    rows, cols = plan.per_sample(plan.rows), plan.per_sample(plan.cols)
    top, left = plan.per_sample(plan.top), plan.per_sample(plan.left)
    inside = (top >= 0) & (left >= 0) & (top + rows <= sizes[:, 0]) & (left + cols <= sizes[:, 1])
    least = np.where(inside, np.minimum(rows / resampling.rows, cols / resampling.cols), 1.0)
    for shrink in SHRINKS:
        allowed[least >= RESERVE * shrink] = shrink
    return allowed


BITS = {torch.float16: torch.int16, torch.bfloat16: torch.uint16}
"""Dtype as which kernels write half precision: see :data:`~mmload.runtime.intrinsics.rounded`."""

KERNEL_DTYPES: dict[torch.dtype, np.dtype[Any]] = {
    torch.float32: np.dtype(np.float32),
    torch.uint8: np.dtype(np.uint8),
    torch.float16: np.dtype(np.int16),
    torch.bfloat16: np.dtype(np.uint16),
}
"""Dtypes that kernels write, contiguous and in channels_last, and as which; all others are converted from float32."""


def written(out: Tensor | Pixels) -> Pixels | None:
    """Returns the output as a kernel writes it, or None if none does: its planes, [B, P, h, V].

    Planes are channels, [B, C, h, w]; of channels_last one of all channels, [B, 1, h, w * C].
    """
    if isinstance(out, np.ndarray):
        return out
    if out.dtype not in KERNEL_DTYPES:
        return None
    bits = out.view(BITS[out.dtype]) if out.dtype in BITS else out
    if out.is_contiguous():
        return bits.numpy()
    lines = bits.permute(0, 2, 3, 1)
    return lines.flatten(2)[:, None].numpy() if lines.is_contiguous() else None
