"""Samples that --on-error skip left out: every command says how many, of how many, why, and where they are listed."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from conftest import make_folder, mmload

from mmload.builder.pipeline import build
from mmload.builder.recipe import BuildRecipe, square


def broken_folder(root: Path, broken: int, per_class: int = 10) -> Path:
    make_folder(root, per_class, ("ant", "bee"))
    for path in sorted(root.glob("*/*.png"))[:broken]:
        path.write_bytes(b"nothing")
    return root


def test_a_few_that_were_left_out_are_said_by_build_info_and_verify(tmp_path: Path) -> None:
    root, out = broken_folder(tmp_path / "photos", 2), tmp_path / "out"
    build_words = ("build", "imagefolder", root, out, "--size", 16, "--on-error", "skip")
    done = mmload(*build_words)
    assert done.returncode == 0, done.stderr
    assert re.search(r"built .*out: 18 images in .*, 2 left out", done.stdout)
    listed = out / "train" / "skipped.jsonl"
    for said in (done, mmload("info", out), mmload(*build_words)):
        assert f"left out   2 of 20 samples, listed in {listed}" in said.stdout
        assert "ant/00.png: not an image" in said.stdout
        assert "warning" not in said.stderr
    assert len(listed.read_text().splitlines()) == 2
    plain = mmload("verify", out)
    left_out = f"except for samples that were left out: 2 of 20 samples, listed in {listed}\n"
    assert plain.stdout == f"{out} is whole, {left_out}"
    done = mmload("verify", out, "--source", root)
    assert done.stdout == f"{out} is whole and equals {root}, {left_out}"


def test_many_that_were_left_out_are_warned_of(tmp_path: Path) -> None:
    root, out = broken_folder(tmp_path / "photos", 19), tmp_path / "out"
    done = mmload("build", "imagefolder", root, out, "--size", 16, "--on-error", "skip")
    assert re.search(r"built .*out: 1 image in .*, 19 left out", done.stdout)
    for said in (done, mmload("info", out), mmload("verify", out)):
        assert "warning: 19 of 20 samples of split train were left out (95%)" in said.stderr


def test_a_build_that_went_on_counts_rows_and_not_samples(tmp_path: Path) -> None:
    class Enough(Exception):
        pass

    def stop(done: int, total: int) -> None:
        if done >= 8:
            raise Enough

    root = broken_folder(tmp_path / "photos", 3)
    recipe = BuildRecipe(kind="imagefolder", root=root, out=tmp_path / "out", transforms=square(16), shard_bytes=4000)
    with pytest.raises(Enough):
        build(recipe, on_error="skip", threads=1, progress=stop)
    report = build(recipe, on_error="skip")
    assert 0 < report.built < 20
    assert (report.skipped, report.stored) == (0, report.built)
    words = ("build", "imagefolder", root, tmp_path / "b", "--size", 16, "--on-error", "skip", "--shard-size", 4000)
    assert "17 images in" in mmload(*words).stdout
