"""A subset opens as a split of the given rows, and changes no file of the versions before it."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from building import make_pictures, recipe
from python_datasets import MADE
from updating import files_of

import mmload
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
from mmload.store.versions import versions_of
from mmload.view.browse_pages import Pages
from mmload.view.facts import facts

ROWS = [9, 2, 14]


@pytest.fixture
def built(source, tmp_path):
    made = recipe(source, tmp_path / "out", shard_bytes=4000)
    build(made)
    return made


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
    after = files_of(made.out)
    assert all(after[file] == content for file, content in before.items() if file.name != "dataset.json")
    assert versions_of(opened.manifest, made.out)[-1].change == "subset hard"


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


def test_statistics_of_a_subset_are_those_of_its_rows(built):
    opened = mmload.save_subset(built.out, "hard", ROWS)
    pixels = opened["hard"][:].images.double() / 255
    assert opened["hard"].mean == pytest.approx(pixels.mean((0, 2, 3)).tolist())
    assert opened["hard"].std == pytest.approx(pixels.std((0, 2, 3), correction=0).tolist())
    assert opened["hard"].record.class_counts == (1, 1, 1)
    assert opened["train"].record.class_counts == (5, 5, 5)


@pytest.mark.parametrize(
    "rows",
    [ROWS, np.array(ROWS), torch.tensor(ROWS), [-6, 2, -1], slice(3, 8), "mask", "ids"],
    ids=["list", "array", "tensor", "negative", "slice", "a mask", "of ids"],
)
def test_rows_of_a_subset_are_chosen_as_rows_of_a_split(built, rows):
    train = mmload.open(built.out)["train"]
    if isinstance(rows, str):
        rows = torch.arange(15) % 4 == 1 if rows == "mask" else [train.source(row).id for row in ROWS]
    numbers = train.row_of(rows).tolist() if isinstance(rows, list) and isinstance(rows[0], str) else rows
    saved = mmload.save_subset(train.path, "hard", rows)
    expected = train[numbers].ids.tolist() if not isinstance(numbers, slice) else list(range(3, 8))
    assert_is_subset(saved["hard"], saved["train"], expected)


def test_a_loader_draws_a_subset_as_any_split(built):
    opened = mmload.save_subset(built.out, "hard", ROWS)
    batches = list(mmload.Loader(opened["hard"], batch_size=2, seed=1))
    assert sorted(torch.cat([batch.ids for batch in batches]).tolist()) == [0, 1, 2]
    for batch in batches:
        assert torch.equal(batch.images, opened["hard"][batch.ids].images)


def test_a_subset_of_a_subset_is_one_of_its_split(built):
    mmload.save_subset(built.out, "hard", ROWS)
    opened = mmload.save_subset(built.out, "hardest", [2, 0], split="hard")
    assert opened["hardest"].record.subset_of == "train"
    assert_is_subset(opened["hardest"], opened["train"], [14, 9])


def test_replacing_and_removing_a_subset_keeps_earlier_versions(built):
    mmload.save_subset(built.out, "hard", ROWS)
    mmload.save_subset(built.out, "hard", [0, 1])
    assert len(mmload.open(built.out)["hard"]) == 2
    assert len(mmload.open(built.out, version=2)["hard"]) == 3
    opened = mmload.remove_subset(built.out, "hard")
    assert list(opened) == ["train"]
    assert [version.change for version in opened.manifest.versions][-1] == "remove subset hard"
    assert verify(built.out) == []


def test_an_update_keeps_the_samples_of_a_subset_that_are_still_there(built, source):
    train = mmload.save_subset(built.out, "hard", ROWS)["train"]
    ids = [train.source(row).id for row in ROWS]
    (source / ids[1].split("/", 1)[-1]).unlink(missing_ok=True)
    next(source.rglob(ids[1].rsplit("/", 1)[-1])).touch()
    for file in source.rglob("*"):
        if str(file).endswith(ids[1]):
            file.unlink()
    update(built)
    opened = mmload.open(built.out)
    left = [name for name in ids if (source / name).exists()]
    assert [each.id for each in opened["hard"].source(slice(None))] == left
    assert verify(built.out) == []


def test_a_build_again_does_nothing_and_a_source_comparison_passes(built, source):
    mmload.save_subset(built.out, "hard", ROWS)
    assert build(built).built == 0
    assert update(built).built == 0
    assert compare(built.out, source) == []
    assert parity(built.out, source).settings["splits"] == ["train"]
    with pytest.raises(UsageError, match="is a subset of 'train'"):
        parity(built.out, source, split="hard")


def test_damage_of_a_shard_is_repaired_beside_a_subset(built, source):
    mmload.save_subset(built.out, "hard", ROWS)
    shard = built.out / "train" / "000000" / "images.memmap"
    content = shard.read_bytes()
    shard.write_bytes(b"\0" * len(content))
    assert len(repair(built.out, source)) == 1
    assert shard.read_bytes() == content
    (built.out / "hard" / "rows.2.memmap").write_bytes(b"")
    with pytest.raises(BuildError, match="save the subset again"):
        repair(built.out, source)


def test_facts_count_rows_of_subsets_once(built):
    opened = mmload.save_subset(built.out, "hard", ROWS)
    told = facts(built.out, opened.manifest)
    assert told["rows"] == 15
    assert told["bytes"] == opened["train"].record.bytes
    assert told["splits"]["hard"]["subset_of"] == "train"


def test_a_pushed_subset_is_read_from_its_url_and_pulled(built, tmp_path):
    opened = mmload.save_subset(built.out, "hard", ROWS)
    url = f"file://{tmp_path}/store"
    push(built.out, url)
    assert_is_subset(mmload.open(url, cache=tmp_path / "cache")["hard"], opened["train"], ROWS)
    with pytest.raises(UsageError, match="is a URL"):
        mmload.save_subset(mmload.open(url, cache=tmp_path / "cache"), "more", [0])
    pull(url, tmp_path / "pulled")
    assert_is_subset(mmload.open(tmp_path / "pulled")["hard"], opened["train"], ROWS)


def test_a_mark_on_a_row_of_a_subset_is_one_of_its_split(built, tmp_path):
    mmload.save_subset(built.out, "hard", ROWS)
    pages = Pages(built.out, tmp_path / "marks.txt")
    pages.post("api/marks", b'{"split": "hard", "row": 1, "reason": "broken"}')
    train = mmload.open(built.out)["train"]
    assert rows_in(tmp_path / "marks.txt", train).tolist() == [2]


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
def test_a_wrong_subset_is_refused_and_leaves_nothing(built, name, rows, message):
    before = files_of(built.out.parent)
    with pytest.raises((UsageError, IndexError), match=message):
        mmload.save_subset(built.out, name, rows)
    assert files_of(built.out.parent) == before


def test_a_dataset_that_changed_since_it_was_opened_is_refused(built):
    opened = mmload.open(built.out)
    mmload.save_subset(opened, "hard", [0])
    with pytest.raises(UsageError, match="open it again"):
        mmload.save_subset(opened, "easy", [0])
    with pytest.raises(UsageError, match="has no subset 'easy'; it has hard"):
        mmload.remove_subset(built.out, "easy")


def test_a_source_split_of_the_name_of_a_subset_stops_an_update(tmp_path):
    for split in ("train", "val"):
        make_pictures(tmp_path / "photos" / split)
    made = recipe(tmp_path / "photos", tmp_path / "out")
    build(made)
    mmload.save_subset(made.out, "test", [0], split="val")
    shutil.copytree(tmp_path / "photos" / "val", tmp_path / "photos" / "test")
    with pytest.raises(BuildError, match="a subset of this name"):
        update(made)


def test_a_killed_commit_is_completed_by_the_next_command(built, monkeypatch):
    from mmload.builder import staging

    def killed(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(staging, "add_to_dataset", killed)
    with pytest.raises(KeyboardInterrupt):
        mmload.save_subset(built.out, "hard", ROWS)
    monkeypatch.undo()
    assert list(mmload.open(built.out)) == ["train"]
    assert list(open_to_change(built.out)) == ["train", "hard"]
    assert verify(built.out) == []


FILES = {
    "rows.txt": "9\n2\n14\n",
    "list.csv": "x,row\n1,9\n1,2\n1,14\n",
}


@pytest.mark.parametrize("name", [*FILES, "ids.txt", "ids.csv", "rows.npy", "mask.npz", "rows.parquet"])
def test_a_file_names_the_rows_of_a_subset(built, tmp_path, name, capsys):
    train = mmload.open(built.out)["train"]
    ids, file, rows = [train.source(row).id for row in ROWS], tmp_path / name, ROWS
    if name in FILES:
        file.write_text(FILES[name])
    elif name == "ids.txt":
        file.write_text("# marked\n" + "".join(f"{each}\tbroken\n" for each in ids) + "other.jpg\tx\tval\n")
    elif name == "ids.csv":
        file.write_text("id\n" + "".join(f"{each}\n" for each in ids))
    elif name == "rows.npy":
        np.save(file, np.array(ROWS))
    elif name == "mask.npz":
        np.savez(file, np.isin(np.arange(15), ROWS))
        rows = sorted(ROWS)
    else:
        arrow = pytest.importorskip("pyarrow")
        from pyarrow import parquet

        parquet.write_table(arrow.table({"row": ROWS}), file)
    app(["subset", str(built.out), "hard", "--rows", str(file)], standalone_mode=False)
    assert "saved 3 rows of split train as subset hard, in version 2" in capsys.readouterr().out
    assert_is_subset(mmload.open(built.out)["hard"], train, rows)


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("a.txt", "nobody.jpg\n", "line 1: 'nobody.jpg' is no sample"),
        ("a.csv", "x\n1\n", "it needs row or id"),
        ("a.csv", "row\n1.5\n", "give integers"),
        ("a.csv", "row,x\n1\n", "record 2 has 1 values"),
        ("a.npy", "x", "as arrays of numpy"),
        ("a.txt", "99\n", "row 99 does not exist"),
        ("a.txt", "", r"a.txt names no row of split 'train'"),
        ("a.csv", "row\n", r"a.csv names no row of split 'train'"),
    ],
)
def test_a_wrong_file_of_rows_is_refused(built, tmp_path, name, text, message):
    (tmp_path / name).write_text(text)
    with pytest.raises(UsageError, match=message):
        rows_in(tmp_path / name, mmload.open(built.out)["train"])


def test_compaction_and_gc_keep_a_subset(built, source):
    train = mmload.save_subset(built.out, "hard", ROWS)["train"]
    ids = [train.source(row).id for row in ROWS]
    for row in range(15):
        if train.source(row).id not in ids:
            (source / train.source(row).id).unlink()
    pixels = mmload.open(built.out)["hard"][:].images
    update(built)
    compact(built.out)
    remove_unused(built.out)
    hard = mmload.open(built.out)["hard"]
    assert [each.id for each in hard.source(slice(None))] == ids
    assert torch.equal(hard[:].images, pixels)
    assert verify(built.out) == []
