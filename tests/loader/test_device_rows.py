"""Variable-size images on a device: the batches of the CPU, decoded there or here, on a pretended one that is late."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from decoding import Device, pretended
from loading_variable import SIZES, build_variable_stores
from simulated_device import LatePort, NoWaiting
from torch import Tensor, nn
from torchvision.transforms import v2

from mmload.augment import (
    CenterCrop,
    ColorJitter,
    CutMix,
    Letterbox,
    MixUp,
    Normalize,
    PerSample,
    RandomCrop,
    RandomErasing,
    RandomHorizontalFlip,
    RandomIoUCrop,
    RandomResizedCrop,
    RandomVerticalFlip,
    Resize,
    ScaleJitter,
    TwoViews,
)
from mmload.augment.collate import Collate
from mmload.batch import Batch, fields_of
from mmload.errors import DamagedError, DeviceError, UsageError
from mmload.loader import Loader, device_batches
from mmload.loader.orders import by_aspect
from mmload.remote.opening import open as open_dataset
from mmload.runtime import nvjpeg
from mmload.store.variable_rows import JPEG

PLAIN: dict[str, list[nn.Module]] = {
    "resized crop": [RandomResizedCrop(24), RandomHorizontalFlip(), Normalize.imagenet(), RandomErasing(0.5)],
    "bicubic": [RandomResizedCrop(24, interpolation="bicubic"), RandomVerticalFlip()],
    "nearest": [RandomResizedCrop(24, interpolation="nearest")],
    "evaluation": [Resize(30), CenterCrop(33)],
    "padded": [RandomHorizontalFlip(), RandomCrop((40, 26), pad_if_needed=True, fill=(1, 2, 3))],
    "mirrored": [RandomCrop(44, padding=5, pad_if_needed=True, padding_mode="reflect")],
    "canvas": [ScaleJitter((40, 44), (1.5, 3)), RandomCrop(32, pad_if_needed=True), RandomVerticalFlip()],
    "letterbox": [Letterbox((40, 31)), RandomHorizontalFlip()],
    "detection": [RandomIoUCrop(), Resize((30, 30)), RandomHorizontalFlip(), Normalize.imagenet()],
    "mixed": [RandomResizedCrop(24), Normalize.imagenet(), MixUp(num_classes=len(SIZES))],
    "mixed later": [Resize((28, 28)), RandomCrop(24), Normalize.imagenet(), CutMix(num_classes=len(SIZES))],
    "two passes": [Resize((40, 40)), RandomResizedCrop(24), RandomHorizontalFlip()],
    "foreign": [Resize((32, 32)), nn.AvgPool2d(2)],
}
"""Steps whose pixels are the same however they are computed."""

FLIPPED = PerSample(v2.RandomHorizontalFlip())

ALONE = ("mixed", "mixed later", "foreign")
"""Those that leave boxes and masks behind."""


@pytest.fixture(scope="module")
def stores(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Shared by the module, and not written to."""
    return build_variable_stores(tmp_path_factory.mktemp("whole"))


@pytest.fixture
def port(monkeypatch: pytest.MonkeyPatch) -> LatePort:
    """A "cuda" that is late, and whose memory is the CPU's."""
    there = LatePort()
    monkeypatch.setattr(device_batches, "CudaPort", lambda device: there)
    return there


@pytest.fixture
def decoder(port: LatePort, monkeypatch: pytest.MonkeyPatch) -> Device:
    """One that decodes JPEGs, to the pixels of the CPU."""
    there = pretended(monkeypatch)
    monkeypatch.setattr(device_batches, "decode_batch", lambda files, gray, device: nvjpeg.decode_batch(files, gray))
    return there


def epoch_of(path: Path, collate: nn.Module, **options: Any) -> list[Batch]:
    """The batches of an epoch; those of several views one after another."""
    given = {"tier": "disk", "batch_size": 6, "shuffle": True, "seed": 3, "threads": 2, **options}
    with Loader(path, collate=collate, **given) as loader:
        return [one for made in loader for one in (made if isinstance(made, tuple) else (made,))]


def same(got: list[Batch], expected: list[Batch], slack: float = 0.0) -> bool:
    """Whether all fields of all batches are; images within ``slack``."""
    pairs = [(fields_of(one), fields_of(other)) for one, other in zip(got, expected, strict=True)]
    assert all(one.keys() == other.keys() for one, other in pairs)
    return all(
        torch.allclose(one[name], other[name], rtol=0, atol=slack if name == "images" else 0)
        for one, other in pairs
        for name in one
    )


@pytest.mark.parametrize("name", PLAIN)
@pytest.mark.parametrize(("decode", "tier"), [("cpu", "disk"), ("cuda", "disk"), ("cuda", "device")])
def test_device_rows_a_device_gets_the_batches_of_the_cpu(
    stores: dict[str, Path], decoder: Device, name: str, decode: str, tier: str
) -> None:
    path, collate = stores["whole mixed"], Collate(*PLAIN[name])
    fields = ("images", "targets") if name in ALONE else None
    expected = epoch_of(path, collate, fields=fields)
    assert {"images", "targets", "ids"} <= fields_of(expected[0]).keys()
    assert fields or {"boxes", "labels", "counts", "masks"} <= fields_of(expected[0]).keys()
    assert same(epoch_of(path, collate, device="cuda", decode=decode, tier=tier, fields=fields), expected, 1e-6)
    assert bool(decoder.batches) == (decode == "cuda")


@pytest.mark.parametrize("tier", ["disk", "memory"])
@pytest.mark.parametrize("encoding", ["jpeg", "mixed"])
def test_every_jpeg_is_decoded_there_and_many_at_a_time(
    stores: dict[str, Path], decoder: Device, tier: str, encoding: str
) -> None:
    path = stores[f"whole {encoding}"]
    index = open_dataset(path)["train"].files.field("images").index
    collate = TwoViews(Collate(RandomResizedCrop(24)), Collate(Resize((20, 20)), Normalize.imagenet()))
    options = {"tier": tier, "batch_size": 9, "threads": 3}
    got = epoch_of(path, collate, device="cuda", decode="cuda", **options)
    assert sum(decoder.batches) == int((index.encodings == JPEG).sum())
    assert len(decoder.batches) <= 3
    assert same(got, epoch_of(path, collate, **options))


@pytest.mark.parametrize("decode", ["cpu", "cuda"])
def test_rows_that_stay_on_the_device_are_brought_there_once(
    stores: dict[str, Path], decoder: Device, decode: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(device_batches, "_ROWS_AT_ONCE", 7)
    path, collate = stores["whole jpeg"], Collate(RandomResizedCrop(24))
    with Loader(path, collate=collate, device="cuda", tier="device", decode=decode, seed=3, shuffle=True) as loader:
        epochs = [[batch.images.clone() for batch in loader] for _ in range(2)]
        assert decoder.batches == ([7, 7, 6] if decode == "cuda" else [])
        assert (loader.stats()["tier"], loader.stats()["misses"], loader.stats()["hits"]) == ("device", 20, 40)
        assert loader.stats()["render_s"] > 0
    with Loader(path, collate=collate, seed=3, shuffle=True) as loader:
        assert all(torch.equal(a, b.images) for epoch in epochs for a, b in zip(epoch, loader, strict=True))


def test_colors_change_there_as_here(stores: dict[str, Path], decoder: Device) -> None:
    path, collate = stores["whole jpeg"], Collate(RandomResizedCrop(24), ColorJitter(0.4, 0.4, 0.4), dtype=torch.uint8)
    got, expected = (epoch_of(path, collate, **more) for more in ({"device": "cuda", "decode": "cuda"}, {}))
    assert all((a.images.int() - b.images.int()).abs().max() <= 1 for a, b in zip(got, expected, strict=True))


@pytest.mark.parametrize("decode", ["cpu", "cuda"])
def test_buckets_keep_their_canvas(stores: dict[str, Path], decoder: Device, decode: str) -> None:
    path, collate = stores["whole jpeg"], Collate(RandomHorizontalFlip(), Normalize.imagenet())
    expected = epoch_of(path, collate, shuffle=False, order=by_aspect())
    assert all(one.image_sizes is not None for one in expected)
    assert same(epoch_of(path, collate, shuffle=False, order=by_aspect(), device="cuda", decode=decode), expected, 1e-6)


def test_modules_of_other_packages_run_in_the_training_thread(stores: dict[str, Path], decoder: Device) -> None:
    collate = Collate(RandomResizedCrop(24), FLIPPED)
    path = stores["whole jpeg"]
    assert same(epoch_of(path, collate, device="cuda"), epoch_of(path, collate))
    with pytest.raises(UsageError, match="PerSample runs on the CPU; use tier='memory' or tier='disk'"):
        Loader(path, collate=collate, device="cuda", tier="device")


def test_what_the_device_refuses_is_decoded_here(stores: dict[str, Path], decoder: Device) -> None:
    path, collate = stores["whole jpeg"], Collate(Resize((20, 20)))
    whole = open_dataset(path)["train"].files.field("images")
    decoder.refuses = {bytes(whole.encoded(3))}
    assert same(epoch_of(path, collate, device="cuda", decode="cuda"), epoch_of(path, collate))
    assert len(decoder.batches) > 4  # one by one where it refused a batch


def test_device_rows_pixels_of_another_size_are_not_taken(
    stores: dict[str, Path], decoder: Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    smaller = torch.zeros(3, 5, 5, dtype=torch.uint8)
    monkeypatch.setattr(device_batches, "decode_batch", lambda files, gray, device: [smaller] * len(files))
    path, collate = stores["whole jpeg"], Collate(Resize((20, 20)))
    assert same(epoch_of(path, collate, device="cuda", decode="cuda"), epoch_of(path, collate))


def test_a_device_that_fails_is_one_error(stores: dict[str, Path], decoder: Device) -> None:
    decoder.fails = "CUDA error: out of memory"
    with pytest.raises(DeviceError, match=r"the CUDA device fails \(CUDA error: out of memory\); free its memory"):
        epoch_of(stores["whole jpeg"], Collate(Resize((20, 20))), device="cuda", decode="cuda")


@pytest.mark.parametrize(
    ("at", "byte", "why"),
    [
        (0, 0x00, "its JPEG cannot be decoded"),  # no JPEG
        (-1, 0x00, "its JPEG cannot be decoded"),  # no end: a decoder on a device would not tell
        (0, None, "its JPEG is .* x .*, its size is "),
    ],
)
def test_device_rows_a_damaged_row_is_named(
    tmp_path: Path, decoder: Device, at: int, byte: int | None, why: str
) -> None:
    path = build_variable_stores(tmp_path)["whole jpeg"]
    file = sorted((path / "train").glob("*/images.bytes.memmap"))[0]
    offsets = np.fromfile(file.with_name("images.offsets.memmap"), np.int64)
    data = np.memmap(file, np.uint8, "r+")
    row = data[offsets[1] : offsets[2]]
    if byte is None:
        at = int(np.flatnonzero((row[:-1] == 0xFF) & (row[1:] == 0xC0))[0]) + 6
        byte = int(row[at]) + 1
    row[at] = byte
    data.flush()
    with pytest.raises(DamagedError, match=f"images of row 1 of .*, made from '1.png', is damaged: {why}"):
        epoch_of(path, Collate(Resize((20, 20))), device="cuda", decode="cuda", shuffle=False, threads=1)


def test_nothing_is_read_back_from_the_device() -> None:
    """On ``meta`` there is nothing to be read: the windows, which a Python loop needs, are drawn on the CPU."""
    meta, sizes = torch.device("meta"), torch.tensor([[30, 40], [28, 33], [50, 31]])
    images = [torch.empty(3, *size, dtype=torch.uint8, device=meta) for size in sizes.tolist()]
    for name, steps in PLAIN.items():
        boxes = torch.tensor([[[1.0, 2, 20, 20]]] * 3)
        fields = {
            "boxes": boxes,
            "labels": torch.zeros(3, 1, dtype=torch.int64),
            "counts": torch.ones(3, dtype=torch.int64),
        }
        fields = {"targets": torch.arange(3)} if name in ALONE else fields
        batch = Batch(**fields, seeds=torch.arange(3), batch_size=[3])
        collate = Collate(*steps)
        prepared = collate.prepare(batch, (3, 0, 0), sizes=sizes)
        with NoWaiting():
            made = prepared.finish(prepared.render_images(images, meta))
        expected = collate.prepare(batch, (3, 0, 0), sizes=sizes).shape
        assert {one.device for one in fields_of(made).values()} == {meta}, name
        assert made.images.shape[:2] == expected[:2]


@pytest.mark.parametrize(
    ("store", "options", "message"),
    [
        ("whole jpeg", {"decode": "gpu"}, "decode is 'gpu'; use one of cpu, "),
        ("whole jpeg", {"decode": None}, "decode is None; use one of cpu, "),
        (
            "whole raw",
            {"decode": "cuda", "device": "cuda"},
            "but split 'train' is read without JPEGs; leave decode out",
        ),
        ("whole jpeg", {"decode": "cuda"}, "decode='cuda' needs device='cuda', but batches go to cpu"),
        ("whole jpeg", {"decode": "cuda", "device": "cuda", "fields": ("targets",)}, "is read without JPEGs"),
        (
            "whole jpeg",
            {"decode": "cuda", "device": "cuda", "collate": Collate(FLIPPED)},
            "PerSample, which runs in the training",
        ),
    ],
)
def test_what_cannot_decode_is_refused(
    stores: dict[str, Path], decoder: Device, store: str, options: dict[str, Any], message: str
) -> None:
    given = {"collate": None if "fields" in options else Collate(Resize((20, 20))), **options}
    with pytest.raises(ValueError, match=message):
        Loader(stores[store], **given)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")
def test_without_a_device_it_is_said_at_once(stores: dict[str, Path]) -> None:
    with pytest.raises(UsageError, match="torch finds no CUDA device here; decode on the CPU"):
        Loader(stores["whole jpeg"], collate=Collate(Resize((20, 20))), device="cuda", decode="cuda", tier="disk")


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
@pytest.mark.parametrize("decode", ["cpu", "cuda"])
def test_on_cuda(stores: dict[str, Path], decode: str) -> None:
    path, collate = stores["whole jpeg"], Collate(RandomResizedCrop(24), dtype=torch.uint8)

    def images(**options: Any) -> Tensor:
        return torch.cat([one.images.cpu() for one in epoch_of(path, collate, threads=3, **options)]).float()

    expected = images()
    for _ in range(3):
        difference = (images(device="cuda", decode=decode) - expected).abs()
        assert difference.mean() <= (2 if decode == "cuda" else 0)
