"""A dataset from a stranger runs nothing, fetches nothing and reads nothing outside its source unless it is trusted."""

from __future__ import annotations

import json
import pickle
import shutil
import sys
from importlib.metadata import EntryPoint, EntryPoints
from pathlib import Path

import numpy as np
import pytest
from building import changed_manifest
from conftest import mmload as command_line

import mmload.sources
from mmload.bench.contenders.stock import source_dataset
from mmload.bench.task import Task
from mmload.builder.pipeline import build
from mmload.builder.recipe import BuildRecipe
from mmload.builder.trust import trusted_recipe
from mmload.builder.verify import compare
from mmload.errors import DamagedError, SourceError, UsageError
from mmload.parity import run as parity
from mmload.sources import download

COMMANDS = (
    ("verify", "OUT", "--source", "ROOT"),
    ("verify", "OUT", "--repair", "--source", "ROOT"),
    ("update", "OUT", "ROOT"),
    ("parity", "OUT", "--source", "ROOT"),
)


@pytest.fixture
def code(tmp_path: Path) -> Path:
    """A folder with a module that leaves a file called ``ran`` when it is imported."""
    root = tmp_path / "code"
    root.mkdir()
    text = "import torch, pathlib\npathlib.Path(__file__).with_name('ran').touch()\n"
    text += "def rows():\n    return [(torch.full((3, 32, 32), i, dtype=torch.uint8), i) for i in range(4)]\n"
    (root / "canary_module.py").write_text(text)
    yield root
    sys.modules.pop("canary_module", None)
    sys.path[:] = [place for place in sys.path if place != str(root.resolve())]


@pytest.fixture
def hostile(copy: Path, code: Path) -> Path:
    """A dataset whose manifest names that module as its source."""
    return asking(copy, {"kind": "python", "dataset": "canary_module:rows"})


def asking(dataset: Path, source: dict[str, object]) -> Path:
    """The dataset with another source in its recipe, and damage that repair would fix."""
    changed_manifest(dataset, lambda body: body["recipe"].update(source=source))
    (dataset / "train" / "samples.jsonl").write_text("")
    return dataset


@pytest.mark.parametrize("words", COMMANDS, ids=" ".join)
def test_no_command_imports_what_a_dataset_names(hostile: Path, code: Path, words: tuple[str, ...]) -> None:
    done = command_line(*({"OUT": hostile, "ROOT": code}.get(word, word) for word in words))
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1
    assert "asks to run Python code: dataset = 'canary_module:rows'" in done.stderr
    assert "--trust" in done.stderr
    assert not (code / "ran").exists()


def test_it_runs_if_it_is_trusted(code: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    build(BuildRecipe(kind="python", root=code, out=out, options={"dataset": "canary_module:rows"}))
    assert compare(out, code, trust=True) == []
    assert parity(out, code, trust=True).verdicts
    assert command_line("verify", out, "--source", code, "--trust").returncode == 0
    (out / "train" / "000000" / "targets.memmap").unlink()
    for trust, expected in (((), 2), (("--trust",), 0)):
        assert command_line("verify", out, "--repair", "--source", code, *trust).returncode == expected


def test_kinds_of_others_are_not_run(copy: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    called = []
    monkeypatch.setattr(mmload.sources, "SOURCES", {**mmload.sources.SOURCES, "own": lambda *_, **__: called.append(1)})
    others = EntryPoints([EntryPoint("theirs", "canary_of_an_entry_point:Source", mmload.sources.ENTRY_POINTS)])
    monkeypatch.setattr("importlib.metadata.entry_points", lambda **_: called.append(2) or others)
    for kind in ("own", "theirs"):
        with pytest.raises(UsageError, match=f"asks to run the code of the source kind '{kind}': rows = 3"):
            compare(asking(copy, {"kind": kind, "rows": 3}), tmp_path)
    assert called == []


@pytest.mark.parametrize("kind", ["cifar10", "cifar100", "voc"])
def test_nothing_is_fetched(copy: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    fetched = []
    monkeypatch.setattr(download, "_guard", lambda *_: fetched.append(1))
    with pytest.raises(UsageError, match=r"asks to download the source \(download = True\)"):
        compare(asking(copy, {"kind": kind, "download": True}), tmp_path)
    assert fetched == []


def test_nothing_outside_the_source_is_read(copy: Path, tmp_path: Path) -> None:
    ask = {"kind": "list", "file": "list.csv", "allow_outside": True, "download": "yes"}
    with pytest.raises(UsageError, match=r"download the source .* and to read files outside .*allow_outside = True"):
        trusted_recipe(json.loads((asking(copy, ask) / "dataset.json").read_text())["recipe"], copy, trust=False)


@pytest.mark.parametrize("recipe", [{}, {"source": 3}, {"source": {"kind": "voc"}, "transforms": [{"step": "Resize"}]}])
def test_what_is_no_recipe_is_damage(copy: Path, tmp_path: Path, recipe: dict[str, object]) -> None:
    changed_manifest(copy, lambda body: body.update(recipe=recipe))
    for call in (compare, parity):
        with pytest.raises(DamagedError, match="holds no recipe of a build"):
            call(copy, tmp_path)


class _Canary:
    """An object whose pickle makes a folder when it is loaded."""

    def __init__(self, place: Path) -> None:
        self.place = place

    def __reduce__(self) -> tuple[object, tuple[str]]:
        return Path.mkdir, (self.place,)


def test_the_bench_does_not_unpickle_what_is_no_data(copy: Path, tmp_path: Path) -> None:
    folder = tmp_path / "cifar" / "cifar-10-batches-py"
    folder.mkdir(parents=True)
    rows = {"data": np.zeros((1, 3072), np.uint8), "labels": [0], "label_names": ["a"]}
    for name in (*(f"data_batch_{n}" for n in range(1, 6)), "test_batch", "batches.meta"):
        (folder / name).write_bytes(pickle.dumps(rows))
    (folder / "data_batch_5").write_bytes(pickle.dumps({**rows, "more": _Canary(tmp_path / "ran")}))
    asking(copy, {"kind": "cifar10"})
    task = Task(dataset=copy, split="train", source=folder.parent, crop=24)
    with pytest.raises(SourceError, match="data_batch_5 is not a CIFAR batch: .*it asks to call"):
        source_dataset(task)
    assert not (tmp_path / "ran").exists()
    shutil.copy(folder / "data_batch_1", folder / "data_batch_5")
    with pytest.raises(SourceError, match="has 5 images"):
        source_dataset(task)


@pytest.mark.parametrize("option", [{"file": "/etc/list.csv"}, {"file": "../list.csv"}, {"folder": "a/../.."}])
def test_a_list_outside_the_source_is_not_read(copy: Path, tmp_path: Path, option: dict[str, str]) -> None:
    with pytest.raises(UsageError, match=r"asks to read files outside the source's folder \((file|folder) = "):
        compare(asking(copy, {"kind": "list", "file": "list.csv", **option}), tmp_path)
