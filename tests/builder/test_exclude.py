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
from conftest import complaint, contents, make_folder, mmload
from devkit import Devkit, thing
from python_datasets import MADE

from mmload.builder.pipeline import build, update
from mmload.builder.planned_build import splits_of
from mmload.builder.previous_version import UpdateOptions
from mmload.builder.recipe import BuildRecipe, from_mapping
from mmload.errors import BuildError, RecipeError
from mmload.remote.opening import open as open_dataset

ODD = (
    "line\nend.png",
    "tab\there.png",
    "# comment.png",
    " edges .png",
    "<b>&amp;.png",
    "back\\nslash.png",
    "\udcff.png",
)


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
    assert ids(tmp_path / "out") == ids(tmp_path / "expected")
    assert len(ids(tmp_path / "out")) == 13
    ours, theirs = (
        {name: data for name, data in contents(tmp_path / each).items() if name != "dataset.json"}
        for each in ("out", "expected")
    )
    assert ours == theirs
    assert report.manifest.recipe["exclude"] == {"train": ["class0/3.png", "class2/0.jpg"]}


def test_bytes_do_not_depend_on_threads_and_workers_get_the_remaining_samples(source: Path, tmp_path: Path) -> None:
    listed = excluding(tmp_path, "class1/1.png")
    shuffled = {"shuffle_seed": 3}
    build(recipe(source, tmp_path / "one", **shuffled), exclude=listed)
    report = build(recipe(source, tmp_path / "two", **shuffled), exclude=listed, threads=3)
    assert contents(tmp_path / "one") == contents(tmp_path / "two")
    for made in (
        from_mapping(report.manifest.recipe),
        BuildRecipe(kind="cifar10", exclude={"train": ["data_batch_1/0"]}),
    ):
        root = source if made.kind == "imagefolder" else write_cifar10(tmp_path / "cifar")
        split = splits_of(replace(made, root=root))["train"]
        sent = pickle.loads(pickle.dumps(split))
        assert [sent.id(index) for index in range(len(sent))] == [split.id(index) for index in range(len(split))]
        assert torch.equal(sent.read(0).fields["images"], split.read(0).fields["images"])


def test_odd_names_are_found_as_where_shows_them(tmp_path: Path) -> None:
    photos = make_folder(tmp_path / "photos", 1, ("a",))
    (photos / "# b").mkdir()
    for name in ODD:
        (photos / "# b" / name).write_bytes((photos / "a" / "00.png").read_bytes())
    words = ("build", "imagefolder", photos)
    assert mmload(*words, tmp_path / "all", "--size", 16).returncode == 0
    split = open_dataset(tmp_path / "all")["train"]
    shown = [mmload("info", tmp_path / "all", "--row", row).stdout.partition(": ")[2] for row in range(len(split))]
    odd = [line.rpartition(", ")[0].replace("# b/", "\\x23 b/") for line in shown if line.startswith("# b/")]
    assert len(odd) == len(ODD)
    done = mmload(*words, tmp_path / "out", "--size", 16, "--exclude", excluding(tmp_path, *odd[1:]))
    assert done.returncode == 0, done.stderr
    assert "excluded   6 samples" in done.stdout
    assert len(ids(tmp_path / "out")) == 2
    again = mmload(*words, tmp_path / "out", "--size", 16, "--exclude", tmp_path / "bad.txt")
    assert "nothing to do" in again.stdout
    assert mmload("verify", tmp_path / "out", "--source", photos).returncode == 0
    for line in ("# b/a.png", "#"):
        assert (
            "nothing to do"
            in mmload(*words, tmp_path / "all", "--size", 16, "--exclude", excluding(tmp_path, line)).stdout
        )


def test_the_list_is_part_of_the_recipe(source: Path, tmp_path: Path) -> None:
    words = ("build", "imagefolder", source, tmp_path / "out", "--size", 16)
    assert mmload(*words, "--exclude", excluding(tmp_path, "class0/1.png")).returncode == 0
    assert "was built by another recipe" in complaint(mmload(*words), 1)
    assert "was built by another recipe" in complaint(
        mmload(*words, "--exclude", excluding(tmp_path, "class0/2.jpg")), 1
    )
    same = excluding(tmp_path, "# other words", "class0/1.png\tanother reason\ttrain")
    assert "nothing to do" in mmload(*words, "--exclude", same).stdout
    (split,) = json.loads(mmload("info", tmp_path / "out", "--json").stdout)["splits"].values()
    assert split["excluded"] == 1
    assert "1 sample of split train by --exclude" in mmload("verify", tmp_path / "out").stdout
    left_out = complaint(mmload("info", tmp_path / "out", "--file", source / "class0" / "1.png"), 2)
    assert "class0/1.png was left out of split train by --exclude" in left_out


def test_source_and_shards_are_verified_and_repaired_without_the_list(source: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    build(recipe(source, out), exclude=excluding(tmp_path, "class0/1.png"))
    before = contents(out)
    (tmp_path / "bad.txt").unlink()
    (source / "class0" / "1.png").unlink()  # what is excluded may be gone
    assert mmload("verify", out, "--source", source).returncode == 0
    shard = next((out / "train").glob("*/images.memmap"))
    shard.write_bytes(bytes(len(shard.read_bytes())))
    assert mmload("verify", out, "--repair", "--source", source).returncode == 0
    assert contents(out) == before


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("class0/9.png", r"line 2: 'class0/9.png' names no sample; samples are named as in 'class0/0.jpg'"),
        ("class0/1.png ", r"line 2: 'class0/1.png ' names no sample"),
        ("#comment", r"line 2: '#comment' names no sample"),
        ("class0/1.png\tbad\tval", r"line 2: 'class0/1.png' names the split 'val'; the source has train"),
        ("a\tb\tc\td", r"line 2 has 4 fields; write NAME"),
    ],
    ids=["missing", "space", "comment", "split", "fields"],
)
def test_a_wrong_line_is_named(source: Path, tmp_path: Path, line: str, message: str) -> None:
    with pytest.raises(RecipeError, match=message):
        build(recipe(source, tmp_path / "out"), exclude=excluding(tmp_path, "class0/1.png", line))
    assert not (tmp_path / "out").exists()


def test_a_list_that_cannot_be_read_or_leaves_nothing_is_refused(source: Path, tmp_path: Path) -> None:
    words = ("build", "imagefolder", source, tmp_path / "out", "--exclude")
    assert "cannot read the list" in complaint(mmload(*words, tmp_path / "none.txt"), 2)
    assert "cannot read the list" in complaint(mmload(*words, tmp_path), 2)
    every = [path.relative_to(source).as_posix() for path in source.rglob("*.*g")]
    assert "all 15 samples of split train" in complaint(mmload(*words, excluding(tmp_path, *every)), 2)


def test_a_voc_image_in_two_splits_is_left_out_of_the_one_that_is_named(devkit: Devkit, tmp_path: Path) -> None:
    for stem in ("a", "b", "c"):
        devkit.add(stem, thing("dog"))
    devkit.list("train", "a", "b")
    devkit.list("val", "b", "c")
    made = recipe(devkit.root, tmp_path / "out", kind="voc")
    both = "VOC2007/JPEGImages/b.jpg"
    with pytest.raises(RecipeError, match="exists in the splits train, val; add the split as a third field"):
        build(made, exclude=excluding(tmp_path, both))
    with pytest.raises(RecipeError, match="'VOC2007/JPEGImages/a.jpg' names no sample of split val"):
        build(made, exclude=excluding(tmp_path, "VOC2007/JPEGImages/a.jpg\tleak\tval"))
    build(made, exclude=excluding(tmp_path, f"{both}\tleak\tval"))
    assert ids(tmp_path / "out") == ["VOC2007/JPEGImages/a.jpg", both]
    assert ids(tmp_path / "out", "val") == ["VOC2007/JPEGImages/c.jpg"]


def test_rows_of_cifar_and_python_datasets(tmp_path: Path) -> None:
    root = write_cifar10(tmp_path / "cifar")
    made = BuildRecipe(kind="cifar10", root=root, out=tmp_path / "all")
    build(made)
    report = build(
        BuildRecipe(kind="cifar10", root=root, out=tmp_path / "out"), exclude=excluding(tmp_path, "data_batch_2/3")
    )
    every, left = open_dataset(tmp_path / "all")["train"], open_dataset(tmp_path / "out")["train"]
    gone = ids(tmp_path / "all").index("data_batch_2/3")
    kept = [row for row in range(len(every)) if row != gone]
    assert torch.equal(left.rows(range(len(left))).images, every.rows(kept).images)
    assert torch.equal(left.rows(range(len(left))).targets, every.rows(kept).targets)
    assert from_mapping(report.manifest.recipe).exclude == {"train": ("data_batch_2/3",)}

    MADE["numbers"] = [(np.full((3, 4, 4), each, np.uint8), each) for each in range(5)]
    options = {"dataset": "python_datasets:made", "arguments": {"name": "numbers"}}
    helper = Path(__file__).parents[1] / "helpers"
    numbers = BuildRecipe(kind="python", root=helper, out=tmp_path / "numbers", options=options)
    build(numbers, exclude=excluding(tmp_path, "0"), processes=1)
    split = open_dataset(tmp_path / "numbers")["train"]
    assert split.rows(range(4)).targets.tolist() == [1, 2, 3, 4]
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
    for table, message in (
        ({"train": ["no.png"]}, "exclude names 'no.png', which is not a sample of split train"),
        ({"test": ["no.png"]}, "exclude names the split 'test'; the source has train"),
    ):
        with pytest.raises(RecipeError, match=message):
            build(recipe(source, tmp_path / "other", exclude=table))
    for wrong in (["class0/1.png"], {"train": "class0/1.png"}, {"train": [1]}):
        with pytest.raises(RecipeError, match="use a table of splits"):
            BuildRecipe(kind="imagefolder", exclude=wrong)  # type: ignore[arg-type]  # on purpose


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
    if named:
        assert not update(made, exclude=listed).needed
    else:
        with pytest.raises(BuildError, match="was built by another recipe"):
            update(made, UpdateOptions(dry_run=True), exclude=listed)


def test_an_update_names_an_exclusion_that_never_was_a_sample(source, tmp_path):
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


def test_an_excluded_image_of_voc_that_is_gone_from_one_split_stays_in_the_other(
    devkit: Devkit, tmp_path: Path
) -> None:
    for stem in ("a", "b", "c"):
        devkit.add(stem, thing("dog"))
    devkit.list("train", "a", "b")
    devkit.list("val", "b", "c")
    made, both = recipe(devkit.root, tmp_path / "out", kind="voc"), "VOC2007/JPEGImages/b.jpg"
    build(made, exclude=excluding(tmp_path, f"{both}\tleak\tval"))
    devkit.list("val", "c")
    update(made, exclude=excluding(tmp_path, f"{both}\tleak\tval"))
    assert both in ids(made.out)
    assert update(made, exclude=excluding(tmp_path, both)).removed == 1
