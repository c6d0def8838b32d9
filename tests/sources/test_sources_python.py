"""Any map-style dataset: the samples it gives are the rows, and those that do not fit are named."""

from __future__ import annotations

import contextlib
import pickle
import sys
import threading
from collections import namedtuple
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torchvision
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image
from python_datasets import MADE, splits
from torch.utils.data import ConcatDataset, Dataset, IterableDataset, Subset, TensorDataset

from mmload.errors import RecipeError, SampleError, SourceError
from mmload.sources import find_splits, make_source
from mmload.sources.decode import Decoder
from mmload.sources.schema import Schema

PIXELS = np.random.default_rng(0).integers(0, 256, (4, 6, 3), dtype=np.uint8)
IMAGE = Image.fromarray(PIXELS)
CHW = torch.from_numpy(PIXELS.transpose(2, 0, 1).copy())
Pair = namedtuple("Pair", ["image", "label"])


def fields_of(sample: Any, **options: Any) -> dict[str, torch.Tensor]:
    return splits([sample], **options)["train"].read(0).fields


def test_torchvisions_own_dataset() -> None:
    source = make_source(
        "python",
        Path("."),
        Decoder(),
        {
            "dataset": "torchvision.datasets:FakeData",
            "arguments": {"size": 5, "image_size": [3, 8, 9], "num_classes": 3},
        },
    )
    split = source.splits()["train"]
    plain = torchvision.datasets.FakeData(5, (3, 8, 9), 3)
    assert len(split) == 5
    for index in range(5):
        image, target = plain[index]
        sample = split.read(index)
        assert (sample.fields["images"].numpy() == np.asarray(image).transpose(2, 0, 1)).all()
        assert int(sample.fields["targets"]) == int(target)
        assert (sample.id, sample.size) == (str(index), (8, 9))
    assert split.notes() == ("each sample: images uint8 [3, any, any], targets int64 []",)


def test_imagefolder_and_voc_of_torchvision(tmp_path: Path) -> None:
    for name in ("b", "a"):
        (tmp_path / name).mkdir()
        IMAGE.save(tmp_path / name / "x.png")
    folder = torchvision.datasets.ImageFolder(tmp_path)
    split = splits(ConcatDataset([Subset(folder, [1, 0]), folder]))["train"]
    assert split.classes == ("a", "b")
    assert [int(split.read(i).fields["targets"]) for i in range(4)] == [1, 0, 0, 1]
    mask = Image.fromarray(np.array([[0, 1, 255, 2, 0, 0]] * 4, dtype=np.uint8))
    mask.putpalette([0] * 768)
    fields = fields_of((IMAGE, mask))
    assert (fields["masks"].numpy() == np.asarray(mask)).all()


def test_tensor_datasets() -> None:
    images = torch.randint(0, 256, (4, 3, 5, 6), dtype=torch.uint8)
    floats, targets = torch.randn(4, 7, dtype=torch.float64), torch.arange(4)
    split = splits(TensorDataset(images, targets))["train"]
    assert torch.equal(split.read(2).fields["images"], images[2])
    split = splits(TensorDataset(floats, targets.to(torch.int32)))["train"]
    assert torch.equal(split.read(1).fields["features"], floats[1])
    assert split.read(1).fields["targets"].dtype == torch.int64
    split = splits(TensorDataset(images, torch.eye(4)))["train"]
    assert split.read(3).fields["targets"].tolist() == [0, 0, 0, 1]


@pytest.mark.parametrize(
    "sample",
    [
        (IMAGE, 3),
        [PIXELS, np.int64(3)],
        (CHW, torch.tensor(3)),
        {"image": IMAGE, "label": 3},
        {"pixel_values": PIXELS, "target": 3},
        Pair(CHW, 3),
        (3, IMAGE),
    ],
)
def test_kinds_of_samples(sample: Any) -> None:
    fields = fields_of(sample)
    assert set(fields) == {"images", "targets"}
    assert torch.equal(fields["images"], CHW)
    assert fields["targets"].item() == 3
    assert fields["targets"].dtype == torch.int64


def test_names_and_other_values() -> None:
    sample = {
        "image": IMAGE,
        "weight": 0.5,
        "flag": True,
        "box": np.ones(4, np.float32),
        "feature": torch.ones(2).half(),
    }
    fields = fields_of(sample)
    assert set(fields) == {"images", "weight", "flag", "box", "features"}
    assert (fields["weight"].dtype, fields["flag"].dtype) == (torch.float32, torch.bool)
    assert fields["features"].dtype == torch.float16
    assert set(fields_of((IMAGE, 1, 2, torch.ones(3), torch.ones(4)))) == {
        "images", "targets", "field2", "field3", "field4",
    }  # fmt: skip
    chosen = fields_of((IMAGE, "text", 4), fields={"images": 0, "targets": 2})
    assert chosen["targets"].item() == 4
    gray = splits([(IMAGE, 1)], Decoder(mode="L"))["train"].read(0).fields["images"]
    assert (gray[0].numpy() == np.asarray(IMAGE.convert("L"))).all()
    assert fields_of(IMAGE)["images"].shape == (3, 4, 6)
    assert fields_of((PIXELS[:, :, 0], 1))["images"].shape == (1, 4, 6)


def test_later_samples_that_do_not_fit_are_named() -> None:
    bigger = Image.fromarray(np.zeros((9, 9, 3), np.uint8))
    samples = [
        (IMAGE, 1),
        (bigger, 2),
        (CHW.float(), 1),
        (PIXELS[:, :, :2], 1),
        (IMAGE, "x"),
        (IMAGE,),
        (IMAGE, torch.ones(2)),
        None,
    ]
    split = splits(samples)["train"]
    split.read(1)
    messages = [
        "images is float32 [3, any, any], the first sample's is uint8 [3, any, any]",
        "images is uint8 [2, any, any]",
        "targets is of type str, which",
        "it has no value 1, it has 0",
        "targets is float32 [2], the first sample's is int64 []",
        "images is of type NoneType",
    ]
    for index, message in enumerate(messages, 2):
        with pytest.raises(SampleError) as caught:
            split.read(index)
        assert message in str(caught.value)
        assert caught.value.sample == str(index)


def test_a_dataset_that_fails_is_named() -> None:
    class Failing(Dataset):
        def __len__(self) -> int:
            return 2

        def __getitem__(self, index: int) -> Any:
            return 1 / (1 - index), index

    split = splits(Failing())["train"]
    with pytest.raises(SampleError, match="1: ZeroDivisionError"):
        split.read(1)


def test_several_splits() -> None:
    both = {"train": [(IMAGE, 1)] * 3, "val": [(IMAGE, 0)]}
    assert {name: len(split) for name, split in splits(both).items()} == {"train": 3, "val": 1}
    MADE["it"] = [(IMAGE, 1)]
    spec = "python_datasets:made"
    source = make_source(
        "python", Path("."), Decoder(), {"dataset": {"a": spec, "b": spec}, "arguments": {"name": "it"}}
    )
    assert list(source.splits()) == ["a", "b"]


def test_what_is_no_dataset() -> None:
    class Stream(IterableDataset):
        def __iter__(self):
            return iter([1])

    for wrong, message in (
        (3, "map-style"),
        (Stream(), "map-style"),
        ([], "no samples"),
        ([()], "empty"),
        ([(b"text", 1)], "features is of type bytes"),
        ([{"a b": 1}], "is not a plain field name"),
        ([{"image": IMAGE, "img": IMAGE}], "two values are both images"),
        ([torch.zeros(1, dtype=torch.complex64)], "features is a tensor of complex64; a dataset stores dense uint8"),
        ([torch.zeros(2, 2).to_sparse()], "features is a tensor of float32, sparse_coo; a dataset"),
    ):
        with pytest.raises(SourceError, match=message):
            splits(wrong)


@pytest.mark.parametrize(
    ("spec", "error", "message"),
    [
        ("no_colon", RecipeError, "package.module:callable"),
        ("a:b c", RecipeError, "package.module:callable"),
        ("nowhere_at_all:x", RecipeError, "cannot import nowhere_at_all:x"),
        ("torchvision.datasets:Nothing", RecipeError, "Nothing"),
        ("torchvision.datasets:FakeData", SourceError, "failed \\(TypeError"),
        (3, RecipeError, "dataset is 3"),
    ],
)
def test_wrong_names(spec: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        find_splits("python", Path("."), Decoder(), {"dataset": spec, "arguments": {"color": 1}})


def test_a_module_under_the_root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", list(sys.path))
    (tmp_path / "my_own_data.py").write_text("numbers = [1, 2, 3]\n")
    (tmp_path / "my_broken_data.py").write_text("1 / 0\n")
    split = find_splits("python", tmp_path, Decoder(), {"dataset": "my_own_data:numbers"})["train"]
    assert split.read(2).fields["targets"].item() == 3
    with pytest.raises(SourceError, match="ZeroDivisionError"):
        find_splits("python", tmp_path, Decoder(), {"dataset": "my_broken_data:x"})


def test_one_thread_at_a_time_unless_allowed() -> None:
    class Watched(Dataset):
        """Notes how many threads are inside at once."""

        def __init__(self) -> None:
            self.inside = self.most = 0
            self.patience = 0.0
            self.meet = threading.Barrier(2)

        def __len__(self) -> int:
            return 100

        def __getitem__(self, index: int) -> int:
            self.inside += 1
            self.most = max(self.most, self.inside)
            if self.patience:
                try:
                    self.meet.wait(self.patience)
                except threading.BrokenBarrierError:
                    self.meet.reset()
            self.inside -= 1
            return index

    for concurrent, most in ((False, 1), (True, 2)):
        watched = Watched()
        split = splits(watched, concurrent=concurrent)["train"]
        watched.patience = 60 if concurrent else 0.2
        threads = [threading.Thread(target=split.read, args=(index,)) for index in (1, 2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert watched.most == most


def test_a_note_on_float_images() -> None:
    notes = splits([torch.ones(3, 4, 4)])["train"].notes()
    assert "look like images" in notes[1]


def test_stamps_and_pickling() -> None:
    split = splits([(IMAGE, 1), (IMAGE, 2)])["train"]
    copy = pickle.loads(pickle.dumps(split))
    assert copy.read(1).fields["targets"].item() == 2
    assert copy.revision(0) == split.revision(0) != splits([(IMAGE, 2)])["train"].revision(0)


values = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=3) | st.binary(max_size=3)
arrays = st.sampled_from(
    [IMAGE, PIXELS, CHW, CHW.float(), np.float64(3), torch.tensor(True), np.array(["a"]), object()]
)
samples = st.recursive(
    values | arrays, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3)
)


@given(samples, samples)
def test_any_sample_is_rows_or_a_clean_error(first: Any, second: Any) -> None:
    with contextlib.suppress(ValueError):
        schema = Schema([first], Decoder(), None)
        shapes = {name: (t.dtype, t.ndim) for name, t in schema(first).items()}
        assert shapes == {name: (t.dtype, t.ndim) for name, t in schema(second).items()}
