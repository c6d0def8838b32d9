"""MixUp and CutMix across the samples of a batch, named and set as in ``torchvision.transforms.v2``, drawn per sample.

A sample's partner is the one before it in the batch, the first one's the last, so only here a result depends on the
batch. Both end a pass: the sample before is still in cache when its partner is rendered. CutMix pastes masks too;
neither can mix boxes. Features and extra fields stay the sample's own.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from torch import nn

from mmload.augment.arguments import argument_error, chance, choice, elements, integer, number, numbers
from mmload.augment.boxes import Fields
from mmload.augment.step import Draws, Step, TargetStep, beta
from mmload.errors import shown
from mmload.render.kernel_arguments import Floats, Numbers
from mmload.render.level_operations import Array
from mmload.render.plan import Mixing, Plan
from mmload.runtime.host_memory import zeros
from mmload.runtime.kernels import numba_compiled

_MOST_CLASSES = 1_000_000
"""Upper bound that catches typing errors: one-hot targets of a batch of 256 then take 1 GB."""

_PER = ("sample", "batch")


class MixStep(TargetStep, Step):
    """A step that mixes samples of a batch: it draws a :class:`~mmload.render.plan.Mixing`, which ends a pass.

    Attributes:
        num_classes: number of classes for one-hot encoding; None: targets are soft already.
        per: ``"sample"``, or ``"batch"`` if it is drawn once per batch, from the first sample's seed.
    """

    takes_sizes = False
    num_classes: int | None
    per: str

    def describe(self, plan: Plan, draws: Draws) -> Plan:
        return plan.mixed(replace(self.mixing(plan, draws), classes=self.num_classes))

    @abstractmethod
    def mixing(self, plan: Plan, draws: Draws) -> Mixing:
        """Draws for each sample, or once for the batch: shares float32 [B], boxes int64 [B, 4], or both."""

    def draws_of(self, draws: Draws) -> Draws:
        """Returns the draws of each sample, or those of the first one for all."""
        return draws.of_first() if self.per == "batch" else draws


class _Mix(MixStep):
    """Base of MixUp and CutMix: the Beta distribution, the classes and the probability."""

    def __init__(self, alpha: float = 1.0, num_classes: int | None = None, p: float = 1.0, per: str = "sample") -> None:
        super().__init__()
        self.alpha = number("alpha", alpha, least=1e-12, greatest=1e12)
        self.num_classes: int | None = None
        if num_classes is not None:
            self.num_classes = integer("num_classes", num_classes, least=1, greatest=_MOST_CLASSES)
        self.p = chance(p)
        self.per = choice("per", per, _PER)


class MixUp(_Mix):
    """Images and targets blended with those of the sample before: lam * own + (1 - lam) * other.

    lam is drawn from Beta(alpha, alpha) (Zhang et al. 2018). The blend is computed in float32 and rounded once.

    Args:
        alpha: both parameters of the Beta distribution.
        num_classes: number of classes for one-hot encoding; may be None where targets are soft already.
        p: probability that a sample (or batch) is mixed.
        per: ``"sample"``: lam is drawn for each sample; ``"batch"``: once per batch, as torchvision does, from the seed
            of its first sample, so that results depend on which samples share a batch.

    Raises:
        ValueError: if an argument is out of range, or (when run) targets are class indices without ``num_classes``.
    """

    makes_floats = True

    leaves_behind = {  # a blend of them would be meaningless
        what: f"blends images but not their {what}; leave MixUp out, or leave {what} out of fields"
        for what in ("boxes", "masks")
    }

    def mixing(self, plan: Plan, draws: Draws) -> Mixing:
        """Draws the samples' own shares, float32 [B]: Beta(alpha, alpha) with probability p, else 1."""
        draws = self.draws_of(draws)
        applied = draws.chance(self.p)
        return Mixing(share=np.where(applied, beta(draws, self.alpha), 1.0).astype(np.float32))


class CutMix(_Mix):
    """A rectangle of the sample before is pasted in, and targets are blended by area.

    Its center is uniform and its area 1 - lam of the image before clipping, lam drawn from Beta(alpha, alpha) (Yun et
    al. 2019).

    Args:
        alpha: both parameters of the Beta distribution.
        num_classes: number of classes for one-hot encoding; may be None where targets are soft already.
        p: probability that a sample (or batch) is mixed.
        per: ``"sample"``: each sample has a rectangle of its own; ``"batch"``: one is drawn for a batch, as in
            torchvision, from the seed of its first sample, so that results depend on which samples share a batch.

    Raises:
        ValueError: if an argument is out of range, or (when run) targets are class indices without ``num_classes``.
    """

    leaves_behind = {  # it is unknown how much of a box a pasted image hides; masks are pasted
        "boxes": "pastes over boxes without changing them; leave CutMix out, or leave boxes out of fields"
    }

    def mixing(self, plan: Plan, draws: Draws) -> Mixing:
        """Draws what is pasted, int64 [B, 4]: 1 - Beta(alpha, alpha) of the area, around a uniform place."""
        draws = self.draws_of(draws)
        applied, height, width = draws.chance(self.p), plan.height, plan.width
        half = 0.5 * np.sqrt(1.0 - beta(draws, self.alpha))
        x, y = draws.integers((0, width - 1), (0, height - 1))
        across, over = (half * width).astype(np.int64), (half * height).astype(np.int64)
        left, right = np.maximum(x - across, 0), np.minimum(x + across, width)
        top, bottom = np.maximum(y - over, 0), np.minimum(y + over, height)
        return Mixing(boxes=np.stack((left, top, right, bottom), 1) * applied[:, None])


class MixChoice(MixStep):
    """:class:`~mmload.augment.levels.RandomChoice` of MixUp and CutMix: applies one of them, drawn per sample.

    Args:
        transforms: MixUp, CutMix and such choices.
        p: relative probability of each; None: all are equal.
        per: ``"sample"``: drawn for each sample; ``"batch"``: once per batch, from the seed of its first sample. What
            the steps themselves draw is drawn as they say.

    Raises:
        TypeError: if a step mixes no samples.
        ValueError: if there is no step, their ``num_classes`` differ, or ``p`` is not one number from 0 for each of
            which some are above 0.
    """

    def __init__(self, transforms: Sequence[nn.Module], p: Sequence[float] | None = None, per: str = "sample") -> None:
        super().__init__()
        why = "does not mix samples, and steps that do; give steps of one kind"
        self.inner: Sequence[MixStep] = inner_steps(transforms, MixStep, why)
        classes = [step.num_classes for step in self.inner]
        if len(set(classes)) > 1:
            raise argument_error("num_classes", classes, "the same for all steps of a choice")
        self.transforms = nn.ModuleList(self.inner)
        self.num_classes = classes[0]
        self.makes_floats = any(step.makes_floats for step in self.inner)
        self.p = weights(p, len(self.inner))
        self.per = choice("per", per, _PER)

    def mixing(self, plan: Plan, draws: Draws) -> Mixing:
        """Draws once per sample or batch, and what the steps draw."""
        chosen = self.draws_of(draws).weighted(self.p)
        share, boxes = np.ones(plan.count, np.float32), zeros((plan.count, 4), np.int64)
        for place, step in enumerate(self.inner):
            part, here = step.mixing(plan, draws.branch(place)), chosen == place
            if part.share is not None:
                share[here] = part.share[here]
            if part.boxes is not None:
                boxes[here] = part.boxes[here]
        return Mixing(share=share if self.makes_floats else None, boxes=boxes)


def inner_steps(transforms: object, kind: Any, why: str) -> list[Any]:
    """Checks the list of steps of a step that contains steps, and returns it.

    Raises:
        TypeError: if a step is not of a kind; the message says ``why`` it cannot be.
        ValueError: if there is no step.
    """
    steps: list[Any] = list(transforms) if isinstance(transforms, nn.ModuleList | Sequence) else []
    if not steps:
        raise argument_error("transforms", transforms, "a list of at least one step")
    for step in steps:
        if not isinstance(step, kind):
            raise TypeError(f"transforms has {shown(step)}, which {why}")
    return steps


def weights(p: Sequence[float] | None, count: int) -> tuple[float, ...]:
    """Returns the probabilities of ``count`` steps from weights in any unit; None: all are equal.

    Raises:
        ValueError: if there is not one number from 0 for each, or none is above 0.
    """
    each = (1.0,) * count if p is None else numbers("p", p, least=0.0, expected="a weight from 0 for each step")
    if len(each) != count or sum(each) <= 0:
        raise argument_error("p", elements(p), f"{count} weights from 0 of which some are above 0")
    return tuple(weight / sum(each) for weight in each)


def mixed_fields(fields: Fields, plan: Plan, mixing: Mixing) -> Fields:
    """Makes targets soft, float32 [B, K], and pastes masks as the pixels are."""
    mixed = fields.copy()
    if "targets" in fields:
        share = mixing.target_share(plan.height, plan.width)
        mixed["targets"] = mixed_targets(fields["targets"], share, mixing.classes)
    if "masks" in fields and mixing.boxes is not None:
        masks = mixed["masks"] = fields["masks"].copy()
        for k, (x1, y1, x2, y2) in enumerate(mixing.boxes.tolist()):
            masks[k, y1:y2, x1:x2] = fields["masks"][k - 1, y1:y2, x1:x2]
    return mixed


def mixed_targets(targets: Array, share: Floats, classes: int | None) -> Array:
    """Blends targets: share * own + (1 - share) * the one before, float32 [B, K].

    Raises:
        ValueError: if targets are class indices and ``classes`` is None or too small, or are floats [B].
    """
    if targets.ndim == 1:
        if targets.dtype.kind == "f":
            raise ValueError(f"targets are torch.{targets.dtype} [B], expected class indices or soft targets [B, K]")
        if classes is None:
            raise ValueError("targets are class indices; set num_classes, to blend them as one-hot vectors")
        indices = targets.tolist()
        least, greatest = min(indices, default=0), max(indices, default=0)
        if not 0 <= least <= greatest < classes:
            raise ValueError(
                f"targets are from {least} to {greatest}, and num_classes is {classes}: set it to the dataset's number "
                "of classes"
            )
        soft: Floats = zeros((len(targets), classes), np.float32)
        _set_ones(np.ascontiguousarray(targets, np.int64), soft)
    else:
        soft = np.ascontiguousarray(targets, np.float32)
    blended = np.empty_like(soft)
    _blend(soft, np.ascontiguousarray(share), blended)
    return blended


@numba_compiled("int64[::1], float32[:, ::1]", nogil=False)
def _set_ones(indices: Numbers, out: Floats) -> None:
    for k in range(len(indices)):
        out[k, indices[k]] = 1


@numba_compiled("float32[:, ::1], float32[::1], float32[:, ::1]", nogil=False)
def _blend(soft: Floats, shares: Floats, out: Floats) -> None:
    """Blends each row with the one before it, the first with the last."""
    for k in range(len(soft)):
        own, other = shares[k], np.float32(1) - shares[k]
        for place in range(soft.shape[1]):
            out[k, place] = soft[k, place] * own + soft[k - 1, place] * other
