"""The GPU's kernel without a GPU: interpreted, its pixels are those of torch's operations; and it compiles for one."""

from __future__ import annotations

import importlib
import sys
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from device_batches import STEPS, batch_for
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from interpreting import NAME, interpreted
from random_plans import FORMATS, planned
from torch import Tensor

from mmload.augment.collate import Collate
from mmload.render import rendering as render
from mmload.render.plan import Plan
from mmload.render.rendering import Rendering

triton = pytest.importorskip("triton", reason="Triton comes with torch's CUDA builds for Linux")

WHOLE = ("nothing", "both flips", "edge", "symmetric", "padded center")
"""Lists of steps whose results are integers and can be given as uint8."""

RESIZED = ("resized crop", "resize")
"""Lists of steps of which every pass resizes."""

ULP = 2.0**-7
"""Two units in the last place of bfloat16, as a share of the value: Triton's interpreter cuts where a GPU rounds."""


@pytest.fixture(scope="module")
def kernels() -> ModuleType:
    return interpreted()


def same(got: Tensor, expected: Tensor) -> bool:
    """Bit by bit; but for bfloat16."""
    if expected.dtype != torch.bfloat16:
        return torch.equal(got, expected)
    return bool(((got.float() - expected.float()).abs() <= ULP * expected.float().abs()).all())


@pytest.mark.slow
@given(
    planned(),
    st.sampled_from([torch.uint8, torch.float32, torch.float16, torch.bfloat16]),
    st.sampled_from(FORMATS),
    st.booleans(),
    st.booleans(),
)
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_interpreted_it_gives_the_bits_of_torchs_operations(
    kernels: ModuleType,
    case: tuple[Plan, Tensor, Tensor],
    dtype: torch.dtype,
    memory_format: torch.memory_format,
    picks: bool,
    inside: bool,
) -> None:
    plan, images, places = case
    if plan.height <= plan.source[1] and plan.width <= plan.source[2] and inside:
        top, left = (plan.top.clamp(0, plan.source[1] - plan.height), plan.left.clamp(0, plan.source[2] - plan.width))
        plan = replace(plan, top=top, left=left, padding=None)
    if dtype == torch.uint8:
        plan = replace(plan, shift=None, scale=None)
    rendering = Rendering(plan, dtype)
    expected = torch.empty(plan.shape, dtype=dtype).to(memory_format=memory_format)
    rendering.by_operations(images[places], expected)
    out = torch.empty_like(expected)
    pixels, where = (images, places) if picks else (images[places], None)
    kernels.crop(pixels, where, plan, rendering._shift, rendering._scale, out)
    assert same(out, expected)


@pytest.mark.parametrize("name", STEPS)
@pytest.mark.parametrize("dtype", [torch.uint8, torch.float16])
@pytest.mark.parametrize("memory_format", FORMATS)
def test_a_collate_gives_the_same_batch_by_it(
    kernels: ModuleType,
    monkeypatch: pytest.MonkeyPatch,
    name: str,
    dtype: torch.dtype,
    memory_format: torch.memory_format,
) -> None:
    if dtype == torch.uint8 and name not in WHOLE:
        pytest.skip("negative numbers have no uint8")
    collate = Collate(*STEPS[name](), dtype=dtype, memory_format=memory_format)
    batch, rows = batch_for(name, 6), torch.tensor([3, 0, 4, 4, 1, 2])
    expected = collate(batch.replace(images=batch.images[rows]))
    calls = []

    def crop(*words: Any) -> None:
        calls.append(words)
        kernels.crop(*words)

    monkeypatch.setattr(render, "gpu_crop", lambda device: crop)
    got = collate.render(batch, batch.images, rows)
    assert bool(calls) is (name not in RESIZED)
    assert torch.equal(got.images, expected.images)
    assert got.images.is_contiguous(memory_format=memory_format)
    assert (got.masks is None) is (expected.masks is None)
    assert got.masks is None or torch.equal(got.masks, expected.masks)


@pytest.mark.parametrize(
    ("out", "capability", "interleaved", "gray", "mode"),
    [("fp16", 90, True, False, -1), ("bf16", 80, False, True, 0), ("fp32", 75, True, True, 2)],
)
def test_gpu_kernel_compiles_and_writes_complete_words(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, out: str, capability: int, interleaved: bool, gray: bool, mode: int
) -> None:
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    monkeypatch.delitem(sys.modules, NAME, raising=False)
    kernel = importlib.import_module(NAME)._crop
    types = dict.fromkeys(("images", "fill"), "*u8") | dict.fromkeys(("indices", "tops", "lefts"), "*i64")
    types |= dict.fromkeys(("flips_x", "flips_y", "grays"), "*i1") | dict.fromkeys(("shift", "scale"), "*fp32")
    constants = {"CHANNELS": 3, "ROWS": 256, "COLS": 256, "HEIGHT": 224, "WIDTH": 224, "OVER": 16, "ACROSS": 256}
    constants |= {"INTERLEAVED": interleaved, "MODE": mode} | ({} if gray else {"grays": None})
    types |= {"out": f"*{out}"} | dict.fromkeys(constants, "constexpr")
    types = {name: types[name] for name in kernel.arg_names}
    aligned = {(place,): [["tt.divisibility", 16]] for place, kind in enumerate(types.values()) if kind[0] == "*"}
    source = triton.compiler.ASTSource(kernel, types, constants, aligned)
    target = triton.backends.compiler.GPUTarget("cuda", capability, 32)
    code = triton.compile(source, target=target, options={"enable_fp_fusion": False}).asm["ptx"]
    assert "st.global.v4" in code
    assert "fma" not in code  # it would round a product and a sum as one
    assert ("cvt.rn.bf16" in code) is (out == "bf16")


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")
def test_where_it_fails_torchs_operations_are_used_and_it_is_said_once() -> None:
    assert render.gpu_crop(torch.device("cpu")) is None
    render.gpu_crop.cache_clear()
    with pytest.warns(UserWarning, match="cuda renders by torch's operations, which is slower, as Triton fails: "):
        assert render.gpu_crop(torch.device("cuda")) is None
    assert render.gpu_crop(torch.device("cuda")) is None
    render.gpu_crop.cache_clear()
