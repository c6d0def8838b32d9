"""A batch on its way to a device, as far as a CPU can show it: on a pretended device, and on ``meta``."""

from __future__ import annotations

from typing import Any, cast

import pytest
import torch
from device_batches import COUNT, STEPS, batch_for, batches_of, stored_at
from hypothesis import given
from hypothesis import strategies as st
from simulated_device import Hasty, LatePort, NoWaiting
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from mmload.augment import AlternatingHorizontalFlip, RandomResizedCrop
from mmload.augment.collate import Collate
from mmload.augment.draws import Draws
from mmload.augment.views import TwoViews
from mmload.batch import Batch
from mmload.loader import Loader, device_batches
from mmload.loader import batch_worker as maker
from mmload.loader.epoch_iterator import WorkerPool
from mmload.loader.order import RowSelection
from mmload.runtime.memory_pool import constant
from mmload.runtime.random_words import mix_tensor, signed
from mmload.store.dataset import Split


class NoCopies(TorchDispatchMode):
    """Refuses copies of tensors between the CPU and the device."""

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = function(*args, **(kwargs or {}))
        tensors = [one for one in args if isinstance(one, Tensor)] + ([made] if isinstance(made, Tensor) else [])
        large = {one.device.type for one in tensors if one.dim()}
        if len(large) > 1:
            raise AssertionError(f"{function} goes between {' and '.join(sorted(large))}")
        return made


@pytest.mark.parametrize("name", STEPS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_nothing_waits_for_the_device(name: str, dtype: torch.dtype) -> None:
    collate = Collate(*STEPS[name](), device="meta", dtype=dtype, memory_format=torch.channels_last)
    batch = batch_for(name, 6, "meta")
    expected = collate(batch)  # constants are copied there once
    with NoWaiting(), NoCopies():
        got = collate(batch)
    assert got.images.shape == expected.images.shape == Collate(*STEPS[name]())(batch_for(name, 6)).images.shape
    assert got.images.device.type == "meta"


def test_the_guard_sees_what_it_has_to_see() -> None:
    there = torch.empty(3, device="meta")
    with NoWaiting(), pytest.raises(AssertionError, match="tensor"):
        torch.tensor([1.0], device="meta")
    with NoWaiting(), pytest.raises(AssertionError, match="tolist"):
        there.tolist()
    with NoCopies(), pytest.raises(AssertionError, match="cpu and meta"):
        torch.ones(3).to("meta")


@given(st.integers(-(1 << 63), (1 << 63) - 1), st.integers(0, 300), st.integers(1, 5), st.integers(1, 9))
def test_counters_made_on_a_device_are_those_of_the_cpu(seed: int, step: int, used: int, count: int) -> None:
    draws = Draws(torch.tensor([seed]), step)
    draws.bits(used)
    expected = draws.bits(count)
    numbers = torch.arange(used + 1, used + count + 1)
    golden, odd = signed(0x9E3779B97F4A7C15), signed(0xD1342543DE82EF95 * (step + 1))
    assert torch.equal(mix_tensor(torch.tensor([[seed]]) + (numbers * golden + odd)), expected)


def test_constants_are_made_once_and_keep_their_values() -> None:
    cpu = torch.device("cpu")
    first = constant((0.1, 0.25), torch.float32, cpu)
    assert first is constant((0.1, 0.25), torch.float32, cpu)
    assert torch.equal(first, torch.tensor([0.1, 0.25]))
    assert constant((255,), torch.uint8, cpu).tolist() == [255]
    with torch.inference_mode():
        made = constant((0.75,), torch.float32, cpu)
    assert not made.is_inference()


@pytest.fixture(scope="module")
def detections(tmp_path_factory: pytest.TempPathFactory) -> Split:
    """Shared by the module, and not written to."""
    return stored_at(tmp_path_factory.mktemp("detections") / "store")


@pytest.fixture
def pretended(monkeypatch: pytest.MonkeyPatch) -> LatePort:
    """A "cuda" whose copies happen late, and whose memory is the CPU's."""
    port = LatePort()
    monkeypatch.setattr(device_batches, "CudaPort", lambda device: port)
    make = maker.make_tier
    monkeypatch.setattr(maker, "make_tier", lambda tier, split, *others: make(tier, split, torch.device("cpu")))
    return port


def equal(got: list[Batch], expected: list[Batch]) -> bool:
    """Whether all fields of all batches are."""
    pairs = list(zip(got, expected, strict=True))
    names = [sorted(other.keys()) for other in expected]
    same = all(sorted(one.keys()) == mine for one, mine in zip(got, names, strict=True))
    return same and all(
        torch.equal(a.get(name), b.get(name)) for (a, b), own in zip(pairs, names, strict=True) for name in own
    )


@pytest.mark.parametrize("tier", ["disk", "memory", "device"])
@pytest.mark.parametrize("threads", [1, 3])
def test_device_path_a_device_gets_the_batches_of_the_cpu(
    detections: Split, pretended: LatePort, tier: str, threads: int
) -> None:
    expected = batches_of(detections, device="cpu", tier="disk")
    assert {"images", "targets", "boxes", "labels", "counts", "masks", "features", "ids"} <= set(expected[0].keys())
    assert equal(batches_of(detections, device="cuda", tier=tier, threads=threads), expected)


@pytest.mark.parametrize("tier", ["disk", "device"])
@pytest.mark.parametrize("views", [False, True])
def test_steps_on_a_device_know_the_epoch(detections: Split, pretended: LatePort, tier: str, views: bool) -> None:
    collate = Collate(AlternatingHorizontalFlip(), RandomResizedCrop(lambda epoch: 20 + epoch))

    def pixels(**options: Any) -> list[Tensor]:
        made: Any = TwoViews(collate) if views else collate
        with Loader(detections, batch_size=7, shuffle=True, collate=made, threads=2, **options) as loader:
            batches = [batch for pair in zip(loader, loader, strict=True) for batch in pair]  # two epochs at once
        return [batch.images for some in batches for batch in (some if views else [some])]

    expected, got = pixels(device="cpu", tier="disk"), pixels(device="cuda", tier=tier)
    assert {one.shape[2] for one in expected} == {20, 21}
    assert all(torch.equal(*pair) for pair in zip(got, expected, strict=True))


def test_without_the_wait_the_batches_are_not_those_of_the_cpu(
    detections: Split, pretended: LatePort, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(device_batches, "CudaPort", lambda device: Hasty())
    with Loader(detections, batch_size=2, device="cuda", tier="disk", threads=1) as loader:
        worker = cast(WorkerPool, loader._usable_pool())._worker
        arrivals = [worker.make(RowSelection(torch.arange(2 * turn, 2 * turn + 2)), 0) for turn in range(12)]
        ids = torch.cat([arrival().ids for arrival in arrivals])
    assert not torch.equal(ids, torch.arange(COUNT))


def test_every_field_goes_by_pinned_memory_and_no_more_is_taken_later(detections: Split, pretended: LatePort) -> None:
    with Loader(detections, batch_size=5, device="cuda", tier="disk", threads=2, prefetch=1) as loader:
        slots = 2 + 1 + 2
        for _ in range(5):
            assert sum(len(batch) for batch in loader) == COUNT
            assert pretended.buffers == slots * (len(detections.fields) + 2)  # ids and seeds


def test_a_batch_says_where_it_is(detections: Split, pretended: LatePort) -> None:
    with Loader(detections, batch_size=5, device="cuda", tier="device", fields=["images", "targets"]) as loader:
        batch = next(iter(loader))
    assert batch.device == torch.device("cpu")
    assert batch.boxes is None
    assert batch.images.dtype == torch.uint8
