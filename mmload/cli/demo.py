"""``mmload demo``: the whole way on pictures of its own, from JPEGs to a network that learns.

Takes an empty folder and writes photograph-like JPEGs and the dataset built from them into it. Reports each step
through a function of the caller. Never prints and never downloads.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch import nn

from mmload.augment import Normalize, RandomCrop, RandomHorizontalFlip
from mmload.augment.collate import Collate
from mmload.bench.contenders import entries
from mmload.bench.options import BenchOptions, MeasurementPlan
from mmload.bench.report import draw, table
from mmload.bench.run import run
from mmload.bench.task import task_of
from mmload.builder import recipe as recipes
from mmload.builder.destination import is_real_folder, listed
from mmload.builder.pipeline import build
from mmload.errors import BuildError, UsageError, counted
from mmload.loader import Loader
from mmload.runtime.resources import available_cores
from mmload.store.dataset import Dataset, Split
from mmload.store.row_cells import first_rows
from mmload.store.unfinished import staging_folder
from mmload.view.training import augmented_sheet

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
_SHEETS = {"stored.jpg": "rows as they are stored", "training.jpg": "four rows, and what training sees of them"}
_CHART = "bench.png"
_BENCH_SECONDS = 40.0


def run_demo(
    folder: str | Path,
    say: Callable[[str], None],
    *,
    images: int = 320,
    epochs: int = 8,
    slow: Callable[[str], None] = lambda text: None,
) -> list[float]:
    """Runs the demo in a new folder, or that of an earlier demo; returns the mean training loss of each epoch.

    ``say`` is called with each line of the talk, ``slow`` with what comes next before a step that may take two seconds.

    Raises:
        BuildError: if the folder holds something else.
    """
    folder = Path(folder)
    _claim(folder, images)
    photos, dataset = folder / "photos", folder / "dataset"
    began = time.perf_counter()
    slow(f"making {images} JPEGs")
    make_photos(photos, images)
    say(f"1. made {images} JPEGs of {len(GRAINS)} kinds in {photos} ({time.perf_counter() - began:.1f} s)")

    recipe = recipes.BuildRecipe(kind="imagefolder", root=photos, out=dataset, transforms=recipes.square(256))
    slow("building; the first build of a clone also compiles, for some seconds")
    report = build(recipe, overwrite=True)
    besides = f", besides {report.compiled:.1f} s of compiling" if report.compiled else ""
    rate = f"{report.rate:,.0f} images/s{besides}"
    say(f"2. built {dataset}: {counted(report.stored, 'row')} in {report.seconds:.1f} s, {rate}")

    slow("reading a batch; the first one of a clone also compiles, for some seconds")
    opened = Dataset(dataset)
    train = opened["train"]
    batch = next(iter(Loader(train, batch_size=32, shuffle=True, seed=0, collate=_collate(train.mean, train.std))))
    say(f"3. read it back: images {list(batch.images.shape)} {batch.images.dtype}, classes {', '.join(train.classes)}")

    say("4. the same epochs from the JPEGs and from the dataset, crop 224 + flip + normalize to float32:")
    task = replace(task_of(BenchOptions(), dataset, photos), images=images)
    slow(f"measuring, about {_BENCH_SECONDS:.0f} s: each loader starts in a process of its own")
    own_and_stock = [entry for entry in entries(task) if entry.group != "peer"]  # there is no time for the others
    record = run(task, MeasurementPlan(seconds=_BENCH_SECONDS, rounds=2, beside=False), own_and_stock)
    for line in table(record).split("\n"):
        say(line)

    say("5. a small network on it, each epoch one line:")
    slow("training the first epoch")
    losses = train_small(dataset, epochs, say)
    say(f"   loss {losses[0]:.3f} -> {losses[-1]:.3f} (chance is {np.log(len(GRAINS)):.3f})")
    say("6. pictures:")
    slow("drawing")
    for name, what in draw_sheets(train, folder).items():
        say(f"   {folder / name}: {what}")
    try:
        draw(record, folder / _CHART)
        say(f"   {folder / _CHART}: step 4 as a chart")
    except UsageError:  # no matplotlib
        say("   the chart of step 4 needs matplotlib; in a clone of mmload run: pip install '.[plot]'")
    say(f"next: mmload info {dataset}, or mmload build imagefolder YOUR_PHOTOS OUT")
    return losses


def draw_sheets(split: Split, folder: Path) -> dict[str, str]:
    """Draws contact sheets of a few rows, as they are stored and as training sees them.

    Returns:
        File name -> what it shows.
    """
    stored = split.preview(columns=4, count=8)
    drawn = augmented_sheet(split, _collate(split.mean, split.std, crop=96), first_rows(split, 4), draws=3)
    for name, sheet in zip(_SHEETS, (stored, drawn), strict=True):
        sheet.resize((sheet.width * 4 // 5, sheet.height * 4 // 5), Image.Resampling.LANCZOS).save(
            folder / name, quality=70
        )
    return _SHEETS


def make_photos(root: Path, images: int, seed: int = 0) -> None:
    """Writes JPEGs of several hundred pixels a side, evenly over the classes of :data:`GRAINS`, the same for a seed."""
    for name in GRAINS:
        (root / name).mkdir(parents=True, exist_ok=True)

    def write(number: int) -> None:
        file = root / _photo_name(number)
        rng = np.random.default_rng([seed, number])
        Image.fromarray(_colored(file.parent.name, photo(file.parent.name, rng), rng)).save(file, quality=92)

    with ThreadPoolExecutor(available_cores()) as pool:
        list(pool.map(write, range(images)))


def photo(name: str, rng: np.random.Generator) -> np.ndarray:
    """Returns one picture with the statistics of photographs: amplitudes that fall as 1/f, few edges, soft color.

    Natural images have spectra near 1/f (Field 1987, "Relations between the statistics of natural images and the
    response properties of cortical cells"); the class stretches the spectrum along one axis or steepens it.

    Returns:
        uint8 [H, W, 3].
    """
    height, width = (16 * int(side) for side in rng.integers(20, 36, 2))
    across, steep = GRAINS[name]
    light = _noise(rng, height, width, across, 1.0 + steep)
    warmth = _noise(rng, height, width, 1.0, 2.2)
    slope = np.linspace(-0.6, 0.6, height)[:, None] * rng.uniform(-1, 1)
    base, tint = rng.uniform(90, 150), rng.uniform(-18, 18, 3)
    channels = [base + tint[c] + 34 * light + 30 * slope + (14, 0, -14)[c] * warmth for c in range(3)]
    return np.stack(channels, axis=-1).clip(0, 255).astype(np.uint8)


def _colored(name: str, pixels: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Colors a picture from the dark to the light color of its class, in the light of some hour."""
    gray = pixels.mean(axis=2, keepdims=True, dtype=np.float32)
    share = 1 / (1 + np.exp((gray.mean() - gray) / (0.6 * gray.std() + 1)))
    dark, light = (np.array(color, np.float32) for color in COLORS[name])
    hour = rng.uniform(0.75, 1.1) * (1 + rng.uniform(-0.08, 0.08) * np.array([1, 0, -1], np.float32))
    colored: np.ndarray = ((dark + (light - dark) * share) * hour + (pixels - gray) * 0.35).clip(0, 255)
    return colored.astype(np.uint8)


def train_small(dataset: Path, epochs: int, say: Callable[[str], None]) -> list[float]:
    """Trains a four-layer network from 64 x 64 crops, on the CPU.

    Returns:
        The mean loss of each epoch.
    """
    torch.manual_seed(0)
    split = Dataset(dataset)["train"]
    model = nn.Sequential(
        *_layer(3, 16),
        *_layer(16, 32),
        *_layer(32, 64),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(64, len(GRAINS)),
    )
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    losses = []
    with Loader(split, batch_size=32, shuffle=True, seed=0, collate=_collate(split.mean, split.std, crop=96)) as loader:
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
            say(f"   epoch {epoch + 1}: loss {losses[-1]:.3f}, {correct / len(split):.0%} right")
    return losses


def _noise(rng: np.random.Generator, height: int, width: int, across: float, power: float) -> np.ndarray:
    """Returns noise of zero mean and unit variance whose amplitude falls with frequency to the given power."""
    fy, fx = np.fft.fftfreq(height)[:, None], np.fft.rfftfreq(width)[None, :]
    frequency = np.sqrt((fy * across) ** 2 + (fx / across) ** 2) + 1.0 / max(height, width)
    spectrum = np.fft.rfft2(rng.standard_normal((height, width), dtype=np.float32)) / frequency**power
    noise = np.fft.irfft2(spectrum, (height, width))
    standard: np.ndarray = (noise - noise.mean()) / noise.std()
    return standard


def _layer(inputs: int, outputs: int) -> list[nn.Module]:
    return [
        nn.Conv2d(inputs, outputs, 3, stride=2, padding=1, bias=False),
        nn.BatchNorm2d(outputs),
        nn.ReLU(),
    ]


def _collate(mean: tuple[float, ...], std: tuple[float, ...], crop: int = 224) -> Collate:
    return Collate(RandomCrop(crop), RandomHorizontalFlip(), Normalize(mean, std))


def _claim(folder: Path, images: int) -> None:
    """Marks a new or empty folder as a demo's; refuses foreign files in an earlier demo's folder.

    Nothing is removed: the photographs are written again as they are, and the build replaces its own dataset only.

    Raises:
        BuildError: if something else is there.
    """
    if folder.exists() and not folder.is_dir():
        raise BuildError(f"{folder} is a file; give the demo a folder of its own, as in: mmload demo my-demo")
    folder.mkdir(parents=True, exist_ok=True)
    others = sorted(path.relative_to(folder).as_posix() for path in _others(folder, images))
    if others:
        raise BuildError(
            f"{folder} holds other things: {listed(others)}; "
            "give the demo a folder of its own, as in: mmload demo my-demo"
        )
    (folder / _MARK).touch()


def _others(folder: Path, images: int) -> Iterator[Path]:
    """Yields the paths in a folder that no demo makes; of the dataset, the build says that."""
    marked = (folder / _MARK).is_file()
    folders = ("dataset", staging_folder(folder / "dataset").name)
    for path in folder.iterdir():
        own_file = path.name in (*_SHEETS, _CHART) and path.is_file() and not path.is_symlink()
        if path.name == "photos" and is_real_folder(path) and marked:
            yield from _other_photos(path, images)
        elif marked and (own_file or (path.name in folders and is_real_folder(path))):
            continue
        elif path.name != _MARK or path.is_symlink():
            yield path


def _other_photos(photos: Path, images: int) -> Iterator[Path]:
    own = {photos / _photo_name(number) for number in range(images)}
    for path in photos.iterdir():
        if path.name in GRAINS and is_real_folder(path):
            yield from (file for file in path.iterdir() if file not in own or file.is_symlink())
        else:
            yield path


def _photo_name(number: int) -> str:
    return f"{sorted(GRAINS)[number % len(GRAINS)]}/{number // len(GRAINS):04d}.jpg"
