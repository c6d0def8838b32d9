"""Datasets of rows of their own sizes, written by the writer of builds from images in memory."""

from __future__ import annotations

import io
import json
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from written_datasets import record_of, with_manifest

from mmload.builder.shards import BuildPaths, Chunk, ShardWriter
from mmload.records import VARIABLE, FieldSpec
from mmload.store.variable_rows import JPEG, RAW, VariableRows, variable_rows

SIZES = ((40, 30), (1, 50), (33, 1), (17, 23), (64, 48), (25, 25), (16, 16))
"""Height and width of the images that :func:`some_images` makes."""


def some_images(sizes: Sequence[tuple[int, int]] = SIZES, channels: int = 3, seed: int = 0) -> list[np.ndarray]:
    """Images of these sizes that change slowly, as photographs do: uint8 [C, H, W] each."""
    random = np.random.default_rng(seed)
    images = []
    for height, width in sizes:
        small = Image.fromarray(random.integers(0, 256, (4, 4, 3), dtype=np.uint8)).resize((width, height))
        images.append(np.ascontiguousarray(np.asarray(small).transpose(2, 0, 1))[:channels])
    return images


def jpeg_of(image: np.ndarray, quality: int = 90, mode: str | None = None, **more: int) -> np.ndarray:
    """An image [C, H, W] as a JPEG of a mode, with a restart marker after each line of blocks: uint8 [n]."""
    picture = Image.fromarray(image.transpose(1, 2, 0) if len(image) == 3 else image[0])
    file = io.BytesIO()
    picture.convert(mode or picture.mode).save(file, "JPEG", quality=quality, **{"restart_marker_rows": 1, **more})
    return np.frombuffer(file.getvalue(), np.uint8)


def rows_of(images: Sequence[np.ndarray], encodings: Sequence[int]) -> VariableRows:
    """Images [C, H, W] as rows."""
    rows = [
        jpeg_of(image) if encoding == JPEG else np.ascontiguousarray(image.transpose(1, 0, 2)).reshape(-1)
        for image, encoding in zip(images, encodings, strict=True)
    ]
    sizes = [(image.shape[1], image.shape[2]) for image in images]
    return variable_rows(rows, sizes, encodings, len(images[0]) if images else 3)


def encodings_of(encoding: str, count: int) -> list[int]:
    """One for each row: of mixed, pixels and JPEGs in turn."""
    return {"raw": [RAW] * count, "jpeg": [JPEG] * count, "mixed": [(RAW, JPEG)[i % 2] for i in range(count)]}[encoding]


def variable_dataset(
    path: Path,
    images: Sequence[np.ndarray],
    *,
    encoding: str = "raw",
    shard_rows: int = 3,
    masks: Sequence[np.ndarray] | None = None,
    fields: Mapping[str, torch.Tensor] | None = None,
    split: str = "train",
) -> Path:
    """A dataset of one split with images [C, H, W], ``targets`` 0, 1, 2, ... and perhaps masks [H, W].

    Args:
        path: where it is written.
        images: the rows.
        encoding: raw, jpeg or mixed.
        shard_rows: rows of each shard but the last; chunks have two rows.
        masks: one for each image.
        fields: further fields [rows, ...].
        split: its name.
    """
    channels = len(images[0]) if images else 3
    specs = {"images": FieldSpec(dtype="uint8", shape=(channels, VARIABLE, VARIABLE), encoding=encoding)}
    if masks is not None:
        specs["masks"] = FieldSpec(dtype="uint8", shape=(VARIABLE, VARIABLE), encoding="raw")
    fixed = {"targets": torch.arange(len(images)), **(fields or {})}
    for name, tensor in fixed.items():
        specs[name] = FieldSpec(dtype=str(tensor.dtype).removeprefix("torch."), shape=tuple(tensor.shape[1:]))
    encodings, paths = encodings_of(encoding, len(images)), BuildPaths(path.with_name(f"{path.name}.paths"))
    paths.folder.mkdir()
    shards = []
    for index, first in enumerate(range(0, len(images), shard_rows)):
        stop = min(first + shard_rows, len(images))
        writer = ShardWriter(paths, split, index, specs)
        for start in range(first, stop, 2):
            part = slice(start, min(start + 2, stop))
            chunk = {name: tensor[part] for name, tensor in fixed.items()}
            chunk["images"] = rows_of(images[part], encodings[part])
            if masks is not None:
                chunk["masks"] = rows_of([mask[None] for mask in masks[part]], [RAW] * len(masks[part]))
            writer.write(Chunk(fields=chunk, samples=[(f"{row}.png", None) for row in range(*part.indices(stop))]))
        shards.append(writer.seal().record)
    shutil.move(paths.dataset, path)
    shutil.rmtree(paths.folder)
    listed = "".join(json.dumps({"id": f"{row}.png", "size": None}) + "\n" for row in range(len(images)))
    return with_manifest(path, {split: record_of(path / split, specs, shards, shard_rows, listed)})
