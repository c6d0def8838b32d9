"""mmload: build an image dataset once, then feed training from it at memory speed.

The public names, in the order data flows. Everything loads on first use, so that importing ``mmload`` (and running
``mmload --help``) costs no torch import.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from mmload.lazy import importer

__version__ = "1.0.0rc1"

if TYPE_CHECKING:
    from mmload.augment.collate import Collate
    from mmload.augment.returns import Returns
    from mmload.batch import Batch
    from mmload.builder.columns import add_field, remove_field
    from mmload.builder.dataset_change import remove_subset, save_subset
    from mmload.builder.pipeline import build
    from mmload.builder.recipe import BuildRecipe
    from mmload.interop.torchvision import torchvision_equivalent
    from mmload.loader import Loader
    from mmload.remote.opening import open as open

_HOMES = {
    "BuildRecipe": "mmload.builder.recipe",
    "build": "mmload.builder.pipeline",
    "open": "mmload.remote.opening",
    "add_field": "mmload.builder.columns",
    "remove_field": "mmload.builder.columns",
    "save_subset": "mmload.builder.dataset_change",
    "remove_subset": "mmload.builder.dataset_change",
    "Batch": "mmload.batch",
    "Collate": "mmload.augment.collate",
    "Loader": "mmload.loader.loader",
    "Returns": "mmload.augment.returns",
    "torchvision_equivalent": "mmload.interop.torchvision",
}

__all__ = [  # all public names but open: a star import must not replace a builtin
    "Batch",
    "BuildRecipe",
    "Collate",
    "Loader",
    "Returns",
    "add_field",
    "build",
    "remove_field",
    "remove_subset",
    "save_subset",
    "torchvision_equivalent",
]


__getattr__ = importer(__name__, _HOMES)


def __dir__() -> list[str]:
    return [*__all__, "open", "__version__"]
