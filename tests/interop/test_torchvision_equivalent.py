"""torchvision_equivalent: the same settings, and the same pixels where the draws are the same."""

from __future__ import annotations

import pickle
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor, nn
from torchvision import tv_tensors
from torchvision.transforms import InterpolationMode, v2

from mmload.augment import (
    AlternatingHorizontalFlip,
    CenterCrop,
    ColorJitter,
    CutMix,
    Letterbox,
    MixUp,
    Normalize,
    ProgressiveSize,
    RandomCrop,
    RandomErasing,
    RandomGrayscale,
    RandomHorizontalFlip,
    RandomIoUCrop,
    RandomResizedCrop,
    RandomShortestSize,
    RandomVerticalFlip,
    RandomZoomOut,
    Resize,
    ScaleJitter,
    Views,
)
from mmload.augment.collate import Collate
from mmload.builder.recipe import BuildRecipe, square
from mmload.builder.transforms import TransformChain
from mmload.errors import UsageError
from mmload.interop.torchvision import conversion, torchvision_equivalent
from mmload.records import Sample
from mmload.sources.decode import Decoder


def pictures(count: int = 4, height: int = 24, width: int = 31) -> Tensor:
    return torch.randint(
        0, 256, (count, 3, height, width), dtype=torch.uint8, generator=torch.Generator().manual_seed(0)
    )


def test_settings_are_taken_over() -> None:
    collate = Collate(
        RandomCrop((20, 22), (1, 2, 3, 4), pad_if_needed=True, fill=7, padding_mode="constant", mask_fill=7),
        RandomResizedCrop(18, (0.2, 0.9), (0.5, 2.0), "bicubic", antialias=False),
        Resize(30, max_size=40),
        Resize((9, 8), InterpolationMode.NEAREST),
        CenterCrop(5),
        RandomHorizontalFlip(0.3),
        RandomVerticalFlip(0.6),
        RandomGrayscale(0.2),
        ColorJitter(0.1, (0.5, 0.8), None, 0.05),
        Normalize.imagenet(),
        RandomErasing(0.4, (0.1, 0.2), (0.5, 1.5), value=(1, 2, 3)),
        MixUp(0.3, 10),
        CutMix(0.4, 10),
    )
    made = torchvision_equivalent(collate).transforms
    expected = [
        v2.ToImage(),
        v2.RandomCrop((20, 22), [1, 2, 3, 4], True, 7.0, "constant"),
        v2.RandomResizedCrop((18, 18), (0.2, 0.9), (0.5, 2.0), InterpolationMode.BICUBIC, False),
        v2.Resize([30], InterpolationMode.BILINEAR, max_size=40),
        v2.Resize([9, 8], InterpolationMode.NEAREST),
        v2.CenterCrop((5, 5)),
        v2.RandomHorizontalFlip(0.3),
        v2.RandomVerticalFlip(0.6),
        v2.RandomGrayscale(0.2),
        v2.ColorJitter(0.1, (0.5, 0.8), None, 0.05),
        v2.ToDtype(torch.float32, scale=True),
        v2.Normalize(Normalize.imagenet().mean, Normalize.imagenet().std),
        v2.RandomErasing(0.4, (0.1, 0.2), (0.5, 1.5), [1.0, 2.0, 3.0]),
        v2.MixUp(alpha=0.3, num_classes=10),
        v2.CutMix(alpha=0.4, num_classes=10),
    ]
    assert [repr(one).removeprefix("Void") for one in made] == [repr(one) for one in expected]


@pytest.mark.parametrize(
    ("steps", "at"),
    [
        ((), 0),
        ((RandomHorizontalFlip(), ColorJitter(0.1)), 2),
        ((RandomErasing(), Normalize.imagenet()), 1),
        ((RandomHorizontalFlip(), RandomErasing(), RandomErasing()), 1),
        ((RandomErasing(), MixUp(num_classes=3)), 0),
        ((RandomErasing(), ColorJitter(0.1)), 2),
        ((nn.Identity(),), 0),
    ],
)
def test_floats_begin_where_the_collate_makes_them(steps: tuple[nn.Module, ...], at: int) -> None:
    assert conversion(Collate(*steps)) == at


def certain() -> list[Collate]:
    """Collates in which nothing is left to chance."""
    flips = RandomHorizontalFlip(1.0), RandomVerticalFlip(1.0)
    return [
        Collate(),
        Collate(*flips, CenterCrop((20, 40)), Normalize.imagenet()),
        Collate(RandomCrop((24, 31), fill=9), RandomGrayscale(1.0)),
        Collate(Resize((16, 12), "bicubic"), dtype=torch.uint8),
        Collate(Resize(12), Normalize((0.5,) * 3, (0.2,) * 3), dtype=torch.float64),
        Collate(RandomResizedCrop((12, 16), (1.0, 1.0), (31 / 24, 31 / 24)), *flips),
        Collate(ColorJitter((1.3, 1.3)), Normalize.cifar10()),
        Collate(CenterCrop(8), RandomErasing(0.0), dtype=torch.float16),
    ]


@pytest.mark.parametrize("which", range(8))
def test_certain_steps_give_the_same_pixels(which: int) -> None:
    collate, images = certain()[which], pictures()
    expected = torch.stack([torchvision_equivalent(collate)(image).as_subclass(Tensor) for image in images])
    got = collate(images)
    assert got.dtype == expected.dtype
    apart = (got.double() - expected.double()).abs().max()
    resampled = any(isinstance(step, Resize | RandomResizedCrop | RandomGrayscale) for step in collate.steps)
    assert apart <= (1.01 / 255 / 0.2 if resampled and got.is_floating_point() else 1 if resampled else 2e-3)


def test_pil_images_go_in_as_well() -> None:
    collate = Collate(CenterCrop(10), Normalize.imagenet())
    image = pictures(1)[0]
    pil = Image.fromarray(image.permute(1, 2, 0).numpy())
    assert torch.equal(torchvision_equivalent(collate)(pil), torchvision_equivalent(collate)(image))


def test_detection_steps_have_their_settings_and_sizes() -> None:
    torch.manual_seed(0)
    zoom, crop = RandomZoomOut((1, 2, 3), (1.5, 2.0), 0.3, mask_fill=7), RandomIoUCrop(0.4, 0.9, 0.6, 1.5, [0.2], 9)
    made = torchvision_equivalent(Collate(zoom, crop, Resize((9, 9)), dtype=torch.uint8)).transforms[1:3]
    assert vars(made[0])["side_range"] == (1.5, 2.0)
    assert made[0].fill == {tv_tensors.Mask: 7, "others": [1.0, 2.0, 3.0]}
    assert [made[1].min_scale, made[1].max_scale, made[1].options, made[1].trials] == [0.4, 0.9, (0.2,), 9]
    for step in (Letterbox((30, 20), 9), Letterbox(50, (1, 2, 3), "bicubic", scaleup=False, center=False)):
        ours = Collate(step, dtype=torch.uint8)
        transform = pickle.loads(pickle.dumps(torchvision_equivalent(ours)))
        torch.testing.assert_close(transform(pictures()), ours(pictures()), rtol=0, atol=1)
    for step, size in ((ScaleJitter((20, 30), (0.2, 2.0)), (20, 30)), (RandomShortestSize((9, 20), 22), (17, 22))):
        transform = pickle.loads(pickle.dumps(torchvision_equivalent(Collate(step, dtype=torch.uint8))))
        assert {transform(pictures(1)[0]).shape[1:] for _ in range(8)} == {size}
        mask = tv_tensors.Mask(torch.zeros(24, 31, dtype=torch.uint8))
        seen = [transform({"images": tv_tensors.Image(pictures(1)[0]), "masks": mask})["masks"] for _ in range(9)]
        assert {int(value) for one in seen for value in one.unique()} == {0, 255}


def test_a_size_that_follows_the_epoch_is_that_of_the_collates_epoch() -> None:
    collate = Collate(
        RandomResizedCrop(ProgressiveSize(8, 16, start_epoch=0, end_epoch=2, multiple=4)), dtype=torch.uint8
    )
    with pytest.raises(UsageError, match="size of RandomResizedCrop follows the epoch, and torchvision has one size"):
        torchvision_equivalent(collate)
    for epoch, size in enumerate((8, 12, 16)):
        collate.set_epoch(epoch)
        assert torchvision_equivalent(collate)(pictures(1)[0]).shape == (3, size, size)
    collate = Collate(Resize(lambda epoch: 5 + epoch), dtype=torch.uint8)
    with pytest.raises(UsageError, match=r"call the collate's set_epoch\(epoch\)"):
        torchvision_equivalent(collate)
    collate.set_epoch(3)
    assert torchvision_equivalent(collate)(pictures(1, 24, 30)[0]).shape == (3, 8, 10)


def test_masks_are_filled_with_their_own_value() -> None:
    collate = Collate(RandomCrop(14, padding=5, fill=9, mask_fill=255))
    torch.manual_seed(0)
    mask = tv_tensors.Mask(torch.zeros(4, 4, dtype=torch.uint8))
    image = tv_tensors.Image(torch.zeros(3, 4, 4, dtype=torch.uint8))
    crop = torchvision_equivalent(collate).transforms[1]
    images, masks = crop(image, mask)
    assert sorted(images.unique().tolist()) == [0, 9]
    assert sorted(masks.unique().tolist()) == [0, 255]


class Strange(nn.Module):
    def forward(self, images: Tensor) -> Tensor:
        return images


@pytest.mark.parametrize(
    ("made", "message"),
    [
        (Collate(Strange()), "the step Strange has no torchvision equivalent"),
        (Collate(AlternatingHorizontalFlip()), "AlternatingHorizontalFlip has no torchvision equivalent"),
        (Collate(MixUp(num_classes=3, p=0.5)), "MixUp with p=0.5 has no torchvision equivalent"),
        ({"decode": {}, "transforms": [{"step": "Solarize"}]}, "step Solarize has no torchvision equivalent"),
    ],
)
def test_what_has_no_counterpart_is_refused(made: object, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        torchvision_equivalent(made)  # type: ignore[arg-type]  # a union's member


RECIPES = [
    square(16),
    ({"step": "Resize", "size": [20, 14], "interpolation": "bicubic"},),
    ({"step": "Letterbox", "size": [24, 20], "fill": 9},),
    ({"step": "Pad", "padding": [1, 2, 3, 4], "fill": 5}, {"step": "Grayscale", "num_output_channels": 3}),
    ({"step": "CenterCrop", "size": 40, "fill": 3}, {"step": "Grayscale"}, {"step": "RGB"}),
]


@pytest.mark.parametrize("transforms", RECIPES)
@pytest.mark.parametrize("size", [(30, 51), (51, 30), (17, 17)])
def test_a_recipe_gives_the_stored_pixels(transforms: tuple[dict, ...], size: tuple[int, int]) -> None:
    image = pictures(1, *size)[0]
    mask = (image[0] > 128).to(torch.uint8)
    compose = torchvision_equivalent(BuildRecipe(kind="python", transforms=transforms))
    images, masks = compose(tv_tensors.Image(image), tv_tensors.Mask(mask))
    stored = TransformChain(transforms)(Sample("x", {"images": image.numpy(), "masks": mask.numpy()}))
    assert np.array_equal(images, stored.fields["images"])
    inside = stored.fields["masks"] != 255
    assert np.array_equal(masks.numpy()[inside], stored.fields["masks"][inside])


def odd_images(folder: Path) -> list[Path]:
    rng = np.random.default_rng(0)
    color = rng.integers(0, 256, (20, 26, 3), dtype=np.uint8)
    made = {
        "plain.png": Image.fromarray(color),
        "gray.jpg": Image.fromarray(color[..., 0]),
        "alpha.png": Image.fromarray(np.dstack([color, color[..., 1]])),
        "palette.png": Image.fromarray(color).quantize(32),
        "wide.png": Image.fromarray(color[..., 0].astype(np.uint16) * 251),
        "cmyk.jpg": Image.fromarray(color).convert("CMYK"),
        "web.webp": Image.fromarray(color),
        "color.jpg": Image.fromarray(color),
        "bits.png": Image.fromarray(color[..., 0]).convert("1"),
    }
    for name, image in made.items():
        image.save(folder / name)
    turned = Image.Exif()
    turned[0x0112] = 6
    Image.fromarray(color).save(folder / "turned.jpg", exif=turned)
    return sorted(folder.iterdir())


@pytest.mark.parametrize(
    "decode", [{}, {"mode": "L"}, {"exif_orient": True}, {"background": [10, 200, 30]}, {"background": 0, "mode": "L"}]
)
def test_every_kind_of_file_is_decoded_as_it_is_stored(tmp_path: Path, decode: dict[str, object]) -> None:
    compose = torchvision_equivalent(BuildRecipe(kind="imagefolder", decode=decode))
    for file in odd_images(tmp_path):
        with Image.open(file) as image:
            pixels = np.array(compose(image))
        stored = Decoder(**decode)(file.read_bytes())  # type: ignore[arg-type]  # its own keywords
        expected = stored[0] if len(stored) == 1 else stored.transpose(1, 2, 0)
        assert np.array_equal(pixels, expected), file.name


@pytest.mark.parametrize(
    ("made", "message"),
    [
        (v2.Compose([v2.ToImage()]), "got Compose, expected a Collate"),
        (Views(Collate(CenterCrop(5)), Collate(CenterCrop(3))), "got Views, .* give the collates one by one"),
    ],
)
def test_equivalents_of_what_is_no_collate_are_refused(made: object, message: str) -> None:
    with pytest.raises(TypeError, match=message):
        torchvision_equivalent(made)  # type: ignore[arg-type]  # that is the test
