"""Files that change before a loader reads them: right pixels, or an error that names the file, in every tier.

`scripts/torture faults` changes them at random moments.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest
import torch
from conftest import script

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="what a file that changes does elsewhere is not known")


@pytest.fixture(scope="module")
def torture() -> Iterator[ModuleType]:
    with script("torture") as module:
        yield module


@pytest.fixture(scope="module")
def datasets(torture: ModuleType, tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("obstore", reason="object storage needs obstore")
    folder = tmp_path_factory.mktemp("faults")
    torture.torture_faults.make_datasets(folder)
    return folder


@pytest.mark.parametrize("layout", ["squares", "raw", "jpeg"])
@pytest.mark.parametrize("tier", ["disk", "memory", "cache"])
def test_a_file_that_changed_before_the_first_batch(
    torture: ModuleType, datasets: Path, layout: str, tier: str
) -> None:
    faults = torture.torture_faults
    rounds = faults.Rounds(datasets, layout, tier)
    for number, harm in enumerate(faults.HARMS):
        rounds.one(number, harm, -1.0, random.Random(number))
    assert sum(rounds.counts[harm] for harm in faults.HARMS) == len(faults.HARMS)
    if tier == "cache":  # nothing is in it yet
        assert rounds.counts["errors"] == 0
    else:
        assert rounds.counts["errors"] >= 3
    wrong = [torch.zeros_like(batch) for batch in rounds.expected]
    rounds.expected = wrong
    with pytest.raises(faults.DifferenceError, match="round 9: a wrong epoch after unreadable of a file"):
        rounds.one(9, "unreadable", -1.0, random.Random(0))
