"""``--build``: a build beside torchvision's pass over the same photographs."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from fake_contenders import tiny_task

from mmload.bench.advice import seconds_text
from mmload.bench.building import linked, measure_building
from mmload.builder.planned_build import splits_of
from mmload.builder.recipe import BuildRecipe
from mmload.errors import UsageError
from mmload.sources.imagefolder import ImageFolderSplit
from mmload.store.dataset import Dataset


@pytest.mark.slow
def test_a_build_is_measured_beside_torchvisions_pass(dataset: Dataset, folder: Path) -> None:
    task, said = tiny_task(dataset.path), []
    before = sorted(folder.rglob("*"))
    rates = measure_building(replace(task, source=folder), said.append)
    assert list(rates) == ["torchvision's pass, 1 worker", "mmload build, 1 thread"]
    assert all(len(each) == 3 and min(each) > 0 for each in rates.values())
    assert said[0] == "torchvision's pass, 1 worker: warm-up"
    assert sorted(folder.rglob("*")) == before
    with pytest.raises(UsageError, match="--build compares with torchvision's pass over the source: .* --source ROOT"):
        measure_building(task)


def test_a_sample_is_linked_and_spread_over_the_source(folder: Path, tmp_path: Path) -> None:
    (split,) = splits_of(BuildRecipe(kind="imagefolder", root=folder, out=tmp_path)).values()
    assert isinstance(split, ImageFolderSplit)
    found = sorted(linked(split, "train", 6, tmp_path / "few").rglob("*.png"))
    assert len(found) == 6
    assert {path.parent.name for path in found} == {"ant", "bee", "cat"}
    assert {path.resolve().parent.parent for path in found} == {folder}
    assert len(list(linked(split, "train", 100, tmp_path / "all").rglob("*.png"))) == len(split) == 18


def test_times_have_readable_units() -> None:
    assert [seconds_text(seconds) for seconds in (0.2, 8.4, 100, 1620, 11_520)] == [
        "1 s",
        "8 s",
        "2 min",
        "27 min",
        "3.2 hours",
    ]
