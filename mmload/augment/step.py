"""The kinds of steps of a collate, and the random numbers that a step draws.

Steps join the description of a pass, or run after it. All but Mosaic, which composes samples of several rows, work
alone on a batch and inside ``nn.Sequential``::

    DeclaredStep                its arguments, and what it needs
        Step                    describes itself in a plan: geometry, color map, holes
            LevelStep           ... by a program of operations on levels, which it draws
            OperationStep       is one such operation, with a probability
        TargetStep              also takes targets when it is called alone
            MixStep             a Step that mixes samples (in ``mix.py``)
            AfterStep           changes rendered pixels, or several samples at once
        Mosaic

Random numbers are pure functions of (seed, epoch, sample) and then of (sample seed, step, draw number). They are made
on the host by NumPy and by compiled loops, whatever renders the batch: the bits are the same in any batch, on any
thread and on any processor. Nothing touches a global generator but :func:`fresh_seeds`, for batches without seeds.

A loader sets the epoch around the making of each batch, in the thread that makes it, so that batches of two epochs may
be made at once. Without a loader the user sets it on the collate.
"""

from __future__ import annotations

import inspect
import itertools
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from functools import lru_cache
from importlib import import_module
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from mmload.augment.arguments import chance, integer
from mmload.augment.given_samples import given_samples
from mmload.batch import Batch, fields_of, make_batch, with_fields
from mmload.lazy import lazy_property
from mmload.records import PER_BOX, SEGMENTS, dtype_name, segment_fields
from mmload.render.level_operations import NONE
from mmload.render.plan import Plan, Program
from mmload.runtime.kernels import filled, numba_compiled
from mmload.runtime.random_words import (
    GOLDEN,
    Numbers,
    Words,
    as_words,
    check_words,
    counted,
    drawn_chances,
    drawn_integers,
    drawn_orders,
    mix_integer,
    mixed,
    seeded,
    signed,
    unit,
    unit_of_word,
)

if TYPE_CHECKING:
    from mmload.augment.boxes import BoxRule, Fields, Trail

Doubles = npt.NDArray[np.float64]
Flags = npt.NDArray[np.bool_]

_STEP_INCREMENT = 0xD1342543DE82EF95
"""Odd number that is added per step, other than that per draw, so that steps and draws do not run into each other."""

_LOWEST, _HIGHEST = -(1 << 63), (1 << 63) - 1


class DeclaredStep(nn.Module):
    """Module of mmload, whose class is the one declaration of a step.

    The name and the arguments are torchvision's, and each argument is an attribute of the same name. ``repr``,
    torchvision's equivalent, the check of foreign modules and the table of docs/augment.md follow from that.

    Attributes:
        needs_boxes: how a dataset with boxes is built, for the message where they are missing; "": the step works
            without boxes.
        leaves_behind: reason and advice for each of the fields "boxes" and "masks" that does not follow the step.
        makes_floats: whether images cannot stay uint8.
        inner: steps that it contains.
    """

    needs_boxes = ""
    leaves_behind: Mapping[str, str] = {}
    makes_floats = False
    inner: Sequence[DeclaredStep] = ()

    def check_fields(self, fields: Mapping[str, Tensor]) -> None:
        """Raises a ValueError if fields of the batches would be left behind, or boxes are missing."""
        name = type(self).__name__
        if self.needs_boxes and "boxes" not in fields:
            raise ValueError(f"{name} needs boxes, and the batches have none; build the dataset {self.needs_boxes}")
        for field, why in self.leaves_behind.items():
            if field in fields:
                raise ValueError(f"{name} {why}")
        for step in self.inner:
            step.check_fields(fields)

    @lazy_property
    def _collates(self) -> dict[torch.dtype, Any]:
        """Collates of the step alone, by dtype."""
        return {}

    def alone(
        self, images: Tensor, targets: Tensor | None, seeds: Tensor | None, generator: torch.Generator | None
    ) -> Batch:
        """Runs the step alone on a batch, as a collate of it does.

        Returns:
            Images in their dtype, but floats where the step makes some, and the targets.
        """
        given, more = given_samples(images), dict[str, Any](targets=targets, seeds=seeds)
        if seeds is not None and len(seeds) != len(images):
            raise ValueError(f"seeds have the shape {tuple(seeds.shape)}, expected ({len(images)},): one per image")
        dtype = torch.float32 if self.makes_floats else torch.uint8  # what becomes of levels
        dtype = images.dtype if images.is_floating_point() else dtype
        if dtype not in self._collates:  # to make one takes longer than to render an image
            self._collates[dtype] = import_module("mmload.augment.collate").Collate(self, dtype=dtype)  # a later file
        batch = make_batch({}, len(images), **{name: value for name, value in more.items() if value is not None})
        made: Batch = self._collates[dtype].render(given._replace(batch=batch), generator)
        return made

    def extra_repr(self) -> str:
        shown = ((name, value) for name, value in arguments_of(self).items() if not isinstance(value, nn.Module))
        return ", ".join(f"{name}={value!r}" for name, value in shown)


ANY_CHANNELS = range(1, 1 << 31)
"""Numbers of channels of steps that take images of any."""


class Step(DeclaredStep, ABC):
    """Step that can be described: geometry, linear color, holes.

    A subclass adds itself to a description (``describe``), by methods of the plan, which raise
    :class:`~mmload.render.plan.DoesNotFit` where another pass must begin.

    Attributes:
        takes_sizes: whether it can be done to variable-size images.
        is_drop_in: whether it does what torchvision's transform of its name does, in the same place of a list.
        channels: numbers of channels that images may have.
        is_random: whether it draws from the samples' seeds.
        moves_pixels: whether it moves pixels as an operation on levels.
    """

    takes_sizes = True
    is_drop_in = True
    channels: Sequence[int] = ANY_CHANNELS
    is_random = True
    moves_pixels = False

    @abstractmethod
    def describe(self, plan: Plan, draws: Draws) -> Plan:
        """Adds this step to a plan; draws depend on seeds and shapes, never on pixels.

        Raises:
            DoesNotFit: if it cannot be rendered in the same pass as the steps that the plan describes so far.
        """

    def at_epoch(self, epoch: int) -> Step:
        """Returns the step with the settings of an epoch; itself if no setting depends on the epoch."""
        return self

    def check_images(self, plan: Plan) -> None:
        """Raises a ValueError if the step cannot be done to these images, such as to their number of channels."""
        channels = plan.source[0]
        if channels not in self.channels:
            allowed = " or ".join(map(str, self.channels))
            raise ValueError(f"{type(self).__name__} takes images of {allowed} channels, these have {channels}")

    @torch.compiler.disable  # type: ignore[untyped-decorator]  # as Collate.forward
    def forward(self, images: Tensor, seeds: Tensor | None = None, generator: torch.Generator | None = None) -> Tensor:
        """Runs the step alone on a batch.

        Args:
            images: [B, C, H, W], uint8 or floating.
            seeds: int64 [B], one per sample; None: fresh ones.
            generator: generator of fresh seeds; None: torch's default one.

        Returns:
            [B, C, h, w] in the dtype of ``images``; uint8 becomes float32 where the step makes floats.

        Raises:
            ValueError: if ``images`` has another shape, or the step cannot be done at its size.
        """
        return self.alone(images, None, seeds, generator).images


class TargetStep(DeclaredStep):
    """Step that works alone on a batch of images and targets."""

    @torch.compiler.disable  # type: ignore[untyped-decorator]  # as Collate.forward
    def forward(
        self,
        images: Tensor,
        targets: Tensor | None = None,
        seeds: Tensor | None = None,
        generator: torch.Generator | None = None,
    ) -> Tensor | tuple[Tensor, Tensor | None]:
        """Runs the step alone on a batch.

        Args:
            images: [B, C, H, W], uint8 or floating.
            targets: class indices [B] or soft targets [B, K]; None: there are none.
            seeds: int64 [B], one per sample; None: fresh ones.
            generator: generator of fresh seeds; None: torch's default one.

        Returns:
            The images, and the targets too if any were given.

        Raises:
            ValueError: if ``images`` has another shape.
        """
        made = self.alone(images, targets, seeds, generator)
        return made.images if targets is None else (made.images, made.targets)


class AfterStep(TargetStep, ABC):
    """Step that needs pixels, or several samples at once: it runs on the rendered batch, uint8 before Normalize."""

    @abstractmethod
    def changed(self, batch: Batch, draws: Draws, box_rule: BoxRule) -> Batch:
        """Changes a batch.

        Args:
            batch: with all its fields.
            draws: the step's.
            box_rule: the collate's, for steps that move boxes.
        """


def arguments_of(step: nn.Module) -> dict[str, Any]:
    """Returns the arguments that a step was made with: its attributes that have the names of the parameters."""
    return {name: getattr(step, name) for name in _parameters(type(step)) if hasattr(step, name)}  # type: ignore[arg-type]  # torch's hash


@lru_cache(maxsize=256)
def _parameters(kind: Any) -> tuple[str, ...]:
    return tuple(inspect.signature(kind).parameters)


def check_dtype(dtype: torch.dtype) -> None:
    """Rejects images that are neither uint8 nor floats.

    Raises:
        TypeError: if they have another dtype, which does not say what white is.
    """
    if dtype != torch.uint8 and not dtype.is_floating_point:
        raise TypeError(f"images are {dtype}, expected torch.uint8 (0 to 255) or a floating dtype (0 to 1)")


def check_shape(shape: Sequence[int]) -> None:
    """Rejects images [C, H, W] without pixels.

    Raises:
        ValueError: if a side or the number of channels is 0.
    """
    if len(shape) != 3 or min(shape) < 1:
        raise ValueError(f"images have the shape {tuple(shape)}, expected [C, H, W] with a pixel at least")


def plan_for(images: Tensor) -> Plan:
    """Returns the plan that changes nothing of a batch [B, C, H, W]."""
    count, *shape = images.shape
    return Plan.unchanged(count, (shape[0], shape[1], shape[2]), white(images.dtype))


def white(dtype: torch.dtype) -> float:
    """Returns the value of white: 255 for uint8, 1 for floating dtypes."""
    return 255.0 if dtype == torch.uint8 else 1.0


class LevelStep(Step):
    """Step whose effect is a :class:`~mmload.render.plan.Program`, which a subclass draws."""

    channels: Sequence[int] = (1, 3)
    takes_sizes = False

    def describe(self, plan: Plan, draws: Draws) -> Plan:
        plan.check_levels(moves=self.moves_pixels)
        self.check_images(plan)
        return plan.followed_by(self.program(plan, draws))

    @abstractmethod
    def program(self, plan: Plan, draws: Draws) -> Program:
        """Draws the operations of each sample of a plan; it must draw as many numbers for every batch."""


class OperationStep(Step):
    """Step that is one operation on levels with probability ``p``, drawn per sample, as in a list such as RandomApply.

    Attributes:
        operation: its code.
    """

    operation = NONE

    def __init__(self, p: float = 0.5) -> None:
        super().__init__()
        self.p = chance(p)

    @property
    def numbers(self) -> tuple[float, ...]:
        """Numbers of the operation, the same for all samples."""
        return ()

    def program(self, plan: Plan, draws: Draws) -> Program:
        """Draws for each sample of a plan whether it has the operation."""
        return Program.single_operation(self.operation, plan.count, *self.numbers, apply_mask=draws.chance(self.p))


_FOLLOWING = frozenset(
    ("boxes", "counts", "masks", "targets", "image_sizes", "keypoint_flips", *PER_BOX, *itertools.chain(*SEGMENTS))
)
"""Fields that steps may change."""


GEOMETRY = frozenset({"boxes", "masks"})
"""Fields that have to follow the pixels of a step that moves them."""


def following_fields(fields: Mapping[str, Any], unchanged: Sequence[str] = ()) -> Fields:
    """Returns the fields in host memory that steps may change, but those that are known to stay as they are.

    Those of bfloat16, which NumPy lacks, are float32. Values that no dataset stores, such as sparse ones, only pass.
    """
    arrays = {name: value for name, value in fields.items() if isinstance(value, np.ndarray)}
    return arrays | {
        name: (value.float() if value.dtype == torch.bfloat16 else value).numpy(force=True)  # detached by no operation
        for name, value in fields.items()
        if name in _FOLLOWING and name not in unchanged and name not in arrays
        if value.layout == torch.strided and dtype_name(value.dtype) is not None
    }


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


def with_following(batch: Batch, fields: Fields, before: Fields) -> Batch:
    """Returns a batch with other values of fields; ``before`` are those that :func:`following_fields` gave of it."""
    halves = {name for name, value in fields_of(batch).items() if value.dtype == torch.bfloat16 and name != "targets"}
    changed = {name: torch.from_numpy(value) for name, value in fields.items() if value is not before.get(name)}
    changed |= {name: changed[name].bfloat16() for name in halves & changed.keys()}  # soft targets are float32
    if "image_sizes" in before.keys() - fields.keys():
        batch = batch.replace(image_sizes=None)
    elif "image_sizes" in changed:
        batch = batch.replace(image_sizes=changed.pop("image_sizes"))
    return with_fields(batch, changed)


def sample_seeds(seed: int, epoch: int, ids: Tensor, occurrences: Tensor | None = None) -> Tensor:
    """Returns a seed per sample, which depends on the run's seed, epoch, sample id and occurrence alone.

    Args:
        seed: the run's seed; any integer.
        epoch: the epoch's number.
        ids: int64 of any shape, the samples' ids.
        occurrences: int64 of the same shape, a number that tells samples with the same id in an epoch apart; None:
            each comes once, which is the same as 0.

    Returns:
        int64 of the same shape on the device of ``ids``; ids on a device are waited for.
    """
    check_words(ids, Tensor)
    numbers = None if occurrences is None else occurrences.cpu().numpy()
    seeds = seeds_of(integer("seed", seed), integer("epoch", epoch), ids.cpu().numpy(), numbers)
    return torch.from_numpy(seeds).to(ids.device)


def seeds_of(seed: int, epoch: int, ids: Numbers, occurrences: Numbers | None = None) -> Numbers:
    """Returns a seed per sample as :func:`sample_seeds` does, of arrays."""
    seeds: Numbers = seeded(as_words(ids), _run_key(seed, epoch)).view(np.int64).reshape(ids.shape)
    return seeds if occurrences is None else np.where(occurrences == 0, seeds, mixed(seeds + mixed(occurrences)))


@lru_cache(maxsize=64)
def _run_key(seed: int, epoch: int) -> int:
    """Returns the 64 bits that all samples of an epoch have in common."""
    return mix_integer(mix_integer(seed + GOLDEN) ^ GOLDEN * (epoch + 1))


def view_seeds(seeds: Tensor, view: int) -> Tensor:
    """Returns the seeds [B] of another independently drawn view of samples; view 0 has the samples' own."""
    check_words(seeds, Tensor)
    view = integer("view", view)
    return seeds if view == 0 else torch.from_numpy(branch_seeds(seeds.cpu().numpy(), view)).to(seeds.device)


def branch_seeds(seeds: Numbers, number: int) -> Numbers:
    """Returns independent seeds, int64 [B], for each ``number`` from 1."""
    return mixed(mixed(seeds) ^ signed(GOLDEN * number))


def fresh_seeds(count: int, generator: torch.Generator | None = None) -> Numbers:
    """Draws seeds for samples without any, int64 [count]: uniform over 64 bits, by ``generator``; None: torch's own."""
    where = torch.device("cpu") if generator is None else generator.device
    drawn = torch.randint(_LOWEST, _HIGHEST, (count,), generator=generator, device=where, dtype=torch.int64)
    seeds: Numbers = drawn.cpu().numpy()
    return seeds


class Draws:
    """One step's random numbers for a batch: draw ``n`` of sample ``k`` is hash(seed of k, step, n).

    Every call takes the next draw numbers, so a step must draw in the same order for every batch.

    Args:
        seeds: int64 [B], one per sample; also an attribute.
        step: the step's place in its list.
        epoch: the batch's; None: it is not known.
        ids: int64 [B], the samples' ids, which are the same in every epoch; None: they have none. A tensor becomes an
            array only if a step asks for it, as each such array gives the interpreter lock away when it dies.
        boxes: gives what :func:`mmload.augment.boxes.boxes_in` does of the samples; None: the batch has no boxes.
    """

    def __init__(
        self,
        seeds: Numbers,
        step: int,
        *,
        epoch: int | None = None,
        ids: Tensor | Numbers | None = None,
        boxes: Callable[[Plan], tuple[Trail, Numbers]] | None = None,
    ) -> None:
        self.seeds, self._epoch, self._ids, self._boxes = seeds, epoch, ids, boxes
        self._place = step
        self._step = _STEP_INCREMENT * (step + 1) % (1 << 64)
        self._used = 0

    def epoch(self, what: str) -> int:
        """Returns the batch's epoch; ``what`` names the setting that depends on it.

        Raises:
            ValueError: if it is not known.
        """
        if self._epoch is None:
            raise ValueError(
                f"{what} follows the epoch, which is not known: use the step in a Collate, and give that to a Loader, "
                "or call its set_epoch(epoch) before each epoch"
            )
        return self._epoch

    def ids(self, what: str) -> Numbers:
        """Returns the samples' ids [B]; ``what`` names the setting that depends on them.

        Raises:
            ValueError: if there are none.
        """
        if self._ids is None:
            raise ValueError(
                f"{what} depends on the rows' ids, and the batch has none: use the step in a Collate, and give that "
                "batches or rows of a split, or a Batch with ids"
            )
        return np.asarray(self._ids)

    def boxes(self, what: str, plan: Plan) -> tuple[Trail, Numbers]:
        """Returns the boxes as ``plan`` has moved them, and the numbers of real ones; ``what`` names their user.

        Raises:
            ValueError: if there are none.
        """
        if self._boxes is None:
            raise ValueError(f"{what} needs boxes, and the batch has none: build the dataset for detection")
        return self._boxes(plan)

    def bits(self, count: int) -> Numbers:
        """Draws ``count`` words per sample, int64 [B, count]: uniform over all 64 bits."""
        return counted(as_words(self.seeds), self._step, self._taken(count), count).view(np.int64)

    def uniform(self, count: int) -> Doubles:
        """Draws ``count`` numbers per sample, float64 [B, count]: uniform in [0, 1), with 53 random bits."""
        return unit(self.bits(count))

    def chance(self, p: float) -> Flags:
        """Draws once per sample, bool [B]: true with probability ``p`` (never for 0, always for 1)."""
        return drawn_chances(as_words(self.seeds), self._step, self._taken(1), p)

    def integers(self, *ranges: tuple[Numbers | int, Numbers | int]) -> list[Numbers]:
        """Draws once per sample for each (first, last), int64 [B] each: uniform over the integers first to last.

        An end is one number for all samples, or int64 [B].
        """
        if not any(isinstance(end, np.ndarray) for end in itertools.chain(*ranges)):
            first = self._taken(len(ranges))
            return drawn_integers(as_words(self.seeds), self._step, first, ranges)  # type: ignore[arg-type]  # numbers
        uniform = self.uniform(len(ranges))
        return [
            whole_numbers(uniform[:, number], last - first + 1) + first for number, (first, last) in enumerate(ranges)
        ]

    def orders(self, count: int) -> Numbers:
        """Draws ``count`` times per sample, int64 [B, count]: the numbers 0 to count - 1 in uniformly random order."""
        return drawn_orders(as_words(self.seeds), self._step, self._taken(count), count)

    def weighted(self, shares: Sequence[float]) -> Numbers:
        """Draws once per sample, int64 [B]: ``k`` with the probability ``shares[k]``, which sum to 1."""
        uniform, ends = self.uniform(1)[:, 0], np.array(list(itertools.accumulate(shares)), np.float32).tolist()
        last = np.flatnonzero(shares)[-1]  # sums are rounded
        chosen: Numbers = np.minimum(sum((uniform >= end).astype(np.int64) for end in ends), last)
        return chosen

    def branch(self, number: int) -> Draws:
        """Returns draws for part ``number`` of the step: a step of a RandomApply draws the same, whatever is before."""
        seeds = branch_seeds(self.seeds, number + 1)
        return Draws(seeds, self._place, epoch=self._epoch, ids=self._ids, boxes=self._boxes)

    def of_first(self) -> Draws:
        """Returns draws that are those of the first sample for every sample, for what is drawn once per batch."""
        return Draws(np.repeat(self.seeds[:1], len(self.seeds)), self._place, epoch=self._epoch)

    def _taken(self, count: int) -> int:
        """Returns the number of the next draw and advances by ``count``."""
        first = self._used + 1
        self._used += count
        return first


def whole_numbers(uniform: Doubles, count: Numbers | int) -> Numbers:
    """Converts draws, float64 and uniform in [0, 1), to integers uniform over 0 to ``count`` - 1, int64 of their shape.

    The bias is below count / 2^53. ``count`` is one number, or as many as draws.
    """
    return (uniform * count).astype(np.int64)


_TRIES = 12
"""Rejection rounds of a gamma draw: it accepts over 95 of 100, so 12 fail once in 10^15 draws."""


def beta(draws: Draws, alpha: float) -> Doubles:
    """Draws once per sample, float64 [B]: Beta(alpha, alpha), as the share of one of two gamma draws, by logarithms."""
    logarithm = _log_gamma(draws, alpha) - _log_gamma(draws, alpha)
    share: Doubles = 1.0 / (1.0 + _exp(-logarithm))
    return share


def _exp(values: Doubles) -> Doubles:
    """Returns exponentials whose bits do not depend on the processor, as those of NumPy's and torch's do."""
    return filled(_write_exp, values.size, np.float64, values.reshape(-1)).reshape(values.shape)


@numba_compiled("float64[::1], float64[::1]", nogil=False)
def _write_exp(values: Doubles, out: Doubles) -> None:
    for k in range(len(out)):
        out[k] = math.exp(values[k])


def dirichlet(draws: Draws, alpha: float, count: int) -> Doubles:
    """Draws ``count`` shares per sample, float64 [B, count]: Dirichlet, all parameters alpha; they sum to 1."""
    logarithms = np.stack([_log_gamma(draws, alpha) for _ in range(count)], 1)
    shares = _exp(logarithms - logarithms.max(1, keepdims=True))
    sums: Doubles = shares / shares.sum(1, keepdims=True)
    return sums


def _log_gamma(draws: Draws, alpha: float) -> Doubles:
    """Draws once per sample, float64 [B]: the logarithm of Gamma(alpha).

    Marsaglia and Tsang 2000 for alpha + 1, then times U^(1 / alpha), which holds for small alpha as well.
    """
    return log_gammas(draws.bits(3 * _TRIES + 1).view(np.uint64), alpha)


def log_gammas(words: Words, alpha: float) -> Doubles:
    """Returns logarithms of Gamma(alpha), float64 [B].

    Args:
        words: uint64 [B, 3 n + 1]: of n tries the radius and the angle of a normal draw and the draw that accepts or
            rejects it, radii first; and the draw that makes alpha of alpha + 1.
        alpha: above 0.
    """
    return filled(_write_log_gammas, len(words), np.float64, words, alpha)


@numba_compiled("uint64[:, ::1], float64, float64[::1]", nogil=False)
def _write_log_gammas(words: Words, alpha: float, out: npt.NDArray[np.float64]) -> None:
    """Writes the logarithms, each from the first try that is accepted."""
    tries = words.shape[1] // 3
    d = alpha + 1.0 - 1.0 / 3.0
    for k in range(len(words)):
        found = 0.0
        for one in range(tries + 1):
            at = one % tries  # the first again if all are rejected
            radius = math.sqrt(-2.0 * math.log1p(-unit_of_word(words[k, at])))
            normal = radius * math.cos(2.0 * math.pi * unit_of_word(words[k, tries + at]))
            cube = (1.0 + normal / (9.0 * d) ** 0.5) ** 3
            found = math.log(max(cube, 1e-300))
            bound = 0.5 * normal * normal + d - d * cube + d * found
            if one == tries or (cube > 0 and math.log1p(-unit_of_word(words[k, 2 * tries + at])) < bound):
                break
        out[k] = found + math.log1p(-unit_of_word(words[k, 3 * tries])) / alpha + math.log(d)


epoch_of_loader: ContextVar[int | None] = ContextVar("epoch of the batch that a loader makes", default=None)
"""Epoch of the batch that a loader is making in this thread; None: none is."""


@contextmanager
def batch_of_epoch(epoch: int) -> Iterator[None]:
    """Sets the epoch of the batches that collates make in this thread while it runs."""
    before = epoch_of_loader.set(epoch)
    try:
        yield
    finally:
        epoch_of_loader.reset(before)
