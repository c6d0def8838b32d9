"""Updates, clean-ups and versions on the command line: what each says, and advice that leads on."""

from __future__ import annotations

import re
import shutil

import pytest
from conftest import complaint, make_folder, mmload

from mmload.builder import staging
from mmload.remote.opening import open as open_dataset


def interrupted(*_):
    raise KeyboardInterrupt


@pytest.fixture
def words(tmp_path):
    """The words of a build that was run, of two splits."""
    for split in ("train", "val"):
        make_folder(tmp_path / "photos" / split, per_class=2)
    words = ("build", "imagefolder", tmp_path / "photos", tmp_path / "out", "--size", 16)
    assert mmload(*words).returncode == 0
    return words


@pytest.fixture
def again(words):
    """The words that update it."""
    return ("update", words[3], words[2])


def test_an_update_where_there_is_no_dataset_builds_none(folder, tmp_path):
    assert "no such dataset" in complaint(mmload("update", tmp_path / "out", folder), 1)
    assert not list(tmp_path.glob("*out*"))


def test_an_update_has_the_recipe_of_the_build(folder, tmp_path):
    """Of a build with options of every table, none of which is typed again."""
    photos = shutil.copytree(folder, tmp_path / "photos")
    more = ("--layout", "variable", "--encode", "jpeg", "--size", 32, "--shuffle-seed", 3)
    options = (*more, "--exif-orient", "--shard-size", "20KiB")
    excluded = tmp_path / "excluded.txt"
    excluded.write_text("bee/01.png\n")
    assert mmload("build", "imagefolder", photos, tmp_path / "out", *options, "--exclude", excluded).returncode == 0
    before = open_dataset(tmp_path / "out").manifest.recipe
    shutil.copy(photos / "bee" / "00.png", photos / "bee" / "new.png")
    done = mmload("update", tmp_path / "out", photos)
    assert "1 new, 0 changed, 0 gone" in done.stdout, done.stderr
    assert open_dataset(tmp_path / "out").manifest.recipe == before


def test_further_exclusions_of_an_update_stay(words, again, tmp_path):
    excluded = tmp_path / "excluded.txt"
    excluded.write_text("train/bee/01.png\n")
    assert ": 0 new, 0 changed, 1 gone\n" in mmload(*again, "--exclude", excluded).stdout
    assert "is up to date: nothing to do" in mmload(*again).stdout


def test_an_update_counts_rows_as_the_log_does(words, again):
    bee = words[2] / "train" / "bee"
    shutil.copy(bee / "00.png", bee / "new.png")
    (bee / "broken.png").write_bytes(b"no picture")
    done = mmload(*again, "--on-error", "skip")
    assert re.search(r"to version 2 in .*: 1 new, 0 changed, 0 gone, 1 left out\n", done.stdout)
    (version,) = (line for line in mmload("info", words[3], "--versions").stdout.splitlines() if "update" in line)
    assert re.search(r"update +1 +0 +0 ", version)


def test_an_update_names_the_splits_and_subsets_that_are_gone(words, again, tmp_path):
    out = words[3]
    bee = open_dataset(out)["train"].row_of("train/bee/00.png")
    for name, split, row in (("hard", "train", bee), ("easy", "val", 0)):
        (tmp_path / "rows.txt").write_text(f"{row}\n")
        assert mmload("subset", out, name, "--rows", tmp_path / "rows.txt", "--split", split).returncode == 0
    (words[2] / "train" / "bee" / "00.png").unlink()
    assert "; no row is left of hard\n" in mmload(*again).stdout
    shutil.rmtree(words[2] / "val")
    assert "; no row is left of easy, val\n" in mmload(*again).stdout


def test_a_broken_image_in_an_update_is_said_to_be_repaired(words, again):
    broken = words[2] / "train" / "bee" / "broken.png"
    broken.write_bytes(b"no picture")
    line = complaint(mmload(*again), 1)
    assert "repair or remove it and run the update again, or add --on-error skip" in line
    shutil.copy(broken.with_name("00.png"), broken)
    assert mmload(*again).returncode == 0


@pytest.mark.parametrize("flags", [("--dry-run",), ("--compact",)])
def test_gc_says_that_it_has_completed_a_killed_commit(words, again, monkeypatch, flags):
    bee = words[2] / "train" / "bee"
    shutil.copy(bee / "00.png", bee / "new.png")
    with monkeypatch.context() as patch:
        patch.setattr(staging, "add_to_dataset", interrupted)
        assert mmload(*again).returncode == 130
    done = mmload("gc", words[3], *flags)
    first, second = done.stdout.splitlines()
    assert first.endswith("out: the commit of a killed command was completed, as version 2")
    assert re.search(r"1 version and [0-9]+ files of [0-9.]+ (KiB|B) (would be )?removed", second)
    assert len(mmload("gc", words[3], *flags).stdout.splitlines()) == 1


def test_verify_of_an_updated_dataset_does_not_lead_to_a_repair_that_is_refused(words, again):
    bee = words[2] / "train" / "bee"
    shutil.copy(bee / "00.png", bee / "new.png")
    assert mmload(*again).returncode == 0
    (words[3] / "train" / "000000" / "images.memmap").write_bytes(b"short")
    done = mmload("verify", words[3])
    assert done.returncode == 1
    assert done.stderr.endswith("1 fault; an updated dataset cannot be repaired; build it again with --overwrite\n")


def test_a_dry_run_after_rows_were_appended_says_what_an_update_would_do(words, again):
    bee = words[2] / "train" / "bee"
    shutil.copy(bee / "00.png", bee / "-first.png")
    assert mmload(*again, "--append").returncode == 0
    done = mmload(*again, "--dry-run")
    assert "is up to date: nothing to do" in done.stdout
    (bee / "01.png").unlink()
    done = mmload(*again, "--dry-run")
    assert "would be updated: 0 new, 0 changed, 1 gone; nothing was written" in done.stdout
