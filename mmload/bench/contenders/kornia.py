"""kornia's batch augmentations on the stored rows: https://github.com/kornia/kornia.

A training recipe is translated from torchvision's steps, as names and arguments: kornia is imported in the contender's
process only. Rows come in batches, become floats in [0, 1], and are augmented in the training process.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torchvision.transforms import InterpolationMode, v2

from mmload.bench.contenders.entry import Batches, ContenderEntry, all_cores, not_installed, one_size, unlabeled
from mmload.bench.contenders.ours import pair_of, stored_batches
from mmload.bench.task import Task
from mmload.bench.training_recipes import collate_of_recipe, published_steps

_BOTH = {"data_keys": ["input", "class"]}


@dataclass(frozen=True, kw_only=True)
class Named:
    """A step of kornia, before it is imported.

    Attributes:
        name: name in ``kornia.augmentation``; "some" applies ``inner`` to a share ``p`` of the samples, "one of" one of
            ``inner`` to each.
        arguments: arguments by name.
        inner: transform to apply.
        differs: difference from torchvision's step.
    """

    name: str
    arguments: dict[str, Any] = field(default_factory=dict)
    inner: tuple[Named, ...] = ()
    differs: str = ""


class Kornia:
    """The stored rows under a DataLoader, and kornia's steps on each batch."""

    def __init__(self, task: Task, scratch: Path, *, views: list[list[Named]], mixes: list[Named]) -> None:
        self._views = [nn.Sequential(*map(made, view)) for view in views]
        self._mixes = [made(mix) for mix in mixes]
        self._rows = Batches(stored_batches(task, pair_of), task.device)

    @torch.no_grad()
    def epoch(self) -> Iterator[tuple[Any, Tensor]]:
        # Mixed labels are [B, 3]: two classes and the share.
        for rows, labels in self._rows.epoch():
            floats = rows.float().div_(255)
            views = tuple(view(floats) for view in self._views)
            if not self._mixes:
                yield views if len(views) > 1 else views[0], labels
                continue
            mix = self._mixes[int(torch.randint(len(self._mixes), ()))]
            images, shares = mix(views[0], labels)
            yield images, shares.reshape(len(labels), 3)

    def close(self) -> None:
        self._rows.close()


def kornia_entries(task: Task) -> list[ContenderEntry]:
    """Returns the single kornia entry of a training recipe; none for plain crops."""
    if not task.training_recipe:
        return []
    from mmload.augment.views import collates_of  # in the bench's process alone, as it imports numba

    collates = collates_of(collate_of_recipe(task.training_recipe, task.crop, task.classes))
    steps = [published_steps(collate) for collate in collates]
    missing, views, mixes = "", [], []
    try:
        views = [[named(step) for step in view if not isinstance(step, v2.ToImage | v2.ToDtype)] for view, _ in steps]
        mixes = [] if steps[0][1] is None else [named(mix) for mix in _alternatives(steps[0][1])]
    except KeyError as error:
        missing = f"kornia has no {error.args[0]} here"
    differences = ["steps on floats", *(_differs(step) for step in [*sum(views, []), *mixes]), all_cores(task)]
    return [
        ContenderEntry(
            name="kornia, stored rows",
            group="peer",
            differs="; ".join(dict.fromkeys(filter(None, differences))),
            need=2,
            missing=missing or one_size(task) or not_installed("kornia", "pip install kornia") or unlabeled(task),
            make=partial(Kornia, views=views, mixes=mixes),
        )
    ]


def named(step: nn.Module) -> Named:
    """Returns the step of kornia that is nearest to one of torchvision's.

    Raises:
        KeyError: if kornia has no similar step; its argument is the name of the step.
    """
    if isinstance(step, v2.RandomApply):
        return Named(name="some", arguments={"p": step.p}, inner=tuple(map(named, step.transforms)))
    if isinstance(step, v2.RandomChoice):
        return Named(name="one of", inner=tuple(map(named, step.transforms)))
    return _NEAREST[type(step).__name__](step)


def made(step: Named) -> nn.Module:
    """Imports kornia and returns the module of a step."""
    if step.name == "some":
        return Some([nn.Sequential(*map(made, step.inner))], **step.arguments)
    if step.name == "one of":
        return Some([made(one) for one in step.inner], p=1.0)
    import kornia.augmentation
    import kornia.augmentation.auto

    found: Any = kornia.augmentation
    for part in step.name.split("."):
        found = getattr(found, part)
    step_made: nn.Module = found(**step.arguments)
    return step_made


class Some(nn.Module):
    """One of several modules for each sample, or none: kornia's policies have no probability of their own."""

    def __init__(self, choices: list[nn.Module], p: float) -> None:
        super().__init__()
        self._choices, self._p = nn.ModuleList(choices), p

    def forward(self, images: Tensor) -> Tensor:
        """Returns the images [B, C, H, W], changed."""
        drawn = torch.randint(len(self._choices), (len(images),)).masked_fill(torch.rand(len(images)) >= self._p, -1)
        result = images.clone()
        for number, choice in enumerate(self._choices):
            rows = torch.nonzero(drawn == number).flatten().to(images.device)
            if len(rows):
                result[rows] = choice(images[rows])
        return result


def _alternatives(mix: Any) -> list[nn.Module]:
    """Returns the alternatives of a mixing step."""
    (only,) = mix.transforms
    return list(only.transforms) if isinstance(only, v2.RandomChoice) else [only]


def _differs(step: Named) -> str:
    return "; ".join(filter(None, [step.differs, *map(_differs, step.inner)]))


def _resized_crop(step: v2.RandomResizedCrop) -> Named:
    mode, size = InterpolationMode(step.interpolation).value, tuple(step.size)
    arguments = {"size": size, "scale": step.scale, "ratio": step.ratio, "resample": mode, "align_corners": False}
    return Named(name="RandomResizedCrop", arguments=arguments, differs="crops not antialiased")


def _random_crop(step: v2.RandomCrop) -> Named:
    padding = {"padding": tuple(step.padding), "padding_mode": step.padding_mode} if step.padding else {}
    return Named(name="RandomCrop", arguments={"size": tuple(step.size), **padding})


def _jitter(step: v2.ColorJitter) -> Named:
    arguments = {key: getattr(step, key) or 0.0 for key in ("brightness", "contrast", "saturation", "hue")}
    return Named(name="ColorJitter", arguments={**arguments, "p": 1.0}, differs="one order of a jitter's parts a batch")


def _blur(step: v2.GaussianBlur) -> Named:
    arguments = {"kernel_size": tuple(step.kernel_size), "sigma": tuple(step.sigma), "p": 1.0}
    return Named(name="RandomGaussianBlur", arguments=arguments)


def _solarize(step: v2.RandomSolarize) -> Named:
    level = step.threshold / 255
    return Named(name="RandomSolarize", arguments={"thresholds": (level, level), "additions": (0.0, 0.0), "p": step.p})


def _rand_augment(step: v2.RandAugment) -> Named:
    arguments = {"n": step.num_ops, "m": step.magnitude * 30 // (step.num_magnitude_bins - 1)}
    differs = "RandAugment with the same operations for all of a batch, of its own list"
    return Named(name="auto.RandAugment", arguments=arguments, differs=differs)


def _erasing(step: v2.RandomErasing) -> Named:
    arguments = {"p": step.p, "scale": step.scale, "ratio": step.ratio, "value": float(step.value[0])}
    return Named(name="RandomErasing", arguments=arguments)


_NEAREST: dict[str, Callable[[Any], Named]] = {
    "RandomResizedCrop": _resized_crop,
    "RandomCrop": _random_crop,
    "RandomHorizontalFlip": lambda step: Named(name="RandomHorizontalFlip", arguments={"p": step.p}),
    "ColorJitter": _jitter,
    "RandomGrayscale": lambda step: Named(name="RandomGrayscale", arguments={"p": step.p}),
    "GaussianBlur": _blur,
    "RandomSolarize": _solarize,
    "RandAugment": _rand_augment,
    "TrivialAugmentWide": lambda step: Named(
        name="auto.TrivialAugment", differs="TrivialAugment with one operation for all of a batch, of its own list"
    ),
    "RandomErasing": _erasing,
    "Normalize": lambda step: Named(name="Normalize", arguments={"mean": list(step.mean), "std": list(step.std)}),
    "MixUp": lambda step: Named(
        name="RandomMixUpV2", arguments=_BOTH, differs="MixUp's shares are uniform, not of a beta distribution"
    ),
    "CutMix": lambda step: Named(
        name="RandomCutMixV2", arguments={**_BOTH, "beta": step.alpha, "use_correct_lambda": True}
    ),
}
"""Name of a torchvision step -> function that returns the most similar step of kornia."""
