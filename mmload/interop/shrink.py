"""The step Shrink of a build as a torchvision transform; unlike the others, importing it imports no kernels."""

from __future__ import annotations

from typing import Any

import PIL.Image
from torch import Tensor
from torchvision.transforms import InterpolationMode, v2
from torchvision.transforms.v2 import functional as F


class ShortestMaxSize(v2.Transform):  # type: ignore[misc]  # torchvision is untyped here
    """Resizes the short side to ``size`` where it is longer; smaller images, boxes and masks stay as they are.

    Args:
        size: pixels of the short side at most.
        interpolation: interpolation of images; masks are resized by nearest neighbor.
    """

    def __init__(self, size: int, interpolation: str = "bilinear") -> None:
        super().__init__()
        self.size, self.interpolation = size, InterpolationMode(interpolation)

    def make_params(self, flat_inputs: list[Any]) -> dict[str, Any]:
        """Returns whether the image is resized."""
        sizes = [F.get_size(one) for one in flat_inputs if isinstance(one, Tensor | PIL.Image.Image)]
        return {"resized": min(sizes[0]) > self.size}

    def transform(self, inpt: Any, params: dict[str, Any]) -> Any:
        if not params["resized"]:
            return inpt
        return F.resize(inpt, [self.size], interpolation=self.interpolation, antialias=True)
