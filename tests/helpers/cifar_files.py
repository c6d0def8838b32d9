"""CIFAR's python batches, made of noise."""

from __future__ import annotations

import pickle
from pathlib import Path

import numpy as np

from mmload.sources.cifar import CIFAR10


def batch(rows: int, seed: int, classes: int = 10) -> dict[str, object]:
    rng = np.random.default_rng(seed)
    return {
        "batch_label": f"batch {seed}",
        "labels": rng.integers(0, classes, rows).tolist(),
        "data": rng.integers(0, 256, (rows, 3072), dtype=np.uint8),
        "filenames": [f"image_{i}.png" for i in range(rows)],
    }


def write_cifar10(root: Path, rows: int = 7, protocol: int = 2) -> Path:
    folder = root / "cifar-10-batches-py"
    folder.mkdir(parents=True)
    for seed, name in enumerate([*CIFAR10.batches["train"], "test_batch"]):
        (folder / name).write_bytes(pickle.dumps(batch(rows + seed, seed), protocol=protocol))
    names = {"label_names": [f"class {i}" for i in range(10)], "num_vis": 3072}
    (folder / "batches.meta").write_bytes(pickle.dumps(names, protocol=protocol))
    return root


def write_cifar100(root: Path, rows: int = 9) -> Path:
    folder = root / "cifar-100-python"
    folder.mkdir(parents=True)
    for seed, name in enumerate(("train", "test")):
        body = batch(rows, seed)
        del body["labels"]
        body["fine_labels"] = list(range(rows))
        body["coarse_labels"] = [i % 4 for i in range(rows)]
        (folder / name).write_bytes(pickle.dumps(body, protocol=2))
    names = {"fine_label_names": [f"f{i}" for i in range(100)], "coarse_label_names": [f"c{i}" for i in range(20)]}
    (folder / "meta").write_bytes(pickle.dumps(names, protocol=2))
    return root
