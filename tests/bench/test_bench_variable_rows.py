"""A bench over variable-size images: its contenders, what they give, and what the record says of the rows."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from picture_folders import smooth_jpegs
from PIL import Image
from torchvision.transforms import v2

from mmload.bench.ceilings import DISK, ceiling_entries
from mmload.bench.contenders import entries
from mmload.bench.contenders.entry import installed
from mmload.bench.contenders.stock import stored_steps
from mmload.bench.options import BenchOptions
from mmload.bench.record import Record
from mmload.bench.report import report_text
from mmload.bench.run import settings_of
from mmload.bench.task import Task, task_of
from mmload.builder.pipeline import build
from mmload.builder.recipe import BuildRecipe, VariableLayout
from mmload.errors import UsageError

SHORT, CROP = 32, 24
DONE = (  # of the stored rows, and of the photographs themselves
    "DataLoader + torchvision, 0 workers",
    "DataLoader + v2 tensors, 0 workers",
    "FFCV raw, 2 threads",
    "FFCV JPEG, 2 threads",
    "FFCV smart, 2 threads",
    "mmload.Loader, disk, 2 threads",
    "mmload.Loader, memory, 2 threads",
)


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """16 smooth JPEGs in two classes, wide and high ones; red grows from left to right."""
    sizes = [((90, 48), (48, 90))[number // 2 % 2] for number in range(16)]
    return smooth_jpegs(tmp_path_factory.mktemp("photographs"), ["ant", "bee"] * 8, sizes)


@pytest.fixture(scope="module", params=["raw", "jpeg"])
def task(photos: Path, tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Task:
    out = tmp_path_factory.mktemp("whole") / request.param
    steps, layout = ({"step": "Shrink", "size": SHORT},), VariableLayout(encode=request.param)
    recipe = BuildRecipe(kind="imagefolder", root=photos, out=out, transforms=steps, variable_layout=layout)
    build(recipe, threads=1)
    return replace(task_of(options(batch_size=5), out, photos), images=32, workers=(0,))


def options(**more: object) -> BenchOptions:
    return BenchOptions(**({"steps": "resized-crop", "size": CROP, "threads": 2} | more))  # type: ignore[arg-type]


def left_red(images: torch.Tensor) -> float:
    """How much redder the right half is than the left, either way round."""
    return float((images[:, 0, :, CROP // 2 :].mean((1, 2)) - images[:, 0, :, : CROP // 2].mean((1, 2))).abs().mean())


@pytest.mark.parametrize("name", DONE)
def test_a_contender_gives_resized_crops_of_the_photographs(task: Task, name: str, tmp_path: Path) -> None:
    if name.startswith("FFCV") and not installed("ffcv"):
        pytest.skip("ffcv is not installed")
    entry = next(entry for entry in entries(task) if entry.name == name)
    batches = [(images.clone(), labels.clone()) for images, labels in entry.make(task, tmp_path)()]
    images, labels = (torch.cat(each) for each in zip(*batches, strict=True))
    assert images.shape == (32, 3, CROP, CROP)
    assert labels.sum() == 16
    crop = v2.Compose([v2.RandomResizedCrop(CROP), v2.ToDtype(torch.float32, scale=True)])
    rows = [task.rows[row].images for row in range(16)]
    torch.manual_seed(0)
    expected = v2.functional.normalize(torch.stack([crop(row) for row in rows * 8]), task.mean, task.std)
    assert images.mean().item() == pytest.approx(expected.mean().item(), abs=0.2)
    assert left_red(images) == pytest.approx(left_red(expected), abs=0.2)  # neither turned nor mixed up


def test_crops_without_a_resize_are_of_photographs_as_large_as_the_rows(task: Task) -> None:
    crop = task_of(options(steps="crop"), task.dataset, task.source)
    (shrink,) = stored_steps(crop)
    assert min(v2.functional.get_size(shrink(Image.new("RGB", (90, 48))))) == SHORT
    assert shrink(Image.new("RGB", (20, 28))).size == (20, 28)
    assert {entry.group for entry in entries(crop)} == {"stock", "mmload"}  # no other has random crops of these


@pytest.mark.parametrize(
    ("more", "what"),
    [
        ({"steps": "none", "size": None}, "--steps is none"),
        ({"steps": "crop", "size": SHORT + 1}, "the smallest photograph is .*32.*; use 1 to 32, or --steps"),
    ],
)
def test_bench_unsupported_options_for_variable_rows_raise(task: Task, more: dict[str, object], what: str) -> None:
    with pytest.raises(UsageError, match=what):
        task_of(options(**more), task.dataset, task.source)


def test_a_resized_crop_may_be_larger_than_the_photographs(task: Task) -> None:
    assert task_of(options(size=48), task.dataset, task.source).shape == (64, 3, 48, 48)
    assert task_of(options(size=None), task.dataset, task.source).crop == SHORT * 7 // 8


def test_the_ceilings_are_of_the_stored_bytes(task: Task, tmp_path: Path) -> None:
    (stored,) = (task.dataset / "train").rglob("images.bytes.memmap")
    assert task.row_bytes == stored.stat().st_size / 16
    assert "tensordict tutorial" not in [entry.name for entry in entries(task)]  # it reads rows of one size
    disk = ceiling_entries(task, cold=True)[DISK].make(task, tmp_path)
    assert sum(len(labels) for _, labels in disk()) == pytest.approx(16, abs=1)


def test_table_and_record_say_the_layout(task: Task) -> None:
    settings = settings_of(task, options()) | {"cache": "warm"}
    record = Record(settings=settings, machine={}, versions={}, rows=[])
    encoding = task.rows.fields["images"].encoding
    assert record.settings["layout"] == f"--layout variable, {encoding}, {task.row_bytes / 1000:.1f} kB per row"
    assert record.settings["stored"] == [3, None, None]
    assert " ".join(report_text(record).split()).startswith(f"{record.settings['layout']}, resized-crop 24, flip")
