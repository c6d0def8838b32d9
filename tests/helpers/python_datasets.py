"""Datasets of sources of kind "python": any object of this process, and one that takes its time."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import torch

from mmload.sources import find_splits
from mmload.sources.decode import Decoder

MADE: dict[str, Any] = {}
"""What the tests' datasets are; named to the source as ``python_datasets:made``."""


def made(name: str) -> Any:
    return MADE[name]


def splits(dataset: Any, decoder: Decoder | None = None, **options: Any):
    MADE["it"] = dataset
    options = {"dataset": f"{__name__}:made", "arguments": {"name": "it"}, **options}
    return find_splits("python", Path(__file__).parent, decoder or Decoder(), options)


class Slow:
    """500 samples, each of 20 ms while a folder has a file ``slow``; one that is read leaves a file there."""

    def __init__(self, folder: str) -> None:
        self.folder = Path(folder)

    def __len__(self) -> int:
        return 500

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        (self.folder / f"read{index}").touch()
        time.sleep(0.02 * (self.folder / "slow").exists())
        return {"images": torch.full((1, 8, 8), index % 256, dtype=torch.uint8)}
