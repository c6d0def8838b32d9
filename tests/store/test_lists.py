"""Lists of a different number of elements per row: reading, padding, damage, subsets, object storage, loaders."""

from __future__ import annotations

import json
import pickle
import shutil

import numpy as np
import pytest
import torch
from building import reseal_file
from coco_sets import CocoSet, coco_dataset
from tensordict import TensorDict
from torch.utils.data import ConcatDataset, Subset

import mmload
from mmload.builder.pipeline import build
from mmload.builder.recipe import BuildRecipe
from mmload.builder.verify import compare, verify
from mmload.errors import DamagedError
from mmload.export import to_coco
from mmload.records import FieldSpec
from mmload.remote.copies import pull, push
from mmload.remote.opening import open as open_dataset
from mmload.store import row_reader

LETTERBOX = ({"step": "Letterbox", "size": 32},)
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


@pytest.fixture
def copy(dataset, tmp_path):
    """A copy of the dataset, to be damaged."""
    return shutil.copytree(dataset, tmp_path / "copy")


def change(copy, name, changed, dtype="<i8"):
    """Changes the values of a file by a function, and gives it the checksum that the manifest expects."""
    place = copy / "train" / "000000" / f"{name}.memmap"
    changed(np.fromfile(place, dtype)).astype(dtype).tofile(place)
    reseal_file(copy, "train", 0, name)


def padded(lists, most, fill):
    rows = np.full((len(lists), most, *lists[0].shape[1:]), fill, lists[0].dtype)
    for row, values in enumerate(lists):
        rows[row, : len(values)] = values
    return rows


@pytest.mark.parametrize("column_bytes", [row_reader.COLUMN_BYTES, 0])
def test_lists_are_read_padded_and_loaded_from_memory_and_from_files(dataset, column_bytes, monkeypatch):
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
    assert torch.equal(pickle.loads(pickle.dumps(split))[2:4].boxes, split[2:4].boxes)
    for batch in mmload.Loader(split, batch_size=4, shuffle=True, seed=1):
        expected = split[batch.ids]
        for name in ("boxes", "labels", "counts"):
            assert torch.equal(getattr(batch, name), getattr(expected, name)), name
        for name in ("area", "iscrowd", "polygons", "runs", "image_ids"):
            assert torch.equal(batch.extra[name], expected.extra[name]), name


def test_joined_splits_pad_lists_to_the_most_of_both(dataset):
    both = open_dataset(dataset)
    joined = ConcatDataset([Subset(both["val"], [3, 0]), both["train"]])
    val, train = (stored(dataset, split, "boxes") for split in ("val", "train"))
    (batch,) = mmload.Loader(joined, batch_size=len(joined))
    np.testing.assert_array_equal(batch.boxes, padded([val[3], val[0], *train], batch.boxes.shape[1], 0))
    assert batch.boxes.shape[1] <= max(map(len, [*val, *train]))


def test_a_right_dataset_of_lists_has_no_fault_and_its_shards_open_with_tensordict(dataset):
    assert verify(dataset) == compare(dataset, dataset.parent / "coco") == []
    shard = TensorDict.load_memmap(dataset / "train" / "000000")
    lists = stored(dataset, "train", "boxes")
    np.testing.assert_array_equal(shard["boxes.bytes"].numpy().view(np.float32).reshape(-1, 4), np.concatenate(lists))


def test_compare_names_the_row_of_another_label(copy, dataset):
    def other(labels):
        first = len(np.concatenate(stored(dataset, "train", "labels")[:3]))
        labels[first] = labels[first] == 0
        return labels

    change(copy, "labels.bytes", other)
    (fault,) = compare(copy, dataset.parent / "coco")
    assert "labels of row 3 differs" in fault.reason


@pytest.mark.parametrize(
    ("changed", "reason"),
    [
        (lambda offsets: np.where(np.arange(len(offsets)) == 2, 10**9, offsets), "leave the file"),
        (lambda offsets: np.where(np.arange(len(offsets)) == 2, -16, offsets), "end before they begin"),
        (lambda offsets: np.where(np.arange(len(offsets)) == 2, offsets + 1, offsets), "no elements of 16"),
        (lambda offsets: np.concatenate([offsets[:-1], offsets[-1:] - 16]), "its bytes end at"),
        (lambda offsets: np.concatenate([[16], offsets[1:]]), "its offset is 16, expected 0"),
    ],
)
def test_damaged_offsets_of_lists_name_the_row(copy, changed, reason):
    change(copy, "boxes.offsets", changed)
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
def wrong_masks(request, copy, dataset):
    """Returns a dataset with wrong masks of instances in row 0 and the reason."""
    name, changed, reason = request.param
    first = stored(dataset, "train", name)[0]
    wrong = np.reshape(changed(first), -1)
    change(copy, f"{name}.bytes", lambda values: np.concatenate([wrong, values[first.size :]]), "<i4")
    return open_dataset(copy), rf"of row 0 of .*{reason}"


@pytest.mark.parametrize("column_bytes", [row_reader.COLUMN_BYTES, 0])
def test_wrong_masks_of_instances_name_the_row(wrong_masks, column_bytes, tmp_path, monkeypatch):
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
    push(dataset, f"{url}/set")
    cached = mmload.open(f"{url}/set", cache=tmp_path / "cache")
    local = open_dataset(dataset)["train"]
    assert torch.equal(cached["train"][:].boxes, local[:].boxes)
    for batch in mmload.Loader(cached["train"], batch_size=4, shuffle=True):
        assert torch.equal(batch.extra["polygons"], local[batch.ids].extra["polygons"])
    pull(f"{url}/set", tmp_path / "pulled")
    assert verify(tmp_path / "pulled") == []


def test_labels_take_at_most_a_fifth_more_than_their_values(tmp_path):
    made, random = CocoSet(tmp_path / "coco"), np.random.default_rng(0)
    for number in range(1, 41):
        made.image(number)
        for _ in range(14 * (number % 2)):  # 7 on average, as in train2017; half of the images have none
            made.object(number, [*random.uniform(0, 10, 2).tolist(), *random.uniform(1, 20, 2).tolist()])
    recipe = BuildRecipe(kind="coco", root=made.write(), out=tmp_path / "out", transforms=LETTERBOX)
    split = open_dataset(build(recipe).out)["train"]
    values = sum(spec.padded(1).row_bytes for spec in split.record.fields.values() if spec.is_list) * 40 * 7
    values += 40 * (8 + 8)  # counts and image_ids
    files = [file for shard in split.record.shards for file in shard.files.items()]
    assert sum(file.bytes for name, file in files if name != "images") <= 1.2 * values
    lists = [split.reader.lists(name) for name in ("boxes", "labels", "area", "iscrowd")]
    assert sum(each._column.nbytes + 2 * each._offsets.nbytes for each in lists) <= 1.3 * values
