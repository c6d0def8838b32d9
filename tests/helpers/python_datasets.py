"""Any Python object as the dataset of a source of kind "python"."""

from __future__ import annotations

from pathlib import Path
from typing import Any

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
