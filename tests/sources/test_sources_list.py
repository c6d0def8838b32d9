"""Lists: CSV, JSON Lines and ID lists against the csv and json modules, and what is wrong with them."""

from __future__ import annotations

import contextlib
import csv
import io
import json
import os
import pickle
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from mmload.errors import RecipeError, SampleError, SourceError
from mmload.sources import make_source
from mmload.sources.decode import Decoder
from mmload.sources.files import LocalTree
from mmload.sources.list_rows import ListRow, read_rows, targets_of
from mmload.sources.listing import Listing


def picture(path: Path, seed: int = 0) -> np.ndarray:
    path.parent.mkdir(parents=True, exist_ok=True)
    pixels = np.random.default_rng(seed).integers(0, 256, (4, 6, 3), dtype=np.uint8)
    Image.fromarray(pixels).save(path)
    return pixels


def splits(root: Path, **options: Any):
    return make_source("list", root, Decoder(), options).splits()


def write_csv(path: Path, *rows: tuple[str, ...]) -> Path:
    with open(path, "w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows(rows)
    return path


def test_csv(tmp_path: Path) -> None:
    pixels = [picture(tmp_path / f"img/{i}.png", i) for i in range(3)]
    write_csv(
        tmp_path / "list.csv",
        ("label", "path", "split", "id", "more"),
        ("dog, big", "img/0.png", "train", "zero", ""),
        ("cat", "./img//1.png", "val", "", "x"),
        ("cat", "img/2.png", "train", "", ""),
    )
    found = splits(tmp_path, file="list.csv")
    assert list(found) == ["train", "val"]
    assert found["train"].classes == found["val"].classes == ("cat", "dog, big")
    assert [found["train"].id(i) for i in range(2)] == ["zero", "img/2.png"]
    sample = found["val"].read(0)
    assert (sample.id, int(sample.fields["targets"]), sample.size) == ("img/1.png", 0, (4, 6))
    assert (sample.fields["images"].numpy() == pixels[1].transpose(2, 0, 1)).all()
    assert found["train"].read(0).fields["targets"].dtype == torch.int64
    copy = pickle.loads(pickle.dumps(found["train"]))
    assert torch.equal(copy.read(0).fields["images"], found["train"].read(0).fields["images"])


def test_the_list_itself_as_the_root_and_other_column_names(tmp_path: Path) -> None:
    picture(tmp_path / "photos" / "a.png")
    path = write_csv(tmp_path / "list.csv", ("file name", "species"), ("a.png", "cat"))
    columns = {"path": "file name", "label": "species"}
    assert splits(path, folder="photos", columns=columns)["train"].read(0).size == (4, 6)


def test_json_lines(tmp_path: Path) -> None:
    picture(tmp_path / "a.png")
    torch.save(torch.arange(3, dtype=torch.float16), tmp_path / "b.pt")
    lines = [{"path": "a.png", "label": 1, "split": "train"}, {"path": "b.pt", "label": 0, "split": "test", "id": 7}]
    (tmp_path / "list.jsonl").write_text("\n\n".join(map(json.dumps, lines)) + "\n")
    found = splits(tmp_path, file="list.jsonl", classes=["no", "yes"])
    assert int(found["train"].read(0).fields["targets"]) == 1
    assert found["test"].id(0) == "7"
    assert found["test"].read(0).fields["features"].dtype == torch.float16
    assert found["test"].classes == ("no", "yes")


def test_id_list_of_tensors(tmp_path: Path) -> None:
    tensors = {f"id-{i}": torch.randn(2, 3, dtype=torch.float64) for i in range(4)}
    (tmp_path / "data").mkdir()
    for name, tensor in tensors.items():
        torch.save(tensor, tmp_path / "data" / f"{name}.pt")
    body = {
        "partition": {"train": ["id-0", "id-1", "id-2"], "validation": ["id-3"]},
        "labels": {"id-0": 0, "id-1": 1, "id-2": 2, "id-3": 1},
    }
    (tmp_path / "ids.json").write_text(json.dumps(body))
    found = splits(tmp_path, file="ids.json", folder="data")
    for split, names in body["partition"].items():
        for index, name in enumerate(names):
            sample = found[split].read(index)
            assert torch.equal(sample.fields["features"], tensors[name])
            assert sample.fields["features"].dtype == torch.float64
            assert int(sample.fields["targets"]) == body["labels"][name]
            assert sample.id == name
            assert sample.size is None
    assert found["train"].classes == ("0", "1", "2")


def test_id_list_of_images_and_uint8_tensors(tmp_path: Path) -> None:
    pixels = picture(tmp_path / "sub" / "a.PNG")
    torch.save(torch.from_numpy(pixels.transpose(2, 0, 1).copy()), tmp_path / "b.pt")
    body = {"partition": {"train": ["sub/a", "b", "c"]}, "labels": {"sub/a": "x", "b": "y", "c": "x"}}
    (tmp_path / "ids.json").write_text(json.dumps(body))
    split = splits(tmp_path, file="ids.json")["train"]
    assert torch.equal(split.read(0).fields["images"], split.read(1).fields["images"])
    assert split.read(1).size == (4, 6)
    with pytest.raises(
        SampleError, match=r"c: no such file: c.pt \(paths are relative to the list's folder, or to the folder"
    ):
        split.read(2)


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


@pytest.mark.parametrize("path", ["../x.png", "a/../../x.png", "/etc/passwd", "..", "a/..", "a\0b"])
def test_paths_that_leave_the_root_are_refused(tmp_path: Path, path: str) -> None:
    body = [json.dumps({"path": "fine.png", "label": "a"}), json.dumps({"path": path, "label": "a"})]
    (tmp_path / "list.jsonl").write_text("\n".join(body))
    with pytest.raises(SourceError, match="line 2: the path .*allow_outside"):
        splits(tmp_path, file="list.jsonl")


def test_paths_may_leave_the_root_where_allowed(tmp_path: Path) -> None:
    picture(tmp_path / "x.png")
    (tmp_path / "root").mkdir()
    rows = [("../x.png", "a"), (str(tmp_path / "x.png"), "a")]
    write_csv(tmp_path / "root" / "list.csv", ("path", "label"), *rows)
    split = splits(tmp_path / "root", file="list.csv", allow_outside=True)["train"]
    assert torch.equal(split.read(0).fields["images"], split.read(1).fields["images"])


def test_columns_that_a_list_does_not_have_are_an_error(tmp_path: Path) -> None:
    write_csv(tmp_path / "list.csv", ("path", " label", "set"), ("a.png", "x", "val"))  # names without their spaces
    assert list(splits(tmp_path, file="list.csv", columns={"split": "set"})) == ["val"]
    with pytest.raises(SourceError, match="has no 'subset'; it has 'path', 'label', 'set'"):
        splits(tmp_path, file="list.csv", columns={"split": "subset"})


def test_val_fraction(tmp_path: Path) -> None:
    rows = [(f"{i}.png", "ab"[i % 2]) for i in range(20)]
    write_csv(tmp_path / "list.csv", ("path", "label"), *rows)
    found = splits(tmp_path, file="list.csv", val_fraction=0.2)
    assert {name: len(split) for name, split in found.items()} == {"train": 16, "val": 4}
    assert [*found["val"].targets].count(0) == 2
    for split in found.values():
        for index in range(len(split)):
            assert int(split.targets[index]) == "ab".index(dict(rows)[split.id(index)])
    write_csv(tmp_path / "split.csv", ("path", "label", "split"), ("a", "b", "val"))
    with pytest.raises(RecipeError, match="val_fraction"):
        splits(tmp_path, file="split.csv", val_fraction=0.2)


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
        ("a.csv", "path,label,split\nx,y,../z\n", "plain name"),
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
        ("a.json", '{"partition": {"train": {}}, "labels": {}}', "not a list of ids"),
        ("a.json", '{"partition": {"train": ["x"]}, "labels": {}}', "has no label"),
        ("a.json", '{"partition": {"train": [["x"]]}, "labels": {}}', "has no label"),
        ("a.json", '{"partition": {"train": []}, "labels": {}}', "no rows"),
        ("a.json", '{"partition": {"train": ["../x"]}, "labels": {"../x": 1}}', "leaves"),
        ("a.txt", "x", "use .csv"),
    ],
)
def test_wrong_lists_are_named(tmp_path: Path, name: str, text: str, message: str) -> None:
    (tmp_path / name).write_text(text)
    with pytest.raises(SourceError) as caught:
        splits(tmp_path, file=name)
    assert message in str(caught.value)


def test_lists_that_are_no_text_or_not_there(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_bytes(b"path,label\n\xff,x\n")
    with pytest.raises(SourceError, match="UTF-8"):
        splits(tmp_path, file="a.csv")
    with pytest.raises(SourceError, match="no such list"):
        splits(tmp_path, file="b.csv")
    with pytest.raises(RecipeError, match="is a folder"):
        splits(tmp_path)
    with pytest.raises(SourceError, match="no such folder"):
        splits(tmp_path, file="a.csv", folder="x")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"columns": {"color": "x"}}, "columns"),
        ({"classes": ["a", "a"]}, "different names"),
        ({"file": 3}, "file is 3"),
        ({"val_fraction": 2.0}, "val_fraction"),
        ({"seed": "x"}, "seed"),
    ],
)
def test_sources_list_wrong_options(tmp_path: Path, options: dict[str, Any], message: str) -> None:
    with pytest.raises(RecipeError, match=message):
        splits(tmp_path, **options)


def targets(labels: list[Any], classes: tuple[str, ...] | None = None) -> tuple[np.ndarray, tuple[str, ...]]:
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
    assert peak < 300 * 5000  # with the text of the list, once


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
    meanings = targets_of(rows, None)
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
