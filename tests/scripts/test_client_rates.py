"""A tiny run of scripts/client_rates."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from conftest import make_folder, script

from mmload.builder.pipeline import build
from mmload.builder.recipe import BuildRecipe, square


@pytest.mark.slow
def test_rates_before_and_after(tmp_path: Path) -> None:
    pytest.importorskip("jax", reason="jax is not installed")
    for split in ("train", "val"):
        make_folder(tmp_path / "photos" / split, per_class=2)
    build(BuildRecipe(kind="imagefolder", root=tmp_path / "photos", out=tmp_path / "built", transforms=square(40)))
    words = [tmp_path / "photos", tmp_path / "built", "--rounds", 1, "--batch-size", 4, "--only", "with_jax"]
    with script("client_rates") as rates:
        assert rates.main([str(word) for word in [*words, "--json", tmp_path / "rates.json"]]) == 0
    (found,) = json.loads((tmp_path / "rates.json").read_text()).values()
    assert set(found) == {"before", "after", "before, of CPU time", "after, of CPU time"}
    assert min(found.values()) > 0
