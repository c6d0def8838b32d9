"""What a source takes as it is, though it is probably meant otherwise, is said in its notes."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from devkit import Devkit, thing
from PIL import Image

from mmload.sources import make_source
from mmload.sources.decode import Decoder


def notes_of(root: Path, *classes: str) -> tuple[str, ...]:
    for name in classes:
        (root / name).mkdir(parents=True)
        Image.fromarray(np.zeros((2, 2, 3), np.uint8)).save(root / name / "a.png")
    return make_source("imagefolder", root, Decoder(), {}).splits()["train"].notes()


def test_classes_that_differ_in_case_or_unicode_form_only(tmp_path: Path) -> None:
    (said,) = notes_of(tmp_path / "a", "Cat", "cat", "dog")
    assert said.startswith("'Cat' and 'cat' are classes of their own")
    (said,) = notes_of(tmp_path / "b", "b\u00e4r", "ba\u0308r")
    assert "differ only in case, quotes, spaces or their Unicode form" in said
    assert notes_of(tmp_path / "c", "ant", "bee") == ()


def test_folders_that_programs_make(tmp_path: Path) -> None:
    (said,) = notes_of(tmp_path, ".ipynb_checkpoints", "__MACOSX", "ant")
    assert said.startswith(".ipynb_checkpoints, __MACOSX may not be a class")


def test_images_that_are_listed_twice_or_in_two_splits(devkit: Devkit) -> None:
    for name in ("a", "b", "c"):
        devkit.add(name, thing("cat"))
    devkit.list("train", "a", "b", "b")
    devkit.list("val", "b", "c")
    splits = devkit.splits()
    assert splits["train"].notes() == ("1 image listed more than once",)
    assert splits["val"].notes() == ("1 image also in split train",)


def test_an_image_without_objects_is_a_row_without_boxes(devkit: Devkit) -> None:
    devkit.add("a")
    devkit.list("train", "a")
    assert int(devkit.splits()["train"].read(0).fields["counts"]) == 0
