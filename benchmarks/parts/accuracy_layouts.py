"""The layouts of benchmarks/accuracy: the same photographs by torchvision, as stored squares, and variable-size.

Photographs are cut into tiles that are twice as wide as high, of which a stored square never shows half, and into
squares, of which it shows all. Training draws RandomResizedCrop and flips; evaluation is Resize and CenterCrop.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import DataLoader
from torchvision import datasets
from torchvision.transforms import v2

import mmload
from mmload.augment import CenterCrop, Normalize, RandomHorizontalFlip, RandomResizedCrop, Resize
from mmload.builder.pipeline import build
from mmload.builder.recipe import BuildRecipe, VariableLayout
from parts import accuracy_data

SHAPES = {"tiles twice as wide as high": (6, 4), "square tiles": (4, 5)}
"""What photographs of 3 : 4 are cut into: name -> rows, columns."""

ARMS = {"square": None, "variable, pixels": VariableLayout(), "variable, JPEG": VariableLayout(encode="jpeg")}
"""How mmload stores them; beside "stock", torchvision on the tiles themselves."""

BATCH = 64


class Layouts:
    """One shape of tiles, stored in each layout.

    Args:
        photos: a folder of class folders of photographs; None: textures.
        shape: of :data:`SHAPES`.
        work: a folder to build in.
        size: pixels of the stored short side; crops are 7/8 of it.
    """

    def __init__(self, photos: Path | None, shape: str, work: Path, size: int) -> None:
        self.name, self.size, self.crop = shape, size, size * 7 // 8
        source = photos or accuracy_data.write_textures(work / "textures", 6) / "train"
        self.root = accuracy_data.write_tiles(source, work / "tiles", SHAPES[shape])
        self.stores = {}
        for arm, layout in ARMS.items():
            out = work / arm.replace(", ", "-")
            build(BuildRecipe(kind="imagefolder", root=self.root, out=out, side=size, variable_layout=layout))
            self.stores[arm] = mmload.open(out)
        self.train = self.stores["square"]["train"]

    def row_bytes(self) -> dict[str, float]:
        """Bytes of a stored image, by layout; of "stock", of a tile's file."""
        files = [path.stat().st_size for path in (self.root / "train").glob("*/*")]
        return {"stock": sum(files) / len(files)} | {
            arm: store["train"].record.bytes / len(store["train"]) for arm, store in self.stores.items()
        }

    def fed(self, arm: str, seed: int, device: str) -> tuple[Iterable[Any], Iterable[Any]]:
        """The batches of training, epoch after epoch, and those of evaluation."""
        if arm == "stock":
            generator = torch.Generator().manual_seed(seed)
            return (
                DataLoader(self._images("train"), BATCH, shuffle=True, generator=generator),
                DataLoader(self._images("val"), BATCH),
            )
        store, normalize = self.stores[arm], Normalize(self.train.mean, self.train.std)
        draws = mmload.Collate(RandomResizedCrop(self.crop), RandomHorizontalFlip(), normalize)
        shown = [CenterCrop(self.crop)] if arm == "square" else [Resize(self.size), CenterCrop(self.crop)]
        given: dict[str, Any] = {"batch_size": BATCH, "device": device, "tier": "disk"}
        return (
            mmload.Loader(store["train"], shuffle=True, seed=seed, collate=draws, **given),
            mmload.Loader(store["val"], collate=mmload.Collate(*shown, normalize), **given),
        )

    def _images(self, split: str) -> datasets.ImageFolder:
        crop = [v2.RandomResizedCrop(self.crop), v2.RandomHorizontalFlip()]
        steps = crop if split == "train" else [v2.Resize(self.size), v2.CenterCrop(self.crop)]
        to_float = [v2.PILToTensor(), v2.ToDtype(torch.float32, scale=True)]
        normalize = v2.Normalize(list(self.train.mean), list(self.train.std))
        return datasets.ImageFolder(str(self.root / split), v2.Compose([*steps, *to_float, normalize]))
