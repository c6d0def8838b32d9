"""Lists of a different number of elements per row: reading, padding, damage, subsets, object storage, loaders."""

from __future__ import annotations

import json
import pickle

import numpy as np
import pytest
import torch
from building import reseal_file
from coco_sets import coco_dataset
from tensordict import TensorDict
from torch.utils.data import ConcatDataset, Subset

import mmload
from mmload.builder.verify import compare, verify
from mmload.errors import DamagedError
from mmload.records import FieldSpec
from mmload.remote.opening import open as open_dataset
from mmload.store import row_reader

NAMES = ("boxes", "labels", "area", "iscrowd", "rings", "polygons", "run_boxes", "runs")


@pytest.fixture(scope="module")
def dataset(tmp_path_factory):
    return coco_dataset(tmp_path_factory.mktemp("lists"))


def stored(path, split, name):
    """Returns the lists of a field, read by numpy alone."""
    spec = json.loads((path / "dataset.json").read_text())["splits"][split]["fields"][name]
    values = np.fromfile(path / split / "000000" / f"{name}.bytes.memmap", np.uint8)
    offsets = np.fromfile(path / split / "000000" / f"{name}.offsets.memmap", "<i8")
    return [
        values[start:end].view(spec["dtype"]).reshape(-1, *spec["shape"][1:])
        for start, end in zip(offsets[:-1], offsets[1:], strict=True)
    ]


def padded(lists, most, fill):
    rows = np.full((len(lists), most, *lists[0].shape[1:]), fill, lists[0].dtype)
    for row, values in enumerate(lists):
        rows[row, : len(values)] = values
    return rows


@pytest.mark.parametrize("column_bytes", [row_reader.COLUMN_BYTES, 0])
def test_lists_are_read_padded_from_memory_and_from_files(dataset, column_bytes, monkeypatch):
    monkeypatch.setattr(row_reader, "COLUMN_BYTES", column_bytes)
    split = open_dataset(dataset)["train"]
    rows = np.array([5, 0, 1, 1, 4])
    for name in NAMES:
        lists = stored(dataset, "train", name)
        most = max(1, *map(len, lists))
        expected = padded(lists, most, -1 if name == "labels" else 0)[rows]
        assert split.fields[name] == FieldSpec(dtype=str(expected.dtype), shape=expected.shape[1:])
        np.testing.assert_array_equal(split.reader.array(name, rows), expected)
        np.testing.assert_array_equal(split.reader.gather(name, rows), expected)
    assert split.reader.is_column("boxes") is (column_bytes > 0)


@pytest.mark.parametrize("column_bytes", [row_reader.COLUMN_BYTES, 0])
def test_a_loader_gives_the_lists_of_its_rows(dataset, column_bytes, monkeypatch):
    monkeypatch.setattr(row_reader, "COLUMN_BYTES", column_bytes)
    split = open_dataset(dataset)["train"]
    for batch in mmload.Loader(split, batch_size=4, shuffle=True, seed=1):
        expected = split[batch.ids]
        for name in ("boxes", "labels", "counts"):
            assert torch.equal(getattr(batch, name), getattr(expected, name)), name
        for name in ("area", "iscrowd", "polygons", "runs", "image_ids"):
            assert torch.equal(batch.extra[name], expected.extra[name]), name


def test_joined_splits_pad_lists_to_the_most_of_both(dataset):
    both = open_dataset(dataset)
    joined = ConcatDataset([Subset(both["val"], [3, 0]), both["train"]])
    lists = [stored(dataset, "val", "boxes")[3], stored(dataset, "val", "boxes")[0], *stored(dataset, "train", "boxes")]
    (batch,) = mmload.Loader(joined, batch_size=len(joined))
    most = max(map(len, [*stored(dataset, "val", "boxes"), *stored(dataset, "train", "boxes")]))
    np.testing.assert_array_equal(batch.boxes, padded(lists, batch.boxes.shape[1], 0))
    assert batch.boxes.shape[1] <= most


def test_a_split_with_lists_can_be_pickled(dataset):
    split = open_dataset(dataset)["train"]
    assert torch.equal(pickle.loads(pickle.dumps(split))[2:4].boxes, split[2:4].boxes)


def test_a_shard_with_lists_opens_with_tensordict(dataset):
    shard = TensorDict.load_memmap(dataset / "train" / "000000")
    lists = stored(dataset, "train", "boxes")
    np.testing.assert_array_equal(shard["boxes.bytes"].numpy().view(np.float32).reshape(-1, 4), np.concatenate(lists))


def test_verify_and_compare_find_no_fault_in_lists(dataset):
    assert verify(dataset) == []
    assert compare(dataset, dataset.parent / "coco") == []


def test_compare_names_the_row_of_another_label(dataset, tmp_path):
    import shutil

    copy = tmp_path / "copy"
    shutil.copytree(dataset, copy)
    place = copy / "train" / "000000" / "labels.bytes.memmap"
    values = np.fromfile(place, "<i8")
    offsets = np.fromfile(copy / "train" / "000000" / "labels.offsets.memmap", "<i8")
    values[offsets[3] // 8] = 2 - values[offsets[3] // 8]
    if values[offsets[3] // 8] == np.fromfile(place, "<i8")[offsets[3] // 8]:
        values[offsets[3] // 8] = 0
    values.tofile(place)
    (fault,) = compare(copy, dataset.parent / "coco")
    assert "labels of row 3 differs" in fault.reason


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda offsets: np.where(np.arange(len(offsets)) == 2, 10**9, offsets), "leave the file"),
        (lambda offsets: np.where(np.arange(len(offsets)) == 2, -16, offsets), "end before they begin"),
        (lambda offsets: np.where(np.arange(len(offsets)) == 2, offsets + 1, offsets), "no elements of 16"),
        (lambda offsets: np.concatenate([offsets[:-1], offsets[-1:] - 16]), "its bytes end at"),
        (lambda offsets: np.concatenate([[16], offsets[1:]]), "its offset is 16, expected 0"),
    ],
)
def test_damaged_offsets_of_lists_name_the_row(dataset, tmp_path, change, reason):
    import shutil

    copy = tmp_path / "copy"
    shutil.copytree(dataset, copy)
    place = copy / "train" / "000000" / "boxes.offsets.memmap"
    change(np.fromfile(place, "<i8")).astype("<i8").tofile(place)
    reseal_file(copy, "train", 0, "boxes.offsets")
    with pytest.raises(DamagedError, match=reason):
        open_dataset(copy)["train"][:]


def run_lengths(runs):
    return [0, 2**31 - 1, *([0] * (len(runs) - 2))]


FAULTS = [
    ("runs", run_lengths, "cover the image"),
    ("runs", lambda runs: runs + 1, "cover the image"),
    ("run_boxes", lambda entries: entries + [[9, 0]], "does not have"),
    ("run_boxes", lambda entries: entries + [[0, 1]], "numbers of values"),
    ("rings", lambda entries: entries - [[9, 0]], "does not have"),
    ("rings", lambda entries: entries * [[1, -1]], "numbers of values"),
]


@pytest.fixture(params=FAULTS, ids=lambda fault: f"{fault[0]}, {fault[2]}")
def wrong_masks(request, dataset, tmp_path):
    """Returns a dataset with wrong masks of instances in row 0 and the reason."""
    import shutil

    name, change, reason = request.param
    copy = tmp_path / "copy"
    shutil.copytree(dataset, copy)
    place = copy / "train" / "000000" / f"{name}.bytes.memmap"
    values, first = np.fromfile(place, "<i4"), stored(dataset, "train", name)[0]
    values[: first.size] = np.reshape(change(first), -1)
    values.tofile(place)
    reseal_file(copy, "train", 0, f"{name}.bytes")
    return open_dataset(copy), rf"of row 0 of .*{reason}"


@pytest.mark.parametrize("column_bytes", [row_reader.COLUMN_BYTES, 0])
def test_wrong_masks_of_instances_name_the_row(wrong_masks, column_bytes, tmp_path, monkeypatch):
    from mmload.export import to_coco

    monkeypatch.setattr(row_reader, "COLUMN_BYTES", column_bytes)
    wrong, match = wrong_masks
    for read in (
        lambda: wrong["train"][:],
        lambda: list(mmload.Loader(wrong["train"], batch_size=4)),
        lambda: wrong["train"].preview([0]),
        lambda: to_coco(wrong, tmp_path / "coco"),
    ):
        with pytest.raises(DamagedError, match=match):
            read()


@pytest.mark.parametrize("shape", [(4,), (4, -1), (), (-1, -1), (-1, 0)])
def test_list_fields_begin_with_the_number_of_elements(shape):
    with pytest.raises(ValueError, match=r"is no list|expected positive integers"):
        FieldSpec(dtype="float32", shape=shape, encoding="list")


def test_lists_in_object_storage_are_those_of_the_folder(dataset, tmp_path):
    pytest.importorskip("obstore")
    url = f"file://{tmp_path / 'bucket'}"
    (tmp_path / "bucket").mkdir()
    from mmload.remote.copies import pull, push

    push(dataset, f"{url}/set")
    cached = mmload.open(f"{url}/set", cache=tmp_path / "cache")
    local = open_dataset(dataset)["train"]
    assert torch.equal(cached["train"][:].boxes, local[:].boxes)
    for batch in mmload.Loader(cached["train"], batch_size=4, shuffle=True):
        assert torch.equal(batch.extra["polygons"], local[batch.ids].extra["polygons"])
    pull(f"{url}/set", tmp_path / "pulled")
    assert verify(tmp_path / "pulled") == []


def test_labels_take_at_most_a_fifth_more_than_their_values(tmp_path):
    from coco_sets import CocoSet

    from mmload.builder.pipeline import build
    from mmload.builder.recipe import BuildRecipe

    made, random = CocoSet(tmp_path / "coco"), np.random.default_rng(0)
    for number in range(1, 41):
        made.image(number)
        for _ in range(14 * (number % 2)):  # 7 on average, as in train2017; half of the images have none
            made.object(number, [*random.uniform(0, 10, 2).tolist(), *random.uniform(1, 20, 2).tolist()])
    transforms = ({"step": "Letterbox", "size": 32},)
    out = build(BuildRecipe(kind="coco", root=made.write(), out=tmp_path / "out", transforms=transforms)).out
    split = open_dataset(out)["train"]
    values = sum(spec.padded(1).row_bytes for spec in split.record.fields.values() if spec.is_list) * 40 * 7
    values += 40 * (8 + 8)  # counts and image_ids
    files = [file for shard in split.record.shards for file in shard.files.items()]
    assert sum(file.bytes for name, file in files if name != "images") <= 1.2 * values
    held = sum(split.reader.lists(name)._column.nbytes for name in ("boxes", "labels", "area", "iscrowd"))
    held += sum(split.files.index(name).offsets.nbytes for name in ("boxes", "labels", "area", "iscrowd"))
    assert held <= 1.2 * values
