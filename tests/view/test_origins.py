"""``mmload info --row`` and ``--file``: from rows to files and back."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from conftest import complaint, make_folder, mmload, ran

from mmload.remote.opening import open as open_dataset
from mmload.store.dataset import Dataset


@pytest.fixture(scope="module")
def two_splits(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A dataset of two splits in which one sample was left out, beside its source ``photos``."""
    place = tmp_path_factory.mktemp("origins")
    for number, split in enumerate(("train", "val")):
        make_folder(place / "photos" / split, 3, ("ant", "bee"), seed=number)
    (place / "photos" / "val" / "bee" / "01.png").write_bytes(b"nothing")
    words = ("build", "imagefolder", place / "photos", place / "out", "--size", 16, "--on-error", "skip")
    ran(*words)
    return place / "out"


def test_a_row_and_its_file_name_each_other(two_splits: Path) -> None:
    for name, split in open_dataset(two_splits).items():
        for row in (0, len(split) // 2, len(split) - 1):
            source = split.source(row)

            line = f"{name} {row}: {source.id}, {source.size[1]} x {source.size[0]} pixels\n"
            assert mmload("info", two_splits, "--row", row, "--split", name).stdout == line
            for file in (source.id, two_splits.parent / "photos" / source.id, f"./photos/{source.id}"):
                assert mmload("info", two_splits, "--file", file).stdout == line
    several = mmload("info", two_splits, "--row", 2, "--row", 0, "--split", "val").stdout.splitlines()
    assert [line.split(":")[0] for line in several] == ["val 2", "val 0"]
    told = json.loads(mmload("info", two_splits, "--row", 2, "--split", "val", "--json").stdout)
    assert [(one["split"], one["row"]) for one in told] == [("val", 2)]


def test_one_split_needs_no_name(dataset: Dataset) -> None:
    assert mmload("info", dataset.path, "--row", 7).stdout.startswith("train 7: bee/01.png, ")


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["--row", 0], "has the splits train, val; say which with --split"),
        (["--row", 0, "--split", "test"], "has no split 'test'; it has train, val"),
        (["--row", 6, "--split", "train"], "row 6 does not exist: split 'train' has 6 rows"),
        (["--row", "x"], "--row is 'x': "),
        (["--row", 1, "--file", "x"], "give one of them"),
        (["--split", "train"], "--split is for --row and --file"),
        (
            ["--file", "photos/none.png"],
            "'photos/none.png'; its files are named as in 'train/ant/00.png'",
        ),
        (["--file", "photos/val/bee/01.png"], "val/bee/01.png was left out of split val: not an image"),
    ],
    ids=str,
)
def test_what_is_not_there_is_one_line(words: list[object], expected: str, two_splits: Path) -> None:
    assert expected in complaint(mmload("info", two_splits, *words), 2)


def test_a_damaged_list_of_what_was_left_out_is_one_line(two_splits: Path, tmp_path: Path) -> None:
    copy = shutil.copytree(two_splits, tmp_path / "copy")
    (copy / "val" / "skipped.jsonl").write_text("{")
    assert "cannot be read" in complaint(mmload("info", copy, "--file", "val/bee/01.png"), 1)
