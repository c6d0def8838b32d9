"""Collate: one contract for whole batches, rows, lists, workers and models."""

from __future__ import annotations

import gc
import pickle
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch
import torchvision.transforms.v2.functional as tv
from batches import batch_of, by_parts
from torch import Tensor, nn

from mmload.augment import (
    CenterCrop,
    ColorJitter,
    Normalize,
    RandomCrop,
    RandomErasing,
    RandomGrayscale,
    RandomHorizontalFlip,
    RandomResizedCrop,
    sample_seeds,
)
from mmload.augment.collate import Collate
from mmload.batch import Batch
from mmload.render.rendering import ImageLines

LARGE, TINY = (3, 96, 100), (3, 32, 32)


def train_steps(shape: tuple[int, int, int]) -> list[nn.Module]:
    crop = RandomCrop((shape[1] - 8, shape[2] - 8)) if shape == LARGE else RandomCrop(32, padding=4)
    return [crop, RandomHorizontalFlip(), Normalize.imagenet()]


@pytest.mark.parametrize("shape", [LARGE, TINY])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16, torch.float64])
@pytest.mark.parametrize("memory_format", [torch.contiguous_format, torch.channels_last])
def test_collate_of_rows_and_of_a_batch_gives_the_same_bits(
    shape: tuple[int, int, int], dtype: torch.dtype, memory_format: torch.memory_format
) -> None:
    batch = batch_of(7, shape)
    collate = Collate(*train_steps(shape), dtype=dtype, memory_format=memory_format)
    whole, rows = collate(batch).images, by_parts(collate, batch, *range(7)).images
    assert torch.equal(whole, rows)
    assert whole.dtype == dtype
    assert whole.is_contiguous(memory_format=memory_format)
    assert rows.is_contiguous(memory_format=memory_format)


def test_a_list_of_rows_is_the_batch() -> None:
    batch = batch_of(5, TINY, targets=torch.arange(5))
    collate = pickle.loads(pickle.dumps(Collate(*train_steps(TINY))))
    stacked = collate([batch[k] for k in range(5)])
    assert torch.equal(stacked.images, collate(batch).images)
    assert torch.equal(stacked.targets, batch.targets)


class Rows(torch.utils.data.Dataset[Batch]):
    def __init__(self, batch: Batch) -> None:
        self.batch = batch

    def __len__(self) -> int:
        return int(self.batch.batch_size[0])

    def __getitem__(self, k: int) -> Batch:
        row: Batch = self.batch[k]
        return row


@pytest.mark.parametrize("workers", [0, 1])
def test_it_is_a_collate_fn(workers: int) -> None:
    batch = batch_of(6, TINY, targets=torch.arange(6))
    collate = Collate(*train_steps(TINY))
    loader = torch.utils.data.DataLoader(
        Rows(batch),
        batch_size=4,
        collate_fn=collate,
        num_workers=workers,
        multiprocessing_context="fork" if workers else None,
    )
    got = list(loader)
    assert torch.equal(torch.cat([one.images for one in got]), collate(batch).images)
    assert [one.targets.tolist() for one in got] == [[0, 1, 2, 3], [4, 5]]


def test_without_steps_it_is_torchvisions_conversion() -> None:
    images = batch_of(3, TINY).images
    assert torch.equal(Collate()(images), tv.to_dtype(images, torch.float32, scale=True))
    assert torch.equal(Collate(dtype=torch.uint8)(images), images)


def test_a_foreign_module_runs_where_it_stands() -> None:
    images = batch_of(3, TINY).images
    pool = nn.AvgPool2d(2)
    got = Collate(CenterCrop(16), pool, Normalize.imagenet())(images)
    expected = Collate(Normalize.imagenet())(images)[:, :, 8:24, 8:24]
    assert torch.allclose(got, pool(expected), atol=1e-5)


def test_it_is_the_first_part_of_a_model_that_trains() -> None:
    collate = Collate(*train_steps(TINY))
    model = nn.Sequential(collate, nn.Flatten(), nn.Linear(3 * 32 * 32, 2))
    loss = model(batch_of(4, TINY).images).square().mean()
    loss.backward()
    assert model[2].weight.grad.abs().sum() > 0
    assert set(model.state_dict()) == {"2.weight", "2.bias"}


def test_half_models_are_fed_the_same_pixels() -> None:
    images = batch_of(2, TINY).images
    collate = Collate(*train_steps(TINY), dtype=torch.float16)
    seeds = sample_seeds(0, 0, torch.arange(2))
    batch = Batch(images=images, seeds=seeds, batch_size=[2])
    before = collate(batch).images
    assert torch.equal(nn.Sequential(collate).half()[0](batch).images, before)


def test_seeds_come_from_generators_where_a_batch_has_none() -> None:
    images = batch_of(6, TINY).images
    collate = Collate(*train_steps(TINY))
    first = collate(images, generator=torch.Generator().manual_seed(5))
    again = collate(images, generator=torch.Generator().manual_seed(5))
    other = collate(images, generator=torch.Generator().manual_seed(6))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)
    torch.manual_seed(5)
    default = collate(images)
    assert not torch.equal(collate(images), default)
    torch.manual_seed(5)
    assert torch.equal(collate(images), default)


def long_list() -> list[nn.Module]:
    """Every kind of step: described, after it, described again, foreign."""
    return [
        RandomResizedCrop((60, 48)),
        RandomHorizontalFlip(),
        RandomGrayscale(0.3),
        ColorJitter(0.4, 0.4, 0.4, 0.1),
        RandomCrop((64, 52), padding=8, padding_mode="reflect"),
        Normalize.imagenet(),
        nn.Hardtanh(-2, 2),
        RandomErasing(0.5),
    ]


def test_a_long_list_by_rows_and_in_any_batch() -> None:
    batch = batch_of(8, LARGE)
    collate = Collate(*long_list())
    whole = collate(batch).images
    assert whole.shape == (8, 3, 64, 52)
    assert torch.equal(by_parts(collate, batch, *range(8)).images, whole)
    assert torch.equal(collate(batch[2:5]).images, whole[2:5])


def test_threads_render_their_rows_alike() -> None:
    batch = batch_of(24, LARGE)
    collate = Collate(RandomResizedCrop(64), RandomHorizontalFlip(), Normalize.imagenet())
    expected = collate(batch).images
    prepared = collate.prepare(batch.replace(images=None), LARGE)
    out = torch.empty(prepared.shape)
    with ThreadPoolExecutor(4) as pool:
        list(
            pool.map(
                lambda k: prepared.rendering.render_lines(k, ImageLines.of_batch(batch.images, np.array([k])), out),
                range(24),
            )
        )
    assert torch.equal(prepared.finish(out).images, expected)


def test_an_empty_batch_goes_through() -> None:
    assert Collate(*long_list())(batch_of(0, LARGE)).images.shape == (0, 3, 64, 52)
    assert Collate(*train_steps(TINY))(batch_of(0, TINY)).images.shape == (0, 3, 32, 32)


def test_inference_mode_leaves_nothing_behind() -> None:
    batch = batch_of(3, (3, 97, 101))
    collate = Collate(RandomResizedCrop(77), Normalize.imagenet())
    with torch.inference_mode():
        expected = collate(batch).images.clone()
    assert torch.equal(collate(batch).images, expected)


class Counting:
    """A compiler that only counts what it is given."""

    def __init__(self) -> None:
        self.graphs = 0

    def __call__(self, graph: torch.fx.GraphModule, inputs: object) -> object:
        self.graphs += 1
        return graph.forward


class Whole(nn.Module):
    def __init__(self, collate: Collate, model: nn.Module) -> None:
        super().__init__()
        self.collate, self.model = collate, model

    def forward(self, images: Tensor) -> Tensor:
        return self.model(self.collate(images))


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # torch's compiler calls its own deprecated functions
@pytest.mark.parametrize("how", ["the model alone", "a module that calls both"])
def test_a_model_behind_a_collate_is_compiled(how: str) -> None:
    torch._dynamo.reset()
    collate, counting = Collate(*train_steps(TINY)), Counting()
    model = nn.Sequential(nn.Flatten(), nn.Linear(3 * 32 * 32, 2), nn.ReLU())
    if how == "the model alone":
        compiled: nn.Module = nn.Sequential(collate, torch.compile(model, backend=counting))
    else:
        compiled = torch.compile(Whole(collate, model), backend=counting)
    images = batch_of(4, TINY).images
    torch.manual_seed(0)
    expected = model(collate(images))
    torch.manual_seed(0)
    got = compiled(images)
    assert torch.allclose(got, expected, atol=1e-5)
    assert counting.graphs == 1
    got.square().mean().backward()
    assert model[1].weight.grad.abs().sum() > 0


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
@pytest.mark.parametrize("shape", [LARGE, TINY])
def test_cuda_gives_the_pixels_of_the_cpu(shape: tuple[int, int, int]) -> None:
    batch = batch_of(8, shape)
    steps = [*train_steps(shape), RandomErasing(0.5)]
    expected = Collate(*steps)(batch).images
    got = Collate(*steps, device="cuda")(batch)
    assert got.images.is_cuda
    assert (got.images.cpu() - expected).abs().max() <= 1e-6


def test_memory_is_used_again_and_never_while_somebody_holds_it() -> None:
    collate, batch = Collate(*train_steps(LARGE)), batch_of(6, LARGE)
    first = collate(batch).images
    kept = first.clone()
    others = [collate(batch_of(6, LARGE).images) for _ in range(5)]
    assert torch.equal(first, kept)
    assert len({one.data_ptr() for one in [first, *others]}) == 6
    free = {one.data_ptr() for one in others}
    del others
    gc.collect()
    assert collate(batch).images.data_ptr() in free


@pytest.mark.parametrize("height", [8, 9])
def test_rows_whose_boxes_are_padded_to_different_numbers_are_refused(height: int) -> None:
    sizes = ((2, 8), (3, height))
    rows = [Batch(images=torch.zeros(3, high, 8, dtype=torch.uint8), boxes=torch.zeros(n, 4)) for n, high in sizes]
    with pytest.raises(ValueError, match=r"give the datasets to mmload.Loader \(.* key boxes"):
        Collate(RandomResizedCrop(4))(rows)


@pytest.mark.parametrize("targets", [
    torch.rand(4, 3).requires_grad_(), torch.rand(4).to(torch.float8_e4m3fn), torch.eye(4).to_sparse(),
], ids=["grad", "float8", "sparse"])  # fmt: skip
def test_values_that_no_dataset_stores_pass_through(targets: Tensor) -> None:
    batch = Batch(images=torch.zeros((4, 3, 9, 9), dtype=torch.uint8), targets=targets, batch_size=[4])
    assert Collate(RandomCrop(8))(batch).targets is targets
