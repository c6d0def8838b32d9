"""A file for results never replaces a part of what the command reads."""

from __future__ import annotations

from pathlib import Path

import pytest
from conftest import complaint, contents, mmload


@pytest.fixture
def link(copy: Path, tmp_path: Path) -> Path:
    """A link to the manifest of a dataset."""
    (tmp_path / "link.json").symlink_to(copy / "dataset.json")
    return tmp_path / "link.json"


@pytest.mark.parametrize(
    "words",
    [
        ["parity", "OUT", "--source", "ROOT", "--json", "OUT/dataset.json"],
        ["parity", "OUT", "--source", "ROOT", "--json", "ROOT/ant/00.png"],
        ["parity", "OUT", "--source", "ROOT", "--json", "LINK"],
        ["bench", "OUT", "--json", "OUT/train/000000/images.memmap"],
        ["bench", "OUT", "--source", "ROOT", "--plot", "ROOT/ant/00.png"],
        ["bench", "OUT", "--source", "ROOT", "--json", "ROOT/ant/00.png"],
    ],
    ids=" ".join,
)
def test_a_result_in_the_dataset_or_the_source_is_refused(
    words: list[str], copy: Path, folder: Path, link: Path
) -> None:
    before = contents(copy) | contents(folder)
    given = [word.replace("OUT", str(copy)).replace("ROOT", str(folder)).replace("LINK", str(link)) for word in words]
    done = mmload(*given)
    assert done.returncode == 2
    assert f"{given[-2]} is {given[-1]}, which lies in " in done.stderr
    assert done.stderr.endswith("the data itself; write the result elsewhere\n")
    assert contents(copy) | contents(folder) == before


def test_a_result_replaces_a_link_to_itself(copy: Path, tmp_path: Path) -> None:
    (loop := tmp_path / "loop.png").symlink_to(loop)
    assert mmload("preview", copy, "-o", loop, "--grid", "1x1").returncode == 0
    assert loop.is_file()
    (loop := tmp_path / "loop").symlink_to(loop)
    assert "loop" in complaint(mmload("preview", loop, "-o", tmp_path / "a.png"), 1)
