"""Lists: CSV, JSON Lines and ID lists against the csv and json modules, and what is wrong with them."""

from __future__ import annotations

import contextlib
import csv
import io
import json
import os
import pickle
import re
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image
from source_cases import check, plant

import mmload
from mmload.errors import SampleError, SourceError
from mmload.sources import find_splits
from mmload.sources.decode import Decoder
from mmload.sources.files import LocalTree
from mmload.sources.list_rows import ListRow, read_rows, targets_of
from mmload.sources.listed_split import Listing

PIXELS = np.random.default_rng(0).integers(0, 256, (4, 6, 3), dtype=np.uint8)
PHOTO = Image.fromarray(PIXELS)
CHW = PIXELS.transpose(2, 0, 1)


def splits(root: Path, **options: Any):
    return find_splits("list", root, Decoder(), options)


def write_csv(path: Path, *rows: tuple[str, ...]) -> Path:
    with open(path, "w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows(rows)
    return path


def lines_of(*records: dict[str, Any]) -> str:
    return "\n\n".join(map(json.dumps, records)) + "\n"


def mask(value: int) -> Image.Image:
    return Image.fromarray(np.full((4, 6), value, np.uint8))


def masks_of(value: int) -> list[list[int]]:
    return np.full((4, 6), value).tolist()


CSV, JSONL, IDS = {"file": "list.csv"}, {"file": "list.jsonl"}, {"file": "ids.json"}
PHOTOS = {f"{number}.png": PHOTO for number in range(4)}
SEVERAL_CSV = PHOTOS | {"list.csv": "path,label\n0.png,cat|dog\n1.png,dog\n2.png, dog | ant \n3.png,\n"}
SEVERAL_JSON = PHOTOS | {
    "list.jsonl": lines_of(
        *({"path": f"{n}.png", "label": names} for n, names in enumerate((["cat", "dog"], "dog", ["ant", "dog"], [])))
    )
}
SEVERAL = {"train": [{"targets": row} for row in ([0, 1, 1], [0, 0, 1], [1, 0, 1], [0, 0, 0])]}
MASKED = {
    "list.csv": "path,mask\na.png,masks/a.png\nb.png,masks/b.png\nc.png,masks/c.png\n",
    **dict.fromkeys(("a.png", "b.png", "c.png"), PHOTO),
    **{f"masks/{name}.png": mask(value) for name, value in (("a", 2), ("b", 255), ("c", 3))},
}
TENSORS = {f"id-{number}": torch.full((2, 3), number / 3, dtype=torch.float64) for number in range(4)}
READ: dict[str, dict[str, Any]] = {
    "CSV": {
        "tree": {
            "list.csv": 'label,path,split,id,more\n"dog, big",img/0.png,train,zero,\ncat,./img//1.png,val,,x\n'
            "cat,img/2.png,train,,\n",
            **{f"img/{number}.png": PHOTO for number in range(3)},
        },
        "options": CSV,
        "rows": {
            "train": [{"id": "zero", "targets": 1, "images": CHW}, {"id": "img/2.png", "targets": 0}],
            "val": [{"id": "img/1.png", "targets": 0}],
        },
        "classes": ["cat", "dog, big"],
    },
    "the list as the root, and other names of columns": {
        "tree": {"list.csv": "file name,species\na.png,cat\n", "photos/a.png": PHOTO},
        "below": "list.csv",
        "options": {"folder": "photos", "columns": {"path": "file name", "label": "species"}},
        "rows": {"train": [{"id": "a.png", "targets": 0}]},
    },
    "JSON Lines": {
        "tree": {
            "list.jsonl": lines_of(
                {"path": "a.png", "label": 1, "split": "train"}, {"path": "b.pt", "label": 0, "split": "test", "id": 7}
            ),
            "a.png": PHOTO,
            "b.pt": torch.arange(3, dtype=torch.float16),
        },
        "options": JSONL | {"classes": ["no", "yes"]},
        "rows": {"train": [{"targets": 1}], "test": [{"id": "7", "features": [0, 1, 2]}]},
        "classes": ["no", "yes"],
    },
    "ids of tensors": {
        "tree": {
            "ids.json": {
                "partition": {"train": ["id-0", "id-1", "id-2"], "validation": ["id-3"]},
                "labels": {"id-0": 0, "id-1": 1, "id-2": 2, "id-3": 1},
            },
            **{f"data/{name}.pt": tensor for name, tensor in TENSORS.items()},
        },
        "options": IDS | {"folder": "data"},
        "rows": {
            "train": [{"id": f"id-{n}", "features": TENSORS[f"id-{n}"].tolist(), "targets": n} for n in range(3)],
            "validation": [{"id": "id-3", "features": TENSORS["id-3"].tolist(), "targets": 1}],
        },
        "classes": ["0", "1", "2"],
    },
    "ids of images and of tensors that are images": {
        "tree": {
            "ids.json": {"partition": {"train": ["sub/a", "b", "c"]}, "labels": {"sub/a": "x", "b": "y", "c": "x"}},
            "sub/a.PNG": PHOTO,
            "b.pt": torch.from_numpy(CHW.copy()),
        },
        "options": IDS,
        "rows": {
            "train": [
                {"images": CHW},
                {"images": CHW},
                r"c: no such file: c.pt \(paths are relative to the list's folder, or to the folder",
            ]
        },
    },
    "a column by another name": {
        "tree": {"list.csv": "path, label,set\na.png,x,val\n", "a.png": PHOTO},  # names without their spaces
        "options": CSV | {"columns": {"split": "set"}},
        "rows": {"val": [{"targets": 0}]},
    },
    "a column that is not there": {
        "tree": {"list.csv": "path, label,set\na.png,x,val\n"},
        "options": CSV | {"columns": {"split": "subset"}},
        "rows": "has no 'subset'; it has 'path', 'label', 'set'",
    },
    "paths out of the root": {
        "tree": {"x.png": PHOTO, "root/list.csv": "path,label\n../x.png,a\n"},
        "below": "root",
        "options": CSV | {"allow_outside": True},
        "rows": {"train": [{"images": CHW}]},
    },
    **{
        f"refused path {path!r}": {
            "tree": {"list.jsonl": lines_of({"path": "fine.png", "label": "a"}, {"path": path, "label": "a"})},
            "options": JSONL,
            "rows": "line 3: the path .*allow_outside",
        }
        for path in ("../x.png", "a/../../x.png", "/etc/passwd", "..", "a/..", "a\0b")
    },
    "val_fraction beside val": {
        "tree": {"list.csv": "path,label,split\na,b,val\n"},
        "options": CSV | {"val_fraction": 0.2},
        "rows": "val_fraction",
    },
    "a list that is no text": {
        "tree": {"list.csv": b"path,label\na,b\n\xff,x\n"},
        "options": CSV,
        "rows": r"list.csv, line 3, is not UTF-8 text \(invalid start byte\)",
    },
    "no list": {"options": CSV, "rows": "no such folder or file: .*csv"},
    "a folder in place of a list": {"rows": "is a folder; give the list in it as file"},
    "no folder": {"tree": {"list.csv": "path,label\n"}, "options": CSV | {"folder": "x"}, "rows": "no such folder"},
    "several labels in CSV": {
        "tree": SEVERAL_CSV,
        "options": CSV | {"separator": "|"},
        "rows": SEVERAL,
        "classes": ["ant", "cat", "dog"],
    },
    "several labels in JSON": {
        "tree": SEVERAL_JSON,
        "options": JSONL,
        "rows": SEVERAL,
        "classes": ["ant", "cat", "dog"],
    },
    "several labels of given classes": {
        "tree": SEVERAL_CSV,
        "options": CSV | {"separator": "|", "classes": ["dog", "cat", "ant", "bee"]},
        "rows": {"train": [{"targets": row} for row in ([1, 1, 0, 0], [1, 0, 0, 0], [1, 0, 1, 0], [0] * 4)]},
    },
    "several labels of other classes": {
        "tree": SEVERAL_CSV,
        "options": CSV | {"separator": "|", "classes": ["cat", "dog"]},
        "rows": "'ant' is not one of the classes: cat, dog",
    },
    **{
        f"labels {labels}": {
            "tree": {"list.jsonl": lines_of(*({"path": f"{n}.png", "label": each} for n, each in enumerate(labels)))},
            "options": JSONL,
            "rows": "others are names of classes",
        }
        for labels in ([["cat"], 3], [3, ["cat"]], [["cat"], [1.0]], [["cat"], 0])
    },
    "lists of numbers": {
        "tree": PHOTOS
        | {"list.jsonl": lines_of({"path": "0.png", "label": [1, 0]}, {"path": "1.png", "label": [1, 1]})},
        "options": JSONL,
        "rows": {"train": [{"targets": [1, 0]}, {"targets": [1, 1]}]},
        "classes": [],
    },
    "a column of masks": {
        "tree": MASKED,
        "options": CSV | {"classes": ["road", "car", "tree"]},
        "rows": {
            "train": [
                {"images": CHW, "masks": masks_of(2)},
                {"masks": masks_of(255)},
                "has the value 3; classes are 0 to 2, and 255 is void; name all in classes",
            ]
        },
    },
    "a column of masks of any classes": {
        "tree": MASKED,
        "options": CSV,
        "rows": {"train": [{}, {}, {"masks": masks_of(3)}]},
    },
    "two folders": {
        "tree": {
            **{f"images/{name}.png": PHOTO for name in "abc"},
            **{f"masks/{name}.png": mask(1) for name in ("a_mask", "c", "d")},
        },
        "options": {"folder": "images", "masks": "masks"},
        "rows": {"train": [{"id": "images/a.png"}, {"id": "images/c.png"}]},
        "notes": [
            "images without a mask of their name are left out: 1 (images/b.png)",
            "masks without an image of their name are left out: 1 (masks/d.png)",
        ],
    },
    "two folders without a pair": {
        "tree": {"images/a.png": PHOTO, "masks/b.png": mask(1)},
        "options": {"folder": "images", "masks": "masks"},
        "rows": r"no image with a mask; images without .*images/a.png.*masks/b.png",
    },
    "masks beside a list": {"options": CSV | {"masks": "masks"}, "rows": "masks takes the place of a list"},
    "masks of no text": {"options": {"masks": 3}, "rows": "masks is 3; use a path"},
    "a separator of no text": {"options": {"separator": ""}, "rows": "separator is ''; use a text"},
    "masks outside": {
        "tree": {"images/a.png": PHOTO},
        "options": {"folder": "images", "masks": "../masks"},
        "rows": "no folder below",
    },
    "unknown columns": {"options": {"columns": {"color": "x"}}, "rows": "columns"},
    "classes of one name": {"options": {"classes": ["a", "a"]}, "rows": "different names"},
    "a file of no text": {"options": {"file": 3}, "rows": "file is 3"},
    "val_fraction of 2": {"options": {"val_fraction": 2.0}, "rows": "val_fraction"},
    "a seed of no number": {"options": {"seed": "x"}, "rows": "seed"},
}


@pytest.mark.parametrize("case", READ)
def test_lists_are_read(tmp_path: Path, case: str) -> None:
    check("list", tmp_path, **READ[case])


def test_list_keeps_the_dtypes_of_tensors_and_pickles(tmp_path: Path) -> None:
    tree = {"list.csv": "path,label\na.png,x\nb.pt,y\n", "a.png": PHOTO, "b.pt": torch.ones(2, dtype=torch.float16)}
    split = splits(plant(tmp_path, tree), **CSV)["train"]
    copy = pickle.loads(pickle.dumps(split))
    assert [copy.read(0).size, copy.read(1).size] == [(4, 6), None]
    assert copy.read(1).fields["features"].dtype == torch.float16
    assert copy.read(0).fields["targets"].dtype == torch.int64
    assert splits(plant(tmp_path, SEVERAL_JSON), **JSONL)["train"].read(0).fields["targets"].dtype == torch.float32


def test_two_folders_of_images_and_masks_are_built_by_one_command(tmp_path: Path) -> None:
    names = (("train", "a", 1), ("train", "sub/b", 5), ("val", "c", 1))
    tree = {f"images/{split}/{name}.jpg": PHOTO for split, name, _ in names}
    plant(tmp_path / "root", tree | {f"masks/{split}/{name}.png": mask(value) for split, name, value in names})
    setting = {"folder": "images", "masks": "masks"}
    mmload.build(tmp_path / "root", tmp_path / "out", kind="list", size=4, setting=setting)
    opened = mmload.open(tmp_path / "out")
    assert {name: len(split) for name, split in opened.items()} == {"train": 2, "val": 1}
    assert opened["train"][1].masks.unique().tolist() == [5]
    assert opened["train"].source(1).id == "images/train/sub/b.jpg"


def test_bad_tensors_fail_alone_and_run_nothing(tmp_path: Path) -> None:
    mark = tmp_path / "ran"

    class Boom:
        def __reduce__(self):
            return os.system, (f"touch {mark}",)

    torch.save({"a": torch.zeros(1)}, tmp_path / "dict.pt")
    torch.save(torch.zeros(1, dtype=torch.complex64), tmp_path / "complex.pt")
    torch.save(torch.zeros(2, 2).to_sparse(), tmp_path / "sparse.pt")
    torch.save(torch.zeros(1).expand(1_000_000_000_000), tmp_path / "huge.pt")
    (tmp_path / "empty.pt").write_bytes(b"")
    (tmp_path / "text.pt").write_bytes(b"hello")
    (tmp_path / "boom.pt").write_bytes(pickle.dumps(Boom()))
    torch.save(Boom(), tmp_path / "boom2.pt")
    torch.save(torch.zeros(1, requires_grad=True), tmp_path / "grad.pt")
    bad = sorted(path.name for path in tmp_path.glob("*.pt") if path.name != "grad.pt")
    write_csv(tmp_path / "list.csv", ("path", "label"), *((name, "x") for name in [*bad, "grad.pt"]))
    split = splits(tmp_path, file="list.csv")["train"]
    for index, name in enumerate(bad):
        with pytest.raises(SampleError, match=name):
            split.read(index)
    assert not split.read(len(bad)).fields["features"].requires_grad
    assert not mark.exists()


def targets_of_split(split: Any) -> np.ndarray:
    return np.stack([split.read(index).fields["targets"].numpy() for index in range(len(split))])


def test_list_holds_out_the_same_share_of_each_class_and_combination(tmp_path: Path) -> None:
    rows = [(f"{i}.png", "ab"[i % 2]) for i in range(20)]
    plant(tmp_path, {name: PHOTO for name, _ in rows})
    write_csv(tmp_path / "list.csv", ("path", "label"), *rows)
    found = splits(tmp_path, file="list.csv", val_fraction=0.2)
    assert {name: len(split) for name, split in found.items()} == {"train": 16, "val": 4}
    assert [*targets_of_split(found["val"])].count(0) == 2
    for split in found.values():
        expected = ["ab".index(dict(rows)[split.id(index)]) for index in range(len(split))]
        assert targets_of_split(split).tolist() == expected
    write_csv(tmp_path / "several.csv", ("path", "label"), *((f"{i}.png", ("a|b", "b")[i % 2]) for i in range(20)))
    found = splits(tmp_path, file="several.csv", separator="|", val_fraction=0.2)
    assert targets_of_split(found["val"]).sum(0).tolist() == [2, 4]


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("a.csv", "", "no rows"),
        ("a.csv", "path,label\n", "no rows"),
        ("a.csv", "name,label\nx,y\n", "line 2 has no 'path'; it has 'name', 'label'"),
        ("a.csv", "path,class\nx,y\n", "it has 'path', 'class': name the right column, as in columns={label="),
        ("a.csv", "path,label\n,y\n", "line 2: path is empty"),
        ("a.csv", "path,label\nx\n", "line 2 has 1 cells"),
        ("a.csv", "path,label\nx,y,z\n", "line 2 has 3 cells"),
        ("a.csv", "path,label\nx,\n", "label is empty"),
        ("a.csv", 'path,label\n"x,y\n', "not CSV"),
        ("a.csv", 'path,label\n"x"y,z\n', "not CSV"),
        ("a.csv", "path,path\nx,y\n", "same name"),
        ("a.csv", "path,label\nx,y\nx,y\n", "names 'x' twice"),
        ("a.csv", "path,label\nx,-1\n", "class number -1"),
        ("a.csv", "path,label\nx,1000000\n", "class number 1000000"),
        ("a.csv", "path,label\nx,1\ny,2000000000\n", "class number 2000000000"),
        ("a.jsonl", '{"path": "x", "label": "y"}\n{', "line 2 is not JSON"),
        ("a.jsonl", "[1]", "not a JSON object"),
        ("a.jsonl", '{"path": 1, "label": "y"}', "path is 1, expected the name of a file"),
        ("a.jsonl", '{"path": "x", "label": {}}', "label is {}"),
        ("a.jsonl", '{"path": "x", "label": NaN}', "label is nan"),
        ("a.jsonl", '{"path": "x", "label": 1e400}', "label is inf"),
        ("a.jsonl", '{"path": "x", "label": [1, "a"]}', "label is"),
        ("a.jsonl", '{"path": "x", "label": "y", "split": 3}', "split is 3"),
        ("a.jsonl", '{"path": "x", "label": "y", "id": [3]}', "id is"),
        ("a.jsonl", '{"path": "x", "label": "y"}\n{"path": "z", "label": 3}', "line 2: label 3 is an integer"),
        ("a.jsonl", '{"path": "x", "label": [1, 2]}\n{"path": "z", "label": [3]}', "list of 1 numbers"),
        ("a.jsonl", "[" * 100_000, "not JSON"),
        ("a.json", "[]", "not an ID list"),
        ("a.json", '{"partition": {"train": {}}, "labels": {}}', "not an ID list"),
        ("a.json", '{"partition": {"train": ["x"]}, "labels": {}}', "has no label"),
        ("a.json", '{"partition": {"train": [["x"]]}, "labels": {}}', "Expected `int | str`"),
        ("a.json", '{"partition": {"train": []}, "labels": {}}', "no rows"),
        ("a.json", '{"partition": {"train": ["../x"]}, "labels": {"../x": 1}}', "leaves"),
        ("a.txt", "x", "use .csv"),
    ],
)
def test_wrong_lists_are_named(tmp_path: Path, name: str, text: str, message: str) -> None:
    check("list", tmp_path, re.escape(message), tree={name: text}, options={"file": name})


def targets(labels: list[Any], classes: tuple[str, ...] = ()) -> tuple[np.ndarray, tuple[str, ...]]:
    rows = Listing(ListRow, (ListRow("p", label, None, None, None, "here") for label in labels))
    meanings = targets_of(rows, classes)
    found = np.array([meanings.read(label) for label in labels])
    return found, meanings.classes


def test_labels_become_targets() -> None:
    assert targets(["b", "a", "b"])[0].tolist() == [1, 0, 1]
    assert targets(["10", "9", "0"])[0].tolist() == [10, 9, 0]
    assert targets(["10", "x"])[1] == ("10", "x")
    assert targets([2, 0])[1] == ("0", "1", "2")
    found, classes = targets(["0.5", "2"])
    assert (found.tolist(), classes) == ([0.5, 2.0], ())
    assert targets([0.1, 2])[0].tolist() == [float(np.float32(0.1)), 2.0]
    assert targets([1, 0.25])[0].tolist() == [1.0, 0.25]
    assert targets(["0.0", "2.0", "1.0"])[0].tolist() == [0, 2, 1]  # as pandas writes integers of a column with gaps
    assert targets([1.0, 0])[1] == ("0", "1")
    with pytest.raises(SourceError, match="over 3e38"):
        targets(["1e39", "1.0"])
    assert targets([[1.0, 0.0], [0.0, 1.0]])[0].shape == (2, 2)
    assert targets(["b"], ("a", "b"))[0].tolist() == [1]
    with pytest.raises(SourceError, match="'c' is not one of the classes: a, b"):
        targets(["c"], ("a", "b"))
    with pytest.raises(SourceError, match="class number 2 is not in 0 to 1"):
        targets([2], ("a", "b"))


def test_a_row_takes_little_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A Python object per row would take several times as much."""
    monkeypatch.setattr(LocalTree, "revision", lambda tree, name: "100000 @1700000000000000000")
    rows = [(f"images/class_{i // 100:04d}/img_{i:08d}.jpg", f"class_{i // 100:04d}") for i in range(5000)]
    write_csv(tmp_path / "list.csv", ("path", "label"), *rows)
    del rows
    splits(tmp_path, file="list.csv")  # whatever is imported or compiled once
    tracemalloc.start()
    found = splits(tmp_path, file="list.csv")
    size, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert len(found["train"]) == 5000
    assert size < 110 * 5000
    assert peak < 400 * 5000  # with the text of the list, once, and its path in each row


def test_a_name_that_is_there_twice_is_found_among_many(tmp_path: Path) -> None:
    rows = [(f"{i}.png", "a", str(i)) for i in range(20)]
    write_csv(tmp_path / "list.csv", ("path", "label", "id"), *rows)
    assert len(splits(tmp_path, file="list.csv")["train"]) == 20
    write_csv(tmp_path / "list.csv", ("path", "label", "id"), *rows, ("20.png", "a", "7"))
    with pytest.raises(SourceError, match="'7' twice in train"):
        splits(tmp_path, file="list.csv")


def test_parts_are_the_samples_asked_for(tmp_path: Path) -> None:
    rows = [(f"{i}.png", "ab"[i % 2], f"sample {i}" if i % 3 else "") for i in range(12)]
    write_csv(tmp_path / "list.csv", ("path", "label", "id"), *rows)
    split = splits(tmp_path, file="list.csv")["train"]
    for samples in (range(3, 9), [7, 1, 1], range(0)):
        part = split.part(samples)
        assert [part.id(i) for i in range(len(part))] == [split.id(i) for i in samples]
        assert [part.revision(i) for i in range(len(part))] == [split.revision(i) for i in samples]
        assert part.classes == split.classes
    assert len(pickle.dumps(split.part([5]))) < len(pickle.dumps(split))


def assert_all_have_targets(rows: Listing[ListRow]) -> None:
    meanings = targets_of(rows, ())
    assert len({np.shape(meanings.read(row.label)) for row in rows}) == 1


texts = st.text(st.characters(exclude_categories=("Cs",)), max_size=30)


@settings(max_examples=300)
@given(texts | st.text(alphabet='path,label\n"x{}[]:', max_size=60), st.sampled_from([".csv", ".jsonl", ".json"]))
def test_any_text_is_rows_or_a_clean_error(tmp_path_factory: pytest.TempPathFactory, text: str, suffix: str) -> None:
    path = tmp_path_factory.getbasetemp() / f"list{suffix}"
    for body in (text, "path,label\n" + text, '{"partition": {"a": [' + text + ']}, "labels": {"x": 1}}'):
        path.write_text(body, encoding="utf-8")
        with contextlib.suppress(SourceError):
            rows = read_rows(path, path.read_bytes(), {})
            assert_all_have_targets(rows)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=6,
)


@settings(max_examples=200)
@given(
    st.lists(
        st.fixed_dictionaries({"path": json_values, "label": json_values}, optional={"id": json_values}), max_size=3
    )
)
def test_any_json_is_rows_or_a_clean_error(tmp_path_factory: pytest.TempPathFactory, records: list[Any]) -> None:
    path = tmp_path_factory.getbasetemp() / "list.jsonl"
    path.write_text("\n".join(map(json.dumps, records)), encoding="utf-8")
    with contextlib.suppress(SourceError):
        assert_all_have_targets(read_rows(path, path.read_bytes(), {}))


cells = st.text(st.characters(exclude_categories=("Cs", "Cc")), min_size=1, max_size=9).map(str.strip).filter(bool)


@given(st.lists(st.tuples(cells, cells), min_size=1, max_size=6))
def test_csv_cells_are_what_was_written(tmp_path_factory: pytest.TempPathFactory, rows: list[tuple[str, str]]) -> None:
    path = tmp_path_factory.getbasetemp() / "written.csv"
    text = io.StringIO(newline="")
    csv.writer(text).writerows([("path", "label"), *rows])
    path.write_bytes(text.getvalue().encode())
    assert [(row.path, row.label) for row in read_rows(path, path.read_bytes(), {})] == rows
