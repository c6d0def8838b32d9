"""Part "decode": JPEGs decoded on the device: how fast, alone, in a build and in a Loader, and how far from a CPU's.

A build must have the same pixels whatever shares a batch with a file, and its dataset must pass ``mmload parity``.
"""

from __future__ import annotations

import tempfile
import time
import warnings
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import gpu_check_data as data
import torch
from gpu_check_measure import Settings, Turn, in_turns, median, repeated, row, wait
from torch import Tensor

from mmload import parity
from mmload.augment import Normalize, RandomHorizontalFlip, RandomResizedCrop
from mmload.augment.collate import Collate
from mmload.builder.pipeline import build
from mmload.builder.recipe import BuildRecipe, VariableLayout, square
from mmload.loader import Loader
from mmload.runtime.nvjpeg import decode_batch
from mmload.runtime.resources import available_cores, single_op_pool
from mmload.sources.decode import CUDA_BATCH, Decoder


def run(settings: Settings) -> list[dict[str, Any]]:
    """The part's rows."""
    warnings.filterwarnings("ignore", message="The image decoding", category=DeprecationWarning)
    files = [path.read_bytes() for path in data.jpegs(settings.work)[:256]]
    cores = available_cores()
    rows = []
    whole = whole_photographs(settings)
    turns = {
        "build, decoded on the cpu": building(settings, "cpu"),
        "Loader, decoded on the cpu": loading(settings, whole, "cpu"),
    }
    with single_op_pool(cores, "gpu-check") as pool:
        turns[f"a build's decoder, {cores} threads"] = repeated(lambda: on_cpu(pool, files), len(files), "cpu")
        if settings.device == "cuda":
            turns["build, decoded on the device"] = building(settings, "cuda")
            turns["Loader, decoded on the device"] = loading(settings, whole, "cuda")
            name = f"the device, batches of {CUDA_BATCH}, pixels back on the CPU"
            turns[name] = repeated(lambda: on_cuda(files), len(files), "cuda")
            rows = [*differences(on_cpu(pool, files), on_cuda(files)), *sameness(files), held(settings)]
        rates = in_turns(turns, settings)
    return [*(row(name, median(values), "images/s") for name, values in rates.items()), *rows]


def on_cpu(pool: ThreadPoolExecutor, files: list[bytes]) -> list[Tensor]:
    """As a build decodes: a file a thread."""
    return list(pool.map(Decoder(), files))


def on_cuda(files: list[bytes], size: int = CUDA_BATCH) -> list[Tensor]:
    """Batches of files, as a build with ``--decode cuda`` has them."""
    batches = [files[start : start + size] for start in range(0, len(files), size)]
    return [torch.empty(0) if one is None else one.cpu() for some in batches for one in decode_batch(some, gray=False)]


def recipe_of(settings: Settings, device: str, out: Path) -> BuildRecipe:
    """The photographs as squares of 256."""
    root = settings.work / "photos"
    options = {"allow_outside": True}  # the photographs are links
    return BuildRecipe(
        kind="imagefolder", root=root, out=out, options=options, transforms=square(256), decode={"device": device}
    )


def building(settings: Settings, device: str) -> Turn:
    """Images a second of whole builds."""

    def turn(seconds: float) -> float:
        began, images = time.perf_counter(), 0
        while not images or time.perf_counter() - began < seconds:
            with tempfile.TemporaryDirectory(dir=settings.work) as folder:
                images += build(recipe_of(settings, device, Path(folder) / "out")).built
        return images / (time.perf_counter() - began)

    return turn


def whole_photographs(settings: Settings) -> Path:
    """A dataset of variable-size images of at most 256 on the short side, as JPEGs."""
    shrunk = ({"step": "Shrink", "size": 256},)
    out = settings.work / "whole-photographs"
    build(replace(recipe_of(settings, "cpu", out), transforms=shrunk, variable_layout=VariableLayout(encode="jpeg")))
    return out


def loading(settings: Settings, path: Path, decode: str) -> Turn:
    """Images a second of a Loader of variable-size images, resized crops, from memory, on the device."""
    collate = Collate(RandomResizedCrop(224), RandomHorizontalFlip(), Normalize.imagenet())

    def turn(seconds: float) -> float:
        options = {"batch_size": 64, "shuffle": True, "tier": "memory", "device": settings.device}
        with Loader(path, collate=collate, decode=decode, **options) as loader:
            for _ in loader:
                pass  # fills the memory
            wait(settings.device)
            began, images = time.perf_counter(), 0
            while not images or time.perf_counter() - began < seconds:
                images += sum(len(batch) for batch in loader)
            wait(settings.device)
            return images / (time.perf_counter() - began)

    return turn


def differences(cpu: list[Tensor], cuda: list[Tensor]) -> list[dict[str, Any]]:
    """How far the device's pixels are from the CPU's, in levels of 255."""
    refused = sum(not len(one) for one in cuda)
    pairs = [(one, other) for one, other in zip(cpu, cuda, strict=True) if len(other)]
    levels = torch.cat([(one.int() - other.int()).abs().flatten() for one, other in pairs])
    return [
        row("files that the device refuses", float(refused)),
        row("cuda against CPU: most apart", float(levels.max()), "levels"),
        row("cuda against CPU: mean difference", float(levels.float().mean()), "levels"),
        row("cuda against CPU: more than 2 apart", float((levels > 2).float().mean()), "of values"),
    ]


def sameness(files: list[bytes]) -> list[dict[str, Any]]:
    """Whether a file's pixels are the same alone, in a batch, and in another."""
    whole, alone, other = on_cuda(files), on_cuda(files, 1), on_cuda(files[::-1], 7)[::-1]
    unequal = sum(not (torch.equal(a, b) and torch.equal(a, c)) for a, b, c in zip(whole, alone, other, strict=True))
    return [row("files whose pixels depend on their batch", float(unequal), "", "0", not unequal)]


def held(settings: Settings) -> dict[str, Any]:
    """What parity says of a dataset that was decoded on the device."""
    out = settings.work / "decoded-on-cuda"
    build(recipe_of(settings, "cuda", out))
    report = parity.run(out, settings.work / "photos", trust=True, collate=Collate())
    found = next(verdict for verdict in report.verdicts if verdict.name == "pixels of jpeg")
    return row(
        "parity: mean difference of stored pixels",
        float(found.numbers["greatest"]),
        "levels",
        "2",
        found.state == "pass",
    )
