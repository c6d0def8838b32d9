"""What a build writes: the same bytes in any way, the rows a plain loop gives."""

from __future__ import annotations

import json
import os
from dataclasses import replace

import numpy as np
import pytest
import torch
from building import EXACT, make_pictures, recipe
from conftest import contents
from PIL import Image

import mmload
from mmload.builder.pipeline import build, update
from mmload.builder.previous_version import UpdateOptions
from mmload.builder.recipe import VariableLayout
from mmload.errors import RecipeError, UsageError
from mmload.records import Sample
from mmload.store.manifest import read


@pytest.mark.parametrize("seed", [None, 3])
def test_bytes_do_not_depend_on_threads_processes_or_folder(source, tmp_path, seed):
    trees = []
    for i, more in enumerate([{"threads": 1}, {"threads": 2}, {"threads": 4}, {"processes": 2, "threads": 1}]):
        assert build(recipe(source, tmp_path / f"out{i}", shuffle_seed=seed), **more).built == 15
        trees.append(contents(tmp_path / f"out{i}"))
    assert all(other == trees[0] for other in trees)
    assert len(read(tmp_path / "out0").splits["train"].shards) > 3
    assert str(tmp_path) not in (tmp_path / "out0" / "dataset.json").read_text()
    assert sorted(p.name for p in tmp_path.iterdir()) == ["out0", "out1", "out2", "out3", "photos"]


@pytest.mark.parametrize("layout", [None, VariableLayout(encode="jpeg")])
def test_a_build_opens_each_photograph_once_and_an_update_knows_it(source, tmp_path, opened, layout):
    made = recipe(source, tmp_path / "out", variable_layout=layout)
    assert build(made, processes=1).built == 15
    assert len(opened) == 15
    assert set(opened.values()) == {1}
    assert not update(made, UpdateOptions(checksum=True)).needed


def test_rows_and_statistics_equal_a_plain_loop(source, tmp_path):
    from mmload.builder.transforms import TransformChain
    from mmload.sources.decode import Decoder

    build(recipe(source, tmp_path / "out"))
    split = mmload.open(tmp_path / "out")["train"]
    chain, rows = TransformChain(EXACT), split[:]
    files = sorted(path for path in source.rglob("*") if path.is_file())
    for row, path in enumerate(files):
        fields = {"images": Decoder()(path.read_bytes())}
        assert np.array_equal(rows.images[row], chain(Sample("", fields)).fields["images"])
        assert int(rows.targets[row]) == int(path.parent.name[-1])
    pixels = rows.images.double() / 255
    assert split.mean == pytest.approx(pixels.mean((0, 2, 3)).tolist(), abs=1e-12)
    assert split.std == pytest.approx(pixels.std((0, 2, 3), correction=0).tolist(), abs=1e-9)
    assert split.record.class_counts == (5, 5, 5)
    lines = [json.loads(line) for line in (tmp_path / "out/train/samples.jsonl").read_text().splitlines()]
    assert [line["id"] for line in lines] == [path.relative_to(source).as_posix() for path in files]
    with Image.open(files[0]) as image:
        assert lines[0]["size"] == [image.height, image.width]


def test_shuffle_is_a_recorded_permutation(source, tmp_path):
    build(recipe(source, tmp_path / "plain"))
    build(recipe(source, tmp_path / "a", shuffle_seed=3))
    assert read(tmp_path / "a").recipe["store"]["shuffle_seed"] == 3
    plain, shuffled = (mmload.open(tmp_path / name)["train"] for name in ("plain", "a"))
    rows = plain.row_of([source.id for source in shuffled.source(slice(None))])
    assert sorted(rows.tolist()) == list(range(15)) != rows.tolist()
    assert torch.equal(shuffled[:].images, plain.rows(rows).images)


def test_file_names_that_are_not_unicode(tmp_path):
    folder = make_pictures(tmp_path / "photos", classes=1, each=1) / "class0"
    os.rename(bytes(folder / "0.jpg"), bytes(folder) + b"/\xff\xe9.jpg")
    build(recipe(tmp_path / "photos", tmp_path / "out"))
    line = (tmp_path / "out/train/samples.jsonl").read_text(encoding="utf-8")
    assert os.fsencode(json.loads(line)["id"]) == b"class0/\xff\xe9.jpg"


@pytest.mark.parametrize(
    ("changed", "options", "error", "message"),
    [
        ({}, {"on_error": "ignore"}, UsageError, "on-error is 'ignore'"),
        ({}, {"on_error": "skip", "max_errors": "few"}, UsageError, "max-errors is 'few'"),
        ({}, {"max_errors": 3}, UsageError, "max-errors is for"),
        ({}, {"threads": 0}, UsageError, "threads is 0"),
        ({"root": None}, {}, RecipeError, "no root or no out"),
        ({"transforms": ()}, {"on_error": "skip"}, RecipeError, "every row has one shape"),
    ],
)
def test_wrong_arguments(source, tmp_path, changed, options, error, message):
    with pytest.raises(error, match=message):
        build(replace(recipe(source, tmp_path / "out"), **changed), **options)
