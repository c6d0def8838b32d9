"""On a CUDA device: the CPU's draws, pixels and batches; nothing is read or overwritten too early; nothing grows."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch
from device_batches import STEPS, batch_for, batch_of, batches_of, stored_at
from hypothesis import given, settings
from hypothesis import strategies as st
from parity_stores import check, make_photos
from random_plans import FORMATS, planned
from torch import Tensor, nn

from mmload import parity
from mmload.augment import ColorJitter, MixUp, Normalize, RandomCrop, RandomHorizontalFlip, RandomResizedCrop
from mmload.augment.collate import Collate
from mmload.augment.draws import Draws
from mmload.augment.mix import CutMix
from mmload.augment.views import TwoViews
from mmload.builder.pipeline import build
from mmload.builder.recipe import BuildRecipe, square
from mmload.loader import Loader, device_batches
from mmload.loader.device_batches import CudaPort, Event, Ring, Shipped
from mmload.render import rendering as render
from mmload.render.plan import Plan
from mmload.render.rendering import Rendering
from mmload.store.dataset import Split

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")]

LEVEL = 1 / 255 / 0.224
"""One level of 255 after Normalize, whose least std is 0.224 (ImageNet's) or more."""

SLACK = {"resized crop": LEVEL, "resize": LEVEL, "two passes": LEVEL, "gray": LEVEL}
"""Lists of steps that round to whole levels, where the devices may fall to either side; elsewhere 1e-5."""

EPSILON = {torch.float32: 1e-6, torch.float16: 2**-10, torch.bfloat16: 2**-7, torch.uint8: 0.0}
"""One unit in the last place, as a share of the value."""

WHOLE = ("nothing", "both flips", "edge", "symmetric", "padded center")
"""Lists of steps whose results are integers and can be given as uint8."""

SLEEP = 20_000_000
"""Clock cycles that a copy is held up: some 10 ms."""


@pytest.fixture(scope="module")
def detections(tmp_path_factory: pytest.TempPathFactory) -> Split:
    """Shared by the module, and not written to."""
    return stored_at(tmp_path_factory.mktemp("detections") / "store")


def tensors_of(thing: Any, name: str = "") -> Iterator[tuple[str, Tensor]]:
    """Every tensor in nested dataclasses and tuples, with its name."""
    if isinstance(thing, Tensor):
        yield name, thing
    elif dataclasses.is_dataclass(thing):
        for field in dataclasses.fields(thing):
            yield from tensors_of(getattr(thing, field.name), f"{name}.{field.name}")
    elif isinstance(thing, tuple):
        for number, one in enumerate(thing):
            yield from tensors_of(one, f"{name}[{number}]")


@pytest.mark.parametrize("name", STEPS)
def test_every_step_draws_the_same_bits(name: str) -> None:
    plans = []
    for device in ("cpu", "cuda"):
        batch = batch_of(2000, device)
        started = Collate(*STEPS[name]()).start(batch.replace(images=None), (3, 40, 40))
        plans.append(dict(tensors_of(started.rendering.plan)))
    cpu, cuda = plans
    assert cpu.keys() == cuda.keys()
    for what, expected in cpu.items():
        assert cuda[what].is_cuda
        if expected.is_floating_point():
            assert torch.allclose(cuda[what].cpu(), expected, rtol=1e-6, atol=0), what
        else:
            assert torch.equal(cuda[what].cpu(), expected), what


def test_mixing_and_jitter_draw_the_same() -> None:
    seeds = batch_of(2000).seeds
    boxes = [CutMix(alpha=0.7).boxes(Draws(one, 4), 32, 40).cpu() for one in (seeds, seeds.cuda())]
    assert torch.equal(*boxes)
    jitter = ColorJitter(0.4, 0.3, 0.2, 0.1)
    for cpu, cuda in zip(jitter.draw(Draws(seeds, 2)), jitter.draw(Draws(seeds.cuda(), 2)), strict=True):
        assert torch.equal(cuda.cpu(), cpu)
    shares = [
        MixUp(num_classes=3)(torch.ones(2000, 1, 1, 1, device=one.device), one % 3, one)[1]
        for one in (seeds, seeds.cuda())
    ]
    assert (shares[1].cpu() - shares[0]).abs().max() <= 1e-6


@pytest.mark.parametrize("name", STEPS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16, torch.uint8])
@pytest.mark.parametrize("memory_format", [torch.contiguous_format, torch.channels_last])
@pytest.mark.parametrize("way", ["kernel", "operations"])
def test_pixels_boxes_and_masks_are_those_of_the_cpu(
    monkeypatch: pytest.MonkeyPatch, name: str, dtype: torch.dtype, memory_format: torch.memory_format, way: str
) -> None:
    if way == "operations":
        monkeypatch.setattr(render, "gpu_crop", lambda device: None)
    if dtype == torch.uint8 and name not in WHOLE:
        pytest.skip("negative numbers have no uint8")
    options = {"dtype": dtype, "memory_format": memory_format}
    expected = Collate(*STEPS[name](), **options)(batch_for(name, 24))
    got = Collate(*STEPS[name](), device="cuda", **options)(batch_for(name, 24))
    assert got.images.is_cuda
    assert got.images.dtype == dtype
    assert got.images.is_contiguous(memory_format=memory_format)
    theirs = expected.images.double()
    allowed = SLACK.get(name, 0.0 if dtype == torch.uint8 else 1e-5) + EPSILON[dtype] * theirs.abs()
    assert ((got.images.cpu().double() - theirs).abs() <= 1.01 * allowed).all()
    assert (got.boxes.cpu() - expected.boxes).abs().max() <= 1e-4
    for field in ("labels", "difficult", "counts", "masks", "ids"):
        assert torch.equal(got.get(field).cpu(), expected.get(field)), field
    assert (got.targets.cpu().float() - expected.targets.float()).abs().max() <= 1e-6


@pytest.mark.skipif(find_spec("triton") is None, reason="there is no Triton")
@given(
    planned(), st.sampled_from([torch.uint8, torch.float32, torch.float16, torch.bfloat16]), st.sampled_from(FORMATS)
)
@settings(max_examples=60, deadline=None)
def test_the_kernel_gives_the_bits_of_torchs_operations(
    case: tuple[Plan, Tensor, Tensor], dtype: torch.dtype, memory_format: torch.memory_format
) -> None:
    crop = render.gpu_crop(torch.device("cuda"))
    assert crop is not None
    plan, images, places = there(case[0]), case[1].cuda(), case[2].cuda()
    if dtype == torch.uint8:
        plan = dataclasses.replace(plan, shift=None, scale=None)
    rendering = Rendering(plan, dtype)
    expected = torch.empty(plan.shape, dtype=dtype, device="cuda").to(memory_format=memory_format)
    rendering.by_operations(images[places], expected)
    out = torch.empty_like(expected)
    crop(images, places, plan, rendering._shift, rendering._scale, out)
    assert torch.equal(out, expected)


def there(plan: Plan) -> Plan:
    """The plan of a batch on the device."""
    tensors = {name.removeprefix("."): one.cuda() for name, one in tensors_of(plan)}
    return dataclasses.replace(plan, **tensors, device=torch.device("cuda"))


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


def test_two_views_are_those_of_the_cpu() -> None:
    collate = Collate(RandomCrop(32), RandomHorizontalFlip(), Normalize.imagenet())
    expected = TwoViews(collate)(batch_of(8))
    got = TwoViews(Collate(*collate.steps, device="cuda"))(batch_of(8, "cuda"))
    for one, other in zip(got, expected, strict=True):
        assert (one.images.cpu() - other.images).abs().max() <= 1e-5


@contextmanager
def no_waiting() -> Iterator[None]:
    """Whatever makes a thread wait for the device raises an error."""
    torch.cuda.set_sync_debug_mode("error")
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode("default")


@pytest.mark.parametrize("name", STEPS)
def test_no_step_waits_for_the_device(name: str) -> None:
    collate, batch = Collate(*STEPS[name](), device="cuda"), batch_for(name, 24, "cuda")
    collate(batch)  # constants are copied once
    with no_waiting():
        collate(batch)


@pytest.mark.parametrize("tier", ["disk", "memory", "device"])
def test_no_batch_makes_the_training_thread_wait(detections: Split, tier: str) -> None:
    collate = Collate(RandomCrop(32, padding=4), RandomHorizontalFlip(), Normalize.imagenet())
    with Loader(detections, batch_size=5, device="cuda", tier=tier, collate=collate, threads=2) as loader:
        assert len(list(loader)) == 5
        with no_waiting():
            assert len(list(loader)) == 5


def close(got: list[Any], expected: list[Any]) -> bool:
    """Whether batches on the device are those on the CPU: floats within 1e-4, all else exactly."""
    for one, other in zip(got, expected, strict=True):
        for name in other.keys():  # noqa: SIM118  # a batch is no mapping
            mine, theirs = one.get(name), other.get(name)
            if not mine.is_cuda or mine.dtype != theirs.dtype:
                return False
            if theirs.is_floating_point() and not torch.allclose(mine.cpu(), theirs, rtol=0, atol=1e-4):
                return False
            if not theirs.is_floating_point() and not torch.equal(mine.cpu(), theirs):
                return False
    return True


@pytest.mark.parametrize("tier", ["disk", "memory", "device"])
@pytest.mark.parametrize("threads", [1, 4])
def test_every_tier_gives_the_batches_of_the_cpu(detections: Split, tier: str, threads: int) -> None:
    expected = batches_of(detections, device="cpu", tier="disk")
    assert close(batches_of(detections, device="cuda", tier=tier, threads=threads), expected)
    with torch.cuda.stream(torch.cuda.Stream()):
        assert close(batches_of(detections, device="cuda", tier=tier, threads=threads), expected)


class SlowPort(CudaPort):
    """The device with copies that are held up in their stream."""

    def copy(self, host: Tensor) -> tuple[Tensor, Event]:
        with torch.cuda.stream(self._stream):
            torch.cuda._sleep(SLEEP)
        return super().copy(host)


@pytest.mark.parametrize("tier", ["disk", "memory"])
def test_poisoned_buffers_do_not_show(
    detections: Split,
    tier: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ship = Ring.ship

    def poisoned(self: Ring, rows: int, fill: Callable[[Tensor], None]) -> Shipped:
        def first_poison(part: Tensor) -> None:
            part.view(torch.uint8).fill_(0xAA)
            fill(part)

        return ship(self, rows, first_poison)

    monkeypatch.setattr(device_batches, "CudaPort", SlowPort)
    monkeypatch.setattr(Ring, "ship", poisoned)
    expected = batches_of(detections, device="cpu", tier="disk")
    assert close(batches_of(detections, device="cuda", tier=tier, threads=2, prefetch=0), expected)


def wrong_batches(port: CudaPort) -> list[int]:
    """Which of 12 batches through a ring of 2 slow buffers did not hold their own number when they were used."""
    ring = Ring(port, (64, 1024), torch.int64, 2)
    right = []
    for number in range(1, 13):
        arrived = ring.ship(64, lambda part, n=number: part.fill_(n)).arrive(port)  # type: ignore[misc]
        right.append((arrived == number).all())
    torch.cuda.synchronize()
    return [number for number, one in enumerate(right, start=1) if not bool(one)]


def test_slow_copies_are_waited_for() -> None:
    assert wrong_batches(SlowPort(torch.device("cuda"))) == []


def test_without_the_wait_for_a_buffer_batches_are_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda.Event, "synchronize", lambda self: None)
    assert wrong_batches(SlowPort(torch.device("cuda")))


def test_without_the_wait_for_a_copy_batches_are_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda.Stream, "wait_event", lambda self, event: None)
    assert wrong_batches(SlowPort(torch.device("cuda")))


@pytest.mark.parametrize("tier", ["disk", "memory", "device"])
def test_nothing_grows_in_50_epochs_and_there_is_one_stream(
    detections: Split,
    tier: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    streams, make = [], torch.cuda.Stream

    def counted(*words: Any, **named: Any) -> torch.cuda.Stream:
        if "stream_id" not in named:  # else it is another name of a stream that is there
            streams.append(words)
        return make(*words, **named)

    def taken() -> tuple[int, int]:
        torch.cuda.synchronize()
        return torch.cuda.memory_reserved(), torch.cuda.host_memory_stats()["allocated_bytes.current"]

    monkeypatch.setattr(torch.cuda, "Stream", counted)
    collate = Collate(RandomCrop(32), RandomHorizontalFlip(), Normalize.imagenet())
    with Loader(detections, batch_size=5, device="cuda", tier=tier, shuffle=True, collate=collate) as loader:
        for epoch in range(55):
            if epoch == 5:
                before = taken()
            assert sum(len(batch) for batch in loader) == 24
        assert all(now <= then for now, then in zip(taken(), before, strict=True))
    assert len(streams) == 1


def test_a_collate_in_a_model_follows_it_there() -> None:
    collate = Collate(RandomCrop(32), Normalize.imagenet())
    model = nn.Sequential(collate, nn.Flatten(), nn.Linear(3 * 32 * 32, 2)).cuda()
    model(batch_of(6, "cuda").images).square().mean().backward()
    assert model[2].weight.grad.abs().sum() > 0
    assert collate.steps[1].mean.is_cuda


def test_a_build_that_decodes_here_has_the_same_bytes_for_any_threads_and_passes_parity(tmp_path: Path) -> None:
    source = make_photos(tmp_path / "photos")
    outs = []
    for threads in (1, 8, None):
        steps, decode = square(24), {"device": "cuda"}
        recipe = BuildRecipe(
            kind="imagefolder", root=source, out=tmp_path / f"{threads}", transforms=steps, decode=decode
        )
        build(recipe, threads=threads, processes=1)
        outs.append((tmp_path / f"{threads}" / "train" / "000000" / "images.memmap").read_bytes())
    assert outs == [outs[0]] * 3
    report = check(tmp_path / "1", source)
    assert report.passed, parity.table(report)
