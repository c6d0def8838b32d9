"""A tiny run of benchmarks/client_rates."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import make_folder, script

from mmload.builder.pipeline import build
from mmload.builder.recipe import BuildRecipe, square

CLIENT_SCRIPTS = Path(__file__).parents[2] / "benchmarks" / "parts" / "client_scripts.py"


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


SCRIPT = """
def train_one_epoch(model, optimizer, data_loader, epoch):
    raise RuntimeError("it trains")

def main():
    train_one_epoch(None, None, data_loader=[([1, 2, 3], 0), ([4], 0)], epoch=0)
"""


def test_another_projects_script_runs_up_to_its_first_epoch(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(SCRIPT)
    out = tmp_path / "epochs.json"
    command = [sys.executable, CLIENT_SCRIPTS, out, "2", tmp_path / "train.py"]
    subprocess.run(command, check=True, timeout=300)
    assert [images for images, _, _ in json.loads(out.read_text())] == [4, 4]


def test_a_script_that_is_not_at_hand_is_left_out(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = [str(tmp_path), str(tmp_path), "--only", "timm_train", "--upstream", str(tmp_path)]
    with script("client_rates") as rates:
        assert rates.main(words) == 0
    said = "timm_train: left out, no clone of https://github.com/huggingface/pytorch-image-models"
    assert capsys.readouterr().out.startswith(said)
