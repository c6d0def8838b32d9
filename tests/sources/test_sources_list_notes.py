"""Labels and files of a list that hardly mean what they are: noted, or refused, never taken silently."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import pytest

from mmload.errors import RecipeError, SourceError
from mmload.sources import HasNotes, make_source
from mmload.sources.decode import Decoder
from mmload.sources.sample_list import ListSplit


def notes_of(folder: Path, *rows: tuple[str, ...], **options: Any) -> dict[str, tuple[str, ...]]:
    """The notes of each split of a CSV; the first row names the columns."""
    with open(folder / "a.csv", "w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows(rows)
    splits = make_source("list", folder, Decoder(), {"file": "a.csv", **options}).splits()
    noted: dict[str, tuple[str, ...]] = {}
    for name, split in splits.items():
        assert isinstance(split, HasNotes)
        noted[name] = split.notes()
    return noted


def notes_on(folder: Path, *labels: str) -> tuple[str, ...]:
    rows = [(f"{number}.png", label) for number, label in enumerate(labels)]
    return notes_of(folder, ("path", "label"), *rows)["train"]


def test_classes_that_hardly_anybody_means_are_noted(tmp_path: Path) -> None:
    rows = ["cat", "Cat", "caf\u00e9", "cafe\u0301", "cat|dog", "dog, small"]
    lines = "".join(f'{number}.png,"{label}"\n' for number, label in enumerate(rows))
    (tmp_path / "a.csv").write_text(f"path,label\n{lines}", encoding="utf-8")
    split = make_source("list", tmp_path, Decoder(), {"file": "a.csv"}).splits()["train"]
    assert isinstance(split, HasNotes)
    several, case, form = split.notes()
    assert "'Cat' and 'cat' are classes of their own" in case
    assert "Unicode form" in form
    assert several.startswith("'cat|dog' is one class")


def test_a_cell_of_several_classes_is_noted(tmp_path: Path) -> None:
    (note,) = notes_on(tmp_path, "cat", "dog", "cat, dog")
    assert note.startswith(
        "'cat, dog' is one class, as a text is one label; for several labels add --set separator='|'"
    )
    assert notes_on(tmp_path, "tench, Tinca tinca", "goldfish, Carassius auratus", "cat") == ()


@pytest.mark.parametrize("label", ["16 0", "['cat', 'dog']", "[1, 0]", '{"name": "cat"}', "cat dog"])
def test_text_that_looks_like_several_labels_is_noted(tmp_path: Path, label: str) -> None:
    (note,) = notes_on(tmp_path, "cat", "dog", label)
    assert "is one class, as a text is one label" in note


@pytest.mark.parametrize("labels", [("50%", "7.5 %"), ("3,5", "2,75")])
def test_numbers_with_a_sign_or_a_decimal_comma_are_classes_and_noted(tmp_path: Path, labels: tuple[str, str]) -> None:
    assert "for numbers to predict" in notes_on(tmp_path, *labels)[-1]


def test_integral_numbers_with_a_fraction_are_classes_and_noted(tmp_path: Path) -> None:
    (note,) = notes_on(tmp_path, "0.0", "1.0")
    assert "'0.0'" in note


def test_samples_without_a_split_among_others_are_noted(tmp_path: Path) -> None:
    rows = [("path", "label", "split"), ("a.png", "x", "val"), ("b.png", "x", ""), ("c.png", "x", "VAL")]
    notes = notes_of(tmp_path, *rows)["train"]
    assert any("without a split" in note and "line 3)" in note for note in notes)
    assert any("'val' and 'VAL' are splits of their own" in note for note in notes)


def test_cell_of_more_than_csvs_default_limit_is_read(tmp_path: Path) -> None:
    assert notes_of(tmp_path, ("path", "label", "mask"), ("a.png", "x", "1 2 " * 50_000))["train"] == ()


def test_lists_of_numbers_are_several_labels(tmp_path: Path) -> None:
    lines = (json.dumps({"path": f"{number}.png", "label": label}) for number, label in enumerate(([1, 0], [1, 1])))
    (tmp_path / "a.jsonl").write_text("\n".join(lines))
    split = make_source("list", tmp_path, Decoder(), {"file": "a.jsonl"}).splits()["train"]
    assert isinstance(split, ListSplit)
    assert [split.targets[row].tolist() for row in range(2)] == [[1.0, 0.0], [1.0, 1.0]]
    assert split.classes == ()


@pytest.mark.parametrize("missing", ["nan", "NaN", "None", "n/a", "?", "<NA>"])
def test_labels_that_stand_for_missing_ones_are_noted(tmp_path: Path, missing: str) -> None:
    (note,) = notes_on(tmp_path, "cat", missing, "dog")
    assert note.startswith(f"{missing!r} is a class of its own; if it stands for a missing label")


def test_one_label_that_is_no_number_makes_all_names(tmp_path: Path) -> None:
    missing, odd = notes_on(tmp_path, "0.5", "nan", "0.75", "1")
    assert "'nan' is a class of its own" in missing
    assert odd.startswith("labels are class names and not numbers, because 'nan' is not a number")
    assert notes_on(tmp_path, "3", "l", "0")[0].startswith("labels are class names and not numbers, because 'l'")
    assert notes_on(tmp_path, "1a", "2", "b", "3") == ()


def test_quotes_and_spaces_around_names_are_noted(tmp_path: Path) -> None:
    (note,) = notes_on(tmp_path, "cat", "'cat'", '"cat"', "dog")
    assert "are classes of their own, but differ only in case, quotes, spaces or their Unicode form" in note


def test_blank_labels_and_class_names_are_refused(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match=r"line 2 \(label\): label is empty"):
        notes_on(tmp_path, " ")
    (tmp_path / "b.jsonl").write_text('{"path": "a.png", "label": " "}')
    with pytest.raises(SourceError, match=r"line 1 \(label\): label is ' '"):
        make_source("list", tmp_path, Decoder(), {"file": "b.jsonl"}).splits()
    with pytest.raises(RecipeError, match="classes is .*; write a list of different names"):
        notes_of(tmp_path, ("path", "label"), ("a.png", "cat"), classes=["cat", " "])


def test_numbers_written_in_two_ways_are_noted(tmp_path: Path) -> None:
    (note,) = notes_on(tmp_path, "0", "7", "007", "1", "2", "3", "4", "5", "6")
    assert note == "'7' and '007' are both class number 7"
    assert notes_on(tmp_path, "00", "01") == ()


def test_gaps_in_class_numbers_are_noted(tmp_path: Path) -> None:
    (note,) = notes_on(tmp_path, "0", "1", "5", "1")
    assert note.startswith("3 of the class numbers 0 to 5 have no samples, the first is 2; a model needs an output")
    assert notes_on(tmp_path, "1", "0", "2") == ()
    rows = [("a.png", "0"), ("b.png", "2")]
    assert notes_of(tmp_path, ("path", "label"), *rows, classes=["x", "y", "z"])["train"] == ()


def test_files_that_are_listed_again_are_noted(tmp_path: Path) -> None:
    rows = [("a.png", "x", "train", "1"), ("a.png", "y", "train", "2"), ("b.png", "x", "train", "3")]
    more = [("./a.png", "x", "val", "4"), ("c.png", "x", "val", "5"), ("b.png", "y", "val", "6")]
    noted = notes_of(tmp_path, ("path", "label", "split", "id"), *rows, *more)
    assert noted["train"] == ("1 file listed more than once, under different ids",)
    assert noted["val"] == ("2 files also in split train",)
    held_out = notes_of(tmp_path, ("path", "label", "split", "id"), *rows, val_fraction=0.5)
    assert held_out["train"] or held_out["val"]
