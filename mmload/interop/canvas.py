"""torchvision's resizes that keep the aspect, followed by what makes a batch of one size of them: a crop and a pad."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torchvision import tv_tensors
from torchvision.transforms import InterpolationMode, v2
from torchvision.transforms.v2 import functional as F

from mmload import augment
from mmload.sources.voc_tasks import VOID


class OnCanvas(v2.Transform):  # type: ignore[misc]  # torchvision has no types
    """A resize of torchvision's, and its result at the top left of a canvas; what is larger is cropped at random.

    Args:
        resize: ``v2.ScaleJitter`` or ``v2.RandomShortestSize``.
        canvas: (height, width) of an image -> that of its canvas.
        fill: fill of the canvas.
        mask_fill: fill of a mask's canvas.
    """

    def __init__(
        self, resize: v2.Transform, canvas: Callable[[int, int], tuple[int, int]], fill: Any, mask_fill: int
    ) -> None:
        super().__init__()
        self.resize, self.canvas, self.fill, self.mask_fill = resize, canvas, fill, mask_fill

    def make_params(self, flat_inputs: list[Any]) -> dict[str, Any]:
        """Returns the canvas, the size, and the first row and column that lie on the canvas."""
        sized = next(one for one in flat_inputs if isinstance(one, torch.Tensor) or hasattr(one, "size"))
        canvas = self.canvas(*F.get_size(sized))
        size = self.resize.make_params(flat_inputs)["size"]
        share = float(torch.rand(1))
        top, left = (int(max(have - want, 0) * share) for have, want in zip(size, canvas, strict=True))
        return {"canvas": canvas, "size": size, "top": top, "left": left}

    def transform(self, inpt: Any, params: dict[str, Any]) -> Any:
        resized = self.resize.transform(inpt, {"size": params["size"]})
        rows, cols = (min(pair) for pair in zip(params["size"], params["canvas"], strict=True))
        cropped = F.crop(resized, params["top"], params["left"], rows, cols)
        fill = self.mask_fill if isinstance(inpt, tv_tensors.Mask) else self.fill
        return F.pad(cropped, [0, 0, params["canvas"][1] - cols, params["canvas"][0] - rows], fill=fill)


class CanvasLetterbox(v2.Transform):  # type: ignore[misc]  # torchvision has no types
    """The whole image on a canvas: torchvision's resize and pad, with sizes that depend on the image.

    Args:
        size: (height, width) of the canvas.
        fill: the border's value.
        interpolation: interpolation of images.
        antialias: whether the resize of images is antialiased.
        mask_fill: the border's value in masks.
        scaleup: whether smaller images are enlarged.
        center: whether the image lies in the middle; else at the top left.
    """

    def __init__(
        self,
        size: tuple[int, int],
        fill: Any,
        interpolation: InterpolationMode,
        antialias: bool = True,
        mask_fill: int = VOID,
        scaleup: bool = True,
        center: bool = True,
    ) -> None:
        super().__init__()
        self.size, self.fill, self.interpolation, self.antialias = size, fill, interpolation, antialias
        self.mask_fill, self.scaleup, self.center = mask_fill, scaleup, center

    def make_params(self, flat_inputs: list[Any]) -> dict[str, Any]:
        """Returns the size inside the border and the border: left, top, right, bottom."""
        have = F.get_size(flat_inputs[0])
        share = min(want / side for want, side in zip(self.size, have, strict=True))
        share = share if self.scaleup else min(share, 1.0)
        inner = [max(1, min(want, round(side * share))) for want, side in zip(self.size, have, strict=True)]
        spare_rows, spare_cols = self.size[0] - inner[0], self.size[1] - inner[1]
        left, top = (spare_cols // 2, spare_rows // 2) if self.center else (0, 0)
        return {"inner": inner, "border": [left, top, spare_cols - left, spare_rows - top]}

    def transform(self, inpt: Any, params: dict[str, Any]) -> Any:
        resized = F.resize(inpt, params["inner"], interpolation=self.interpolation, antialias=self.antialias)
        fill = self.mask_fill if isinstance(inpt, tv_tensors.Mask) else self.fill
        return F.pad(resized, params["border"], fill=fill)


def letterbox(step: augment.Letterbox, fill: Any) -> CanvasLetterbox:
    """Returns the equivalent of a Letterbox, with its fill as torchvision takes it."""
    mode = InterpolationMode(step.interpolation)
    return CanvasLetterbox(step.size, fill, mode, step.antialias, step.mask_fill, step.scaleup, step.center)


def scale_jitter(step: augment.ScaleJitter, fill: Any) -> OnCanvas:
    """Returns the equivalent of a ScaleJitter, with its fill as torchvision takes it."""
    size = step.target_size
    resize = v2.ScaleJitter(size, step.scale_range, InterpolationMode(step.interpolation), step.antialias)
    return OnCanvas(resize, lambda height, width: size, fill, step.mask_fill)


def shortest_size(step: augment.RandomShortestSize, fill: Any) -> OnCanvas:
    """Returns the equivalent of a RandomShortestSize, with its fill as torchvision takes it."""
    resize = v2.RandomShortestSize(
        list(step.min_size), step.max_size, InterpolationMode(step.interpolation), step.antialias
    )
    return OnCanvas(resize, step.canvas, fill, step.mask_fill)
