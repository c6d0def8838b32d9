"""A change of a finished dataset goes on from what a killed command has left, and is of the rows that were meant."""

from __future__ import annotations

import numpy as np
import pytest
import typer
from building import make_pictures, recipe
from meanwhile import dying_at

import mmload
from mmload.builder import columns, staging
from mmload.builder.dataset_change import compact
from mmload.builder.pipeline import build, update
from mmload.cli.app import app
from mmload.errors import UsageError


def run(*words):
    app([str(word) for word in words], standalone_mode=False)


@pytest.fixture
def killed(squares, source):
    """``squares`` with an update that was killed in its commit; the new version has as many rows, in another order."""
    first, *_, last = sorted(source.rglob("*.*"))
    first.rename(last.with_name("z.jpg"))
    with dying_at(staging, "add_to_dataset"):
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
    return [source.id for source in mmload.open(out)["train"].source(slice(None))]


def test_values_by_id_are_never_those_of_another_version(killed, tmp_path):
    file, before = tmp_path / "v.csv", ids_of(killed.out)

    def write(ids):
        file.write_text("id,v\n" + "".join(f"{name},{number}\n" for number, name in enumerate(ids)))

    write(before)
    for message in ("is completed now, as version 2", "is no sample of split 'train'"):
        with pytest.raises(UsageError, match=message):
            run("add-field", killed.out, "v", file)
        assert "v" not in mmload.open(killed.out)["train"].fields
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


def test_a_field_that_was_begun_begins_again_and_stops_no_other_change(squares, tmp_path, monkeypatch):
    values, file = np.random.default_rng(0).random((15, 3)), tmp_path / "v.npy"
    np.save(file, values)
    begin_field(monkeypatch, lambda: mmload.add_field(squares.out, "v", values))
    mmload.add_field(squares.out, "w", np.arange(15))
    begin_field(monkeypatch, lambda: run("add-field", squares.out, "v", file))
    compact(squares.out)
    assert "v" not in mmload.open(squares.out)["train"].fields
    run("add-field", squares.out, "v", file, "--split", "train")
    found = mmload.open(squares.out)["train"][:].extra
    assert np.array_equal(found["v"].numpy(), values)
    assert found["w"].tolist() == list(range(15))


def test_fields_are_added_to_and_removed_from_splits_of_the_source_alone(tmp_path):
    for split in ("train", "val"):
        make_pictures(tmp_path / "photos" / split)
    made, values = recipe(tmp_path / "photos", tmp_path / "out"), np.arange(15)
    build(made)
    mmload.add_field(made.out, "v", values, split="train")
    mmload.save_subset(made.out, "s", [0], split="train")
    of_a_subset = "split 's' is a subset of 'train' and has its fields"
    for change, message in (
        (lambda: mmload.add_field(made.out, "w", values), "has the splits train, val; name one of them"),
        (lambda: mmload.remove_field(made.out, "v", split="s"), of_a_subset),
        (lambda: mmload.add_field(made.out, "v", values[:1], split="s"), of_a_subset),
    ):
        with pytest.raises(UsageError, match=message):
            change()
    assert "v" not in mmload.remove_field(made.out, "v", split="train")["s"].fields


def test_a_warning_on_rows_without_values_goes_when_they_have_some(squares, source):
    def update_with_one_more(name):
        file = next(source.rglob("*.jpg"))
        file.with_name(name).write_bytes(file.read_bytes())
        update(squares)

    def missing(version, field):
        return f"1 new row of version {version} without a value of {field}; add this field again"

    mmload.add_field(squares.out, "v", np.arange(15.0))
    mmload.add_field(squares.out, "w", np.arange(15))
    update_with_one_more("new.jpg")
    opened = mmload.add_field(squares.out, "v", np.arange(16.0))
    assert opened.manifest.card_lines("warnings", "train") == [missing(4, "w (-1)")]
    update_with_one_more("newer.jpg")
    lines = [missing(4, "w (-1)"), missing(6, "w (-1)"), missing(6, "v (nan)")]
    assert mmload.open(squares.out).manifest.card_lines("warnings", "train") == lines
    opened = mmload.remove_field(squares.out, "w")
    assert opened.manifest.card_lines("warnings", "train") == lines[2:]
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
