"""The data of benchmarks/accuracy: a built dataset and the images that it was built from.

Takes a folder of CIFAR or of photographs, or makes textures; torchvision reads the images from the source, mmload from
the dataset.
"""

from __future__ import annotations

import pickle
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from PIL import Image
from torchvision import datasets
from torchvision.transforms import v2

from mmload.builder.pipeline import build
from mmload.builder.recipe import BuildRecipe, square
from mmload.cli.demo import GRAINS, photo

TILES = 3, 4
"""Rows and columns that a photograph is cut into; those where (row + column) % 4 == 0 are held out, 3 of 12."""


class _AnyCIFAR10(datasets.CIFAR10):  # type: ignore[misc]  # torchvision leaves it untyped
    """CIFAR10 of any length: the published checksums are not what is compared."""

    meta: ClassVar[Any] = {**datasets.CIFAR10.meta, "md5": None}

    def _check_integrity(self) -> bool:
        return True


@dataclass(frozen=True, kw_only=True)
class Built:
    """A dataset in both forms.

    Attributes:
        dataset: the folder that mmload built.
        root: where torchvision finds the same images.
        size: pixels of the stored square; None for CIFAR, which is stored as it is.
        held_out: the name of the split that accuracy is measured on.
        description: what the images are, in words.
    """

    dataset: Path
    root: Path
    size: int | None
    held_out: str
    description: str

    def transforms(self) -> list[v2.Transform]:
        """The recipe's deterministic steps as torchvision's."""
        return [] if self.size is None else [v2.Resize(self.size, antialias=True), v2.CenterCrop(self.size)]

    def torchvision(self, split: str, transform: v2.Transform) -> Any:
        """The same split as torchvision's own dataset."""
        if self.size is None:
            return _AnyCIFAR10(str(self.root), train=split == "train", transform=transform)
        return datasets.ImageFolder(str(self.root / split), transform)


def cifar(root: Path | None, work: Path, images: int) -> Built:
    """CIFAR-10 from ``root``; None: patches of textures in its format, ``images`` of them for training."""
    description = "CIFAR-10 in its own format"
    if root is None:
        root = _write_cifar(work / "cifar-like", images)
        description = "patches of textures in CIFAR-10's format"
    build(BuildRecipe(kind="cifar10", root=root, out=work / "cifar-store"), overwrite=True)
    readable = _with_text_keys(root, work / "cifar-copy")
    return Built(dataset=work / "cifar-store", root=readable, size=None, held_out="test", description=description)


def photos(root: Path | None, work: Path, images: int, size: int) -> Built:
    """An ImageFolder with train/ and val/; one without val/ is cut into tiles; None: textures."""
    description = "photographs, train/ and val/"
    if root is None:
        root, description = write_textures(work / "textures", images), "textures, train/ and val/"
    elif not (root / "val").is_dir():
        root = write_tiles(root, work / "tiles", TILES)
        description = f"{TILES[0]} x {TILES[1]} tiles of photographs, a quarter of them held out"
    recipe = BuildRecipe(kind="imagefolder", root=root, out=work / "photo-store", transforms=square(size))
    build(recipe, overwrite=True)
    return Built(dataset=work / "photo-store", root=root, size=size, held_out="val", description=description)


def _with_text_keys(root: Path, out: Path) -> Path:
    """A copy whose batches have text for keys: torchvision cannot read those that were written again with bytes."""
    target = out / "cifar-10-batches-py"
    target.mkdir(parents=True)
    folder = root / target.name if (root / target.name).is_dir() else root
    for path in sorted(path for path in folder.glob("*batch*") if path.suffix != ".html"):
        body = pickle.loads(path.read_bytes(), encoding="latin1")
        named = {key.decode() if isinstance(key, bytes) else key: value for key, value in body.items()}
        (target / path.name).write_bytes(pickle.dumps(named, protocol=2))
    return out


def write_tiles(root: Path, out: Path, shape: tuple[int, int]) -> Path:
    """Photographs as tiles in ``train`` and ``val``, which has a quarter; the class is the photograph's."""
    rows, columns = shape
    folder = root / "train" if (root / "train").is_dir() else root
    for path in sorted(path for path in folder.glob("*/*") if path.is_file()):
        with Image.open(path) as image:
            picture = image.convert("RGB")
        width, height = picture.width // columns, picture.height // rows
        for tile in range(rows * columns):
            row, column = divmod(tile, columns)
            folder = out / ("val" if (row + column) % 4 == 0 else "train") / path.parent.name
            folder.mkdir(parents=True, exist_ok=True)
            box = (column * width, row * height, (column + 1) * width, (row + 1) * height)
            picture.crop(box).save(folder / f"{path.stem}-{tile:02d}.jpg", quality=95)
    return out


def write_textures(out: Path, images: int) -> Path:
    """Textures as an ImageFolder with ``train`` and ``val``."""
    for split, count, seed in (("train", images, 0), ("val", images // 2, 1)):
        for number in range(count):
            name = sorted(GRAINS)[number % len(GRAINS)]
            (out / split / name).mkdir(parents=True, exist_ok=True)
            picture = Image.fromarray(photo(name, np.random.default_rng([seed, number])))
            picture.save(out / split / name / f"{number:05d}.jpg", quality=92)
    return out


def _write_cifar(out: Path, images: int) -> Path:
    folder = out / "cifar-10-batches-py"
    folder.mkdir(parents=True, exist_ok=True)
    for number, name in enumerate([*(f"data_batch_{part}" for part in range(1, 6)), "test_batch"]):
        rng = np.random.default_rng(number)
        labels = (np.arange(images // 5) % len(GRAINS)).tolist()
        kinds = [_patches(name, -(-len(labels) // len(GRAINS)), rng) for name in sorted(GRAINS)]
        rows = np.stack(kinds, axis=1).reshape(-1, 3072)[: len(labels)]
        body = {"labels": labels, "data": rows}
        (folder / name).write_bytes(pickle.dumps(body, protocol=2))
    names = [*sorted(GRAINS), *(f"none {number}" for number in range(len(GRAINS), 10))]
    (folder / "batches.meta").write_bytes(pickle.dumps({"label_names": names, "num_vis": 3072}, protocol=2))
    return out


def _patches(name: str, count: int, rng: np.random.Generator) -> np.ndarray:
    """Squares of 64 x 64 of a texture's pictures, 25 of each, at half their size: CIFAR's rows, uint8 [count, 3072]."""
    rows = []
    for number in range(count):
        if number % 25 == 0:
            picture = Image.fromarray(photo(name, rng))
        top, left = (64 * place for place in divmod(number % 25, 5))
        small = picture.crop((left, top, left + 64, top + 64)).resize((32, 32))
        rows.append(np.asarray(small).transpose(2, 0, 1).reshape(-1))
    return np.stack(rows)
