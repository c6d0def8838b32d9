"""A subset opens as a split of the given rows, and changes no file of the versions before it."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from building import make_pictures, recipe
from meanwhile import dying_at
from python_datasets import MADE
from updating import files_of

import mmload
from mmload.builder import staging
from mmload.builder.dataset_change import open_to_change
from mmload.builder.pipeline import build, update
from mmload.builder.recipe import VariableLayout
from mmload.builder.row_files import rows_in
from mmload.builder.unused_files import compact, remove_unused
from mmload.builder.verify import compare, repair, verify
from mmload.cli.app import app
from mmload.errors import BuildError, UsageError
from mmload.parity import run as parity
from mmload.remote.copies import pull, push
from mmload.view.browse_pages import Pages
from mmload.view.facts import facts

ROWS = [9, 2, 14]


@pytest.fixture
def saved(out):
    """The dataset ``out`` with the subset "hard" of ROWS."""
    return mmload.save_subset(out, "hard", ROWS)


def ids_of(split, rows=slice(None)):
    return [source.id for source in split.source(rows)]


def assert_is_subset(subset, whole, rows):
    assert len(subset) == len(rows)
    assert subset.source(slice(None)) == whole.source(rows)
    batch = subset[:]
    for index, row in enumerate(rows):
        assert torch.equal(batch[index].images, whole[row].images)
        assert int(batch[index].targets) == int(whole[row].targets)


@pytest.mark.parametrize("layout", ["squares", "raw", "jpeg"])
def test_a_subset_has_the_rows_in_their_order(source, tmp_path, layout):
    more = {} if layout == "squares" else {"variable_layout": VariableLayout(encode=layout), "transforms": ()}
    made = recipe(source, tmp_path / "out", **more)
    build(made)
    before = files_of(made.out)
    opened = mmload.save_subset(made.out, "hard", ROWS)
    assert list(opened) == ["train", "hard"]
    assert_is_subset(opened["hard"], opened["train"], ROWS)
    assert verify(made.out) == []
    del before[made.out / "dataset.json"]
    assert before.items() <= files_of(made.out).items()
    assert opened.manifest.versions[-1].change == "subset hard"


def test_a_dataset_in_code_is_read_once_has_subsets_and_cannot_be_updated(tmp_path):
    reads = [0] * 40

    class Numbers:
        def __len__(self):
            return len(reads)

        def __getitem__(self, index):
            reads[index] += 1
            return np.full((3, 4, 4), index, np.uint8), index

    MADE["numbers"] = Numbers()
    options = {"dataset": "python_datasets:made", "arguments": {"name": "numbers"}}
    made = recipe(Path(__file__).parents[1] / "helpers", tmp_path / "out", kind="python", options=options)
    build(made, processes=1)
    assert min(reads) == 1  # others were read to see whether they are the same each time
    opened = mmload.save_subset(made.out, "hard", ROWS)
    assert_is_subset(opened["hard"], opened["train"], ROWS)
    with pytest.raises(BuildError, match="a source of kind python does not tell which samples have changed"):
        update(made)


def test_statistics_and_facts_of_a_subset_are_those_of_its_rows(saved, out):
    pixels, hard, train = saved["hard"][:].images.double() / 255, saved["hard"], saved["train"]
    assert hard.mean == pytest.approx(pixels.mean((0, 2, 3)).tolist())
    assert hard.std == pytest.approx(pixels.std((0, 2, 3), correction=0).tolist())
    assert (hard.record.class_counts, train.record.class_counts) == ((1, 1, 1), (5, 5, 5))
    told = facts(out, saved.manifest)
    assert (told["rows"], told["bytes"]) == (15, train.record.bytes)
    assert told["splits"]["hard"]["subset_of"] == "train"


@pytest.mark.parametrize(
    ("rows", "expected"),
    [
        (np.array(ROWS), ROWS),
        (torch.tensor(ROWS), ROWS),
        ([-6, 2, -1], ROWS),
        (slice(3, 8), [3, 4, 5, 6, 7]),
        (torch.arange(15) % 4 == 1, [1, 5, 9, 13]),
        (["class1/4.jpg", "class0/2.jpg", "class2/4.jpg"], ROWS),
    ],
    ids=["array", "tensor", "negative", "slice", "mask", "ids"],
)
def test_rows_of_a_subset_are_chosen_as_rows_of_a_split(out, rows, expected):
    opened = mmload.save_subset(out, "hard", rows)
    assert_is_subset(opened["hard"], opened["train"], expected)


def test_a_loader_draws_a_subset_as_any_split(saved):
    batches = list(mmload.Loader(saved["hard"], batch_size=2, seed=1))
    assert sorted(torch.cat([batch.ids for batch in batches]).tolist()) == [0, 1, 2]
    for batch in batches:
        assert torch.equal(batch.images, saved["hard"][batch.ids].images)


def test_a_subset_of_a_subset_is_one_of_its_split(saved):
    opened = mmload.save_subset(saved, "hardest", [2, 0], split="hard")
    assert opened["hardest"].record.subset_of == "train"
    assert_is_subset(opened["hardest"], opened["train"], [14, 9])


def test_replacing_and_removing_a_subset_keeps_earlier_versions(saved, out):
    assert len(mmload.save_subset(out, "hard", [0, 1])["hard"]) == 2
    assert len(mmload.open(out, version=2)["hard"]) == 3
    opened = mmload.remove_subset(out, "hard")
    assert list(opened) == ["train"]
    assert opened.manifest.versions[-1].change == "remove subset hard"
    assert verify(out) == []


def test_an_update_keeps_the_samples_of_a_subset_that_are_still_there(squares, source, saved):
    first, gone, last = ids_of(saved["hard"])
    (source / gone).unlink()
    update(squares)
    assert ids_of(mmload.open(squares.out)["hard"]) == [first, last]
    assert verify(squares.out) == []


def test_a_build_again_does_nothing_and_source_checks_and_repairs_pass_beside_a_subset(squares, source, saved):
    out, shard = squares.out, squares.out / "train" / "000000" / "images.memmap"
    assert build(squares).built == update(squares).built == 0
    assert compare(out, source) == []
    assert parity(out, source).settings["splits"] == ["train"]
    with pytest.raises(UsageError, match="is a subset of 'train'"):
        parity(out, source, split="hard")
    content = shard.read_bytes()
    shard.write_bytes(b"\0" * len(content))
    assert len(repair(out, source)) == 1
    assert shard.read_bytes() == content
    (out / "hard" / "rows.2.memmap").write_bytes(b"")
    with pytest.raises(BuildError, match="save the subset again"):
        repair(out, source)


def test_a_pushed_subset_is_read_from_its_url_and_pulled(saved, out, tmp_path):
    url = f"file://{tmp_path}/store"
    push(out, url)
    remote = mmload.open(url, cache=tmp_path / "cache")
    assert_is_subset(remote["hard"], saved["train"], ROWS)
    with pytest.raises(UsageError, match="is a URL"):
        mmload.save_subset(remote, "more", [0])
    pull(url, tmp_path / "pulled")
    assert_is_subset(mmload.open(tmp_path / "pulled")["hard"], saved["train"], ROWS)


def test_a_mark_on_a_row_of_a_subset_is_one_of_its_split(saved, out, tmp_path):
    pages = Pages(out, tmp_path / "marks.txt")
    pages.post("api/marks", b'{"split": "hard", "row": 1, "reason": "broken"}')
    assert rows_in(tmp_path / "marks.txt", saved["train"]).tolist() == [2]


@pytest.mark.parametrize(
    ("name", "rows", "message"),
    [
        ("hard", [], "has no row"),
        ("hard", [1, 1], "row 1 .* is given twice"),
        ("hard", [1, 99], "row 99 does not exist"),
        ("hard", ["nobody.jpg"], "nobody.jpg"),
        ("hard", "train/a.jpg", "give a list of ids"),
        ("train", [0], "is a split of"),
        ("../hard", [0], "plain name"),
        ("versions", [0], "name is 'versions', which is reserved"),
        ("shape", [0], "which is reserved"),
    ],
)
def test_a_wrong_subset_is_refused_and_leaves_nothing(out, name, rows, message):
    before = files_of(out.parent)
    with pytest.raises((UsageError, IndexError), match=message):
        mmload.save_subset(out, name, rows)
    assert files_of(out.parent) == before


def test_a_dataset_that_changed_since_it_was_opened_is_refused(out):
    opened = mmload.open(out)
    mmload.save_subset(opened, "hard", [0])
    with pytest.raises(UsageError, match="open it again"):
        mmload.save_subset(opened, "easy", [0])
    with pytest.raises(UsageError, match="has no subset 'easy'; it has hard"):
        mmload.remove_subset(out, "easy")


def test_a_source_split_of_the_name_of_a_subset_stops_an_update(tmp_path):
    for split in ("train", "val"):
        make_pictures(tmp_path / "photos" / split)
    made = recipe(tmp_path / "photos", tmp_path / "out")
    build(made)
    mmload.save_subset(made.out, "test", [0], split="val")
    shutil.copytree(tmp_path / "photos" / "val", tmp_path / "photos" / "test")
    with pytest.raises(BuildError, match="a subset of this name"):
        update(made)


def test_a_killed_commit_is_completed_by_the_next_command(out):
    with dying_at(staging, "add_to_dataset"):
        mmload.save_subset(out, "hard", ROWS)
    assert list(mmload.open(out)) == ["train"]
    assert list(open_to_change(out)) == ["train", "hard"]
    assert verify(out) == []


def test_the_command_saves_the_rows_that_a_file_names(out, tmp_path, capsys):
    (tmp_path / "rows.txt").write_text("9\n2\n14\n")
    app(["subset", str(out), "hard", "--rows", str(tmp_path / "rows.txt")], standalone_mode=False)
    assert "saved 3 rows of split train as subset hard, in version 2" in capsys.readouterr().out
    opened = mmload.open(out)
    assert_is_subset(opened["hard"], opened["train"], ROWS)


def test_compaction_and_gc_keep_a_subset(squares, source, saved):
    ids, pixels = ids_of(saved["hard"]), saved["hard"][:].images
    for name in ids_of(saved["train"]):
        if name not in ids:
            (source / name).unlink()
    update(squares)
    compact(squares.out)
    remove_unused(squares.out)
    hard = mmload.open(squares.out)["hard"]
    assert ids_of(hard) == ids
    assert torch.equal(hard[:].images, pixels)
    assert verify(squares.out) == []
