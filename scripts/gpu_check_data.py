"""The data of scripts/gpu_check: photographs as JPEGs, a large store of 256 x 256, and one of 32 x 32.

Takes a folder of photographs, or makes textures. Needs no network and no device.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch import Tensor
from torch.utils.data import Dataset

from mmload.builder.pipeline import build
from mmload.builder.recipe import BuildRecipe
from mmload.cli.demo import GRAINS, photo
from mmload.remote.opening import open as open_dataset
from mmload.runtime.resources import available_cores
from mmload.store.dataset import Split

SIDE = 256
"""Pixels of the stored squares."""

KINDS = (".jpg", ".jpeg")


def make(work: Path, photos: Path | None, *, quick: bool) -> None:
    """Write all of it.

    Args:
        work: an empty folder.
        photos: an ImageFolder of JPEGs, of which 512 are used; None: textures.
        quick: a few of each.
    """
    count, rows, icons = (12, 48, 600) if quick else (512, 8192, 50_000)
    if photos is None:
        write_textures(work / "photos", count)
    else:
        link(photos, work / "photos", count)
    for name, kind, number in (("squares", "Squares", rows), ("icons", "Icons", icons)):
        options = {
            "dataset": f"{__name__}:{kind}",
            "arguments": {"folder": str(work / "photos"), "count": number},
            "concurrent": True,
        }
        build(BuildRecipe(kind="python", root=Path(__file__).parent, options=options, out=work / name))


def squares(work: Path) -> Split:
    """uint8 [3, 256, 256] and a class."""
    return open_dataset(work / "squares")["train"]


def icons(work: Path) -> Split:
    """uint8 [3, 32, 32] and one of ten classes, as many as CIFAR-10 has."""
    return open_dataset(work / "icons")["train"]


def jpegs(work: Path) -> list[Path]:
    """The photographs."""
    return sorted(path for path in (work / "photos").glob("*/*") if path.suffix.lower() in KINDS)


def write_textures(out: Path, count: int) -> None:
    """The demo's pictures at their own size, evenly over its classes."""
    for name in GRAINS:
        (out / name).mkdir(parents=True)

    def write(number: int) -> None:
        name = sorted(GRAINS)[number % len(GRAINS)]
        picture = Image.fromarray(photo(name, np.random.default_rng([0, number])))
        picture.save(out / name / f"{number:05d}.jpg", quality=92)

    with ThreadPoolExecutor(available_cores()) as pool:
        list(pool.map(write, range(count)))


def link(photos: Path, out: Path, count: int) -> None:
    """Links to some of the photographs, evenly taken from all."""
    found = sorted(path for path in photos.rglob("*") if path.suffix.lower() in KINDS)
    if not found:
        raise ValueError(f"{photos} holds no JPEGs; leave --photos out to have some made")
    for number, path in enumerate(found[:: max(1, len(found) // count)][:count]):
        folder = out / path.parent.name
        folder.mkdir(parents=True, exist_ok=True)
        (folder / f"{number:05d}.jpg").symlink_to(path.resolve())


class Squares(Dataset[tuple[Tensor, int]]):
    """Windows of 256 x 256 at random places of the photographs; a photograph that is too small is enlarged."""

    def __init__(self, folder: str, count: int) -> None:
        self._paths, self._count = jpegs(Path(folder).parent), count

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        pixels = _decoded(str(self._paths[index % len(self._paths)]))
        rng = np.random.default_rng([1, index])
        top, left = (int(rng.integers(0, side - SIDE + 1)) for side in pixels.shape[1:])
        return pixels[:, top : top + SIDE, left : left + SIDE].contiguous(), index % 1000


class Icons(Dataset[tuple[Tensor, int]]):
    """Noise: what 32 x 32 pixels hold changes no rate."""

    def __init__(self, folder: str, count: int) -> None:
        generator = torch.Generator().manual_seed(0)
        self._pixels = torch.randint(0, 256, (count, 3, 32, 32), dtype=torch.uint8, generator=generator)

    def __len__(self) -> int:
        return len(self._pixels)

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        return self._pixels[index], index % 10


@cache
def _decoded(path: str) -> Tensor:
    with Image.open(path) as image:
        picture = image.convert("RGB")
    least = min(picture.size)
    if least < SIDE:
        picture = picture.resize([-(-side * SIDE // least) for side in picture.size])
    return torch.from_numpy(np.array(picture)).permute(2, 0, 1).contiguous()
