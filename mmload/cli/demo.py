"""``mmload demo``: the whole way on pictures of its own, from JPEGs to a network that learns; each step is a command.

Writes photograph-like JPEGs, the dataset built from them, and pictures into a folder. Never downloads.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import torch
from PIL import Image, ImageOps
from torch import nn

from mmload.augment import Normalize, RandomCrop, RandomHorizontalFlip
from mmload.augment.collate import Collate
from mmload.cli.terminal import doing, show
from mmload.errors import BuildError
from mmload.loader import Loader
from mmload.runtime.resources import available_cores
from mmload.store.dataset import Dataset

GRAINS = {"bark": (5.0, 0.6), "clouds": (1.0, 1.6), "ripples": (0.2, 0.6), "sand": (1.0, 0.0)}
"""Class -> (how much finer the texture is across than along, added steepness of its spectrum)."""

COLORS = {
    "bark": ((34, 24, 18), (168, 132, 100)),
    "clouds": ((58, 108, 176), (244, 246, 250)),
    "ripples": ((8, 46, 66), (158, 206, 204)),
    "sand": ((112, 82, 50), (238, 212, 166)),
}
"""Class -> the colors of its dark and its light parts."""

_MARK = ".mmload-demo"
_CROPPED = "RandomCrop(96), RandomHorizontalFlip(), ColorJitter(0.2, 0.2)"


def run_demo(folder: Path, run: Callable[[list[str]], object], *, images: int = 320, epochs: int = 8) -> list[float]:
    """Runs the demo in a new folder, or that of an earlier demo; returns the mean training loss of each epoch.

    ``run`` runs a command of mmload, given its words.

    Raises:
        BuildError: if the folder holds something else.
    """
    _claim(folder)
    photos, dataset = str(folder / "photos"), str(folder / "dataset")
    doing(f"making {images} JPEGs")
    make_photos(folder / "photos", images)
    chart, hint = ["--plot", str(folder / "bench.png")], list[str]()
    if find_spec("matplotlib") is None:
        chart, hint = [], ["the bench draws no chart, which needs matplotlib: pip install matplotlib"]
    show(f"made {images} JPEGs of {len(GRAINS)} kinds in {photos}", *hint)
    for words in (
        ["build", "imagefolder", photos, dataset, "--size", "256", "--overwrite"],
        ["preview", dataset, "-o", str(folder / "stored.jpg"), "--grid", "2x4"],
        ["preview", dataset, "-o", str(folder / "training.jpg"), "--grid", "4x4", "--augment", _CROPPED],
        ["bench", dataset, "--source", photos, "--loaders", "stock,mmload", *chart],
    ):
        show("", f"$ mmload {shlex.join(words)}")
        run(words)
    show("", "a small network, trained on it:")
    losses = train_small(folder / "dataset", epochs)
    show(f"loss {losses[0]:.3f} -> {losses[-1]:.3f} (chance is {np.log(len(GRAINS)):.3f})")
    return losses


def make_photos(root: Path, images: int, seed: int = 0) -> None:
    """Writes JPEGs of several hundred pixels a side, evenly over the classes of :data:`GRAINS`, the same for a seed."""
    for name in GRAINS:
        (root / name).mkdir(parents=True, exist_ok=True)

    def write(number: int) -> None:
        name = sorted(GRAINS)[number % len(GRAINS)]
        picture = photo(name, np.random.default_rng([seed, number]))
        picture.save(root / name / f"{number // len(GRAINS):04d}.jpg", quality=92)

    with ThreadPoolExecutor(available_cores()) as pool:
        list(pool.map(write, range(images)))


def photo(name: str, rng: np.random.Generator) -> Image.Image:
    """Draws a picture with the statistics of photographs: amplitudes that fall as 1/f, few edges, soft color.

    Natural images have spectra near 1/f (Field 1987, "Relations between the statistics of natural images and the
    response properties of cortical cells"); the class stretches the spectrum along one axis or steepens it.
    """
    height, width = (16 * int(side) for side in rng.integers(20, 36, 2))
    across, steep = GRAINS[name]
    slope = np.linspace(-0.6, 0.6, height)[:, None] * rng.uniform(-1, 1)
    light = 120 + 34 * _noise(rng, height, width, across, 1.0 + steep) + 30 * slope
    gray = Image.fromarray(light.clip(0, 255).astype(np.uint8))
    return ImageOps.colorize(ImageOps.autocontrast(gray, cutoff=1), *COLORS[name])


def train_small(dataset: Path, epochs: int) -> list[float]:
    """Trains a four-layer network from 64 x 64 crops, on the CPU.

    Returns:
        The mean loss of each epoch.
    """
    torch.manual_seed(0)
    split = Dataset(dataset)["train"]
    model = nn.Sequential(
        *(
            layer
            for inputs, outputs in ((3, 16), (16, 32), (32, 64))
            for layer in (nn.Conv2d(inputs, outputs, 3, 2, 1, bias=False), nn.BatchNorm2d(outputs), nn.ReLU())
        ),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(64, len(GRAINS)),
    )
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    losses = []
    collate = Collate(RandomCrop(96), RandomHorizontalFlip(), Normalize.from_split(split))
    with Loader(split, batch_size=32, shuffle=True, seed=0, collate=collate) as loader:
        for epoch in range(epochs):
            total = correct = 0.0
            for batch in loader:
                scores = model(batch.images)
                loss = nn.functional.cross_entropy(scores, batch.targets)
                optimizer.zero_grad()
                loss.backward()  # type: ignore[no-untyped-call]  # torch has none
                optimizer.step()
                total += loss.item() * len(batch)
                correct += float((scores.argmax(1) == batch.targets).sum())
            losses.append(total / len(split))
            show(f"epoch {epoch + 1}: loss {losses[-1]:.3f}, {correct / len(split):.0%} right")
    return losses


def _noise(rng: np.random.Generator, height: int, width: int, across: float, power: float) -> np.ndarray:
    """Returns noise of zero mean and unit variance whose amplitude falls with frequency to the given power."""
    fy, fx = np.fft.fftfreq(height)[:, None], np.fft.rfftfreq(width)[None, :]
    frequency = np.sqrt((fy * across) ** 2 + (fx / across) ** 2) + 1.0 / max(height, width)
    spectrum = np.fft.rfft2(rng.standard_normal((height, width), dtype=np.float32)) / frequency**power
    noise = np.fft.irfft2(spectrum, (height, width))
    standard: np.ndarray = (noise - noise.mean()) / noise.std()
    return standard


def _claim(folder: Path) -> None:
    """Marks a new or empty folder as a demo's.

    Nothing is removed: the photographs are written again as they are, and the build replaces its own dataset only.

    Raises:
        BuildError: if something else is there.
    """
    mark = folder / _MARK
    if folder.exists() and not (folder.is_dir() and (mark.is_file() or not any(folder.iterdir()))):
        raise BuildError(f"{folder} holds other things; give the demo a folder of its own, as in: mmload demo my-demo")
    folder.mkdir(parents=True, exist_ok=True)
    mark.touch()
