"""The step Shrink of a build as a torchvision transform; unlike the others, importing it imports no kernels."""

from __future__ import annotations

from typing import Any

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

    def transform(self, inpt: Any, params: dict[str, Any]) -> Any:
        """Returns the image, its mask or boxes, resized where the image is."""
        if min(F.get_size(inpt)) <= self.size:
            return inpt
        return F.resize(inpt, [self.size], interpolation=self.interpolation, antialias=True)
