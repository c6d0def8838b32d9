"""Part "decode": torchvision's JPEG decoder on the device: how fast, and how far its pixels are from a build's."""

from __future__ import annotations

import warnings
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import gpu_check_data as data
import torch
from gpu_check_measure import Settings, in_turns, median, repeated, row
from torch import Tensor
from torchvision.io import ImageReadMode, decode_jpeg

from mmload.decode import Decoder
from mmload.threads import available_cores, single_op_pool

BATCH = 64


def run(settings: Settings) -> list[dict[str, Any]]:
    """The part's rows."""
    warnings.filterwarnings("ignore", message="The image decoding", category=DeprecationWarning)
    files = [path.read_bytes() for path in data.jpegs(settings.work)[:256]]
    cores = available_cores()
    with single_op_pool(cores, "gpu-check") as pool:
        cpu = f"a build's decoder, {cores} threads"
        turns = {cpu: repeated(lambda: on_cpu(pool, files), len(files), "cpu")}
        rows = []
        if settings.device == "cuda":
            loaded = [torch.frombuffer(bytearray(file), dtype=torch.uint8) for file in files]
            turns[f"decode_jpeg on cuda, batches of {BATCH}"] = repeated(lambda: on_cuda(loaded), len(files), "cuda")
            rows = differences(on_cpu(pool, files), on_cuda(loaded))
        rates = in_turns(turns, settings)
    return [*(row(name, median(values), "images/s") for name, values in rates.items()), *rows]


def on_cpu(pool: ThreadPoolExecutor, files: list[bytes]) -> list[Tensor]:
    """As a build decodes: a file a thread."""
    return list(pool.map(Decoder(), files))


def on_cuda(files: list[Tensor]) -> list[Tensor]:
    """Batches of files; the pixels stay on the device."""
    batches = [files[start : start + BATCH] for start in range(0, len(files), BATCH)]
    return [pixels for some in batches for pixels in decode_jpeg(some, mode=ImageReadMode.RGB, device="cuda")]


def differences(cpu: list[Tensor], cuda: list[Tensor]) -> list[dict[str, Any]]:
    """How far the device's pixels are from the CPU's, in levels of 255."""
    pairs = zip(cpu, cuda, strict=True)
    levels = torch.cat([(one.int() - other.cpu().int()).abs().flatten() for one, other in pairs])
    return [
        row("cuda against CPU: most apart", float(levels.max()), "levels"),
        row("cuda against CPU: mean difference", float(levels.float().mean()), "levels"),
        row("cuda against CPU: more than 2 apart", float((levels > 2).float().mean()), "of values"),
    ]
