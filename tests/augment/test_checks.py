"""What a collate cannot do right is refused when it is made, or before the first pixel of a batch is touched."""

from __future__ import annotations

from itertools import product

import pytest
import torch
from batches import batch_of as noise_batch
from torch import Tensor, nn

from mmload.augment import (
    ColorJitter,
    CutMix,
    MixUp,
    Normalize,
    RandomCrop,
    RandomErasing,
    RandomGrayscale,
    RandomHorizontalFlip,
    sample_seeds,
)
from mmload.augment.collate import Collate
from mmload.batch import Batch

FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)


def batch_of(**fields: Tensor) -> Batch:
    return noise_batch(6, (3, 12, 12), **fields)


@pytest.mark.parametrize(
    ("step", "message"),
    [
        (Normalize.imagenet(), "Normalize makes floats, but dtype is torch.uint8"),
        (MixUp(num_classes=3), "MixUp makes floats, but dtype is torch.uint8"),
        (RandomErasing(value=0.5), "value is 0.5, and the images are uint8"),
        (RandomErasing(value=(1, 2, 256)), "value is 1, 2, 256, and the images are uint8"),
        (RandomErasing(value="random"), "value is 'random', and the images are uint8"),
    ],
)
def test_steps_that_uint8_cannot_hold_are_refused(step: nn.Module, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Collate(step, dtype=torch.uint8)(batch_of())


def test_levels_that_are_none_are_refused_before_the_pixels() -> None:
    for step in (RandomErasing(1.0, value=0.5), RandomErasing(1.0, value="random")):
        with pytest.raises(ValueError, match="value is .* and the images are uint8 there"):
            Collate(step, RandomHorizontalFlip())(batch_of())
        with pytest.raises(ValueError, match="value is .* and the images are uint8 there"):
            step(batch_of().images)
        assert Collate(Normalize.imagenet(), step, RandomHorizontalFlip())(batch_of()).images.isfinite().all()
    for fill in (0.5, 300, -1):
        with pytest.raises(ValueError, match="fill is"):
            Collate(RandomCrop(12, padding=2, fill=fill))(batch_of())
    with pytest.raises(ValueError, match="fill has 2 numbers and the images 3 channels"):
        Collate(RandomCrop(12, padding=2, fill=(1, 2)))(batch_of())
    normalized = Collate(Normalize.imagenet(), RandomCrop(12, padding=2, fill=0.5))
    assert (normalized(batch_of()).images == 0.5).any()


def test_cutmix_pastes_levels_exactly() -> None:
    batch = batch_of(targets=torch.arange(6))
    levels = Collate(CutMix(num_classes=6), dtype=torch.uint8)(batch)
    floats = Collate(CutMix(num_classes=6))(batch)
    assert torch.equal(Collate()(levels.images), floats.images)
    assert torch.equal(levels.targets, floats.targets)


@pytest.mark.parametrize("dtype", FLOATS)
def test_mixed_images_have_the_share_of_their_targets(dtype: torch.dtype) -> None:
    step, shares = MixUp(0.5, num_classes=64), torch.eye(64)
    seeds = sample_seeds(1, 0, torch.arange(64))
    own = step(torch.zeros(64, 1, 1, 1), shares, seeds)[1].diagonal()
    images = torch.zeros(64, 1, 1, 1, dtype=dtype)
    images[::2] = 1.0
    got = step(images, shares, seeds)[0][:, 0, 0, 0]
    expected = torch.where(torch.arange(64) % 2 == 0, own, 1 - own)
    torch.testing.assert_close(got, expected.to(dtype), rtol=0, atol=0)


ORDERS: list[list[nn.Module]] = [
    [Normalize([0.4] * 3, [0.2] * 3), Normalize([0.1] * 3, [2.0] * 3)],
    [Normalize([0.4] * 3, [0.2] * 3), RandomErasing(0.0), Normalize([0.1] * 3, [2.0] * 3)],
    [RandomErasing(0.0), Normalize([0.4] * 3, [0.2] * 3), nn.Identity(), Normalize([0.1] * 3, [2.0] * 3)],
    [nn.Identity(), RandomGrayscale(0.0), Normalize([0.4] * 3, [0.2] * 3), Normalize([0.1] * 3, [2.0] * 3)],
]


@pytest.mark.parametrize(("which", "dtype"), list(product(range(4), FLOATS)))
def test_normalize_twice_is_one_after_the_other(which: int, dtype: torch.dtype) -> None:
    batch = batch_of()
    got = Collate(*ORDERS[which], dtype=dtype)(batch).images
    expected = ((batch.images / 255.0 - 0.4) / 0.2 - 0.1) / 2.0
    assert (got.float() - expected).abs().max() <= {torch.float16: 4e-3, torch.bfloat16: 3e-2}.get(dtype, 1e-5)


class Gives(nn.Module):
    def __init__(self, given: object) -> None:
        super().__init__()
        self.given = given

    def forward(self, images: Tensor) -> object:
        return self.given(images) if callable(self.given) else self.given


@pytest.mark.parametrize(
    ("made", "dtype", "error", "message"),
    [
        (lambda images: images / 255.0, torch.uint8, TypeError, "Gives gave torch.float32, but dtype is torch.uint8"),
        (lambda images: images.to(torch.int64), torch.float32, TypeError, "Gives gave torch.int64"),
        (lambda images: images > 0, torch.float32, TypeError, "Gives gave torch.bool"),
        (lambda images: images.flatten(1), torch.float32, ValueError, r"Gives made \(6, 432\) of images"),
        (lambda images: images[1:], torch.float32, ValueError, "Gives made"),
        (lambda images: (images, images), torch.float32, TypeError, "Gives gave tuple, expected a tensor"),
    ],
)
def test_what_a_foreign_module_gives_is_checked(
    made: object, dtype: torch.dtype, error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        Collate(Gives(made), dtype=dtype)(batch_of())


def test_floats_that_are_levels_are_refused() -> None:
    levels = batch_of().images.float()
    for steps in ([Normalize.imagenet()], [RandomHorizontalFlip(), ColorJitter(0.3)]):
        with pytest.raises(ValueError, match="values from 0 to 255: give uint8 levels"):
            Collate(*steps)(levels)
        assert Collate(*steps)(levels / 255.0).isfinite().all()
    with pytest.raises(ValueError, match="floats cannot be rendered as torch.uint8"):
        Collate(dtype=torch.uint8)(levels)


@pytest.mark.parametrize("shape", [(), (3,), (3, 4, 4), (1, 1, 3, 4, 4), (2, 0, 4, 4), (2, 3, 0, 4), (2, 3, 4, 0)])
def test_tensors_that_are_no_images_are_refused(shape: tuple[int, ...]) -> None:
    images = torch.zeros(shape, dtype=torch.uint8)
    modules: list[nn.Module] = [Collate(), Collate(RandomCrop(2, padding=3, padding_mode="reflect"))]
    for module in [*modules, RandomCrop(2, padding=3, padding_mode="reflect"), ColorJitter(0.1)]:
        with pytest.raises(ValueError, match="images have the shape"):
            module(images)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"masks": torch.zeros(6, 12, 11, dtype=torch.uint8)}, r"masks have the shape \(6, 12, 11\), expected \(6, 12"),
        ({"masks": torch.zeros(6, 2, 12, 12, dtype=torch.uint8)}, "masks have the shape"),
        ({"masks": torch.zeros(6, 12, 12)}, "masks are torch.float32, expected torch.uint8"),
        ({"boxes": torch.zeros(6, 4)}, "boxes have the shape"),
        ({"boxes": torch.zeros(6, 2, 4, dtype=torch.int64)}, "boxes are torch.int64, expected torch.float32"),
        ({"boxes": torch.zeros(6, 2, 4), "labels": torch.zeros(6, 3, dtype=torch.int64)}, "labels have the shape"),
        ({"boxes": torch.zeros(6, 2, 4), "counts": torch.zeros(6, 1, dtype=torch.int64)}, "counts have the shape"),
        ({"boxes": torch.zeros(6, 2, 4), "counts": torch.full((6,), 5)}, "counts are from 5 to 5, and boxes have room"),
        ({"boxes": torch.zeros(6, 2, 4), "counts": torch.arange(-1, 5)}, "counts are from -1 to 4, .*, from 0 to 2$"),
        ({"boxes": torch.zeros(6, 2, 4), "difficult": torch.zeros(6, 2)}, "difficult are torch.float32"),
        ({"seeds": torch.zeros(6, dtype=torch.int32)}, "seeds are torch.int32, expected torch.int64"),
        ({"seeds": torch.zeros(6, 2, dtype=torch.int64)}, "seeds have the shape"),
        ({"ids": torch.zeros(6, 1, dtype=torch.int64)}, r"ids have the shape \(6, 1\), expected \(6,\)"),
        ({"ids": torch.zeros(6, dtype=torch.int32)}, "ids are torch.int32, expected torch.int64"),
    ],
)
def test_fields_that_do_not_fit_are_refused(fields: dict[str, Tensor], message: str) -> None:
    with pytest.raises((ValueError, TypeError), match=message):
        Collate(RandomHorizontalFlip())(batch_of().replace(**fields))


def test_ids_are_checked_too() -> None:
    with pytest.raises(TypeError, match=r"seeds and ids are torch\.int32, expected int64"):
        sample_seeds(0, 0, torch.arange(6, dtype=torch.int32))


def test_a_batch_without_images_and_one_row_are_refused() -> None:
    with pytest.raises(ValueError, match="images are missing"):
        Collate()(batch_of().replace(images=None))
    with pytest.raises(ValueError, match="expected \\[B"):
        Collate()(batch_of()[0])
