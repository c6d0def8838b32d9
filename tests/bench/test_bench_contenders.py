"""A tiny run of every contender, held against the stored rows and torchvision's own transforms."""

from __future__ import annotations

import os
import pickle
import shutil
import threading
import time
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from cifar_files import write_cifar10
from conftest import make_folder
from devkit import Devkit, thing
from picture_folders import smooth_jpegs
from torch import Tensor
from torchvision.transforms import v2
from waiting import until

from mmload.bench.contenders import Contender, entries
from mmload.bench.contenders.entry import converted, installed
from mmload.bench.contenders.stock import no_source
from mmload.bench.report import NAME
from mmload.bench.task import Task
from mmload.builder.pipeline import build
from mmload.builder.recipe import BuildRecipe, square
from mmload.errors import SourceError

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings(
        "ignore:Exception ignored in. <finalize object:pytest.PytestUnraisableExceptionWarning",  # where FFCV has run
    ),
]

WORKERS = (1,)
STORED = (  # those that read the stored rows: the same bytes come out
    "tensordict tutorial",
    "FFCV raw, 2 threads",
    "mmload.Loader, disk, 2 threads",
    "mmload.Loader, memory, 2 threads",
)
DECODED = {  # those that decode: levels that a pixel may be off, on average over an image
    "DataLoader + torchvision, 1 worker": 1.0,
    "DataLoader + v2 tensors, 1 worker": 0.0,
    "FFCV JPEG, 2 threads": 5.0,
    "NVIDIA DALI, CPU, 2 threads": 12.0,  # its middle may lie a pixel beside torchvision's
}
NAMES = (*STORED, *DECODED)
UNABLE = (
    ("tensordict tutorial", "resized-crop"),
    ("tensordict tutorial", "padding"),
    ("NVIDIA DALI, CPU, 2 threads", "padding"),
)
"""What a contender cannot do: it has no row there."""


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """24 smooth JPEGs of 3 classes: 9, 8 and 7 of them."""
    sizes = np.random.default_rng(0).integers(48, 80, (24, 2)).tolist()
    return smooth_jpegs(tmp_path_factory.mktemp("smooth"), ["ant"] * 9 + ["bee"] * 8 + ["cat"] * 7, sizes)


@pytest.fixture(scope="module")
def task(photos: Path, tmp_path_factory: pytest.TempPathFactory) -> Task:
    """48 images an epoch of 24 rows of 32 x 32, cropped to 24, in batches of 10."""
    out = tmp_path_factory.mktemp("stored") / "photos-32"
    build(BuildRecipe(kind="imagefolder", root=photos, out=out, transforms=square(32)), threads=2)
    more = {"crop": 24, "batch_size": 10, "images": 40, "threads": 2, "workers": WORKERS}
    return Task(dataset=out, split="train", source=photos, **more)


@pytest.fixture(scope="module")
def scratch(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("scratch")


@pytest.fixture(scope="module")
def cifar(tmp_path_factory: pytest.TempPathFactory) -> Task:
    """CIFAR-10's layout with 50 rows of noise, trained twice an epoch with padding."""
    source = write_cifar10(tmp_path_factory.mktemp("cifar") / "batches", rows=8)
    out = build(BuildRecipe(kind="cifar10", root=source, out=source.parent / "out")).out
    more = {"crop": 32, "padding": 4, "batch_size": 16, "images": 100, "threads": 2, "workers": WORKERS}
    return Task(dataset=out, split="train", source=source, **more)


def names_of(task: Task) -> list[str]:
    return [entry.name for entry in entries(task)]


def made(task: Task, scratch: Path, name: str, case: str = "") -> Contender:
    """The contender of a name; skips the test where it cannot do the task, as it should."""
    package = {"F": "ffcv", "N": "nvidia.dali"}.get(name[0])
    if package is not None and not installed(package):
        pytest.skip(f"{package} is not installed")
    if (name, case) in UNABLE:
        assert name not in names_of(task)
        pytest.skip(f"{name} has no {case}")
    return next(entry for entry in entries(task) if entry.name == name).make(task, scratch)


def collect(contender: Contender, task: Task) -> tuple[Tensor, Tensor]:
    """An epoch as it should be: every batch of the right kind; the images and labels of all."""
    batches = [(batch.clone(), targets.clone()) for batch, targets in contender()]
    for batch, targets in batches:
        assert (batch.shape[1:], batch.dtype) == (task.shape[1:], task.dtype)
        assert (targets.shape, targets.dtype) == ((len(batch),), torch.int64)
        assert len(batch) <= task.batch_size
        assert batch.device.type == targets.device.type == task.device
    images, labels = (torch.cat(each).cpu() for each in zip(*batches, strict=True))
    return images, labels


def stored(task: Task) -> Tensor:
    return task.rows.reader.gather("images", np.arange(len(task.rows)))


def reference(task: Task) -> Tensor:
    """Many draws of what should come out, by torchvision's transforms on the stored rows, one at a time."""
    resized = task.augment == "resized-crop"
    crop = v2.RandomResizedCrop(task.crop) if resized else v2.RandomCrop(task.crop, task.padding)
    steps = v2.Compose([crop, v2.ToDtype(torch.float32, scale=True), v2.Normalize(task.mean, task.std)])
    return torch.stack([steps(row) for _ in range(8) for row in stored(task)])


def same_labels(labels: Tensor, task: Task) -> bool:
    expected = torch.bincount(torch.tensor(task.rows.targets), minlength=10) * task.repeats
    return torch.equal(torch.bincount(labels, minlength=10), expected)


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
@pytest.mark.parametrize("augment", ["crop", "resized-crop"])
@pytest.mark.parametrize("name", NAMES)
def test_what_comes_out_is_what_the_task_asks_for(
    task: Task, scratch: Path, name: str, augment: str, device: str
) -> None:
    if device == "cuda" and (not torch.cuda.is_available() or "DALI" in name):
        pytest.skip("no CUDA device, or no row there")
    task = replace(task, augment=augment, device=device)
    contender = made(task, scratch, name, augment)
    (first, labels), (again, other) = collect(contender, task), collect(contender, task)
    assert len(first) == len(again) == task.epoch_images == 48
    assert same_labels(labels, task)
    assert same_labels(other, task)
    assert not torch.equal(labels, other)
    images, expected = torch.cat([first, again]), reference(task)
    assert images.mean().item() == pytest.approx(expected.mean().item(), abs=0.12)
    assert images.std().item() == pytest.approx(expected.std().item(), abs=0.12)
    if augment == "crop":  # an epoch that is left early does not depend on the kind of crop
        with closing(contender()) as abandoned:
            next(abandoned)
        assert len(collect(contender, task)[0]) == 48


@pytest.mark.parametrize("name", NAMES)
def test_without_augmentation_every_row_comes_out_as_often_as_it_should(task: Task, scratch: Path, name: str) -> None:
    task = replace(task, augment="none")
    contender = made(task, scratch, name)
    (images, labels), (other, _) = collect(contender, task), collect(contender, task)
    rows = stored(task)
    distances = torch.stack([(images - row.float()).abs().flatten(1).mean(1) for row in rows], dim=1)
    nearest, row = distances.min(dim=1)
    assert nearest.max() <= DECODED.get(name, 0.0)
    assert torch.bincount(row, minlength=len(rows)).tolist() == [task.repeats] * len(rows)
    assert torch.equal(labels, torch.tensor(task.rows.targets)[row])
    assert not torch.equal(images, other)


@pytest.mark.parametrize("name", NAMES)
def test_cifar_with_its_padded_crop(cifar: Task, scratch: Path, name: str) -> None:
    contender = made(cifar, scratch, name, "padding")
    (images, labels), (more, _) = collect(contender, cifar), collect(contender, cifar)
    assert len(images) == 100
    assert same_labels(labels, cifar)
    both = torch.cat([images, more])
    assert both.mean().item() == pytest.approx(reference(cifar).mean().item(), abs=0.05)
    black = -torch.tensor(cifar.mean) / torch.tensor(cifar.std)  # what the padding becomes
    padded = (both - black.view(3, 1, 1)).abs().amax(1) < 1e-3
    # 4 of the 9 offsets show padding above; else it is only at a side, 20 / 9 of 32 columns on average
    assert padded[:, 0].float().mean().item() == pytest.approx(4 / 9 + 5 / 9 * 20 / 9 / 32, abs=0.2)


def test_every_contender_is_in_these_tests_and_fits_the_table(task: Task) -> None:
    made = entries(task)
    absent = {name for name in NAMES if "FFCV" in name and not installed("ffcv")}
    absent |= {name for name in NAMES if "DALI" in name and not installed("nvidia.dali")}
    assert {entry.name for entry in made} == set(NAMES) - absent
    assert max(len(entry.name) for entry in made) <= NAME
    assert {entry.group for entry in made} <= {"stock", "peer", "mmload"}
    assert [entry.name for entry in pickle.loads(pickle.dumps(made))] == [entry.name for entry in made]
    assert pickle.loads(pickle.dumps(task)) == task


def test_contenders_without_a_source_are_those_of_the_rows(task: Task) -> None:
    without = replace(task, source=None)
    assert set(names_of(without)) & set(DECODED) <= {"FFCV JPEG, 2 threads"}
    assert {"mmload.Loader, disk, 2 threads", "tensordict tutorial"} <= set(names_of(without))
    assert "give --source ROOT" in no_source(without)


@pytest.mark.parametrize("kind", ["detection", "classification"])
def test_voc_is_left_out_for_its_labels_and_not_for_want_of_a_dataset(devkit: Devkit, kind: str) -> None:
    devkit.add("a", thing("dog"))
    devkit.list("train", "a")
    out = devkit.root.parent / "out"
    build(BuildRecipe(kind="voc", root=devkit.root, out=out, transforms=square(6), options={"task": kind}))
    task = Task(dataset=out, split="train", source=devkit.root, crop=4, images=1, threads=1, workers=(0,))
    reason = no_source(task)
    assert reason.startswith("torchvision's VOCDetection and VOCSegmentation give annotations and masks, not one class")
    assert names_of(task) == ["mmload.Loader, disk, 1 thread", "mmload.Loader, memory, 1 thread"]


def test_a_source_that_is_absent_or_another_is_refused(task: Task, tmp_path: Path) -> None:
    other = make_folder(tmp_path / "other", per_class=2)
    for source, message in ((tmp_path / "nowhere", "no such folder"), (other, "has 6 images, split 'train'")):
        with pytest.raises(SourceError, match=message):
            entries(replace(task, source=source))


@pytest.mark.parametrize("kind", ["FIFO", "device"])
def test_a_fifo_or_a_device_in_place_of_an_image_is_named(task: Task, photos: Path, tmp_path: Path, kind: str) -> None:
    """torchvision would wait for the FIFO's other end, and read the device without an end."""
    source = Path(shutil.copytree(photos, tmp_path / "photos"))
    file = source / "bee" / "9.jpg"
    file.unlink()
    if kind == "FIFO":
        os.mkfifo(file)
    else:
        file.symlink_to("/dev/zero")
    with pytest.raises(SourceError, match=f"cannot read .*bee/9.jpg .it is a {kind}, not a regular file"):
        entries(replace(task, source=source))


def test_a_held_out_split_is_measured_on_its_own_files(photos: Path, tmp_path: Path) -> None:
    more = {"options": {"val_fraction": 0.25, "seed": 3}, "transforms": square(32), "shuffle_seed": 1}
    out = build(BuildRecipe(kind="imagefolder", root=photos, out=tmp_path / "out", **more), threads=2).out
    held = Task(dataset=out, split="val", source=photos, augment="none", images=1, workers=(0,), threads=2)
    images, _ = collect(made(held, tmp_path, "DataLoader + v2 tensors, 0 workers"), held)
    assert sorted(map(bytes, images.flatten(1).numpy())) == sorted(map(bytes, stored(held).flatten(1).numpy()))


def test_contenders_that_do_not_fit_memory_or_disk_have_no_row(task: Task, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mmload.bench.contenders.ours.free_memory", lambda: 1000)
    monkeypatch.setattr("mmload.bench.contenders.entry.ROOM_SHARE", 1e-12)
    names = names_of(task)
    assert "mmload.Loader, disk, 2 threads" in names
    assert not {"mmload.Loader, memory, 2 threads", "tensordict tutorial"} & set(names)


def test_a_package_that_is_not_there_is_found_missing() -> None:
    assert [installed(name) for name in ("torch", "no_such_package", "no_such.package")] == [True, False, False]


def test_a_conversion_is_made_once_and_never_half(tmp_path: Path) -> None:
    def broken(folder: Path) -> None:
        (folder / "rows").write_text("half")
        raise OSError("disk full")

    with pytest.raises(OSError, match="disk full"):
        converted(tmp_path, "rows", broken)
    assert not (tmp_path / "rows").exists()
    folder = converted(tmp_path, "other", lambda folder: (folder / "rows").write_text("whole") and None)
    assert converted(tmp_path, "other", broken) == folder
    assert (folder / "rows").read_text() == "whole"


def test_an_epoch_of_ffcv_that_is_cut_short_where_its_thread_is_done_ends(task: Task, scratch: Path) -> None:
    with closing(made(task, scratch, "FFCV raw, 2 threads")()) as batches:
        for _ in range(2):  # of five, and three fit into its queue: its thread waits to add the end of the epoch
            next(batches)
        (feeder,) = (thread for thread in threading.enumerate() if hasattr(thread, "output_queue"))
        until(feeder.output_queue.full)
        time.sleep(0.2)
    assert not feeder.is_alive()
