"""Training recipes: the published lists of random steps, each as one call that makes the collate of a Loader.

Each function names its source, to the file and commit, and everything that differs. They have nothing to do with
:class:`~mmload.builder.recipe.BuildRecipe`, which describes how a dataset is built.
"""

from __future__ import annotations

from mmload.recipes.evaluation import evaluation
from mmload.recipes.self_supervised import dinov2, mae, simclr
from mmload.recipes.speed_runs import airbench, ffcv_rn50
from mmload.recipes.supervised import deit3, rsb_a2, torchvision_reference

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
