"""Steps and batches under other defaults of torch than float32 and the CPU: the same values."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache

import pytest
import torch
from every_step import STEPS
from test_channels import batch, collate_of, plain_fill

from mmload import Collate, Loader
from mmload.augment import policies
from mmload.augment.step import batch_of_epoch
from mmload.batch import Batch
from mmload.runtime import host_memory
from mmload.store.dataset import Dataset


@pytest.fixture(params=["bfloat16", "float64", "meta"])
def default(request: pytest.FixtureRequest) -> Iterator[str]:
    """A default dtype or device, which tests set after they have made what they expect."""
    yield request.param
    torch.set_default_dtype(torch.float32)
    torch.set_default_device(None)
    policies._tables.cache_clear()  # tables of a wrong dtype would go on to other tests
    host_memory.constant.cache_clear()


def set_default(default: str) -> None:
    policies._tables.cache_clear()
    host_memory.constant.cache_clear()
    if default == "meta":
        torch.set_default_device(default)
    else:
        torch.set_default_dtype(getattr(torch, default))


def collate_for(name: str, dtype: torch.dtype) -> Collate:
    made = collate_of(name)
    if dtype != torch.uint8:
        plain_fill(made, 3)
    return made


@cache
def expected_batch(name: str, dtype: torch.dtype) -> Batch:
    """What a step makes under torch's own defaults."""
    with batch_of_epoch(0):
        made: Batch = collate_for(name, dtype)(batch(name, 3, dtype))
    return made


@pytest.mark.parametrize("dtype", [torch.uint8, torch.float32], ids=str)
@pytest.mark.parametrize("name", sorted(STEPS))
def test_step_under_other_defaults_of_torch_makes_the_same_batch(name: str, dtype: torch.dtype, default: str) -> None:
    if (name, dtype) in {("noise", torch.uint8), ("RandomSolarize", torch.float32)}:
        pytest.skip("not for such images")
    given, expected = batch(name, 3, dtype), expected_batch(name, dtype)
    set_default(default)
    with batch_of_epoch(0):
        made = collate_for(name, dtype)(given)
    for field in ("images", "targets", "boxes"):
        one, other = getattr(made, field), getattr(expected, field)
        assert (one is None and other is None) or (one.dtype == other.dtype and torch.equal(one, other)), field


def test_loader_under_other_defaults_of_torch_gives_the_same_batches(dataset: Dataset, default: str) -> None:
    def loader() -> Loader:
        steps = [STEPS[name]() for name in ("RandomResizedCrop", "ColorJitter", "RandAugment", "MixUp")]
        return Loader(dataset, batch_size=4, shuffle=True, collate=steps, threads=1)

    expected = [batch.images for batch in loader()]
    set_default(default)
    with loader() as made:
        assert all(torch.equal(batch.images, images) for batch, images in zip(made, expected, strict=True))
    assert dataset["train"][0].images.device.type == "cpu"
