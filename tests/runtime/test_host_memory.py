"""Pooled memory: reused when dead, never while anything views it."""

from __future__ import annotations

import copy
import gc
import pickle

import pytest
import torch

from mmload.runtime.host_memory import SIZES, MemoryPool


def test_memory_comes_back_when_the_last_view_dies() -> None:
    pool = MemoryPool(spare=2)
    first = pool.empty((4, 3, 8, 8), torch.float32)
    address, view = first.data_ptr(), first[1:, 0]
    del first
    gc.collect()
    assert pool.empty((4, 3, 8, 8), torch.float32).data_ptr() != address
    del view
    gc.collect()
    assert pool.empty((4, 3, 8, 8), torch.float32).data_ptr() == address


def test_memory_pool_never_overwrites_a_referenced_batch() -> None:
    pool = MemoryPool(spare=4)
    kept = [pool.empty((16,), torch.int64).fill_(number) for number in range(20)]
    for number in range(50):
        pool.empty((16,), torch.int64).fill_(-number)
    assert all(torch.equal(tensor, torch.full((16,), number)) for number, tensor in enumerate(kept))


@pytest.mark.parametrize("dtype", [torch.uint8, torch.float16, torch.bfloat16, torch.float32])
@pytest.mark.parametrize("memory_format", [torch.contiguous_format, torch.channels_last])
def test_shape_dtype_layout_and_alignment(dtype: torch.dtype, memory_format: torch.memory_format) -> None:
    tensor = MemoryPool(spare=1).empty((2, 3, 5, 7), dtype, memory_format)
    assert (tensor.shape, tensor.dtype) == ((2, 3, 5, 7), dtype)
    assert tensor.is_contiguous(memory_format=memory_format)
    assert tensor.data_ptr() % 64 == 0


def test_an_empty_batch_needs_no_memory() -> None:
    assert MemoryPool(spare=1).empty((0, 3, 5, 7), torch.float32).shape == (0, 3, 5, 7)


def test_memory_pool_limits_the_number_of_cached_sizes_and_its_copies_are_empty() -> None:
    pool = MemoryPool(spare=1)
    held = [pool.empty((number,), torch.uint8) for number in range(1, 3 * SIZES)]
    assert len(pool._free) == SIZES
    del held
    gc.collect()
    assert sum(len(buffers) for buffers in pool._free.values()) == SIZES
    for other in (copy.deepcopy(pool), pickle.loads(pickle.dumps(pool))):
        assert (other._spare, other._free) == (1, {})
