"""Training recipes against the published lists, written down here from their sources, and on real rows."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torchvision.transforms import InterpolationMode, v2

from mmload import Collate, Loader, recipes, torchvision_equivalent
from mmload import open as open_dataset
from mmload.augment import Normalize, TwoViews, Views
from mmload.augment.views import collates_of
from mmload.builder.pipeline import build
from mmload.builder.recipe import BuildRecipe, square
from mmload.store.dataset import Split

IMAGENET = v2.Normalize(mean=[0.485, 0.456, 0.406], std=[0.229, 0.224, 0.225])
FLOATS = v2.ToDtype(torch.float32, scale=True)
CUBIC = InterpolationMode.BICUBIC


def crop(size: int, scale: tuple[float, float] = (0.08, 1.0), interpolation: Any = CUBIC) -> list[nn.Module]:
    return [
        v2.RandomResizedCrop((size, size), scale=scale, interpolation=interpolation),
        v2.RandomHorizontalFlip(p=0.5),
    ]


def dino_colors(blur: float) -> list[nn.Module]:
    """``color_jittering`` and ``GaussianBlur(p=...)`` of dinov2/data/augmentations.py, without the inversion."""
    jitter = v2.RandomApply([v2.ColorJitter(brightness=0.4, contrast=0.4, saturation=0.2, hue=0.1)], p=0.8)
    return [
        jitter,
        v2.RandomGrayscale(p=0.2),
        v2.RandomApply([v2.GaussianBlur(kernel_size=9, sigma=(0.1, 2.0))], p=blur),
    ]


SIMCLR = [
    *crop(224),
    v2.RandomApply([v2.ColorJitter(0.8, 0.8, 0.8, 0.2)], p=0.8),
    v2.RandomGrayscale(p=0.2),
    v2.RandomApply([v2.GaussianBlur(23, (0.1, 2.0))], p=0.5),
    FLOATS,
]

PUBLISHED: dict[str, tuple[Callable[[], Collate | Views], list[list[nn.Module]]]] = {
    # google-research/simclr, data_util.py
    "simclr": (recipes.simclr, [SIMCLR, SIMCLR]),
    # facebookresearch/dinov2, dinov2/data/augmentations.py, dinov2/configs/ssl_default_config.yaml
    "dinov2": (
        recipes.dinov2,
        [
            [*crop(224, (0.32, 1.0)), *dino_colors(1.0), FLOATS, IMAGENET],
            [*crop(224, (0.32, 1.0)), *dino_colors(0.1), v2.RandomSolarize(threshold=128, p=0.2), FLOATS, IMAGENET],
            *[[*crop(96, (0.05, 0.32)), *dino_colors(0.5), FLOATS, IMAGENET]] * 8,
        ],
    ),
    # facebookresearch/mae, main_pretrain.py
    "mae": (recipes.mae, [[*crop(224, (0.2, 1.0)), FLOATS, IMAGENET]]),
    # pytorch/vision, references/classification/presets.py
    "evaluation": (
        lambda: recipes.evaluation(resize=232),
        [[v2.Resize([232]), v2.CenterCrop((224, 224)), FLOATS, IMAGENET]],
    ),
}
"""Name -> the recipe, and what torchvision needs for each of its views."""


def shown(step: nn.Module) -> str:
    """What a transform is set to; numbers to six places, as float32 and Python's floats write 0.8 in two ways."""
    values = {name: value for name, value in vars(step).items() if not name.startswith("_") and name != "training"}
    inner = [shown(one) for one in getattr(step, "transforms", [])]
    values.pop("transforms", None)
    return f"{type(step).__name__} {sorted((name, plain(value)) for name, value in values.items())} {inner}"


def plain(value: Any) -> Any:
    if isinstance(value, float | int) and not isinstance(value, bool):
        return round(float(value), 6)
    return [plain(one) for one in value] if isinstance(value, tuple | list) else str(getattr(value, "value", value))


@pytest.mark.parametrize("name", PUBLISHED)
def test_each_view_is_the_published_list(name: str) -> None:
    make, published = PUBLISHED[name]
    collates = collates_of(make())
    assert len(collates) == len(published)
    for collate, expected in zip(collates, published, strict=True):
        made = list(torchvision_equivalent(collate).transforms)
        assert type(made[0]) is v2.ToImage
        assert [shown(step) for step in made[1:]] == [shown(step) for step in expected]


def test_the_comparison_sees_what_it_has_to_see() -> None:
    """A size, a probability inside a RandomApply, and an interpolation."""
    steps = [shown(one) for one in SIMCLR]
    others = [
        v2.RandomResizedCrop((224, 224), interpolation=InterpolationMode.BILINEAR),
        v2.RandomApply([v2.ColorJitter(0.8, 0.8, 0.8, 0.1)], p=0.8),
        v2.RandomApply([v2.GaussianBlur(23, (0.1, 2.0))], p=0.4),
    ]
    assert not set(steps) & {shown(one) for one in others}


def test_every_recipe_is_held_against_its_source() -> None:
    assert set(PUBLISHED) == set(recipes.__all__)


@pytest.fixture(scope="module")
def rows(real_data: Path, tmp_path_factory: pytest.TempPathFactory) -> Split:
    """Photographs at 256 x 256. Read-only: shared by the module."""
    out = tmp_path_factory.mktemp("recipes") / "photos-256"
    root = real_data / "hymenoptera"
    build(BuildRecipe(kind="imagefolder", root=root, out=out, transforms=square(256)), threads=2)
    return open_dataset(out)["val"]


@pytest.mark.parametrize("name", PUBLISHED)
def test_real_rows_go_through(name: str, rows: Split) -> None:
    recipe = PUBLISHED[name][0]()
    with Loader(rows.subset(range(6)), batch_size=3, shuffle=True, seed=1, collate=recipe) as loader:
        made = [batch if isinstance(batch, tuple) else (batch,) for batch in loader]
    assert len(made) == 2
    assert [len(views) for views in made] == [len(PUBLISHED[name][1])] * 2
    for view in [view for views in made for view in views]:
        assert view.images.shape[:2] == (3, 3)
        assert view.images.isfinite().all()
        assert float(view.images.std()) > 0.05


def test_settings_reach_their_steps() -> None:
    small = recipes.simclr(size=32, strength=0.5, normalize=Normalize.cifar10(), dtype=torch.float16)
    assert isinstance(small, TwoViews)
    text = repr(small)
    assert "(32, 32)" in text
    assert "brightness=(0.6, 1.4)" in text
    assert "kernel_size=(3, 3)" in text
    assert "Normalize(mean=[0.49" in text
    assert all(collate.dtype == torch.float16 for collate in small.collates)
    released = recipes.dinov2(size=40, local_size=16, local_crops=2, blur=(0.0, 0.9, 0.5), device="cpu")
    assert [tuple(view.shape[2:]) for view in released(torch.zeros(2, 3, 64, 64, dtype=torch.uint8))] == [
        *[(40, 40)] * 2,
        *[(16, 16)] * 2,
    ]
    assert released.device == torch.device("cpu")
    assert [str(view.steps[4].p) for view in released.collates] == ["0.0", "0.9", "0.5", "0.5"]
    assert len(recipes.evaluation(resize=None).steps) == 2
    assert recipes.mae(memory_format=torch.channels_last).memory_format == torch.channels_last
