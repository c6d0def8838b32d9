"""From an opened split to finished batches: order, tiers, threads, transfers, and :class:`Loader`.

Both names load on first use, so that whoever needs one module of the room alone does not import the compiled loops.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from mmload.lazy import importer

if TYPE_CHECKING:
    from mmload.augment.collate import Collate
    from mmload.loader.loader import Loader

__all__ = ["Collate", "Loader"]

_HOMES = {"Collate": "mmload.augment.collate", "Loader": "mmload.loader.loader"}

__getattr__ = importer(__name__, _HOMES)
