"""MixUp and CutMix against torchvision's arithmetic, sample by sample."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import numpy as np
import pytest
import torch
from batches import batch_of as noise_batch
from batches import by_parts
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn.functional import one_hot

from mmload.augment import (
    ColorJitter,
    CutMix,
    GaussianBlur,
    MixUp,
    Normalize,
    RandomChoice,
    RandomCrop,
    RandomErasing,
    RandomHorizontalFlip,
    RandomResizedCrop,
    sample_seeds,
)
from mmload.augment.collate import Collate
from mmload.augment.mix import MixStep, mixed_targets
from mmload.augment.step import Draws, log_gammas
from mmload.batch import Batch
from mmload.render.plan import Plan


def batch_of(count: int, size: int = 16) -> Batch:
    return noise_batch(count, (3, size, size), targets=torch.arange(count) % 4)


def test_cutmix_pastes_a_rectangle_and_blends_by_area() -> None:
    batch = batch_of(12)
    step = CutMix(num_classes=4)
    clean = Collate(RandomHorizontalFlip(), Normalize.imagenet())(batch).images
    got = Collate(RandomHorizontalFlip(), Normalize.imagenet(), step)(batch)
    plan = Plan.unchanged(12, (3, 16, 16), 255.0)
    boxes = step.mixing(plan, Draws(batch.seeds.numpy(), 2)).boxes.tolist()
    for k, (x1, y1, x2, y2) in enumerate(boxes):
        expected = clean[k].clone()
        expected[:, y1:y2, x1:x2] = clean[k - 1][:, y1:y2, x1:x2]
        assert torch.equal(got.images[k], expected)
        share = 1 - (x2 - x1) * (y2 - y1) / 256
        hot = one_hot(batch.targets, 4).float()
        assert torch.allclose(got.targets[k], share * hot[k] + (1 - share) * hot[k - 1])


@pytest.mark.parametrize("step", [MixUp(p=0.0), CutMix(p=0.0)])
def test_soft_targets_and_p(step: MixUp | CutMix) -> None:
    images, soft = torch.rand(5, 3, 8, 8), torch.rand(5, 7)
    changed, targets = step(images, soft)
    assert torch.equal(changed, images)
    assert torch.equal(targets, soft)


EITHER = RandomChoice([MixUp(), CutMix()])


def formula(step: Any, draws: Draws, images: Tensor) -> Tensor:
    """A whole rendered batch mixed as MixUp and CutMix are published, by torch's operations on float32."""
    height, width = images.shape[2:]
    mixing = step.mixing(Collate().prepare(Batch(batch_size=[len(images)]), (3, height, width)).rendering.plan, draws)
    others = images.roll(1, 0)
    if mixing.share is not None:
        own = torch.from_numpy(mixing.share).view(-1, 1, 1, 1)
        images = images * own + others * (1 - own)
    for k, (x1, y1, x2, y2) in enumerate([] if mixing.boxes is None else mixing.boxes.tolist()):
        images[k, :, y1:y2, x1:x2] = others[k, :, y1:y2, x1:x2]
    return images


BEFORE: dict[str, list[nn.Module]] = {
    "nothing": [],
    "crop": [RandomCrop(24), RandomHorizontalFlip(), Normalize.imagenet()],
    "padded": [RandomCrop(32, padding=4, padding_mode="reflect"), Normalize.imagenet()],
    "resized": [RandomResizedCrop(20), ColorJitter(0.4, 0.4, 0.4, 0.1), Normalize.imagenet()],
    "blurred": [RandomResizedCrop(20, interpolation="bicubic"), GaussianBlur(3), RandomHorizontalFlip()],
    "erased": [RandomCrop(24), Normalize.imagenet(), RandomErasing(0.7), RandomErasing(0.5, value=[1.0, 2.0, 3.0])],
    "noise": [RandomCrop(24), Normalize.imagenet(), RandomErasing(0.7, value="random")],
}


@given(
    name=st.sampled_from(list(BEFORE)),
    count=st.integers(1, 9),
    alpha=st.sampled_from([0.1, 1.0, 8.0]),
    p=st.sampled_from([0.0, 0.5, 1.0]),
    per=st.sampled_from(["sample", "batch"]),
    kind=st.sampled_from(["MixUp", "CutMix", "either"]),
    memory_format=st.sampled_from([torch.contiguous_format, torch.channels_last]),
    cut=st.integers(0, 9),
)
@settings(max_examples=40)
def test_the_pass_gives_the_bits_of_the_formula_on_the_rendered_batch(
    name: str, count: int, alpha: float, p: float, per: str, kind: str, memory_format: torch.memory_format, cut: int
) -> None:
    both = [MixUp(alpha, 4, p, per), CutMix(alpha, 4, p, per)]
    step = RandomChoice(both) if kind == "either" else both[kind == "CutMix"]
    before, batch = BEFORE[name], batch_of(count, 32)
    expected = formula(step, Draws(batch.seeds.numpy(), len(before)), Collate(*before)(batch).images.clone())
    collate = Collate(*before, step, memory_format=memory_format)
    assert torch.equal(collate(batch).images, expected)
    assert torch.equal(by_parts(collate, batch, 0, *[cut] * (0 < cut < count)).images, expected)


def test_a_second_mixing_and_what_follows_one_are_further_passes() -> None:
    batch = batch_of(6)
    steps = [CutMix(num_classes=4), MixUp(), RandomErasing(1.0), CutMix()]
    whole = Collate(*steps)(batch)
    floats, soft = batch.images, batch.targets
    for place, step in enumerate(steps):
        if place == 1:
            floats = Collate()(floats)
        draws = Draws(batch.seeds.numpy(), place)
        if isinstance(step, MixStep):
            plan = Collate().prepare(Batch(batch_size=[6]), (3, 16, 16)).rendering.plan
            floats = formula(step, draws, floats.clone())
            kept = torch.from_numpy(step.mixing(plan, Draws(batch.seeds.numpy(), place)).target_share(16, 16))[:, None]
            soft = one_hot(soft, 4).float() if soft.dim() == 1 else soft
            soft = soft * kept + soft.roll(1, 0) * (1 - kept)
        else:
            hole = step.describe(Collate().prepare(Batch(batch_size=[6]), (3, 16, 16)).rendering.plan, draws).holes[0]
            for k in range(6):
                top, left, height, width = (int(side[k]) for side in (hole.top, hole.left, hole.height, hole.width))
                floats[k, :, top : top + height, left : left + width] = 0
    assert torch.equal(whole.images, floats)
    assert torch.equal(whole.targets, soft)


def test_a_hole_before_cutmix_is_written_into_levels() -> None:
    batch = batch_of(6)
    erased = Collate(RandomErasing(1.0, value=255), CutMix(num_classes=4))(batch).images
    assert erased.max() == 1
    with pytest.raises(ValueError, match=r"value is 0\.5, and the images are uint8 there"):
        Collate(RandomErasing(1.0, value=0.5), CutMix(num_classes=4))(batch)


def test_one_draw_a_batch_may_hold_steps_that_draw_for_each_sample() -> None:
    batch = batch_of(16)
    step = RandomChoice([MixUp(num_classes=4), MixUp(num_classes=4, p=0.0)], per="batch")
    moved = []
    for epoch in range(12):
        seeds = sample_seeds(0, epoch, torch.arange(16))
        soft = Collate(step)(batch.replace(seeds=seeds)).targets
        moved.append(int((soft.max(1).values < 1).sum()))
    assert {count > 8 for count in moved} == {True, False}
    assert all(count == 0 or count > 8 for count in moved)


def test_a_batch_of_one_mixes_with_itself_and_one_of_none_stays_so() -> None:
    once = MixUp(per="batch"), CutMix(per="batch"), RandomChoice([MixUp(), CutMix()], per="batch")
    for step in (MixUp(), CutMix(), *once):
        images = torch.rand(1, 3, 8, 8)
        assert torch.allclose(step(images), images)
        assert step(images[:0]).shape == (0, 3, 8, 8)


def test_a_choice_of_mixings_alone_copied_and_pickled() -> None:
    images, seeds = torch.rand(6, 3, 8, 8), torch.arange(6)
    step = RandomChoice([MixUp(num_classes=4), RandomChoice([CutMix(num_classes=4)])], p=(1, 2), per="batch")
    mixed, soft = step(images, seeds % 4, seeds)
    assert soft.shape == (6, 4)
    for other in (copy.deepcopy(step), pickle.loads(pickle.dumps(step))):
        assert torch.equal(other(images, seeds % 4, seeds)[0], mixed)
        assert repr(other) == repr(step)
    assert "per='batch'" in repr(step)
    model = nn.Sequential(Collate(Normalize.imagenet(), step), nn.Flatten())
    assert model(batch_of(5).images).shape == (5, 768)


@pytest.mark.parametrize(
    ("steps", "fields", "message"),
    [
        *[([step], {}, "targets are class indices; set num_classes") for step in (MixUp(), CutMix(), EITHER)],
        ([RandomCrop(8), MixUp(num_classes=2)], {}, "targets are from 0 to 3, and num_classes is 2"),
        *[
            ([kind(num_classes=2)], {"targets": torch.rand(4)}, r"targets are torch\.float32 \[B\]")
            for kind in (MixUp, CutMix)
        ],
        ([EITHER], {"masks": torch.zeros(4, 16, 16, dtype=torch.uint8)}, "MixUp blends images but not their masks"),
    ],
)
def test_what_cannot_be_mixed_is_refused_before_a_pixel_is_read(
    steps: list[nn.Module], fields: dict[str, Tensor], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        Collate(*steps).prepare(batch_of(4).replace(images=None, **fields), (3, 16, 16))


@pytest.mark.parametrize("alpha", [1e-3, 0.2, 1.0, 7.5, 1e5])
def test_compiled_gamma_draws_are_those_of_numpy(alpha: float) -> None:
    words = Draws(sample_seeds(0, 0, torch.arange(4000)).numpy(), 3).bits(37).view(np.uint64)
    words[0, 24:36] = 0  # nothing is accepted
    radii, angles, uniform, last = np.split((words >> np.uint64(11)) * 2.0**-53, [12, 24, 36], 1)
    d = alpha + 1.0 - 1.0 / 3.0
    normal = np.sqrt(-2.0 * np.log1p(-radii)) * np.cos(2.0 * np.pi * angles)
    root = 1.0 + normal / (9.0 * d) ** 0.5
    cube = root * root * root  # NumPy's power rounds otherwise, and the first sample's bound is 0 but for that
    logarithms = np.log(np.maximum(cube, 1e-300))
    accepted = (cube > 0) & (np.log1p(-uniform) < 0.5 * normal**2 + d - d * cube + d * logarithms)
    chosen = np.take_along_axis(logarithms, accepted.argmax(1)[:, None], 1)
    expected = (chosen + np.log1p(-last) / alpha)[:, 0] + np.log(d)
    assert np.allclose(log_gammas(words, alpha), expected, rtol=1e-9, atol=1e-11)


def test_indices_are_blended_as_their_one_hot_vectors() -> None:
    share = torch.rand(50)
    targets = torch.randint(0, 4, (50,))
    soft = one_hot(targets, 4).float()
    blended = soft * share[:, None] + soft.roll(1, 0) * (1 - share[:, None])
    for dtype in (torch.int64, torch.uint8, torch.int16):
        made = mixed_targets(targets.to(dtype).numpy(), share.numpy(), 4)
        assert torch.equal(torch.from_numpy(made), blended)
    assert mixed_targets(targets[:0].numpy(), share[:0].numpy(), 4).shape == (0, 4)
    once = share[:1].repeat(50)
    made = mixed_targets(targets.numpy(), once.numpy(), 4)
    assert torch.equal(torch.from_numpy(made), soft * once[:, None] + soft.roll(1, 0) * (1 - once[:, None]))


def test_mixed_samples_of_an_output_with_gaps_are_those_of_a_dense_one() -> None:
    batch, collate = batch_of(8, 32), Collate(Normalize((0.5,) * 3, (0.2,) * 3), MixUp(num_classes=4))
    expected = collate(batch).images
    out = torch.empty(16, 32, 32, 3).permute(0, 3, 1, 2)[::2]
    collate.prepare(batch, (3, 32, 32)).render_batch(batch.images, out)
    assert torch.equal(out, expected)
