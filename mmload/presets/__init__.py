"""Presets: the published lists of random steps, each as one call that makes the collate of a Loader.

Each function names its source, to the file and commit, and everything that differs. A recipe
(:class:`~mmload.builder.recipe.BuildRecipe`) is something else: it describes how a dataset is built.
"""

from __future__ import annotations

from mmload.presets.self_supervised import dinov2, mae, simclr
from mmload.presets.supervised import airbench, deit3, evaluation, ffcv_rn50, rsb_a2, torchvision_reference

__all__ = [
    "airbench",
    "deit3",
    "dinov2",
    "evaluation",
    "ffcv_rn50",
    "mae",
    "rsb_a2",
    "simclr",
    "torchvision_reference",
]
