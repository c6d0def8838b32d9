"""Decoding on a CUDA device: on a pretended one what is sent there and what is not, and what is said of it."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torchvision.io
from building import make_pictures, recipe
from conftest import contents, mmload
from decoding import Device, pretended
from encoding import NOISE, PHOTO, encoded
from parity_stores import built, check, failed, make_photos, rewrite
from PIL import Image
from torch import Tensor

from mmload import parity
from mmload.builder import shard_job as shards
from mmload.builder.pipeline import build
from mmload.builder.recipe import BuildRecipe, from_mapping
from mmload.builder.verify import compare
from mmload.errors import DeviceError, RecipeError, UsageError
from mmload.remote.opening import open as open_dataset
from mmload.runtime import nvjpeg
from mmload.sources.decode import CUDA_BATCH, CudaBatches, Decoder
from mmload.store.manifest import FILE_NAME

JPEG = encoded(PHOTO, "JPEG")


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch) -> Device:
    return pretended(monkeypatch)


def in_threads(count: int, work: Callable[[int], Any]) -> list[Any]:
    """The results of so many threads that begin together."""
    together = threading.Barrier(count)

    def begin(number: int) -> Any:
        together.wait()
        return work(number)

    with ThreadPoolExecutor(count) as pool:
        return list(pool.map(begin, range(count)))


def test_threads_are_answered_in_batches_and_each_gets_its_own() -> None:
    sizes = []

    def slow(datas: list[bytes]) -> list[Tensor | None]:
        sizes.append(len(datas))
        time.sleep(0.02)
        return [torch.tensor([int(data)]) for data in datas]

    batches = CudaBatches(slow)
    rounds = in_threads(100, lambda number: [batches(b"%d" % (number + step)) for step in (0, 1000)])
    assert [[int(one) for one in pair] for pair in rounds] == [[n, n + 1000] for n in range(100)]
    assert sum(sizes) == 200
    assert max(sizes) <= CUDA_BATCH
    assert len(sizes) < 40  # one by one they would be 200


def test_what_fails_reaches_every_thread_and_the_next_batch_is_decoded() -> None:
    broken = [True]

    def decode(datas: list[bytes]) -> list[Tensor | None]:
        time.sleep(0.02)
        if broken[0]:
            raise UsageError("no device")
        return [None] * len(datas)

    batches = CudaBatches(decode)

    def ask(number: int) -> str:
        try:
            batches(b"")
        except UsageError as error:
            return str(error)
        return "read"

    assert in_threads(8, ask) == ["no device"] * 8
    broken[0] = False
    assert batches(b"") is None


@pytest.mark.slow
def test_a_build_has_the_bytes_of_the_decoder_for_any_threads(
    device: Device, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shards, "_CHUNK_ROWS", 2)
    photos = make_pictures(tmp_path / "photos")
    build(recipe(photos, tmp_path / "cpu", shard_bytes=2**20), threads=1, processes=1)
    assert not device.batches
    decode = {"mode": "RGB", "device": "cuda"}
    for threads in (1, 5, None):
        ours = recipe(photos, tmp_path / f"cuda{threads}", decode=decode, shard_bytes=2**20)
        build(ours, threads=threads, processes=1)
    assert sum(device.batches) >= 3 * 9  # of 15 files 9 are JPEGs
    assert max(device.batches) > 1
    files = [
        {name: data for name, data in contents(tmp_path / out).items() if name != FILE_NAME}
        for out in ("cpu", "cuda1", "cuda5", "cudaNone")
    ]
    assert files[1:] == [files[0]] * 3
    assert open_dataset(tmp_path / "cuda1").manifest.recipe["decode"]["device"] == "cuda"
    assert compare(tmp_path / "cuda1", photos) == []


@pytest.mark.parametrize("mode", ["RGB", "L"])
def test_sound_jpegs_go_there_and_nothing_else(device: Device, mode: str) -> None:
    there, here = Decoder(mode=mode, device="cuda"), Decoder(mode=mode)
    sound = [JPEG, encoded(PHOTO, "JPEG", progressive=True), encoded(PHOTO.convert("L"), "JPEG")]
    others = [
        encoded(PHOTO, "PNG"),
        encoded(PHOTO.convert("CMYK"), "JPEG"),
        JPEG + b"more",  # no marker where it should end
    ]
    for data in sound:
        assert torch.equal(there(data), here(data))
    assert device.batches == [1] * len(sound)
    for data in others:
        assert torch.equal(there(data), here(data))
    turned = encoded(PHOTO, "JPEG", exif=Image.Exif())
    assert torch.equal(Decoder(exif_orient=True, device="cuda")(turned), Decoder(exif_orient=True)(turned))
    assert len(device.batches) == len(sound)


@pytest.mark.parametrize("data", [JPEG[:-2], JPEG[: len(JPEG) // 2], b"", b"text", JPEG[:30]])
def test_what_is_refused_is_refused_for_the_same_reason(device: Device, data: bytes) -> None:
    said = []
    for decoder in (Decoder(device="cuda"), Decoder()):
        with pytest.raises(ValueError, match=".") as error:
            decoder(data)
        said.append(str(error.value))
    assert said[0] == said[1]
    assert not device.batches


def test_what_the_device_refuses_is_read_here_and_the_others_there(device: Device) -> None:
    odd = encoded(Image.fromarray(NOISE), "JPEG")
    device.refuses = {odd}
    decoder = Decoder(device="cuda")
    results = nvjpeg.decode_batch([JPEG, odd, JPEG], gray=False)
    assert [one is None for one in results] == [False, True, False]
    assert device.batches == [3, 1, 1, 1, 1]  # the last asks whether the device still works
    assert torch.equal(decoder(odd), Decoder()(odd))


@pytest.mark.parametrize("why", ["CUDA error: an illegal memory access was encountered", "CUDA out of memory"])
def test_a_device_that_fails_ends_the_build_and_is_not_replaced(device: Device, tmp_path: Path, why: str) -> None:
    make_pictures(tmp_path / "photos")
    device.fails = f"Error while decoding JPEG images: {why}\nsee the log"
    done = mmload(
        "build", "imagefolder", tmp_path / "photos", tmp_path / "out", "--decode", "cuda", "--on-error", "skip"
    )
    assert (done.returncode, done.stdout) == (1, "")
    assert f"mmload: the CUDA device fails (Error while decoding JPEG images: {why}); free its memory" in done.stderr
    assert not (tmp_path / "out").exists()
    device.fails = ""
    assert mmload("build", "imagefolder", tmp_path / "photos", tmp_path / "out", "--decode", "cuda").returncode == 0


def test_one_refusal_out_of_memory_is_a_failure_too(device: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(files: list[Tensor], **_: Any) -> list[Tensor]:
        if files[0].numpy().tobytes() == JPEG:
            raise RuntimeError("CUDA out of memory. Tried to allocate 2 GiB")
        return [torch.zeros(3, 64, 64, dtype=torch.uint8)]

    monkeypatch.setattr(torchvision.io, "decode_jpeg", refuse)
    with pytest.raises(DeviceError, match="out of memory"):
        Decoder(device="cuda")(JPEG)


def test_decode_cuda_pixels_of_another_size_are_not_taken(device: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torchvision.io, "decode_jpeg", lambda files, **_: [torch.zeros(3, 5, 5, dtype=torch.uint8)])
    assert torch.equal(Decoder(device="cuda")(JPEG), Decoder()(JPEG))


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")
def test_without_a_device_it_is_one_line_and_nothing_is_left(tmp_path: Path) -> None:
    make_pictures(tmp_path / "photos")
    done = mmload("build", "imagefolder", tmp_path / "photos", tmp_path / "out", "--decode", "cuda")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == (
        "mmload: decode device is 'cuda', and torch finds no CUDA device here; "
        "decode on the CPU, or where there is one\n"
    )
    assert [path.name for path in tmp_path.iterdir()] == ["photos"]


def test_decoder_invalid_device_raises(tmp_path: Path) -> None:
    make_pictures(tmp_path / "photos")
    done = mmload("build", "imagefolder", tmp_path / "photos", tmp_path / "out", "--decode", "gpu")
    assert (done.returncode, done.stderr) == (2, "mmload: decode device is 'gpu'; use cpu or cuda\n")
    with pytest.raises(RecipeError, match=r"decode device is \['cuda'\]"):
        Decoder(device=["cuda"])  # type: ignore[arg-type]


def test_a_recipe_says_the_device_only_where_it_is_not_the_cpu() -> None:
    said = [BuildRecipe(kind="imagefolder", decode={"device": one}).resolved()["decode"] for one in ("cpu", "cuda")]
    assert said[0] == BuildRecipe(kind="imagefolder").resolved()["decode"]
    assert said[1] == {**said[0], "device": "cuda"}
    assert from_mapping({"source": {"kind": "imagefolder"}, "decode": {"device": "cuda"}}).decode["device"] == "cuda"


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    return make_photos(tmp_path / "photos")


def test_parity_knows_the_other_decoder_and_still_sees_faults(device: Device, photos: Path, tmp_path: Path) -> None:
    device.options = {"fastupsample": True}
    out = built(photos, tmp_path / "out", decode={"device": "cuda"})
    sent = sum(device.batches)
    report = check(out, photos)
    assert report.passed, parity.table(report)
    assert sum(device.batches) == sent  # the references, and what sources read, are decoded on the CPU
    found = {verdict.name: verdict for verdict in report.verdicts}
    assert 0 < found["pixels of jpeg"].numbers["greatest"] < found["pixels of jpeg"].numbers["limit"] == 2
    assert found["pixels of png"].numbers["greatest"] == 0
    assert found["by design"].state == "note"
    rewrite(out, "images", lambda rows: np.roll(rows, 1, axis=3))
    assert {"pixels of jpeg", "pixels of png"} <= set(failed(check(out, photos)))


def test_parity_does_not_let_others_off(device: Device, photos: Path, tmp_path: Path) -> None:
    device.options = {"fastupsample": True}
    out = built(photos, tmp_path / "out", decode={"device": "cuda"})
    plain = built(photos, tmp_path / "plain")
    (plain / "train" / "000000" / "images.memmap").write_bytes(
        (out / "train" / "000000" / "images.memmap").read_bytes()
    )
    assert "pixels of jpeg" in failed(check(plain, photos))
