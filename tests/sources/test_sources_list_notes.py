"""Labels and files of a list that hardly mean what they are: noted, or refused, never taken silently."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from source_cases import check, plant

from mmload.sources import find_splits
from mmload.sources.decode import Decoder

SEVERAL = "is one class, as a text is one label; for several labels add --set separator='|'"
OWN = "are classes of their own, but differ only in case, quotes, spaces or their Unicode form"
NOTED: dict[tuple[str, ...], list[str]] = {
    ("cat", "Cat", "caf\u00e9", "cafe\u0301", "cat|dog", "dog, small"): [
        f"'cat|dog' {SEVERAL}",
        f"'Cat' and 'cat' {OWN}",
        OWN,
    ],
    ("cat", "dog", "cat, dog"): [f"'cat, dog' {SEVERAL}"],
    ("tench, Tinca tinca", "goldfish, Carassius auratus", "cat"): [],
    **{
        ("cat", "dog", label): [SEVERAL] for label in ("16 0", "['cat', 'dog']", "[1, 0]", '{"name": "cat"}', "cat dog")
    },
    ("50%", "7.5 %"): ["for numbers to predict"],
    ("3,5", "2,75"): [SEVERAL, "for numbers to predict"],
    ("0.0", "1.0"): ["'0.0'"],
    **{
        ("cat", missing, "dog"): [f"{missing!r} is a class of its own; if it stands for a missing label"]
        for missing in ("nan", "NaN", "None", "n/a", "?", "<NA>")
    },
    ("0.5", "nan", "0.75", "1"): [
        "'nan' is a class of its own",
        "labels are class names and not numbers, because 'nan' is not a number",
    ],
    ("3", "l", "0"): ["labels are class names and not numbers, because 'l'"],
    ("1a", "2", "b", "3"): [],
    ("cat", "'cat'", '"cat"', "dog"): [OWN],
    ("00", "01"): [],
    ("0", "1", "5", "1"): ["3 of the class numbers 0 to 5 have no samples, the first is 2; a model needs an output"],
    ("1", "0", "2"): [],
}


def csv_of(*rows: tuple[str, ...]) -> dict[str, str]:
    """Returns the tree of a list; the first row names the columns."""
    cells = ([f'"{cell.replace(chr(34), 2 * chr(34))}"' for cell in row] for row in rows)
    return {"a.csv": "".join(f"{','.join(row)}\n" for row in cells)}


def notes_of(root: Path, *rows: tuple[str, ...], **options: Any) -> dict[str, tuple[str, ...]]:
    splits: Any = find_splits("list", plant(root, csv_of(*rows)), Decoder(), {"file": "a.csv", **options})
    return {name: split.notes() for name, split in splits.items()}


@pytest.mark.parametrize("labels", NOTED)
def test_labels_that_hardly_mean_what_they_are_are_noted(tmp_path: Path, labels: tuple[str, ...]) -> None:
    rows = [(f"{number}.png", label) for number, label in enumerate(labels)]
    notes = notes_of(tmp_path, ("path", "label"), *rows)["train"]
    assert [part in note for note, part in zip(notes, NOTED[labels], strict=True)] == [True] * len(notes), notes


def test_samples_without_a_split_among_others_are_noted(tmp_path: Path) -> None:
    rows = [("path", "label", "split"), ("a.png", "x", "val"), ("b.png", "x", ""), ("c.png", "x", "VAL")]
    notes = notes_of(tmp_path, *rows)["train"]
    assert any("without a split" in note and "line 3)" in note for note in notes)
    assert any("'val' and 'VAL' are splits of their own" in note for note in notes)


def test_what_needs_no_note_has_none(tmp_path: Path) -> None:
    assert notes_of(tmp_path, ("path", "label", "mask"), ("a.png", "x", "1 2 " * 50_000))["train"] == ()
    rows = [("path", "label"), ("a.png", "0"), ("b.png", "2")]
    assert notes_of(tmp_path, *rows, classes=["x", "y", "z"])["train"] == ()


@pytest.mark.parametrize(
    ("tree", "options", "message"),
    [
        (csv_of(("path", "label"), ("0.png", " ")), {"file": "a.csv"}, r"line 2 \(label\): label is empty"),
        ({"b.jsonl": '{"path": "a.png", "label": " "}'}, {"file": "b.jsonl"}, r"line 1 \(label\): label is ' '"),
        (
            csv_of(("path", "label"), ("a.png", "cat")),
            {"file": "a.csv", "classes": ["cat", " "]},
            "classes is .*; write a list of different names",
        ),
    ],
)
def test_blank_labels_and_class_names_are_refused(
    tmp_path: Path, tree: dict[str, str], options: dict[str, Any], message: str
) -> None:
    check("list", tmp_path, message, tree=tree, options=options)


def test_files_that_are_listed_again_are_noted(tmp_path: Path) -> None:
    rows = [("a.png", "x", "train", "1"), ("a.png", "y", "train", "2"), ("b.png", "x", "train", "3")]
    more = [("./a.png", "x", "val", "4"), ("c.png", "x", "val", "5"), ("b.png", "y", "val", "6")]
    noted = notes_of(tmp_path, ("path", "label", "split", "id"), *rows, *more)
    assert noted["train"] == ("1 file listed more than once, under different ids",)
    assert noted["val"] == ("2 files also in split train",)
    held_out = notes_of(tmp_path, ("path", "label", "split", "id"), *rows, val_fraction=0.5)
    assert held_out["train"] or held_out["val"]
