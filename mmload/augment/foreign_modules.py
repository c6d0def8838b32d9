"""Modules of other packages: which can be steps as they are, and PerSample, which runs the others sample by sample.

The random transforms of torchvision and kornia draw once for a whole batch, from generators that threads share, and as
a step they get neither boxes nor masks. A collate refuses them. docs/augment.md says what mmload cannot know.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib import import_module
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from mmload.augment.boxes import BoxRule, points_in, with_boxes_of
from mmload.augment.given_samples import on_device
from mmload.augment.step import GEOMETRY, AfterStep, Draws, following_fields, with_following
from mmload.batch import Batch, fields_of
from mmload.errors import shown
from mmload.render.motion import Boxes, Flags
from mmload.runtime.random_words import Numbers

_STILL = frozenset(("ConvertImageDtype", "Grayscale", "Identity", "LinearTransformation", "RGB", "ToDtype"))
"""Torchvision's that draw nothing and treat every sample of a batch alike."""

_ACTIVATIONS = "torch.nn.modules.activation"


def check_foreign(step: nn.Module) -> None:
    """Rejects a foreign step whose pixels would depend on batches and threads.

    Raises:
        ValueError: if it, or a part of it, draws from shared generators, draws once per batch, or mixes a batch.
    """
    for part in nested(step):
        if why := _fault(part):
            origin = "torchvision's " if type(part).__module__.startswith("torchvision.") else ""
            where = "" if part is step else f" (in {type(step).__name__})"
            raise ValueError(f"{origin}{type(part).__name__}{where} {why}")


def moves(step: nn.Module) -> bool:
    """Returns whether a module may move pixels: all but activations, torchvision's colors, and modules that deny it."""
    if getattr(step, "keeps_geometry", False):
        return False
    if isinstance(step, nn.Sequential):
        return any(moves(part) for part in step)
    activation = type(step).__module__ == _ACTIVATIONS and not isinstance(step, nn.MultiheadAttention)
    colors = is_from(step, "torchvision.transforms") and type(step).__name__ in _STILL
    return not (activation or colors or isinstance(step, nn.Identity))


def nested(module: nn.Module) -> Iterator[nn.Module]:
    """Yields a module and all in it, those in the plain lists of torchvision's v2.Compose and its kin included."""
    for part in module.modules():
        yield part
        inner = getattr(part, "transforms", None)
        if isinstance(inner, list | tuple):
            yield from (deeper for one in inner if isinstance(one, nn.Module) for deeper in nested(one))


def takes_boxes(module: nn.Module) -> bool:
    """Returns whether a module is of torchvision's v2, whose transforms move boxes and masks, too."""
    if isinstance(module, nn.Sequential):
        return all(takes_boxes(part) for part in module)
    return is_from(module, "torchvision.transforms.v2")


def is_from(module: nn.Module, origin: str) -> bool:
    """Returns whether a module's class, or a base of it, is defined in a package, or is the class of a full name."""
    return any(f"{kind.__module__}.{kind.__name__}.".startswith(f"{origin}.") for kind in type(module).__mro__)


_SHARED = "draws from torch's generator, which threads share: use PerSample({}(...))"

_FAULTS = {
    "mmload.augment": "draws by the samples' seeds only as a step of the collate; give it to the collate, not to "
    "another module",
    "kornia.augmentation": _SHARED,
    "torch.nn.modules.dropout": f"{_SHARED}, or put it into the model",
    "torch.nn.modules.activation.RReLU": f"{_SHARED}, or put it into the model",
    "torch.nn.modules.batchnorm._BatchNorm": "makes samples depend on the batch they are in: put it into the model",
}
"""Packages and classes -> why a module of one cannot be a step, with a place for its name."""


def _fault(part: nn.Module) -> str:
    """Returns why a module cannot be a step, or part of one; "": nothing is known against it."""
    name = type(part).__name__
    if is_from(part, "torchvision.transforms") and name not in _STILL:
        if getattr(getattr(import_module("mmload.augment"), name, None), "is_drop_in", False):
            return f"would draw once for a whole batch: import {name} from mmload.augment"
        return f"would treat a whole batch as one image, without boxes and masks: use PerSample({name}(...))"
    return next((why.format(name) for origin, why in _FAULTS.items() if is_from(part, origin)), "")


_one_at_a_time = threading.RLock()


class PerSample(AfterStep):
    """A transform of another package, run sample by sample: slow, with equal pixels for any batch and threads.

    Torchvision's v2 transforms get the image, its boxes and its mask (``tv_tensors``; ``labels`` number
    the boxes), so these follow; boxes that come out changed and smaller than the collate's ``box_rule.min_size`` are
    dropped. Other modules get the image [C, H, W] alone. Images are uint8 before Normalize. The global generators of
    torch, Python and numpy are seeded by the sample, and restored afterwards.

    Args:
        module: takes an image [C, H, W] and returns one, of the same size for every sample.

    Raises:
        TypeError: if ``module`` is not a module.
        ValueError: (when run) if samples come out in different sizes or dtypes, boxes or masks cannot follow, or boxes
            are moved and the collate's ``box_rule.min_visible`` asks for shares that the module does not give.
    """

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        if not isinstance(module, nn.Module):
            raise TypeError(f"module is {shown(module)}, which is not an nn.Module; transforms of torchvision's v2 are")
        self.module = module

    def check_fields(self, fields: Mapping[str, Tensor]) -> None:
        """Raises unless boxes and masks follow: they follow torchvision's v2 alone, with a given fill of masks."""
        if fields.keys() & GEOMETRY and not takes_boxes(self.module):
            raise ValueError(f"PerSample({self._name}) would not move boxes and masks; use a torchvision v2 transform")
        if "masks" not in fields:
            return
        from torchvision.tv_tensors import Mask

        for part in nested(self.module):
            fill = getattr(part, "_fill", None)
            only_crops = getattr(part, "padding", 0) is None and not getattr(part, "pad_if_needed", True)
            if isinstance(fill, dict) and Mask not in fill and not only_crops:
                raise ValueError(
                    f"{type(part).__name__} would fill masks with a class: give it fill={{tv_tensors.Mask: 255, "
                    "'others': 0}, as 255 is void"
                )

    def changed(self, batch: Batch, draws: Draws, box_rule: BoxRule) -> Batch:
        """Changes every sample by the module; the images of an empty batch keep their size."""
        keys, device = draws.bits(1)[:, 0].tolist(), batch.images.device
        if not keys:
            return batch
        host = on_device(batch.replace(images=None), torch.device("cpu"))
        before = following_fields(fields_of(host))
        with _one_at_a_time, _borrowed_generators(device):
            samples = [self._run(batch, k, key, bool(points_in(before))) for k, key in enumerate(keys)]
        images = self._stacked("an image", [sample["images"] for sample in samples])
        if "boxes" in before:
            boxes = with_boxes_of(before, *self._remaining(before["boxes"], samples, box_rule))
            host = with_following(host, boxes, before)
        changed: Batch = on_device(host, device).replace(images=images)
        if batch.masks is None:
            return changed
        changed.masks = self._stacked("a mask", [sample.get("masks") for sample in samples])
        if changed.masks.shape[-2:] != images.shape[-2:]:
            raise ValueError(
                f"{self._name} made masks {tuple(changed.masks.shape)} unlike the images; resize both alike"
            )
        return changed

    def _run(self, batch: Batch, k: int, key: int, has_points: bool) -> dict[str, Any]:
        """Runs the module on sample ``k``, with all generators seeded by ``key``.

        Returns:
            ``images``, the image that it gives, and perhaps ``boxes`` and ``masks``, and as ``labels`` the indices of
            the boxes among those before.
        """
        _seed(key, batch.images.device)
        if not takes_boxes(self.module):
            image = self.module(batch.images[k])
            is_batch = isinstance(image, Tensor) and image.dim() == 4 and len(image) == 1
            return {"images": image[0] if is_batch else image}
        from torchvision import tv_tensors

        sample: dict[str, Any] = {"images": tv_tensors.Image(batch.images[k])}
        size = batch.images.shape[2], batch.images.shape[3]
        if batch.boxes is not None:
            count = batch.boxes.shape[1] if batch.counts is None else int(batch.counts[k])
            sample["boxes"] = tv_tensors.BoundingBoxes(batch.boxes[k, :count], format="XYXY", canvas_size=size)
            sample["labels"] = torch.arange(count, device=batch.boxes.device)
        if batch.masks is not None:
            sample["masks"] = tv_tensors.Mask(batch.masks[k])
        changed = self.module(sample)
        boxes = changed.get("boxes")
        if boxes is not None:
            self._check_boxes(boxes, sample["boxes"], has_points)
        return {name: part.as_subclass(Tensor) if isinstance(part, Tensor) else part for name, part in changed.items()}

    def _check_boxes(self, boxes: Any, before: Tensor, has_points: bool) -> None:
        """Rejects boxes in another format, and moved ones of samples with points, which would not move."""
        if getattr(boxes.format, "value", None) != "XYXY":
            raise ValueError(f"{type(self.module).__name__} gave boxes as {boxes.format}, expected XYXY")
        if has_points and not torch.equal(boxes, before):
            raise ValueError(
                f"PerSample({self._name}) would not move keypoints, corners and polygons; use steps of mmload.augment, "
                "or leave these fields out of fields="
            )

    def _remaining(
        self, before: Boxes, samples: Sequence[Mapping[str, Any]], rule: BoxRule
    ) -> tuple[Boxes, Numbers, Flags]:
        """Returns the boxes that remain, at the front, the index of each among those before, and which are real.

        All remain but those that were changed and are too small.
        """
        boxes, sources = np.zeros_like(before), np.full(before.shape[:2], -1)
        for k, sample in enumerate(samples):
            after, labels = sample.get("boxes"), sample.get("labels")
            if after is None or labels is None or len(after) != len(labels):
                raise ValueError(f"{self._name} gave different numbers of boxes and labels; make it drop them together")
            moved, index = after.cpu().numpy(), labels.cpu().numpy()
            same = (moved == before[k, index]).all(1)
            if rule.min_visible and not same.all():
                raise ValueError(
                    f"min_visible is {rule.min_visible:g}, and PerSample({self._name}) moves boxes without reporting "
                    "what share of each remains: give the collate's box_rule a min_size alone"
                )
            stays = same | rule.permits(moved)
            count = np.count_nonzero(stays)
            boxes[k, :count], sources[k, :count] = moved[stays], index[stays]
        return boxes, sources.clip(0), sources >= 0

    @property
    def _name(self) -> str:
        return type(self.module).__name__

    def _stacked(self, what: str, parts: Sequence[Any]) -> Tensor:
        """Stacks equal parts."""
        for part in parts:
            if not isinstance(part, Tensor):
                raise TypeError(f"{self._name} gave {type(part).__name__} for {what}, expected a tensor")
        kinds = {(tuple(part.shape), part.dtype) for part in parts}
        if len(kinds) > 1:
            (first, kind), (second, other) = sorted(kinds, key=str)[:2]
            raise ValueError(
                f"{self._name} made {first} {kind} of one sample and {second} {other} of another: a batch has one size "
                "and one dtype; let a crop or a resize end it, in a v2.Compose"
            )
        return torch.stack(list(parts))


def _seed(key: int, device: torch.device) -> None:
    """Seeds the global generators."""
    torch.default_generator.manual_seed(key)
    if device.type == "cuda":
        torch.cuda.default_generators[device.index].manual_seed(key)
    random.seed(key)
    np.random.seed(key % (1 << 32))


@contextmanager
def _borrowed_generators(device: torch.device) -> Iterator[None]:
    """Restores the global generators at the end."""
    states = random.getstate(), np.random.get_state()
    with torch.random.fork_rng([device] if device.type == "cuda" else []):
        try:
            yield
        finally:
            random.setstate(states[0])
            np.random.set_state(states[1])
