"""mmload: build an image dataset once, then feed training from it at memory speed.

The public names, in the order data flows. Everything loads on first use, so that importing ``mmload`` (and running
``mmload --help``) costs no torch import.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from mmload.build import build
    from mmload.collate import Collate
    from mmload.dataset import open
    from mmload.equivalent import torchvision_equivalent
    from mmload.loader import Loader
    from mmload.recipe import BuildRecipe
    from mmload.records import Batch

_HOMES = {
    "BuildRecipe": "mmload.recipe",
    "build": "mmload.build",
    "open": "mmload.dataset",
    "Batch": "mmload.records",
    "Collate": "mmload.collate",
    "Loader": "mmload.loader",
    "torchvision_equivalent": "mmload.equivalent",
}

__all__ = ["Batch", "BuildRecipe", "Collate", "Loader", "build", "open", "torchvision_equivalent"]


def __getattr__(name: str) -> Any:
    """Import a public name from its module on first use (PEP 562)."""
    import importlib

    if name in _HOMES:
        return getattr(importlib.import_module(_HOMES[name]), name)
    raise AttributeError(f"module 'mmload' has no attribute {name!r}")


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
