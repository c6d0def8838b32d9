"""Links inside a dataset: no command writes or removes what they lead to."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest
from building import recipe
from conftest import contents
from updating import change

import mmload
from mmload.builder.dataset_change import compact, remove_unused
from mmload.builder.pipeline import build, update
from mmload.builder.staging import MARK
from mmload.errors import StoreError


@pytest.fixture
def good(source, tmp_path):
    """A dataset of three versions, with a subset and an added field."""
    made = recipe(source, tmp_path / "good")
    build(made)
    change(source)
    update(made)
    mmload.save_subset(made.out, "few", [0, 2], split="train")
    mmload.add_field(made.out, "value", np.arange(15), split="train")
    sorted(source.rglob("*.*"))[1].unlink()
    return made.out


COMMANDS = {
    "gc": lambda evil, _: remove_unused(evil),
    "gc --dry-run": lambda evil, _: remove_unused(evil, dry_run=True),
    "update": lambda evil, source: update(recipe(source, evil)),
    "subset": lambda evil, _: mmload.save_subset(evil, "few", [1], split="train"),
    "remove subset": lambda evil, _: mmload.remove_subset(evil, "few"),
    "add-field": lambda evil, _: mmload.add_field(evil, "value", np.zeros(15), split="train"),
    "remove field": lambda evil, _: mmload.remove_field(evil, "value", split="train"),
}


def linked(good, link):
    """Returns a copy of a dataset in which a folder or file is a link to that of the dataset."""
    evil = Path(shutil.copytree(good, good.with_name("evil")))
    shutil.rmtree(evil / link) if (evil / link).is_dir() else (evil / link).unlink()
    (evil / link).symlink_to(good / link)
    return evil


def tree(folder):
    return {path.relative_to(folder): path.is_symlink() or path.is_file() for path in sorted(folder.rglob("*"))}


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize("link", ["train", "versions"])
def test_a_command_that_would_write_behind_a_link_names_it_and_changes_nothing(source, good, link, command):
    if link == "train" and command in ("subset", "remove subset", "remove field"):
        pytest.skip("writes no file of this folder")
    evil = linked(good, link)
    before, files = contents(good), tree(evil)
    with pytest.raises(StoreError, match=f"evil/{link} is a link to .*good/{link}, and nothing is written or removed"):
        COMMANDS[command](evil, source)
    assert contents(good) == before
    assert tree(evil) == files
    assert mmload.open(evil)["train"][0].images is not None


def test_links_to_shards_that_a_command_leaves_alone_stay(good):
    evil, before = linked(good, "train/000000"), contents(good)
    mmload.save_subset(evil, "some", [1], split="train")
    remove_unused(evil, keep=2)
    assert (evil / "train/000000").is_symlink()
    assert contents(good) == before


def test_an_update_moves_no_shard_behind_a_link(squares, source, tmp_path):
    (tmp_path / "elsewhere").mkdir()
    change(source)
    shards = len(list((squares.out / "train").glob("0*")))
    (squares.out / "train" / f"{shards:06d}").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(StoreError, match="is a link to"):
        update(squares)
    assert list((tmp_path / "elsewhere").iterdir()) == []


def test_compact_writes_no_shard_behind_a_link(source, good):
    for file in source.glob("*/[!0]*"):
        file.unlink()
    update(recipe(source, good))
    evil, before = linked(good, "train"), contents(good)
    with pytest.raises(StoreError, match="is a link to"):
        compact(evil)
    assert contents(good) == before


def test_what_looks_like_a_set_aside_folder_is_not_emptied_through_links(source, good):
    """A link beside the destination, called as builds call folders that they are going to remove."""
    aside, real = good.with_name(".other.building.0123456789abcdef.partial"), good.with_name("real")
    shutil.copytree(good, real / "dataset")
    (real / "lock").write_bytes(MARK)
    (real / "link").symlink_to(good)
    aside.symlink_to(real)
    before = contents(good), contents(real)
    build(recipe(source, good.with_name("other")))
    assert (contents(good), contents(real)) == before
    aside.unlink()
    real.rename(aside)
    build(recipe(source, good.with_name("other")))
    assert (contents(good), aside.exists()) == (before[0], False)
