"""Small stores, right ones and spoiled ones, and what parity says of them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
from PIL import Image, ImageDraw
from threads import one_thread
from written_datasets import of_tensors

from mmload import parity
from mmload.augment.collate import Collate
from mmload.batch import Batch, fields_of
from mmload.builder.pipeline import build
from mmload.builder.recipe import BuildRecipe, square
from mmload.parity.load import ROWS, check_equal
from mmload.parity.report import Verdict
from mmload.remote.opening import open as open_dataset
from mmload.store.dataset import Split

SIZE = 24


def photo(rng: np.random.Generator) -> Image.Image:
    """Something with edges, color and grain, of any size from 60 to 100."""
    height, width = (int(side) for side in rng.integers(60, 100, 2))
    image = Image.new("RGB", (width, height), tuple(int(v) for v in rng.integers(0, 256, 3)))
    draw = ImageDraw.Draw(image)
    for _ in range(6):
        x, y = int(rng.integers(0, width)), int(rng.integers(0, height))
        color = tuple(int(v) for v in rng.integers(0, 256, 3))
        draw.ellipse([x - 15, y - 10, x + 15, y + 10], fill=color)
    grain = rng.integers(-30, 31, (height, width, 3))
    return Image.fromarray((np.asarray(image).astype(np.int64) + grain).clip(0, 255).astype(np.uint8))


def make_photos(root: Path) -> Path:
    """Four classes of five: JPEG, PNG and WebP."""
    rng = np.random.default_rng(5)
    for name in ("ant", "bee", "cat", "dog"):
        (root / name).mkdir(parents=True)
        for number, ending in enumerate(("jpg", "png", "webp", "jpg", "png")):
            photo(rng).save(root / name / f"{number}.{ending}", quality=92)
    return root


def built(source: Path, out: Path, **options: object) -> Path:
    recipe = BuildRecipe(kind="imagefolder", root=source, out=out, transforms=square(SIZE), **options)  # type: ignore[arg-type]  # its own fields
    build(recipe, threads=1, processes=1)
    return out


def check(out: Path, source: Path, **options: object) -> parity.ParityReport:
    """The store side; a collate without steps leaves next to nothing to the load side."""
    return parity.run(out, source, threads=2, **{"collate": Collate(), **options})  # type: ignore[arg-type]


def passes(out: Path, source: Path, **options: object) -> parity.ParityReport:
    """The report of :func:`check`, in which all holds."""
    report = check(out, source, **options)
    assert report.passed, parity.table(report)
    return report


def failed(report: parity.ParityReport) -> dict[str, str]:
    """Name -> text of what failed."""
    return {verdict.name: verdict.text for verdict in report.failures}


def rewrite(out: Path, name: str, change: Callable[[np.ndarray], np.ndarray]) -> None:
    """Other bytes in a field's file; shards are one here."""
    spec = open_dataset(out)["train"].record.fields[name]
    part = ".bytes" if spec.is_list else ""
    rows = np.memmap(out / "train" / "000000" / f"{name}{part}.memmap", dtype=spec.dtype, mode="r+")
    shaped = rows.reshape(-1, *(spec.fixed_shape if spec.is_list else spec.shape))
    shaped[:] = change(np.array(shaped))


_BOXED = """
import torch

def train():
    rows = []
    for k in range(10):
        g = torch.Generator().manual_seed(k)
        corner = torch.randint(0, 20, (3, 2), generator=g).float()
        side = torch.randint(4, 20, (3, 2), generator=g).float()
        count = 1 + k % 3
        rows.append({
            "images": torch.randint(0, 256, (3, 40, 48), dtype=torch.uint8, generator=g),
            "targets": torch.tensor(k % 4),
            "boxes": torch.cat((corner, corner + side), 1)[:count],
            "labels": torch.arange(count),
            "difficult": torch.zeros(count, dtype=torch.bool),
            "masks": torch.randint(0, 5, (40, 48), dtype=torch.uint8, generator=g),
        })
    return rows
"""


def boxed_split(root: Path) -> Split:
    """Ten rows of 40 x 48 with boxes and masks, from a Python dataset."""
    (root / "boxed_rows.py").write_text(_BOXED)
    options = {"dataset": "boxed_rows:train"}
    build(BuildRecipe(kind="python", root=root, out=root / "out", options=options), threads=1)
    return open_dataset(root / "out")["train"]


def by_name(verdicts: list[Verdict]) -> dict[str, Verdict]:
    """The verdicts of a check, each by its name."""
    return {verdict.name: verdict for verdict in verdicts}


def equal_failures(collate: Collate, split: Split, rows: int = ROWS) -> dict[str, Verdict]:
    """What is not equal for equal draws, by name."""
    found = by_name(check_equal("x", collate, split, rows=rows, seed=0))
    return {name: verdict for name, verdict in found.items() if verdict.state == "fail"}


def expect_torchvisions(collate: Collate, rows: Batch) -> None:
    """What a loader makes of rows is what torchvision makes of each for equal draws, with its boxes and masks."""
    fields = {name: value for name, value in fields_of(rows).items() if name not in ("ids", "seeds")}
    with TemporaryDirectory() as folder, one_thread():
        split = open_dataset(of_tensors(Path(folder) / "rows", {"train": fields}))["train"]
        assert not equal_failures(collate, split, len(split))
