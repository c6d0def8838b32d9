"""What ``mmload build --advise`` finds of a source's layouts, and that it builds nothing."""

from __future__ import annotations

from pathlib import Path

import pytest
from conftest import complaint, contents, mmload
from picture_folders import smooth_jpegs

import mmload as package
from mmload.bench import advice
from mmload.builder.pipeline import build
from mmload.builder.recipe import BuildRecipe, default_side
from mmload.errors import SampleError


@pytest.fixture
def wide(tmp_path: Path) -> Path:
    """Six JPEGs, three of them twice as wide as high."""
    return smooth_jpegs(tmp_path / "photos", ["class0", "class1"] * 3, [(80, 40)] * 3 + [(40, 40)] * 3)


def test_layouts_cost_what_a_build_of_them_does(wide: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(advice, "_LEAST_SECONDS", 0.0)
    monkeypatch.setattr(advice, "_EPOCH", 12)
    recipe = BuildRecipe(kind="imagefolder", root=wide, out=tmp_path / "out")
    found = advice.advise(recipe, 32, threads=1)
    assert not (tmp_path / "out").exists()
    assert [layout.never_seen for layout in found] == [0.25, 0, 0, 0, 0]
    assert all(layout.images_per_second > 0 and layout.build_seconds > 0 for layout in found)
    for advised, (size, layout) in zip(found, advice.layouts(32).values(), strict=True):
        out = tmp_path / advised.options.replace(" ", "")
        side = default_side("imagefolder", size, variable_size=layout is not None)
        build(BuildRecipe(kind="imagefolder", root=wide, out=out, side=side, variable_layout=layout), threads=1)
        assert advised.bytes == package.open(out)["train"].record.bytes


def test_the_command_shows_them_and_builds_nothing(wide: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(advice, "_LEAST_SECONDS", 0.0)
    monkeypatch.setattr(advice, "_EPOCH", 6)
    (wide / "class0" / "empty.jpg").touch()
    before = contents(tmp_path)
    done = mmload("build", "imagefolder", wide, "--advise", "--size", 16, "--threads", 1)
    assert done.returncode == 0, done.stderr
    assert contents(tmp_path) == before
    lines = done.stdout.splitlines()
    assert len(lines) == 8
    assert lines[1].startswith("1 image of the 7 cannot be read: a build stops at the first, or leaves them out")
    assert lines[3].endswith("25.0%  --size 16")
    assert lines[7].endswith("0.0%  --layout variable --size original --encode source")


def test_a_sample_that_cannot_be_read_is_named(wide: Path, tmp_path: Path) -> None:
    for file in wide.rglob("*.jpg"):
        file.write_bytes(b"broken")
    with pytest.raises(SampleError, match=r"\.jpg: not an image"):
        advice.advise(BuildRecipe(kind="imagefolder", root=wide, out=tmp_path / "out"))


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--layout", "variable"], "--advise compares all layouts, and --layout is given"),
        (["--size", "original"], "--size is original"),
        (["--size", 0], "size is 0"),
    ],
)
def test_advice_options_that_cannot_be(wide: Path, words: list[object], message: str) -> None:
    assert message in complaint(mmload("build", "imagefolder", wide, "--advise", *words), 2)
