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


def test_a_dry_run_where_there_is_no_dataset_builds_none(folder, tmp_path):
    line = complaint(mmload("build", "imagefolder", folder, tmp_path / "out", "--update", "--dry-run"), 2)
    assert "there is no dataset at" in line
    assert not list(tmp_path.glob("*out*"))


def test_an_update_counts_rows_as_the_log_does(words):
    bee = words[2] / "train" / "bee"
    shutil.copy(bee / "00.png", bee / "new.png")
    (bee / "broken.png").write_bytes(b"no picture")
    done = mmload(*words, "--update", "--on-error", "skip")
    assert re.search(r"to version 2 in .*: 1 new, 0 changed, 0 gone, 1 left out\n", done.stdout)
    (version,) = (line for line in mmload("log", words[3]).stdout.splitlines() if "update" in line)
    assert re.search(r"update +1 +0 +0 ", version)


def test_an_update_names_the_splits_and_subsets_that_are_gone(words, tmp_path):
    out = words[3]
    bee = open_dataset(out)["train"].row_of("train/bee/00.png")
    for name, split, row in (("hard", "train", bee), ("easy", "val", 0)):
        (tmp_path / "rows.txt").write_text(f"{row}\n")
        assert mmload("subset", out, name, "--rows", tmp_path / "rows.txt", "--split", split).returncode == 0
    (words[2] / "train" / "bee" / "00.png").unlink()
    assert "; no row is left of hard\n" in mmload(*words, "--update").stdout
    shutil.rmtree(words[2] / "val")
    assert "; no row is left of easy, val\n" in mmload(*words, "--update").stdout


def test_a_broken_image_in_an_update_is_said_to_be_repaired(words):
    broken = words[2] / "train" / "bee" / "broken.png"
    broken.write_bytes(b"no picture")
    line = complaint(mmload(*words, "--update"), 1)
    assert "repair or remove it and run the update again, or add --on-error skip" in line
    shutil.copy(broken.with_name("00.png"), broken)
    assert mmload(*words, "--update").returncode == 0


def test_an_update_by_another_recipe_can_be_replaced_by_a_build(words):
    other = (*words[:-1], 24)
    line = complaint(mmload(*other, "--update"), 1)
    assert "was built by another recipe; use --overwrite in place of --update to build it again" in line
    assert mmload(*other, "--overwrite").returncode == 0


@pytest.mark.parametrize("flags", [("--dry-run",), ("--compact",)])
def test_gc_says_that_it_has_completed_a_killed_commit(words, monkeypatch, flags):
    bee = words[2] / "train" / "bee"
    shutil.copy(bee / "00.png", bee / "new.png")
    with monkeypatch.context() as patch:
        patch.setattr(staging, "add_to_dataset", interrupted)
        assert mmload(*words, "--update").returncode == 130
    done = mmload("gc", words[3], *flags)
    first, second = done.stdout.splitlines()
    assert first.endswith("out: the commit of a killed command was completed, as version 2")
    assert re.search(r"1 version and [0-9]+ files of [0-9.]+ (KiB|B) (would be )?removed", second)
    assert len(mmload("gc", words[3], *flags).stdout.splitlines()) == 1


def test_verify_of_an_updated_dataset_does_not_lead_to_a_repair_that_is_refused(words):
    bee = words[2] / "train" / "bee"
    shutil.copy(bee / "00.png", bee / "new.png")
    assert mmload(*words, "--update").returncode == 0
    (words[3] / "train" / "000000" / "images.memmap").write_bytes(b"short")
    done = mmload("verify", words[3])
    assert done.returncode == 1
    assert done.stderr.endswith("1 fault; an updated dataset cannot be repaired; build it again with --overwrite\n")


def test_notes_of_an_update_are_shown_by_a_dry_run_and_by_a_part(words):
    bee = words[2] / "train" / "bee"
    shutil.copy(bee / "00.png", bee / "-first.png")
    assert mmload(*words, "--update", "--append").returncode == 0
    done = mmload(*words, "--update", "--dry-run")
    assert "is up to date: nothing to do" in done.stdout
    (bee / "01.png").unlink()
    done = mmload(*words, "--update", "--dry-run")
    assert "would be updated: 0 new, 0 changed, 1 gone; nothing was written" in done.stdout
    for more in (("--dry-run",), ("--part", "1/1")):
        assert "add --append to keep it" in mmload(*words, "--update", *more).stderr
