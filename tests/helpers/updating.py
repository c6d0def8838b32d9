"""Sources that change, and what an update of their datasets must be equal to."""

from __future__ import annotations

import os
import shutil
from dataclasses import replace

import torch

import mmload
from mmload.builder.pipeline import build
from mmload.builder.verify import verify


def make_old(root):
    """Gives all files a time long before any build, so that no time leaves a doubt."""
    for file in root.rglob("*.*"):
        os.utime(file, (1e9, 1e9))


def picture(root, number=0):
    return sorted(root.rglob("*.*"))[number]


def change(root):
    """Adds, changes and removes one picture each, and touches another one."""
    files = sorted(root.rglob("*.*"))
    shutil.copy(files[0], files[0].with_name("0a.jpg"))
    files[2].unlink()
    files[6].write_bytes(files[7].read_bytes())
    os.utime(files[9])


def files_of(folder):
    return {file: file.read_bytes() for file in folder.rglob("*") if file.is_file()}


def assert_rows_equal(found, expected):
    assert list(found) == list(expected)
    for name in expected:
        ours, theirs = found[name], expected[name]
        assert [ours.source(row) for row in range(len(ours))] == [theirs.source(row) for row in range(len(theirs))]
        for row in range(len(theirs)):
            assert torch.equal(ours[row].images, theirs[row].images)
            assert torch.equal(ours[row].targets, theirs[row].targets)
        for key in ("rows", "classes", "class_counts", "mean", "std", "skipped_count"):
            assert getattr(ours.record, key) == getattr(theirs.record, key), key


def fresh(made, tmp_path, **more):
    out = tmp_path / "fresh"
    shutil.rmtree(out, ignore_errors=True)
    build(replace(made, out=out), **more)
    return mmload.open(out)


def add_pictures(root, count):
    """Adds copies of the first picture to a class."""
    for number in range(count):
        shutil.copy(picture(root), root / "class1" / f"x{number:02}.jpg")


def assert_is_fresh(made, tmp_path, **more):
    """Checks that a dataset is whole and has the rows of a fresh build."""
    assert verify(made.out) == []
    assert_rows_equal(mmload.open(made.out), fresh(made, tmp_path, **more))
