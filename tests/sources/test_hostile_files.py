"""FIFOs, devices and programs in disguise, wherever a file is expected: one error with its name, never a wait."""

from __future__ import annotations

import faulthandler
import os
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from building import EXACT
from conftest import mmload
from devkit import Devkit
from PIL import Image

from mmload.builder.pipeline import build
from mmload.builder.recipe import BuildRecipe, load
from mmload.builder.shards import write_atomically
from mmload.builder.verify import compare, verify
from mmload.errors import MmloadError, SampleError, SourceError
from mmload.parity import run as parity
from mmload.sources import find_splits
from mmload.sources.decode import Decoder
from mmload.store.manifest import read

pytestmark = pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="there are no FIFOs here")


@pytest.fixture(autouse=True)
def no_waiting() -> Iterator[None]:
    """A test that hangs ends the run and says where: a thread that waits for a FIFO heeds no signal."""
    faulthandler.dump_traceback_later(120, exit=True)
    yield
    faulthandler.cancel_dump_traceback_later()


def fifo(path: Path) -> Path:
    path.unlink(missing_ok=True)
    os.mkfifo(path)
    return path


def test_a_fifo_among_images_is_a_sample_that_cannot_be_read(source: Path, tmp_path: Path) -> None:
    fifo(source / "class1" / "2.jpg")
    recipe = BuildRecipe(kind="imagefolder", root=source, out=tmp_path / "out", transforms=EXACT)
    with pytest.raises(SampleError, match=r"class1/2.jpg.*it is a FIFO, not a regular file"):
        build(recipe, threads=2)
    report = build(recipe, threads=2, on_error="skip", overwrite=True)
    assert report.manifest.splits["train"].skipped_count == 1
    assert compare(tmp_path / "out", source) == []
    assert parity(tmp_path / "out", source).verdicts


def test_a_link_to_a_device_is_one_too(source: Path, tmp_path: Path) -> None:
    (source / "class1" / "9.jpg").symlink_to("/dev/zero")
    split = find_splits("imagefolder", source, Decoder(), {"allow_outside": True})["train"]
    at = next(index for index in range(len(split)) if split.id(index) == "class1/9.jpg")
    with pytest.raises(SampleError, match="it is a device, not a regular file"):
        split.read(at)


@pytest.mark.parametrize("name", ["list.csv", "list.jsonl", "list.json"])
def test_a_fifo_as_a_list(tmp_path: Path, name: str) -> None:
    fifo(tmp_path / name)
    with pytest.raises(SourceError, match=f"cannot read .*{name} .it is a FIFO"):
        find_splits("list", tmp_path, Decoder(), {"file": name})


def test_a_fifo_as_a_list_annotation_or_mask_of_voc(devkit: Devkit) -> None:
    devkit.add("a")
    devkit.list("train", "a")
    fifo(devkit.home / "Annotations" / "a.xml")
    split = find_splits("voc", devkit.root, Decoder(), {})["train"]
    with pytest.raises(SampleError, match="a FIFO"):
        split.read(0)
    fifo(devkit.home / "ImageSets" / "Main" / "train.txt")
    with pytest.raises(SourceError, match="a FIFO"):
        find_splits("voc", devkit.root, Decoder(), {"image_set": "train"})


def test_a_fifo_as_a_recipe(tmp_path: Path) -> None:
    with pytest.raises(MmloadError, match="cannot read the recipe .*a FIFO"):
        load(fifo(tmp_path / "a.toml"))


@pytest.mark.parametrize("name", ["dataset.json", "train/samples.jsonl", "train/000001/images.memmap"])
def test_a_fifo_in_a_dataset(copy: Path, folder: Path, name: str) -> None:
    fifo(copy / name)
    said = []
    for call in (lambda: verify(copy), lambda: compare(copy, folder), lambda: parity(copy, folder)):
        try:
            call()
        except MmloadError as error:
            said.append(str(error))
    assert all(name in each for each in said)
    done = mmload("verify", copy)
    assert done.returncode == 1
    assert name in done.stdout + done.stderr
    if name == "dataset.json":
        with pytest.raises(MmloadError, match="a FIFO"):
            read(copy)


@pytest.mark.parametrize("name", ["plan.json", "lock", "notes/train/000000.json"])
def test_a_fifo_beside_a_destination(source: Path, tmp_path: Path, name: str) -> None:
    recipe = BuildRecipe(kind="imagefolder", root=source, out=tmp_path / "out", transforms=EXACT)
    place = tmp_path / ".out.building" / name
    place.parent.mkdir(parents=True)
    fifo(place)
    try:
        build(recipe, threads=1)
    except MmloadError as error:
        said = str(error)
    else:
        said = ""
        assert (tmp_path / "out" / "dataset.json").is_file()
    assert not said or str(tmp_path) in said


def test_a_link_in_the_place_of_a_file_under_way_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "precious").write_text("kept")
    (tmp_path / "a.json.partial").symlink_to(tmp_path / "precious")
    write_atomically(tmp_path / "a.json", "new")
    assert (tmp_path / "a.json").read_text() == "new"
    assert (tmp_path / "precious").read_text() == "kept"


def test_no_program_is_started_for_an_image(source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    started = []
    monkeypatch.setattr("subprocess.Popen", lambda *words, **_: started.append(words))
    monkeypatch.setattr("PIL.EpsImagePlugin.has_ghostscript", lambda: True)
    file = source / "class0" / "0.jpg"
    Image.fromarray(np.zeros((8, 8, 3), np.uint8)).save(file, "EPS")
    split = find_splits("imagefolder", source, Decoder(), {})["train"]
    with pytest.raises(SampleError, match="not an image in any format that mmload reads"):
        split.read(0)
    recipe = BuildRecipe(kind="imagefolder", root=source, out=tmp_path / "out", transforms=EXACT)
    build(recipe, threads=1, on_error="skip")
    assert parity(tmp_path / "out", source).verdicts
    assert started == []


def test_a_link_to_itself_is_a_sample_that_cannot_be_read(source: Path) -> None:
    (source / "class1" / "z.jpg").symlink_to("z.jpg")
    (source / "class1" / "loop").symlink_to("loop")
    split = find_splits("imagefolder", source, Decoder(), {})["train"]
    at = next(index for index in range(len(split)) if split.id(index) == "class1/z.jpg")
    with pytest.raises(SampleError, match=r"class1/z.jpg: .*cannot be read"):
        split.read(at)


def test_folders_without_end_are_refused(source: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(source / "class0")
    for _ in range(1200):
        os.mkdir("d")
        os.chdir("d")
    with pytest.raises(SourceError, match="over 100 folders deep"):
        find_splits("imagefolder", source, Decoder(), {})
    for _ in range(1200):  # what pytest's own clean-up could not remove
        os.chdir("..")
        os.rmdir("d")


def test_a_folder_that_goes_away_during_the_scan_is_named(source: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    look = os.stat

    def stat(path: object, **options: object) -> os.stat_result:
        if str(path).endswith("class1"):
            raise FileNotFoundError(2, "No such file or directory", str(path))
        return look(path, **options)

    with monkeypatch.context() as changed:
        changed.setattr("mmload.sources.imagefolder.os.stat", stat)
        with pytest.raises(SourceError, match="no such folder or file: .*class1"):
            find_splits("imagefolder", source, Decoder(), {})
