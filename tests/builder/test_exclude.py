"""``mmload build --exclude``: the named samples are left out, whatever the source; a wrong line is named."""

from __future__ import annotations

import json
import pickle
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from building import recipe
from cifar_files import write_cifar10
from coco_sets import CocoSet
from conftest import complaint, contents, make_folder, mmload
from devkit import Devkit, thing
from picture_folders import ODD_NAMES
from python_datasets import MADE

from mmload.builder.pipeline import build, update
from mmload.builder.planned_build import splits_of
from mmload.builder.previous_version import UpdateOptions
from mmload.builder.recipe import BuildRecipe, from_mapping
from mmload.errors import RecipeError
from mmload.remote.opening import open as open_dataset
from mmload.sources import listed_split


def ids(out: Path, split: str = "train") -> list[str]:
    return [source.id for source in open_dataset(out)[split].source(slice(None))]


def excluding(place: Path, *lines: str) -> Path:
    path = place / "bad.txt"
    path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8", errors="surrogateescape")
    return path


def test_they_are_left_out_and_the_rest_is_as_without_the_files(source: Path, tmp_path: Path) -> None:
    listed = excluding(tmp_path, "# broken", "", "class0/3.png\tbroken", "class2/0.jpg\r", "class0/3.png")
    report = build(recipe(source, tmp_path / "out"), exclude=listed)
    for name in ("class0/3.png", "class2/0.jpg"):
        (source / name).unlink()
    build(recipe(source, tmp_path / "expected"))
    assert len(ids(tmp_path / "out")) == 13
    ours, theirs = (contents(tmp_path / name) for name in ("out", "expected"))
    assert ours | {"dataset.json": b""} == theirs | {"dataset.json": b""}
    assert report.manifest.recipe["exclude"] == {"train": ["class0/3.png", "class2/0.jpg"]}


@pytest.mark.parametrize(("kind", "excluded"), [("imagefolder", "class1/1.png"), ("cifar10", "data_batch_1/0")])
def test_workers_get_the_remaining_samples(kind: str, excluded: str, source: Path, tmp_path: Path) -> None:
    root = source if kind == "imagefolder" else write_cifar10(tmp_path / "cifar")
    split = splits_of(BuildRecipe(kind=kind, root=root, exclude={"train": [excluded]}))["train"]
    sent = pickle.loads(pickle.dumps(split))
    names = [split.id(index) for index in range(len(split))]
    assert excluded not in names
    assert [sent.id(index) for index in range(len(sent))] == names
    assert np.array_equal(sent.read(0).fields["images"], split.read(0).fields["images"])


def test_odd_names_are_found_as_where_shows_them(tmp_path: Path) -> None:
    photos = make_folder(tmp_path / "photos", 1, ("a",))
    (photos / "# b").mkdir()
    for name in ODD_NAMES:
        shutil.copy(photos / "a" / "00.png", photos / "# b" / name)
    words, every, out = ("build", "imagefolder", photos), tmp_path / "all", tmp_path / "out"
    assert mmload(*words, every, "--size", 16).returncode == 0
    shown = [mmload("info", every, "--row", row).stdout.partition(": ")[2] for row in range(len(ids(every)))]
    odd = [line.rpartition(", ")[0].replace("# b/", "\\x23 b/") for line in shown if line.startswith("# b/")]
    assert len(odd) == len(ODD_NAMES)
    done = mmload(*words, out, "--size", 16, "--exclude", excluding(tmp_path, *odd[1:]))
    assert "excluded   6 samples" in done.stdout, done.stderr
    assert len(ids(out)) == 2
    assert mmload("verify", out, "--source", photos).returncode == 0
    for built, lines in ((out, odd[1:]), (every, ["# b/a.png"]), (every, ["#"])):
        again = mmload(*words, built, "--size", 16, "--exclude", excluding(tmp_path, *lines))
        assert "nothing to do" in again.stdout


def test_the_list_is_part_of_the_recipe(source: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    words = ("build", "imagefolder", source, out, "--size", 16)
    assert mmload(*words, "--exclude", excluding(tmp_path, "class0/1.png")).returncode == 0
    for more in ((), ("--exclude", excluding(tmp_path, "class0/2.jpg"))):
        assert "was built by another recipe" in complaint(mmload(*words, *more), 1)
    same = excluding(tmp_path, "# other words", "class0/1.png\tanother reason\ttrain")
    assert "nothing to do" in mmload(*words, "--exclude", same).stdout
    (split,) = json.loads(mmload("info", out, "--json").stdout)["splits"].values()
    assert split["excluded"] == 1
    assert "1 sample of split train by --exclude" in mmload("verify", out).stdout
    left_out = complaint(mmload("info", out, "--file", source / "class0" / "1.png"), 2)
    assert "class0/1.png was left out of split train by --exclude" in left_out


def test_source_and_shards_are_verified_and_repaired_without_the_list(source: Path, tmp_path: Path) -> None:
    out, listed = tmp_path / "out", excluding(tmp_path, "class0/1.png")
    build(recipe(source, out), exclude=listed)
    before = contents(out)
    listed.unlink()
    (source / "class0" / "1.png").unlink()  # what is excluded may be gone
    assert mmload("verify", out, "--source", source).returncode == 0
    shard = next((out / "train").glob("*/images.memmap"))
    shard.write_bytes(bytes(len(shard.read_bytes())))
    assert mmload("verify", out, "--repair", "--source", source).returncode == 0
    assert contents(out) == before


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        (["class0/9.png"], r"line 2: 'class0/9.png' names no sample; samples are named as in 'class0/0.jpg'"),
        (["class0/1.png "], r"line 2: 'class0/1.png ' names no sample"),
        (["#comment"], r"line 2: '#comment' names no sample"),
        (["class0/1.png\tbad\tval"], r"line 2: 'class0/1.png' names the split 'val'; the source has train"),
        (["a\tb\tc\td"], r"line 2 has 4 fields; write NAME"),
        ([f"class{c}/{i}.{'png' if i % 2 else 'jpg'}" for c in range(3) for i in range(5)], "all 15 samples of split"),
        (None, "cannot read the list"),
    ],
    ids=["missing", "space", "comment", "split", "fields", "all", "no list"],
)
def test_a_list_that_is_wrong_is_refused(source: Path, tmp_path: Path, lines: list[str] | None, message: str) -> None:
    listed = tmp_path if lines is None else excluding(tmp_path, "class0/1.png", *lines)
    with pytest.raises(RecipeError, match=message):
        build(recipe(source, tmp_path / "out"), exclude=listed)
    assert not (tmp_path / "out").exists()


@pytest.fixture
def in_both(devkit: Devkit) -> str:
    """An image that is in train and in val of ``devkit``, each of which has another one."""
    for stem in ("a", "b", "c"):
        devkit.add(stem, thing("dog"))
    devkit.list("train", "a", "b")
    devkit.list("val", "b", "c")
    return "VOC2007/JPEGImages/b.jpg"


def test_a_voc_image_in_two_splits_is_left_out_of_the_one_that_is_named(
    in_both: str, devkit: Devkit, tmp_path: Path
) -> None:
    made, own = recipe(devkit.root, tmp_path / "out", kind="voc"), "VOC2007/JPEGImages/a.jpg"
    for line, message in (
        (in_both, "exists in the splits train, val; add the split as a third field"),
        (f"{own}\tleak\tval", f"'{own}' names no sample of split val"),
    ):
        with pytest.raises(RecipeError, match=message):
            build(made, exclude=excluding(tmp_path, line))
    listed = excluding(tmp_path, f"{in_both}\tleak\tval")
    build(made, exclude=listed)
    assert [ids(made.out), ids(made.out, "val")] == [[own, in_both], ["VOC2007/JPEGImages/c.jpg"]]
    devkit.list("val", "c")  # it is gone from one split, and stays in the other
    update(made, exclude=listed)
    assert in_both in ids(made.out)
    assert update(made, exclude=excluding(tmp_path, in_both)).removed == 1


def test_rows_of_cifar_and_python_datasets(tmp_path: Path) -> None:
    root, out, excluded = write_cifar10(tmp_path / "cifar"), tmp_path / "out", "data_batch_2/3"
    build(BuildRecipe(kind="cifar10", root=root, out=tmp_path / "all"))
    report = build(BuildRecipe(kind="cifar10", root=root, out=out), exclude=excluding(tmp_path, excluded))
    every, left = open_dataset(tmp_path / "all")["train"], open_dataset(out)["train"]
    kept = [row for row, name in enumerate(ids(tmp_path / "all")) if name != excluded]
    assert torch.equal(left[:].images, every.rows(kept).images)
    assert torch.equal(left[:].targets, every.rows(kept).targets)
    assert from_mapping(report.manifest.recipe).exclude == {"train": (excluded,)}

    MADE["numbers"] = [(np.full((3, 4, 4), each, np.uint8), each) for each in range(5)]
    options = {"dataset": "python_datasets:made", "arguments": {"name": "numbers"}}
    helper = Path(__file__).parents[1] / "helpers"
    numbers = BuildRecipe(kind="python", root=helper, out=tmp_path / "numbers", options=options)
    build(numbers, exclude=excluding(tmp_path, "0"), processes=1)
    assert open_dataset(numbers.out)["train"][:].targets.tolist() == [1, 2, 3, 4]
    assert ids(tmp_path / "numbers") == ["1", "2", "3", "4"]


def test_a_recipe_may_have_the_list_itself(source: Path, tmp_path: Path) -> None:
    config = tmp_path / "recipe.toml"
    config.write_text(
        '[source]\nkind = "imagefolder"\n[exclude]\ntrain = ["class0/1.png"]\n'
        '[[transforms]]\nstep = "Resize"\nsize = [9, 9]\n'
    )
    listed = excluding(tmp_path, "class1/1.png")
    done = mmload("build", "--config", config, source, tmp_path / "out", "--exclude", listed)
    assert "excluded   2 samples" in done.stdout, done.stderr


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ({"train": ["no.png"]}, "exclude names 'no.png', which is not a sample of split train"),
        ({"test": ["no.png"]}, "exclude names the split 'test'; the source has train"),
        (["class0/1.png"], "use a table of splits"),
        ({"train": "class0/1.png"}, "use a table of splits"),
        ({"train": [1]}, "use a table of splits"),
    ],
)
def test_a_wrong_list_of_a_recipe_is_refused(source: Path, tmp_path: Path, table: object, message: str) -> None:
    with pytest.raises(RecipeError, match=message):
        build(recipe(source, tmp_path / "other", exclude=table))


@pytest.mark.parametrize("split", ["", "train"])
@pytest.mark.parametrize("named", [True, False])
def test_an_excluded_sample_that_is_gone_is_a_note_of_an_update(source, tmp_path, split, named):
    made, line = recipe(source, tmp_path / "out"), f"class0/1.png\tblurred\t{split}"
    build(made, exclude=excluding(tmp_path, line))
    picture, again = source / "class0" / "1.png", tmp_path / "again.png"
    picture.rename(again)
    shutil.copy(again, source / "class0" / "new.png")
    listed = excluding(tmp_path, *[line] * named)
    notes = []
    assert update(made, UpdateOptions(dry_run=True), exclude=listed, on_note=notes.append).added == 1
    assert "no longer in the source: 1 excluded sample of split train" in "".join(notes)
    assert (update(made, exclude=listed).added, update(made, exclude=listed).needed) == (1, False)
    assert open_dataset(made.out).manifest.recipe["exclude"] == {"train": ["class0/1.png"]}
    again.rename(picture)
    assert not update(made, exclude=listed).needed


def test_an_update_names_an_listed_split_that_never_was_a_sample(source, tmp_path):
    made = recipe(source, tmp_path / "out", exclude={"train": ["class0/1.png"]})
    build(made)
    (source / "class0" / "1.png").unlink()
    assert not update(made).changed
    with pytest.raises(RecipeError, match="line 1: 'class0/9.png' names no sample"):
        update(made, exclude=excluding(tmp_path, "class0/9.png"))
    with pytest.raises(RecipeError, match="exclude names 'no.png'"):
        update(replace(made, exclude={"train": ["class0/1.png", "no.png"]}))


def test_an_excluded_sample_of_a_split_that_is_gone_stops_no_update(tmp_path):
    for split in ("train", "val"):
        make_folder(tmp_path / "photos" / split, 2, ("a", "b"))
    made = recipe(tmp_path / "photos", tmp_path / "out")
    listed = excluding(tmp_path, "val/a/00.png\tbad\tval")
    build(made, exclude=listed)
    shutil.rmtree(tmp_path / "photos" / "val")
    assert update(made, exclude=listed).gone == ("val",)


def test_an_image_that_is_listed_twice_is_left_out_twice(tmp_path):
    photos = CocoSet(tmp_path / "coco")
    for number in (1, 2):
        photos.image(number)
        photos.object(number, [1, 2, 6, 7])
    photos.body["images"].append(photos.body["images"][0])
    splits = splits_of(BuildRecipe(kind="coco", root=photos.write()))
    (name, split), *_ = splits.items()
    left = splits_of(BuildRecipe(kind="coco", root=photos.root, exclude={name: [split.id(0)]}))[name]
    assert [left.id(index) for index in range(len(left))] == [split.id(1)]


def test_every_name_as_a_list_has_it_is_found_again(tmp_path):
    photos = make_folder(tmp_path / "photos", 1, ("a",))
    for name in ("\udce9\\1.png", "\\\udce9.png", "\\x41.png"):
        shutil.copy(photos / "a" / "00.png", photos / "a" / name)
    out = tmp_path / "out"
    build(
        recipe(photos, out),
        exclude=excluding(tmp_path, *(listed_split.listed(f"a/{name}") for name in ("\udce9\\1.png", "\\\udce9.png"))),
    )
    assert ids(out) == ["a/00.png", "a/\\x41.png"]
