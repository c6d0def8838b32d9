"""``mmload bench --steps PRESET``: what every contender has to make."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torchvision.transforms import v2

from mmload import presets
from mmload.augment import CenterCrop, CutMix, Normalize
from mmload.augment.collate import Collate, collates_of
from mmload.bench.ceilings import ceiling_entries
from mmload.bench.contender_server import ContenderServer, check_batch
from mmload.bench.contenders import entries
from mmload.bench.contenders.stock import OneByOne, collated, task_steps
from mmload.bench.options import BenchOptions
from mmload.bench.task import Task, collate_of_preset, task_of
from mmload.errors import MmloadError, UsageError
from mmload.store.dataset import Dataset

TRAINING = [name for name in presets.__all__ if name != "evaluation"]

pytestmark = pytest.mark.slow

OWN = """
from mmload.augment import Normalize, RandomCrop, RandomErasing
from mmload.augment.collate import Collate

WORD = "not a function"

def mine(size):
    return Collate(RandomCrop(size), Normalize.imagenet(), RandomErasing())
"""
SEVERAL = {"simclr": 2, "dinov2": 10}


def preset_task(dataset: Dataset, folder: Path, preset: str) -> Task:
    """24 pixels a side, in batches of 5."""
    options = BenchOptions(steps=preset, size=24, batch_size=5, threads=1)
    return replace(task_of(options, dataset.path, folder), images=9, workers=(0,), device="cpu")


@pytest.mark.parametrize("preset", TRAINING)
def test_torchvision_and_mmload_make_the_same_task(preset: str, dataset: Dataset, folder: Path, tmp_path: Path) -> None:
    task = preset_task(dataset, folder, preset)
    assert len(task.views) == SEVERAL.get(preset, 1)
    ready = entries(task)
    assert [entry.name for entry in ready] == [  # the others do less than a preset, and have no row
        "DataLoader + v2 tensors, 0 workers",
        "mmload.Loader, disk, 1 thread",
        "mmload.Loader, memory, 1 thread",
    ]
    for entry in ready:
        server = ContenderServer(entry, task, tmp_path)
        server.make()
        assert server.epoch(least=0.0, most=60.0, check=True).images == 18  # every batch is checked


def test_the_ceiling_fills_all_views(dataset: Dataset, folder: Path, tmp_path: Path) -> None:
    task, values = preset_task(dataset, folder, "dinov2"), 3 * (2 * 24**2 + 8 * 96**2)
    assert task.image_values == values
    for entry in ceiling_entries(task, cold=False).values():
        if entry.name.startswith(("fill", "uncached")):
            assert {pixels.numel() for pixels, _ in entry.make(task, tmp_path)()} == {5 * values}
    assert preset_task(dataset, folder, "mae").image_values == 3 * 24**2


def test_the_task_has_the_presets_views(dataset: Dataset, folder: Path) -> None:
    assert preset_task(dataset, folder, "mae").views == ((24, 24),)
    published = task_of(BenchOptions(steps="ffcv_rn50", batch_size=2), dataset.path, None)
    assert (published.views, published.crop) == (((160, 160),), 160)
    stock = {entry.differs for entry in entries(preset_task(dataset, folder, "airbench")) if entry.group == "stock"}
    assert stock == {"flips are random, not alternating"}
    assert [collate.epoch for collate in collates_of(collate_of_preset("ffcv_rn50", None, 10))] == [0]


def test_a_list_of_ones_own_is_a_preset(
    dataset: Dataset, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "own_lists.py").write_text(OWN)
    monkeypatch.syspath_prepend(tmp_path)
    task = preset_task(dataset, folder, "own_lists:mine")
    assert (task.crop, task.views) == (24, ((24, 24),))
    assert collates_of(collate_of_preset("own_lists:mine", 24, 2))[0].steps[0].size == (24, 24)
    for name, match in {
        "own_lists:yours": "has no attribute 'yours'; give MODULE:FUNCTION",
        "own_list:mine": "No module named 'own_list'; give MODULE:FUNCTION",
        "own_lists:WORD": "'own_lists:WORD', which is str; give a function",
        ":mine": "Empty module name; give MODULE:FUNCTION",
    }.items():
        with pytest.raises(UsageError, match=match):
            BenchOptions(steps=name)


def test_a_preset_that_does_not_fit_the_rows_is_refused(dataset: Dataset, monkeypatch: Any) -> None:
    monkeypatch.setattr(presets, "mae", lambda: Collate(CenterCrop(8), Normalize((0.5,), (0.5,))))
    with pytest.raises(UsageError, match=r"--steps mae cannot be done to images \[3, 32, 32\]: Normalize has 1"):
        task_of(BenchOptions(steps="mae"), dataset.path, None)


def test_what_mixes_samples_comes_after_torchs_collate(
    dataset: Dataset, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mixed = Collate(CenterCrop(8), Normalize.imagenet(), CutMix(num_classes=4))
    monkeypatch.setattr(presets, "mae", lambda size: mixed)
    (steps,), mix = task_steps(preset_task(dataset, folder, "mae"))
    assert not any(isinstance(step, v2.CutMix) for step in steps)
    whole = torch.randint(0, 256, (3, 12, 12), dtype=torch.uint8)
    view = OneByOne([v2.CenterCrop(10)], [steps])(whole)
    assert torch.allclose(view, Collate(CenterCrop(8), Normalize.imagenet())(whole[None])[0], atol=1e-5)
    images, labels = collated(mix, [(view, 1), (view, 3)])
    assert images.shape == (2, 3, 8, 8)
    assert labels.shape == (2, 4)
    pair = OneByOne([], [steps, [v2.ToImage(), v2.CenterCrop(4)]])(whole)
    assert [one.shape[-1] for one in pair] == [8, 4]


def test_batches_of_other_views_are_refused(dataset: Dataset, folder: Path) -> None:
    task = preset_task(dataset, folder, "simclr")
    right, labels = torch.zeros(5, 3, 24, 24), torch.zeros(5, dtype=torch.int64)
    check_batch(task, (right, right), labels)
    images, others = "it gives images", (right, right[:, :, 1:])
    wrong = [((right,), images), (others, images), ((right, right.half()), images), (right, images)]
    for batch, message in [*wrong, ((right, right[:4]), "it gives labels")]:
        with pytest.raises(MmloadError, match=message):
            check_batch(task, batch, labels)
