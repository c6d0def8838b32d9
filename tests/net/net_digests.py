"""Digests of whatever a loader gives, and their comparison with the frozen ones."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import mmload

Digests = dict[str, str]


def digest_of(*parts: bytes) -> str:
    """Returns 16 hexadecimal digits of some bytes."""
    return hashlib.blake2b(b"".join(parts), digest_size=8).hexdigest()


def digests(batches: Iterable[Any]) -> Digests:
    """Returns, for each field, a digest of the dtype, shape, strides and bytes of its tensors in all batches."""
    found: dict[str, list[bytes]] = {}
    for batch in batches:
        for name, tensor in _tensors(batch):
            found.setdefault(name, []).append(_description(tensor).encode() + _bytes(tensor))
    return {name: digest_of(*parts) for name, parts in sorted(found.items())}


def _tensors(value: Any, name: str = "") -> Iterator[tuple[str, Tensor]]:
    """Yields the tensors in a batch or in what ``returns`` made of it, with the names of their fields."""
    if isinstance(value, Tensor):
        yield name, value
    elif isinstance(value, np.ndarray):
        yield name, torch.from_numpy(value)
    elif isinstance(value, mmload.Batch) or hasattr(value, "items"):
        for key, each in value.items():
            yield from _tensors(each, f"{name}.{key}".strip("."))
    elif isinstance(value, tuple | list):
        for each in value:
            yield from _tensors(each, name)
    elif value is not None:
        raise TypeError(f"{name} is {value!r}, of which the net knows no digest")


def _description(tensor: Tensor) -> str:
    """Returns dtype, shape, and the strides of dimensions that have some."""
    strides = [stride for stride, side in zip(tensor.stride(), tensor.shape, strict=True) if side > 1]
    return f"{tensor.dtype} {list(tensor.shape)} {strides if tensor.numel() else []}"


def _bytes(tensor: Tensor) -> bytes:
    plain = tensor.as_subclass(Tensor).detach().contiguous().reshape(-1)
    return plain.view(torch.uint8).numpy().tobytes()


class Frozen:
    """The expected digests of a file; with ``pytest --freeze`` they are written, not compared."""

    def __init__(self, path: Path, config: pytest.Config) -> None:
        self.path, self.is_remade = path, bool(config.getoption("--freeze"))
        self.expected: dict[str, Digests] = json.loads(path.read_text()) if path.exists() else {}

    def check(self, name: str, found: Mapping[str, str]) -> None:
        """Checks that the digests of a case are the frozen ones."""
        if self.is_remade:
            self.expected[name] = dict(found)
        expected = self.expected.get(name, {})
        changed = [key for key in sorted({*found, *expected}) if found.get(key) != expected.get(key)]
        assert not changed, f"{name} is not as {self.path.name} says: {', '.join(changed)}"

    def close(self, names: Iterable[str]) -> None:
        """Writes the digests of all cases that exist, if they are remade."""
        if self.is_remade:
            kept = {name: self.expected[name] for name in sorted(names) if name in self.expected}
            self.path.write_text(json.dumps(kept, indent=1) + "\n")
