"""On a CUDA device: the CPU's pixels and batches; no thread waits, nothing is overwritten, and no memory grows."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import product
from typing import Any, TypeVar

import pytest
import torch
from device_batches import STEPS, batch_for, batch_of, batches_of, stored_at
from torch import nn

from mmload.augment import ColorJitter, Normalize, RandomCrop, RandomHorizontalFlip, RandomResizedCrop
from mmload.augment.collate import Collate
from mmload.augment.views import Views
from mmload.batch import Batch, fields_of
from mmload.loader import Loader
from mmload.loader.batch_worker import SideStream
from mmload.store.dataset import Split

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")]

T = TypeVar("T")

LEVEL = 1 / 255 / 0.224
"""One level of 255 after Normalize, whose least std is 0.224 (ImageNet's) or more."""

SLACK = {"resized crop": LEVEL, "resize": LEVEL, "two passes": LEVEL, "gray": LEVEL}
"""Lists of steps that round to whole levels, where the devices may fall to either side; elsewhere 1e-5."""

EPSILON = {torch.float32: 1e-6, torch.float16: 2**-10, torch.bfloat16: 2**-7, torch.uint8: 0.0}
"""One unit in the last place, as a share of the value."""

WHOLE = ("nothing", "both flips", "edge", "symmetric", "padded center")
"""Lists of steps whose results are integers and can be given as uint8."""

FORMATS = (torch.contiguous_format, torch.channels_last)
TIERS = ("disk", "memory", "device")
SLEEP = 20_000_000
"""Clock cycles that a copy is held up: some 10 ms."""


@pytest.fixture(scope="module")
def detections(tmp_path_factory: pytest.TempPathFactory) -> Split:
    """Shared by the module, and not written to."""
    return stored_at(tmp_path_factory.mktemp("detections") / "store")


@contextmanager
def no_waiting() -> Iterator[None]:
    """Whatever makes a thread wait for the device raises an error."""
    torch.cuda.set_sync_debug_mode("error")
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode("default")


def close(got: Batch, expected: Batch, slack: float = 1e-4) -> bool:
    """Whether a batch on the device is that on the CPU: floats within ``slack``, all else exactly."""
    mine, theirs = fields_of(got), fields_of(expected)
    return mine.keys() == theirs.keys() and all(
        mine[name].is_cuda
        and mine[name].dtype == theirs[name].dtype
        and (
            torch.allclose(mine[name].cpu(), theirs[name], rtol=0, atol=slack)
            if theirs[name].is_floating_point()
            else torch.equal(mine[name].cpu(), theirs[name])
        )
        for name in theirs
    )


@pytest.mark.parametrize("dtype", list(EPSILON))
def test_pixels_and_all_else_are_those_of_the_cpu(dtype: torch.dtype) -> None:
    for name, memory_format in product(STEPS if dtype != torch.uint8 else WHOLE, FORMATS):
        collate = Collate(*STEPS[name](), dtype=dtype, memory_format=memory_format)
        expected = collate(batch_for(name, 24))
        allowed = (
            SLACK.get(name, 0.0 if dtype == torch.uint8 else 1e-5) + EPSILON[dtype] * expected.images.double().abs()
        )
        there = Collate(*collate.steps, device="cuda", dtype=dtype, memory_format=memory_format)
        for got in (there(batch_for(name, 24)), collate(batch_for(name, 24, "cuda"))):
            assert got.images.is_cuda, name
            assert got.images.dtype == dtype, name
            assert got.images.is_contiguous(memory_format=memory_format), name
            assert ((got.images.cpu().double() - expected.images.double()).abs() <= 1.01 * allowed).all(), name
            assert close(got.replace(images=None), expected.replace(images=None)), name


@pytest.mark.parametrize(("mode", "levels"), [("nearest", 0), ("nearest-exact", 0), ("bicubic", 2)])
def test_other_interpolations_are_within_levels(mode: str, levels: int) -> None:
    steps = [RandomResizedCrop(28, interpolation=mode), RandomHorizontalFlip()]
    expected = Collate(*steps, dtype=torch.uint8)(batch_of(24)).images
    got = Collate(*steps, dtype=torch.uint8, device="cuda")(batch_of(24)).images
    assert (got.cpu().int() - expected.int()).abs().max() <= levels


def test_jitter_is_within_a_level_nearly_everywhere() -> None:
    collate = Collate(RandomCrop(32), ColorJitter(0.4, 0.4, 0.4, 0.1))
    expected = collate(batch_of(24)).images
    difference = (Collate(*collate.steps, device="cuda")(batch_of(24)).images.cpu() - expected).abs()
    assert (difference > 1.01 / 255).float().mean() <= 1e-3  # a level at an edge is magnified by hue


def test_views_are_those_of_the_cpu() -> None:
    collate = Collate(RandomCrop(32), RandomHorizontalFlip(), Normalize.imagenet())
    for one, other in zip(
        Views(collate, collate)(batch_of(8, "cuda")), Views(collate, collate)(batch_of(8)), strict=True
    ):
        assert close(one, other, 1e-5)


def test_no_step_waits_for_the_device() -> None:
    for name in STEPS:
        collate, batch = Collate(*STEPS[name](), device="cuda"), batch_for(name, 24)
        collate(batch)  # constants are copied once
        with no_waiting():
            collate(batch)


@pytest.mark.parametrize("tier", TIERS)
def test_no_batch_makes_the_training_thread_wait(detections: Split, tier: str) -> None:
    collate = Collate(RandomCrop(32, padding=4), RandomHorizontalFlip(), Normalize.imagenet())
    with Loader(detections, batch_size=5, device="cuda", tier=tier, collate=collate, threads=2) as loader:
        assert len(list(loader)) == 5
        with no_waiting():
            assert len(list(loader)) == 5


@pytest.mark.parametrize("tier", TIERS)
@pytest.mark.parametrize("is_slow", [False, True])
def test_every_tier_gives_the_batches_of_the_cpu(
    detections: Split, tier: str, is_slow: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue = SideStream.queue

    def slow(self: SideStream, copy: Callable[[], T]) -> Callable[[], T]:
        return queue(self, lambda: (torch.cuda._sleep(SLEEP), copy())[1])  # type: ignore[no-untyped-call]

    expected = batches_of(detections, device="cpu", tier="disk")
    if is_slow:
        monkeypatch.setattr(SideStream, "queue", slow)
    for threads in (1, 4):
        with torch.cuda.stream(torch.cuda.Stream()):  # type: ignore[no-untyped-call]
            got = batches_of(detections, device="cuda", tier=tier, threads=threads)
            assert all(close(*pair) for pair in zip(got, expected, strict=True))


def test_a_foreign_collate_gets_the_batch_on_the_device(detections: Split) -> None:
    for tier, collate in product(TIERS, (None, lambda batch: batch.replace(targets=batch.targets + 1))):
        options: dict[str, Any] = {"batch_size": 5, "collate": collate}
        with (
            Loader(detections, device="cuda", tier=tier, **options) as there,
            Loader(detections, device="cpu", **options) as here,
        ):
            assert all(close(*pair) for pair in zip(there, here, strict=True))


@pytest.mark.parametrize("tier", TIERS)
def test_nothing_grows_in_50_epochs(detections: Split, tier: str) -> None:
    def taken() -> tuple[int, int]:
        torch.cuda.synchronize()
        return torch.cuda.memory_allocated(), torch.cuda.host_memory_stats()["allocated_bytes.current"]

    collate = Collate(RandomCrop(32), RandomHorizontalFlip(), Normalize.imagenet())
    with Loader(detections, batch_size=5, device="cuda", tier=tier, shuffle=True, collate=collate) as loader:
        for epoch in range(55):
            if epoch == 5:
                before = taken()
            assert sum(len(batch) for batch in loader) == 24
        assert all(now <= then for now, then in zip(taken(), before, strict=True))


def test_a_collate_in_a_model_follows_it_there() -> None:
    collate = Collate(RandomCrop(32), Normalize.imagenet())
    model = nn.Sequential(collate, nn.Flatten(), nn.Linear(3 * 32 * 32, 2)).cuda()
    model(batch_of(6, "cuda").images).square().mean().backward()
    assert model[2].weight.grad.abs().sum() > 0
