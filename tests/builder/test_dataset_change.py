"""A change of a finished dataset goes on from what a killed command has left, and is of the rows that were meant."""

from __future__ import annotations

import numpy as np
import pytest
import typer
from building import make_pictures, recipe

import mmload
from mmload.builder import columns, staging
from mmload.builder.pipeline import build, update
from mmload.builder.unused_files import compact
from mmload.cli.app import app
from mmload.errors import BuildError, UsageError


def run(*words):
    app([str(word) for word in words], standalone_mode=False)


def interrupted(*_):
    raise KeyboardInterrupt


@pytest.fixture
def killed(squares, source, monkeypatch):
    """``squares`` with an update that was killed in its commit; the new version has as many rows, in another order."""
    first, last = sorted(source.rglob("*.*"))[:: len(list(source.rglob("*.*"))) - 1]
    first.rename(last.with_name("z.jpg"))
    with monkeypatch.context() as patch:
        patch.setattr(staging, "add_to_dataset", interrupted)
        with pytest.raises(KeyboardInterrupt):
            update(squares)
    return squares


def begin_field(monkeypatch, add, shards=2):
    """Adds a field in a call that is interrupted when so many of its shards are finished."""
    write, written = columns.write_shard, []

    def counted(paths, plan, *words):
        if len(written) == shards:
            raise KeyboardInterrupt
        written.append(plan)
        return write(paths, plan, *words)

    with monkeypatch.context() as patch:
        patch.setattr(columns, "write_shard", counted)
        with pytest.raises((KeyboardInterrupt, SystemExit)):  # a command ends with 130
            add()


def ids_of(out):
    split = mmload.open(out)["train"]
    return [split.source(row).id for row in range(len(split))]


def test_values_by_id_are_never_those_of_another_version(killed, tmp_path):
    file, before = tmp_path / "v.csv", ids_of(killed.out)

    def write(ids):
        file.write_text("id,v\n" + "".join(f"{name},{number}\n" for number, name in enumerate(ids)))

    write(before)
    with pytest.raises(UsageError, match="is completed now, as version 2"):
        run("add-field", killed.out, "v", file)
    assert "v" not in mmload.open(killed.out)["train"].fields
    with pytest.raises(UsageError, match="is no sample of split 'train'"):
        run("add-field", killed.out, "v", file)
    after = ids_of(killed.out)
    assert after != before
    write(reversed(after))
    run("add-field", killed.out, "v", file)
    assert mmload.open(killed.out)["train"][:].extra["v"].tolist() == list(range(15))[::-1]


def test_changes_are_methods_of_an_opened_dataset(squares):
    opened = mmload.open(squares.out).add_field("v", np.arange(15), split="train").save_subset("few", [3, 1])
    assert opened["few"][:].extra["v"].tolist() == [3, 1]
    opened = opened.remove_subset("few").remove_field("v")
    assert (list(opened), "v" in opened["train"].fields) == (["train"], False)
    with pytest.raises(UsageError, match="is opened in a version that is not the current one"):
        mmload.open(squares.out, version=2).save_subset("few", [0])


@pytest.mark.parametrize(
    "change",
    [
        lambda out: mmload.add_field(out, "v", np.arange(15)),
        lambda out: mmload.save_subset(out, "hard", [0, 1]),
        lambda out: mmload.save_subset(out, "hard", slice(3)),
    ],
)
def test_rows_by_number_are_not_taken_for_those_of_a_killed_update(killed, change):
    with pytest.raises(UsageError, match="is completed now, as version 2"):
        change(killed.out)
    assert mmload.open(killed.out).manifest.version == 2
    assert change(killed.out).manifest.version == 3


def test_functions_and_ids_are_of_the_version_that_a_killed_update_makes(killed):
    mmload.add_field(killed.out, "v", lambda batch: batch.ids)
    opened = mmload.save_subset(killed.out, "hard", [ids_of(killed.out)[3]])
    assert opened["hard"][:].extra["v"].tolist() == [3]


def test_the_command_goes_on_with_a_field_that_was_begun_without_a_split(squares, tmp_path, monkeypatch):
    values = np.random.default_rng(0).random((15, 3))
    np.save(tmp_path / "v.npy", values)
    begin_field(monkeypatch, lambda: mmload.add_field(squares.out, "v", values))
    shards = len(mmload.open(squares.out)["train"].record.shards)
    begin_field(monkeypatch, lambda: run("add-field", squares.out, "v", tmp_path / "v.npy"), shards - 3)
    begin_field(monkeypatch, lambda: mmload.add_field(squares.out, "v", values, split="train"), 0)
    run("add-field", squares.out, "v", tmp_path / "v.npy", "--split", "train")
    assert np.array_equal(mmload.open(squares.out)["train"][:].extra["v"].numpy(), values)


def test_an_unfinished_field_is_finished_before_another_and_before_compaction(squares, monkeypatch):
    begin_field(monkeypatch, lambda: mmload.add_field(squares.out, "v", np.arange(15)))
    for other in (lambda: mmload.add_field(squares.out, "w", np.arange(15)), lambda: compact(squares.out)):
        with pytest.raises(BuildError, match="unfinished field v; add the field again"):
            other()


def test_fields_are_added_to_and_removed_from_splits_of_the_source_alone(tmp_path):
    for split in ("train", "val"):
        make_pictures(tmp_path / "photos" / split)
    made = recipe(tmp_path / "photos", tmp_path / "out")
    build(made)
    mmload.add_field(made.out, "v", np.arange(15), split="train")
    mmload.save_subset(made.out, "s", [0], split="train")
    with pytest.raises(UsageError, match="has the splits train, val; name one of them"):
        mmload.add_field(made.out, "w", np.arange(15))
    for change in (mmload.remove_field, lambda *given, split: mmload.add_field(*given, np.arange(1), split=split)):
        with pytest.raises(UsageError, match="split 's' is a subset of 'train' and has its fields"):
            change(made.out, "v", split="s")
    assert "v" not in mmload.remove_field(made.out, "v", split="train")["s"].fields


def test_a_warning_on_rows_without_values_goes_when_they_have_some(squares, source):
    mmload.add_field(squares.out, "v", np.arange(15.0))
    mmload.add_field(squares.out, "w", np.arange(15))
    first = next(source.rglob("*.jpg"))
    first.with_name("new.jpg").write_bytes(first.read_bytes())
    update(squares)
    opened = mmload.add_field(squares.out, "v", np.arange(16.0))
    new = "1 new row of version 4 without a value of w (-1); add this field again"
    assert opened.manifest.card_lines("warnings", "train") == [new]
    first.with_name("newer.jpg").write_bytes(first.read_bytes())
    update(squares)
    newer = [
        f"1 new row of version 6 without a value of {field}; add this field again" for field in ("w (-1)", "v (nan)")
    ]
    assert mmload.open(squares.out).manifest.card_lines("warnings", "train") == [new, *newer]
    opened = mmload.remove_field(squares.out, "w")
    assert opened.manifest.card_lines("warnings", "train") == newer[1:]
    assert "warnings" not in mmload.add_field(squares.out, "v", np.arange(17.0)).manifest.card


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("subset", "OUT", "hard", "--remove", "--rows", "x.txt"), "give --rows FILE or --remove, one of them"),
        (("add-field", "OUT", "v", "v.npy", "--remove"), "give FILE or --remove, one of them"),
        (("subset", "OUT", "hard", "--rows", "x.txt", "--key", "name"), "'name' is not one of 'row', 'id'"),
    ],
)
def test_options_that_exclude_each_other_in_a_change_are_refused(squares, words, message):
    with pytest.raises((UsageError, typer.BadParameter), match=message):
        run(*(squares.out if word == "OUT" else word for word in words))
