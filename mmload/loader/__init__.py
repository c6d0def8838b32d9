"""From an opened split to finished batches: order, tiers, threads, transfers, and :class:`Loader`.

Both names load on first use, so that whoever needs one module of the room alone does not import the compiled loops.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mmload.augment.collate import Collate
    from mmload.loader.loader import Loader

__all__ = ["Collate", "Loader"]

_HOMES = {"Collate": "mmload.augment.collate", "Loader": "mmload.loader.loader"}


def __getattr__(name: str) -> Any:
    """Imports a public name from its module on first use (PEP 562)."""
    import importlib

    if name in _HOMES:
        return getattr(importlib.import_module(_HOMES[name]), name)
    raise AttributeError(f"module 'mmload.loader' has no attribute {name!r}")
