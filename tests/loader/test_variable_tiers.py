"""Variable-size images: the same batches from every tier, for any threads, ranks and batch size, and one error each."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from loaded import are_equal, begun, images_of
from torch import nn
from torch.utils.data import ConcatDataset, Subset

from mmload import Collate, Loader
from mmload import open as open_dataset
from mmload.augment import (
    CenterCrop,
    ColorJitter,
    Letterbox,
    Normalize,
    RandomCrop,
    RandomHorizontalFlip,
    RandomPhotometricDistort,
    RandomResizedCrop,
    RandomShortestSize,
    RandomVerticalFlip,
    Resize,
    ScaleJitter,
    Views,
)
from mmload.augment.step import sample_seeds
from mmload.batch import Batch
from mmload.errors import DamagedError, UsageError
from mmload.loader import tiers
from mmload.loader.orders import by_aspect
from mmload.render.kernel_arguments import NEEDED
from mmload.runtime.turbojpeg import turbojpeg_library
from mmload.store import row_reader
from tests.helpers.variable_datasets import some_images, variable_dataset

SIZES = [(40 + 7 * k % 23, 90 - 11 * k % 37) for k in range(11)] + [(1, 50), (33, 1), (120, 31)]


@pytest.fixture(scope="module", params=["raw", "jpeg", "mixed"])
def dataset(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Fourteen photographs in four shards."""
    folder = tmp_path_factory.mktemp(f"whole-{request.param}")
    return variable_dataset(folder / "data", some_images(SIZES), encoding=request.param, shard_rows=4)


def crop() -> Collate:
    return Collate(RandomResizedCrop(24), RandomHorizontalFlip(), Normalize.imagenet())


def expected(path: Path, collate: Collate) -> dict[int, torch.Tensor]:
    """Each row rendered alone from its whole image."""
    split = open_dataset(path)["train"]
    found = {}
    for row in range(len(split)):
        ids, image = torch.tensor([row]), torch.from_numpy(split.reader.rows("images", np.array([row]))[0])
        batch = Batch(images=image[None], ids=ids, seeds=sample_seeds(3, 0, ids), batch_size=[1])
        found[row] = collate(batch).images[0]
    return found


def loaded(path: Path, collate: nn.Module, **options: Any) -> dict[int, torch.Tensor]:
    return images_of(Loader(path, collate=collate, seed=3, **options))


@pytest.mark.parametrize("tier", ["disk", "memory"])
@pytest.mark.parametrize(("batch_size", "threads"), [(5, 1), (14, 3), (1, 2)])
def test_each_row_is_rendered_as_it_is_alone(
    dataset: Path, tier: str, batch_size: int, threads: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    if batch_size == 14:
        monkeypatch.setattr(tiers, "PART_BYTES", 20_000)  # parts of one row or a few
    colored = Collate(RandomPhotometricDistort(), RandomResizedCrop(24), ColorJitter(0.4))
    for collate in (crop(), colored, Collate(Resize(30), CenterCrop(26)), Collate(RandomCrop(40, pad_if_needed=True))):
        found = loaded(dataset, collate, tier=tier, shuffle=True, batch_size=batch_size, threads=threads)
        assert are_equal(found, expected(dataset, collate))


def test_lines_of_two_channels_and_one_column_are_resized_as_they_are_alone(tmp_path: Path) -> None:
    path = variable_dataset(tmp_path / "data", some_images([(70, 1), (1, 70)], channels=2))
    collate = Collate(Resize((11, 13), antialias=False), dtype=torch.uint8)
    assert are_equal(loaded(path, collate), expected(path, collate))


def test_ranks_share_an_epoch_and_give_the_same_rows(dataset: Path) -> None:
    whole = loaded(dataset, crop(), shuffle=True, tier="disk")
    parts = [loaded(dataset, crop(), shuffle=True, batch_size=3, ranks=(rank, 3)) for rank in range(3)]
    assert sum(map(len, parts)) == len(SIZES)
    assert are_equal(parts[0] | parts[1] | parts[2], whole)


def test_memory_is_populated_once_and_counts_rows(dataset: Path) -> None:
    loader = Loader(dataset, collate=crop(), tier="memory", batch_size=4, threads=1)
    for _ in range(2):
        list(loader)
    assert (loader.stats()["hits"], loader.stats()["misses"]) == (2 * len(SIZES), len(SIZES))
    assert Loader(open_dataset(dataset)["train"], collate=crop()).tier == "disk"


def test_views_are_rendered_from_one_read_and_keep_what_earlier_parts_rendered(
    dataset: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(row_reader, "row_map", lambda *_: None)
    monkeypatch.setattr(tiers, "PART_BYTES", 20_000)  # parts of one row or a few
    collates = [Collate(step, dtype=torch.float64) for step in (CenterCrop(20), Resize((20, 20)))]  # by no kernel
    views: Any = list(Loader(dataset, collate=Views(crop(), *collates), seed=3, batch_size=6))
    for number, collate in enumerate(collates, 1):
        assert are_equal(images_of(made[number] for made in views), expected(dataset, collate))
    assert {tuple(made[0].images.shape[2:]) for made in views} == {(24, 24)}


MAX_SIZE = "max_size is None, but the images are variable-size; give max_size"
REFUSED: list[tuple[str, type[Exception], Any, dict[str, Any]]] = [
    ("have variable sizes, but a batch has one; give a Collate", UsageError, None, {}),
    ("have variable sizes, but a batch has one; give a Collate", UsageError, lambda batch: batch, {}),
    (
        "have variable sizes, so tier='device' cannot hold them; use tier='memory'",
        UsageError,
        crop(),
        {"tier": "device"},
    ),
    ("Normalize|the images are variable-size", ValueError, [Normalize.imagenet()], {}),
    ("does not fit into images of 1 x 50", ValueError, [RandomCrop(20)], {}),
    (MAX_SIZE, ValueError, [RandomShortestSize(20)], {}),
    (MAX_SIZE, ValueError, [RandomShortestSize(20)], {"order": by_aspect()}),
]


@pytest.mark.parametrize(("message", "error", "collate", "options"), REFUSED)
def test_what_cannot_be_done_is_refused_before_a_row_is_read(
    dataset: Path, message: str, error: type[Exception], collate: Any, options: dict[str, Any]
) -> None:
    with pytest.raises(error, match=message):
        Loader(dataset, collate=collate, **options)


def test_fields_without_images_need_no_collate(dataset: Path) -> None:
    targets = Loader(dataset, fields=("targets",), batch_size=20)
    assert torch.cat([batch.targets for batch in targets]).tolist() == list(range(len(SIZES)))


MASKED: dict[str, list[nn.Module]] = {
    "crop": [RandomResizedCrop(24), RandomHorizontalFlip()],
    "padded": [RandomHorizontalFlip(), RandomCrop((40, 26), pad_if_needed=True)],
    "mirrored": [RandomCrop(44, padding=5, pad_if_needed=True, padding_mode="reflect")],
    "canvas": [ScaleJitter((40, 44), (0.5, 1.5)), RandomVerticalFlip()],
    "evaluation": [Resize(30), CenterCrop(33)],
    "letterbox": [Letterbox((40, 31)), RandomHorizontalFlip()],
}


@pytest.mark.parametrize("name", sorted(MASKED))
def test_masks_follow_their_images(name: str, tmp_path: Path) -> None:
    """A mask is the first channel of its image: then it moves as that does by the nearest pixel."""
    images = some_images([size for size in SIZES if min(size) > 1])
    path = variable_dataset(tmp_path / "data", images, masks=[image[0] for image in images], shard_rows=3)
    collate = Collate(*MASKED[name])
    split = open_dataset(path)["train"]
    batches = list(Loader(split, collate=collate, seed=3, batch_size=5, shuffle=True, tier="disk"))
    assert sum(map(len, batches)) == len(images)
    for batch in batches:
        for k, row in enumerate(batch.ids.tolist()):
            seeds, pixels = sample_seeds(3, 0, batch.ids[k : k + 1]), torch.from_numpy(images[row])
            alone = collate(Batch(images=pixels[None], masks=pixels[None, 0], seeds=seeds, batch_size=[1]))
            assert torch.equal(batch.images[k], alone.images[0])
            assert torch.equal(batch.masks[k], alone.masks[0])
    rows = collate([split[row] for row in range(len(split))])
    assert rows.masks.shape == (len(images), *rows.images.shape[2:])


def test_steps_are_checked_against_the_rows_of_a_subset_alone(tmp_path: Path) -> None:
    split = open_dataset(variable_dataset(tmp_path / "data", some_images([(9, 9), (64, 80), (70, 66)])))["train"]
    collate = Collate(RandomCrop(60))
    assert len(next(iter(Loader(split.subset([2, 1]), collate=collate)))) == 2
    assert list(Loader(split.subset([]), collate=collate)) == []
    with pytest.raises(ValueError, match="does not fit into images of 9 x 9"):
        Loader(split.subset([1, 0]), collate=collate)


def test_masks_that_do_not_fit_are_refused(tmp_path: Path) -> None:
    images = some_images([(9, 12), (14, 8), (9, 12)])
    masks = [images[0][0], images[1][0].T, images[2][0]]
    path = variable_dataset(tmp_path / "data", images, masks=masks)
    with pytest.raises(UsageError, match=r"masks of split 'train' have .* fields=\('targets',\)"):
        Loader(path, fields=("targets", "masks"))
    with pytest.raises(DamagedError, match=r"masks of row 1 of .*, made from '1.png', is damaged: it is 8 x 14"):
        list(Loader(path, collate=crop()))
    assert len(loaded(path, crop(), fields=("images", "targets"))) == 3


@pytest.mark.parametrize("tier", ["disk", "memory"])
def test_rows_of_a_concatenation_are_those_of_its_parts(dataset: Path, tmp_path: Path, tier: str) -> None:
    first = open_dataset(dataset)["train"]
    encoding = first.fields["images"].encoding or ""
    second = variable_dataset(tmp_path / "data", some_images([(50, 44), (31, 70)], seed=9), encoding=encoding)
    other = open_dataset(second)["train"]
    both, collate = ConcatDataset([first, Subset(other, [1, 0]), first]), Collate(Resize((20, 22)))
    ones, others = expected(dataset, collate), expected(second, collate)
    images = dict(enumerate([*ones.values(), others[1], others[0], *ones.values()]))
    assert are_equal(images_of(Loader(both, collate=collate, tier=tier, shuffle=True, batch_size=4)), images)


@pytest.mark.parametrize("tier", ["read", "disk", "memory"])
def test_the_file_of_a_row_that_is_cut_off_is_named(tmp_path: Path, tier: str) -> None:
    path = variable_dataset(tmp_path / "data", some_images([(60, 80)] * 6), shard_rows=6)
    rows, needed = np.array([0, 4, 3, 5]), np.array([(0, 60, 1)] * 4, NEEDED)
    split = open_dataset(path)["train"]
    field, is_mapped = split.reader.field("images"), tier != "read"
    source = tiers.tier_of_files(field, populate=tier == "memory") if is_mapped else tiers.HostTier(field)
    list(source.parts(rows[:1], needed[:1]))
    os.truncate(next((path / "train").glob("*/images.bytes.memmap")), 60 * 80 * 3 * 3)
    with pytest.raises(DamagedError, match=r"/images.bytes.memmap is damaged: .*truncated"):
        [part.lines(at_once=True) for part in source.parts(rows, needed)]


@pytest.mark.parametrize("tier", ["disk", "memory"])
def test_a_truncated_file_is_blamed_on_no_other_dataset(tmp_path: Path, tier: str) -> None:
    """The batch's own rows are all there; what is missing is a row of the first dataset that it does not have."""
    first, second = (variable_dataset(tmp_path / name, some_images([(60, 80)] * 9), shard_rows=9) for name in "ab")
    both = ConcatDataset([open_dataset(path)["train"] for path in (first, second)])
    file = next((first / "train").glob("*/images.bytes.memmap"))
    order = [row for pair in zip(range(8), range(9, 17), strict=True) for row in pair]
    batches = begun(Loader(both, collate=crop(), tier=tier, order=order, batch_size=2, threads=1, prefetch=0))
    os.truncate(file, 60 * 80 * 3 * 8)
    with pytest.raises(DamagedError, match=rf"^{re.escape(str(file))} is damaged: it ends at byte 115200"):
        list(batches)


@pytest.mark.parametrize("tier", ["disk", "memory"])
def test_a_broken_jpeg_names_its_row_and_sample(tmp_path: Path, tier: str) -> None:
    path = variable_dataset(tmp_path / "data", some_images([(60, 80)] * 3), encoding="jpeg", shard_rows=3)
    file = next((path / "train").glob("*/images.bytes.memmap"))
    offsets = np.fromfile(file.with_name("images.offsets.memmap"), np.int64)
    data = np.memmap(file, np.uint8, "r+")
    data[offsets[1] + 300 : offsets[1] + 400] = 0xFF
    data.flush()
    good = variable_dataset(tmp_path / "good", some_images([(60, 80)] * 3), encoding="jpeg")
    both = ConcatDataset([open_dataset(good)["train"], open_dataset(path)["train"]])
    message = rf"images of row 1 of split 'train' of {re.escape(str(path))}, made from '1.png', is damaged"
    for rows in (path, both):
        with pytest.raises(DamagedError, match=message):
            list(Loader(rows, collate=Collate(CenterCrop(60)), batch_size=1, threads=1, tier=tier))


@pytest.mark.skipif(turbojpeg_library() is None, reason="TurboJPEG's library is not installed")
@pytest.mark.parametrize("views", [1, 3])
@pytest.mark.parametrize("tier", ["disk", "read"])
def test_jpegs_have_the_pixels_of_simplejpeg_in_the_compiled_call(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, views: int, tier: str
) -> None:
    photos = some_images([(60 + 7 * k, 81 - 5 * k) for k in range(9)])
    path = variable_dataset(tmp_path / "data", photos, encoding="mixed")
    if tier == "read":
        monkeypatch.setattr(row_reader, "row_map", lambda *_: None)
    crop = Collate(RandomResizedCrop(24), RandomHorizontalFlip())

    def images() -> list[torch.Tensor]:
        loader = Loader(path, collate=Views(*[crop] * views), batch_size=4, seed=3, shuffle=True, tier="disk")
        return [batch.images for made in loader for batch in made]

    found = images()
    monkeypatch.setattr(tiers, "turbojpeg_library", lambda: None)
    assert all(map(torch.equal, found, images()))
