"""MixUp and CutMix across the samples of a batch, named and set as in ``torchvision.transforms.v2``, drawn per sample.

A sample's partner is the one before it in the batch, so only here a result depends on the batch. CutMix pastes masks
too; neither can mix boxes. Features and extra fields stay the sample's own.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from mmload.augment.arguments import chance, integer, number
from mmload.augment.boxes import BoxRule
from mmload.augment.draws import Draws
from mmload.augment.step import AfterStep
from mmload.batch import Batch

_TRIES = 12
"""Rejection rounds of a gamma draw: it accepts over 95 of 100, so 12 fail once in 10^15 draws."""


_MOST_CLASSES = 1_000_000
"""Upper bound that catches typing errors: one-hot targets of a batch of 256 then take 1 GB."""

_CLASSES = f"an integer from 1 to {_MOST_CLASSES}, or None"


class _Mix(AfterStep):
    """What both share: the Beta distribution, the classes and the probability."""

    def __init__(self, alpha: float = 1.0, num_classes: int | None = None, p: float = 1.0) -> None:
        super().__init__()
        self.alpha = number("alpha", alpha, least=1e-12, greatest=1e12, expected="a positive number, 1e-12 to 1e12")
        self.num_classes = num_classes if num_classes is None else _classes(num_classes)
        self.p = chance(p)

    def extra_repr(self) -> str:
        """The settings as ``repr`` shows them."""
        return f"alpha={self.alpha}, num_classes={self.num_classes}, p={self.p}"


class MixUp(_Mix):
    """Images and targets blended with those of the sample before: lam * own + (1 - lam) * other.

    lam is drawn per sample from Beta(alpha, alpha) (Zhang et al. 2018); torchvision draws one per batch.

    Args:
        alpha: both parameters of the Beta distribution.
        num_classes: what class indices are one-hot encoded with; may be None where targets are soft already.
        p: how likely a sample is mixed.

    Raises:
        ValueError: if an argument is out of range, or (when run) targets are class indices without ``num_classes``.
    """

    def refuse_fields(self, *, boxes: bool, masks: bool) -> None:
        """A blend of boxes or of class masks means nothing."""
        if boxes or masks:
            what = "boxes" if boxes else "masks"
            raise ValueError(f"MixUp would blend images and leave their {what}: leave it out, or load other fields")

    def change(self, images: Tensor, targets: Tensor | None, draws: Draws) -> tuple[Tensor, Tensor | None]:
        """Mixed images and soft targets float32 [B, K]; without targets the images alone."""
        applied = draws.chance(self.p)
        share = torch.where(applied, beta(draws, self.alpha), 1.0).to(torch.float32)
        own = share.view(-1, 1, 1, 1)  # in float32, so that half-precision images get the shares of the targets
        mixed = (images * own + images.roll(1, 0) * (1 - own)).to(images.dtype)
        return mixed, mixed_targets(targets, share, self.num_classes)


class CutMix(_Mix):
    """A rectangle of the sample before is pasted in, and targets are blended by area.

    Its center is uniform and its area 1 - lam of the image before clipping, lam drawn per sample from
    Beta(alpha, alpha) (Yun et al. 2019); torchvision draws one rectangle per batch.

    Args:
        alpha: both parameters of the Beta distribution.
        num_classes: what class indices are one-hot encoded with; may be None where targets are soft already.
        p: how likely a sample is mixed.

    Raises:
        ValueError: if an argument is out of range, or (when run) targets are class indices without ``num_classes``.
    """

    takes_uint8 = True

    def refuse_fields(self, *, boxes: bool, masks: bool) -> None:
        """Masks are pasted with the pixels; what is left of a box under another image nobody knows."""
        if boxes:
            raise ValueError("CutMix would paste over boxes and leave them: leave it out, or load other fields")

    def change(self, images: Tensor, targets: Tensor | None, draws: Draws) -> tuple[Tensor, Tensor | None]:
        """Mixed images and soft targets float32 [B, K]; without targets the images alone."""
        inside, share = self._pasted(draws, images)
        return torch.where(inside, images.roll(1, 0), images), mixed_targets(targets, share, self.num_classes)

    def changed(self, batch: Batch, draws: Draws, box_rule: BoxRule) -> Batch:
        """The batch with images, soft targets and masks; all are pasted from the same sample."""
        inside, share = self._pasted(draws, batch.images)
        images = torch.where(inside, batch.images.roll(1, 0), batch.images)
        masks = None if batch.masks is None else torch.where(inside[:, 0], batch.masks.roll(1, 0), batch.masks)
        targets = mixed_targets(batch.targets, share, self.num_classes)
        changed: Batch = batch.replace(images=images, masks=masks, targets=targets)
        return changed

    def _pasted(self, draws: Draws, images: Tensor) -> tuple[Tensor, Tensor]:
        """Which pixels are pasted, bool [B, 1, H, W], and the share of its own that every sample keeps, [B]."""
        height, width = images.shape[-2:]
        x1, y1, x2, y2 = self.boxes(draws, height, width).unbind(1)
        y = torch.arange(height, device=images.device)
        x = torch.arange(width, device=images.device)
        down = (y >= y1[:, None]) & (y < y2[:, None])
        along = (x >= x1[:, None]) & (x < x2[:, None])
        share = 1.0 - ((x2 - x1) * (y2 - y1)).to(torch.float32) / (width * height)
        return down[:, None, :, None] & along[:, None, None, :], share

    def boxes(self, draws: Draws, height: int, width: int) -> Tensor:
        """What is pasted: int64 [B, 4], x1 y1 x2 y2; empty where a sample is not mixed."""
        applied = draws.chance(self.p)
        half = 0.5 * (1.0 - beta(draws, self.alpha)).sqrt()
        x, y = draws.integers((0, width - 1), (0, height - 1))
        across, over = (half * width).to(torch.int64), (half * height).to(torch.int64)
        left, right = (x - across).clamp(min=0), (x + across).clamp(max=width)
        top, bottom = (y - over).clamp(min=0), (y + over).clamp(max=height)
        return torch.stack((left, top, right, bottom), dim=1) * applied[:, None]


def mixed_targets(targets: Tensor | None, share: Tensor, classes: int | None) -> Tensor | None:
    """Share * own + (1 - share) * the one before: float32 [B, K].

    Raises:
        ValueError: if targets are class indices and ``classes`` is None.
    """
    if targets is None:
        return None
    soft = targets.to(torch.float32)
    if targets.dim() == 1:
        if targets.dtype.is_floating_point:
            raise ValueError(f"targets are {targets.dtype} [B], expected class indices [B] or soft targets [B, K]")
        if classes is None:
            raise ValueError("targets are class indices: set num_classes, to blend them as one-hot vectors")
        if (
            targets.device.type == "cpu"
            and len(targets)
            and not 0 <= int(targets.min()) <= int(targets.max()) < classes
        ):
            raise ValueError(
                f"targets are from {int(targets.min())} to {int(targets.max())}, and num_classes is {classes}: set "
                "it to the dataset's number of classes"
            )
        soft = torch.nn.functional.one_hot(targets.to(torch.int64), classes).to(torch.float32)
    own = share[:, None]
    return soft * own + soft.roll(1, 0) * (1 - own)


def beta(draws: Draws, alpha: float) -> Tensor:
    """Beta(alpha, alpha) per sample: float64 [B], as the share of two gamma draws, compared in logarithms."""
    return torch.sigmoid(_log_gamma(draws, alpha) - _log_gamma(draws, alpha))


def dirichlet(draws: Draws, alpha: float, count: int) -> Tensor:
    """Dirichlet with ``count`` parameters alpha per sample: float64 [B, count], which sum to 1."""
    return torch.stack([_log_gamma(draws, alpha) for _ in range(count)], 1).softmax(1)


def _log_gamma(draws: Draws, alpha: float) -> Tensor:
    """The logarithm of Gamma(alpha) per sample.

    Marsaglia and Tsang 2000 for alpha + 1, then times U^(1 / alpha), which holds for small alpha as well.
    """
    d = alpha + 1.0 - 1.0 / 3.0
    normal, uniform = draws.normal(_TRIES), draws.uniform(_TRIES)
    cube = (1.0 + normal / (9.0 * d) ** 0.5) ** 3
    log_cube = cube.clamp(min=1e-300).log()
    accepted = (cube > 0) & (torch.log1p(-uniform) < 0.5 * normal**2 + d - d * cube + d * log_cube)
    first = accepted.to(torch.uint8).argmax(1, keepdim=True)
    power = torch.log1p(-draws.uniform(1)[:, 0]) / alpha
    logarithm: Tensor = log_cube.gather(1, first)[:, 0] + power
    return logarithm + math.log(d)


def _classes(number: object) -> int:
    return integer("num_classes", number, least=1, greatest=_MOST_CLASSES, expected=_CLASSES)
