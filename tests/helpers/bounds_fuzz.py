"""Odd input for the kernels, run with bounds checks by test_kernel_bounds: what must be refused is, all else works."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from random_plans import VARIANTS
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
    RandomVerticalFlip,
    Resize,
)
from mmload.augment.collate import Collate
from mmload.batch import Batch
from mmload.builder.transforms import TransformChain
from mmload.loader import Loader
from mmload.records import Sample
from mmload.runtime.declarations import called, inlined
from mmload.runtime.intrinsics import finish_streams, stream
from mmload.runtime.numba_compile import numba_compiled
from mmload.store.dataset import Dataset

SIDES = st.integers(1, 12)
SIZES = st.tuples(SIDES, SIDES)
MODES = st.sampled_from(["constant", "edge", "reflect", "symmetric"])
ODD_DTYPES = (torch.int32, torch.uint8, torch.float64, torch.bool)

STEPS = st.one_of(
    st.builds(RandomCrop, SIZES, st.integers(0, 30), st.booleans(), padding_mode=MODES),
    st.builds(CenterCrop, SIZES),
    st.builds(RandomResizedCrop, SIZES, interpolation=st.sampled_from(["bilinear", "nearest", "bicubic"])),
    st.builds(
        Resize, SIZES, interpolation=st.sampled_from(["bilinear", "bicubic", "nearest-exact"]), antialias=st.booleans()
    ),
    st.builds(RandomHorizontalFlip),
    st.builds(RandomVerticalFlip),
    st.builds(RandomGrayscale, st.just(0.5)),
    st.builds(RandomErasing, st.just(0.9)),
    st.builds(ColorJitter, st.just(0.4)),
    st.just(Normalize.imagenet()),
)


def argument_error(steps: list[nn.Module], shape: tuple[int, ...], dtype: torch.dtype | None) -> str | None:
    """What the ValueError says that a collate or (without a dtype) a lone step must raise; None: it must work."""
    channels, height, width = shape
    kinds = [type(step) for step in steps]
    if dtype == torch.uint8 and Normalize in kinds:
        return "Normalize makes floats"
    if dtype is not None and Normalize in kinds and ColorJitter in kinds[kinds.index(Normalize) :]:
        return "ColorJitter comes after Normalize"
    if min(shape) < 1:
        return "with a pixel at least"
    for step in steps:
        if isinstance(step, Normalize) and channels != 3:
            return f"Normalize has 3 channels and the images {channels}"
        if isinstance(step, RandomGrayscale | ColorJitter) and channels not in (1, 3):
            return "takes images of 1 or 3 channels"
        if isinstance(step, RandomCrop):
            left, top, right, bottom = step.padding
            small = height + top + bottom < step.size[0] or width + left + right < step.size[1]
            if small and not step.pad_if_needed:
                return "does not fit into images"
        height, width = getattr(step, "size", (height, width))
    return None


@given(
    steps=st.lists(STEPS, max_size=4),
    shape=st.tuples(st.integers(0, 5), st.sampled_from([1, 2, 3, 3, 3, 4]), SIDES, SIDES),
    empty=st.sampled_from([None] * 9 + [1, 2, 3]),
    seeds=st.sampled_from([None, torch.int64, torch.int64, *ODD_DTYPES]),
    variant=st.sampled_from(VARIANTS),
    strided=st.booleans(),
)
@settings(max_examples=400)
def test_any_collate_of_any_batch_is_rendered_or_refused(
    steps: list[nn.Module],
    shape: tuple[int, ...],
    empty: int | None,
    seeds: torch.dtype | None,
    variant: tuple[torch.dtype, torch.memory_format],
    strided: bool,
) -> None:
    dtype, memory_format = variant
    shape = tuple(0 if axis == empty else size for axis, size in enumerate(shape))
    images = torch.randint(0, 256, (shape[0], *shape[:0:-1]), dtype=torch.uint8).permute(0, 3, 2, 1)
    images = images if strided else images.contiguous()
    keys = None if seeds is None else torch.randint(0, 2, (2 * shape[0],)).to(seeds)[::2]

    def rendered(keys: Tensor | None) -> Batch:
        collate = Collate(*steps, dtype=dtype, memory_format=memory_format)
        batch: Batch = collate(Batch(images=images, seeds=keys, batch_size=[len(images)]))
        return batch

    why = argument_error(steps, shape[1:], dtype)
    if why is not None and seeds in (None, torch.int64):
        with pytest.raises(ValueError, match=re.escape(why)):
            rendered(keys)
    elif why is not None or seeds not in (None, torch.int64):
        with pytest.raises((ValueError, TypeError), match=f"{re.escape(why or 'seeds are')}|seeds are torch"):
            rendered(keys)
    else:
        out = rendered(keys)
        assert out.images.shape[:2] == shape[:2]
        assert out.images.dtype == dtype
        assert out.images.is_contiguous(memory_format=memory_format)
        if keys is not None:
            assert torch.equal(out.images, rendered(keys.clone()).images)


@given(
    step=STEPS,
    shape=st.tuples(st.integers(0, 5), st.integers(0, 4), st.integers(0, 12), st.integers(0, 12)),
    more=st.sampled_from([0, 0, 0, -1, 1, 100]),
    seeds=st.sampled_from([torch.int64, torch.int64, *ODD_DTYPES]),
    flat=st.booleans(),
)
@settings(max_examples=300)
def test_any_step_alone_is_rendered_or_refused(
    step: nn.Module, shape: tuple[int, ...], more: int, seeds: torch.dtype, flat: bool
) -> None:
    images = torch.randint(0, 256, shape, dtype=torch.uint8)
    keys = torch.arange(2 * max(shape[0] + more, 0)).to(seeds)[::2]
    keys = keys if flat else keys[:, None]
    if min(shape[1:]) < 1:
        with pytest.raises(ValueError, match="with a pixel at least"):
            step(images, seeds=keys)
    elif keys.shape != shape[:1] or seeds != torch.int64:
        with pytest.raises(ValueError, match="seeds are torch.*, expected torch.int64"):
            step(images, seeds=keys)
    elif (why := argument_error([step], shape[1:], None)) is not None:
        with pytest.raises(ValueError, match=re.escape(why)):
            step(images, seeds=keys)
    else:
        out = step(images, seeds=keys)
        assert out.shape[:2] == shape[:2]
        assert torch.equal(out, step(images, seeds=keys.clone()))


@pytest.mark.parametrize("mode", ["constant", "edge", "reflect", "symmetric"])
@pytest.mark.parametrize("shape", [(4, 3, 0, 32), (4, 3, 32, 0), (4, 0, 32, 32)])
def test_images_without_pixels_reach_no_kernel(mode: str, shape: tuple[int, ...]) -> None:
    step, images = RandomCrop(8, padding=8, padding_mode=mode), torch.empty(shape, dtype=torch.uint8)
    for render in (step, Collate(step), Collate(RandomHorizontalFlip(), step)):
        with pytest.raises(ValueError, match="with a pixel at least"):
            render(images)


@given(
    shape=st.tuples(st.integers(1, 4), *[st.integers(1, 40)] * 2),
    size=st.tuples(*[st.integers(2, 40)] * 2),
    crop=st.tuples(*[st.integers(1, 50)] * 2),
    kind=st.sampled_from(["bilinear", "bicubic"]),
    interleaved=st.booleans(),
)
@settings(max_examples=100)
def test_a_build_resizes_and_crops_any_image(
    shape: tuple[int, ...], size: tuple[int, int], crop: tuple[int, int], kind: str, interleaved: bool
) -> None:
    images = torch.randint(0, 256, shape, dtype=torch.uint8)
    images = images.permute(1, 2, 0).contiguous().permute(2, 0, 1) if interleaved else images
    chain = TransformChain(
        [{"step": "Resize", "size": size, "interpolation": kind}, {"step": "CenterCrop", "size": crop}]
    )
    out = np.empty((shape[0], *crop), np.uint8)
    made = chain(Sample(id="a", fields={"images": images}), out).fields["images"]
    alone = chain(Sample(id="a", fields={"images": images})).fields["images"]
    assert torch.equal(made, alone)
    assert made.shape == (shape[0], *crop)


@pytest.mark.parametrize("odd", [*ODD_DTYPES, None])
def test_odd_seeds_and_rows_of_a_loader(dataset: Dataset, odd: torch.dtype | None) -> None:
    collate = Collate(RandomCrop(24), RandomHorizontalFlip())

    def changed(batch: Batch) -> Batch:
        wide = torch.stack((batch.seeds, batch.seeds), dim=1)[:, 0]
        return collate(batch.replace(seeds=wide if odd is None else wide.to(odd)))  # type: ignore[no-any-return]

    expected = [batch.images.clone() for batch in Loader(dataset, batch_size=5, collate=collate, threads=1)]
    loader = Loader(dataset, batch_size=5, collate=changed, threads=1)
    if odd is None:
        for images, batch in zip(expected, loader, strict=True):
            assert torch.equal(images, batch.images)
    else:
        with pytest.raises(TypeError, match=f"seeds are {odd}, expected torch.int64"):
            list(loader)
    with pytest.raises(ValueError, match="seed is"):
        Loader(dataset, seed=torch.tensor([1], dtype=odd))  # type: ignore[arg-type]


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int16", "int32", "int64", "uint64"])
def test_rows_of_a_sampler_in_any_integers(dataset: Dataset, dtype: str) -> None:
    rows = np.arange(18, dtype=dtype)[::2]
    collate = Collate(RandomCrop(24, padding=9, padding_mode="reflect"))
    samplers: list[Any] = [rows, rows.tolist(), rows.copy()]
    batches = [next(iter(Loader(dataset, batch_size=9, collate=collate, threads=1, order=one))) for one in samplers]
    assert batches[0].ids.tolist() == rows.tolist()
    for batch in batches[1:]:
        assert torch.equal(batch.images, batches[0].images)


@inlined
def _inlined_past_the_end(values: Any) -> None:
    values[values.shape[0]] = 1.0


@called
def _called_before_the_start(values: Any, at: int) -> None:
    values[np.uintp(at)] = 1.0


@numba_compiled("void(float32[::1], float32[::1], int64)")
def _faulty(values: Any, line: Any, fault: int) -> None:
    if fault == 0:
        _inlined_past_the_end(values)
    elif fault == 1:
        _called_before_the_start(values, -1)
    elif fault == 2:
        stream(line, values, 16, 16)
    elif fault == 3:
        stream(line, values, 0, 32)
    elif fault == 4:
        stream(line, values, 0, 1)
    finish_streams()


@contextmanager
def out_of_bounds(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Expects that a kernel reports an index; C functions cannot raise, so numba gives it to this hook."""
    found: list[Any] = []
    with monkeypatch.context() as patched:
        patched.setattr(sys, "unraisablehook", lambda report: found.append(report.exc_value))
        yield
    assert [type(each) for each in found] == [IndexError]


@pytest.mark.parametrize("fault", range(4))
def test_bounds_check_of_a_planted_fault_reports_it(fault: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else none of this checks anything."""
    values = torch.zeros(16).numpy()
    with out_of_bounds(monkeypatch):
        _faulty(values[:15] if fault == 2 else values, values.copy(), fault)
    with out_of_bounds(monkeypatch):
        _faulty(values[:15], values.copy(), 4)  # a whole line is written
    _faulty(values, values.copy(), 5)
