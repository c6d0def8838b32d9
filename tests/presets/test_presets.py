"""Presets against the published lists, written down here from their sources, and on real rows."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from cifar_files import write_cifar10
from torch import nn
from torchvision.transforms import InterpolationMode, v2

from mmload import Collate, Loader, presets, torchvision_equivalent
from mmload import open as open_dataset
from mmload.augment import AlternatingHorizontalFlip, Normalize, Views
from mmload.augment.collate import collates_of
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


def one_of(mixup: float, cutmix: float) -> nn.Module:
    """What torchvision and timm do to a batch."""
    return v2.RandomChoice([v2.MixUp(alpha=mixup, num_classes=4), v2.CutMix(alpha=cutmix, num_classes=4)])


SIMCLR = [
    *crop(224),
    v2.RandomApply([v2.ColorJitter(0.8, 0.8, 0.8, 0.2)], p=0.8),
    v2.RandomGrayscale(p=0.2),
    v2.RandomApply([v2.GaussianBlur(23, (0.1, 2.0))], p=0.5),
    FLOATS,
]

PUBLISHED: dict[str, tuple[Callable[[], Collate | Views], list[list[nn.Module]]]] = {
    # google-research/simclr, data_util.py
    "simclr": (presets.simclr, [SIMCLR, SIMCLR]),
    # facebookresearch/dinov2, dinov2/data/augmentations.py, dinov2/configs/ssl_default_config.yaml
    "dinov2": (
        presets.dinov2,
        [
            [*crop(224, (0.32, 1.0)), *dino_colors(1.0), FLOATS, IMAGENET],
            [*crop(224, (0.32, 1.0)), *dino_colors(0.1), v2.RandomSolarize(threshold=128, p=0.2), FLOATS, IMAGENET],
            *[[*crop(96, (0.05, 0.32)), *dino_colors(0.5), FLOATS, IMAGENET]] * 8,
        ],
    ),
    # facebookresearch/mae, main_pretrain.py
    "mae": (presets.mae, [[*crop(224, (0.2, 1.0)), FLOATS, IMAGENET]]),
    # pytorch/vision, references/classification/presets.py and train.py
    "torchvision_reference": (
        partial(presets.torchvision_reference, num_classes=4),
        [
            [
                *crop(176, interpolation=InterpolationMode.BILINEAR),
                v2.TrivialAugmentWide(interpolation=InterpolationMode.BILINEAR),
                FLOATS,
                IMAGENET,
                v2.RandomErasing(p=0.1),
                one_of(0.2, 1.0),
            ]
        ],
    ),
    # table 2 of the paper, with timm's two operations of probability 0.5 and magnitude 7 of 10 as torchvision's
    "rsb_a2": (
        partial(presets.rsb_a2, num_classes=4),
        [
            [
                *crop(224),
                *[v2.RandomApply([v2.RandAugment(1, 21, 31, InterpolationMode.BILINEAR, [124, 116, 104])], p=0.5)] * 2,
                FLOATS,
                IMAGENET,
                one_of(0.1, 1.0),
            ]
        ],
    ),
    # facebookresearch/deit, augment.py
    "deit3": (
        partial(presets.deit3, num_classes=4),
        [
            [
                *crop(224),
                v2.RandomChoice(
                    [v2.RandomGrayscale(p=1.0), v2.RandomSolarize(128, p=1.0), v2.GaussianBlur(13, (0.1, 2.0))]
                ),
                v2.ColorJitter(0.3, 0.3, 0.3),
                FLOATS,
                IMAGENET,
                one_of(0.8, 1.0),
            ]
        ],
    ),
    # pytorch/vision, references/classification/presets.py
    "evaluation": (
        lambda: presets.evaluation(resize=232),
        [[v2.Resize([232]), v2.CenterCrop((224, 224)), FLOATS, IMAGENET]],
    ),
}
"""Name -> the recipe, and what torchvision needs for each of its views."""


def shown(step: nn.Module) -> str:
    """What a transform is set to; numbers to six places, as float32 and Python's floats write 0.8 in two ways."""
    values = {name: value for name, value in vars(step).items() if not name.startswith("_") and name != "training"}
    inner = [shown(one) for one in getattr(step, "transforms", [])]
    for unused in ("transforms", "fill"):  # a fill says what masks get; no recipe has a constant border
        values.pop(unused, None)
    name = type(step).__name__.removeprefix("Void")  # a CenterCrop that pads masks with void
    return f"{name} {sorted((name, plain(value)) for name, value in values.items())} {inner}"


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


def test_every_recipe_is_held_against_its_source() -> None:
    assert {*PUBLISHED, "ffcv_rn50", "airbench"} == set(presets.__all__)


def resolution(epoch: int) -> int:
    """``get_resolution`` of libffcv/ffcv-imagenet with the numbers of rn50_configs/rn50_88_epochs.yaml."""
    if not 65 < epoch < 76:
        return 160 if epoch <= 65 else 192
    return int(np.round(np.interp([epoch], [65, 76], [160, 192])[0] / 32)) * 32


def test_ffcv_in_each_of_its_epochs() -> None:
    recipe = presets.ffcv_rn50()
    for epoch in range(88):
        recipe.set_epoch(epoch)
        expected = [*crop(resolution(epoch), interpolation=InterpolationMode.BILINEAR), FLOATS, IMAGENET]
        made = list(torchvision_equivalent(recipe).transforms)[1:]
        assert [shown(step) for step in made] == [shown(step) for step in expected], epoch
    assert {resolution(epoch) for epoch in range(88)} == {160, 192}


def test_airbench_of_94_and_96_percent() -> None:
    """torchvision has no alternating flip: the other steps are compared with ``CifarLoader``'s."""
    normalize = v2.Normalize(mean=[0.4914, 0.4822, 0.4465], std=[0.2470, 0.2435, 0.2616])
    for recipe, moved in ((presets.airbench(), 2), (presets.airbench(translate=4, cutout=12), 4)):
        cut, flip, *rest = recipe.steps
        assert isinstance(flip, AlternatingHorizontalFlip)
        made = list(torchvision_equivalent(Collate(cut, rest[0])).transforms)[1:]
        expected = [v2.RandomCrop((32, 32), padding=[moved] * 4, padding_mode="reflect"), FLOATS, normalize]
        assert [shown(step) for step in made] == [shown(step) for step in expected]
        assert len(rest) == (2 if moved == 4 else 1)


def test_airbench_on_cifar(tmp_path: Path) -> None:
    """Every row shows its other side in the next epoch, and every cutout is a square of 12 pixels."""
    root = write_cifar10(tmp_path / "batches", rows=40)
    build(BuildRecipe(kind="cifar10", root=root, out=tmp_path / "cifar"), threads=2)
    rows = open_dataset(tmp_path / "cifar")["train"]
    with Loader(rows, batch_size=64, collate=presets.airbench(translate=0), tier="memory") as loader:
        first, second = (torch.cat([batch.images for batch in loader]) for _ in range(2))
    assert torch.equal(first.flip(3), second)
    assert not torch.equal(first, presets.airbench(translate=0).steps[2](rows[:].images))
    with Loader(rows, batch_size=64, collate=presets.airbench(translate=4, cutout=12)) as loader:
        holes = torch.cat([(batch.images == 0).all(1).sum((1, 2)) for batch in loader])
    assert holes.unique().tolist() == [144]


@pytest.mark.slow
def test_ffcv_on_rows(rows: Split) -> None:
    recipe = presets.ffcv_rn50(dtype=torch.float16, memory_format=torch.channels_last)
    with Loader(rows.subset(range(3)), collate=recipe) as loader:
        for epoch, side in ((0, 160), (75, 192), (87, 192)):
            loader.set_epoch(epoch)
            (batch,) = loader
            assert batch.images.shape == (3, 3, side, side)


@pytest.fixture(scope="module")
def rows(photos: Path, tmp_path_factory: pytest.TempPathFactory) -> Split:
    """Photographs at 256 x 256. Read-only: shared by the module."""
    out = tmp_path_factory.mktemp("recipes") / "photos-256"
    build(BuildRecipe(kind="imagefolder", root=photos, out=out, transforms=square(256)), threads=2)
    return open_dataset(out)["train"]


@pytest.mark.parametrize("name", PUBLISHED)
def test_rows_go_through(name: str, rows: Split) -> None:
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
    small = presets.simclr(size=32, strength=0.5, normalize=Normalize.cifar10(), dtype=torch.float16)
    assert isinstance(small, Views)
    text = repr(small)
    assert "(32, 32)" in text
    assert "brightness=(0.6, 1.4)" in text
    assert "kernel_size=(3, 3)" in text
    assert "Normalize(mean=(0.49" in text
    assert all(collate.dtype == torch.float16 for collate in small.collates)
    released = presets.dinov2(size=40, local_size=16, local_crops=2, blur=(0.0, 0.9, 0.5), device="cpu")
    assert [tuple(view.shape[2:]) for view in released(torch.zeros(2, 3, 64, 64, dtype=torch.uint8))] == [
        *[(40, 40)] * 2,
        *[(16, 16)] * 2,
    ]
    assert released.device == torch.device("cpu")
    assert [str(view.steps[4].p) for view in released.collates] == ["0.0", "0.9", "0.5", "0.5"]
    assert len(presets.evaluation(resize=None).steps) == 2
    assert presets.mae(memory_format=torch.channels_last).memory_format == torch.channels_last
