"""The table of a split has a line per row, for pyarrow or pandas."""

from __future__ import annotations

import sys

import pytest
from building import make_pictures, recipe

import mmload
from mmload.builder.pipeline import build
from mmload.builder.recipe import VariableLayout
from mmload.errors import UsageError


@pytest.fixture
def train(tmp_path):
    layout = VariableLayout(encode="jpeg")
    build(recipe(make_pictures(tmp_path / "photos"), tmp_path / "out", variable_layout=layout, transforms=()))
    return mmload.open(tmp_path / "out")["train"]


@pytest.mark.parametrize("library", ["pyarrow", "pandas"])
def test_a_table_has_ids_classes_sizes_and_values_of_every_row(train, library, monkeypatch):
    pytest.importorskip(library)
    if library == "pandas":
        monkeypatch.setitem(sys.modules, "pyarrow", None)
    made = train.table()
    table = made.to_dict("list") if library == "pandas" else made.to_pydict()
    sources = train.source(slice(None))
    assert table["row"] == list(range(15))
    assert table["id"] == [source.id for source in sources]
    assert table["class"] == [train.classes[target] for target in train.targets]
    assert list(zip(table["height"], table["width"], strict=True)) == [source.size for source in sources]
    stored = zip(table["stored_height"], table["stored_width"], strict=True)
    assert list(stored) == [tuple(train[row].images.shape[-2:]) for row in range(15)]
    assert table["targets"] == train.targets


def test_a_table_without_pyarrow_and_pandas_says_what_to_install(train, monkeypatch):
    for library in ("pyarrow", "pandas"):
        monkeypatch.setitem(sys.modules, library, None)
    with pytest.raises(UsageError, match="pip install pyarrow"):
        train.table()
