"""The scripts in examples/: each trains on tiny data."""

from __future__ import annotations

import ast
import json
import math
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import change_scripts
import pytest
import torch
from conftest import build_splits, make_folder
from devkits import voc_dataset
from threads import one_thread

EXAMPLES = change_scripts.CLIENTS.parent
SMALL = ("--size", "32", "--batch-size", "4")


@pytest.fixture(autouse=True)
def example(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    """Examples can be imported, and write into a folder of the test."""
    monkeypatch.syspath_prepend(EXAMPLES)
    monkeypatch.chdir(tmp_path)
    with one_thread():
        yield


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Train and val of three classes with 9 rows each, 40 x 40."""
    return str(build_splits(tmp_path_factory.mktemp("examples"), per_class=(3, 3)))


def test_every_example_is_tested() -> None:
    text = "".join(path.read_text() for path in Path(__file__).parent.glob("*.py"))
    assert all(f'"{path.stem}' in text for path in EXAMPLES.glob("*.py"))


@pytest.mark.slow
def test_classification_resumes_in_the_middle_of_an_epoch(photos: str) -> None:
    words = [photos, *SMALL, "--model", "shufflenet_v2_x0_5", "--epochs", "2", "--save-every", "100"]
    whole, right = import_module("classification").main([*words, "--checkpoint", "whole.pt"])
    assert len(whole) == 16
    assert 0 <= right <= 1
    first, _ = import_module("classification").main([*words, "--stop-after", "1"])
    rest, again = import_module("classification").main(words)
    assert first + rest == whole
    assert again == right


@pytest.mark.slow
def test_two_views(photos: str) -> None:
    words = [photos, *SMALL, "--model", "shufflenet_v2_x0_5", "--epochs", "1"]
    losses = import_module("two_views").main(words)
    assert len(losses) == 2
    assert all(map(math.isfinite, losses))


def test_the_contrastive_loss_of_one_pair_among_two() -> None:
    first, second = torch.tensor([[1.0, 0.0], [0.0, 2.0]]), torch.tensor([[3.0, 0.0], [0.0, 1.0]])
    loss = import_module("two_views").contrastive_loss(first, second, temperature=1.0)
    assert float(loss) == pytest.approx(math.log(math.e + 2) - 1)  # one alike by 1, two by 0


@pytest.mark.slow
def test_examples_detection(tmp_path: Path) -> None:
    dataset = voc_dataset(tmp_path / "voc", "detection")
    model = "ssdlite320_mobilenet_v3_large"
    losses = import_module("detection").main(
        [str(dataset), "--size", "64", "--batch-size", "2", "--epochs", "1", "--model", model]
    )
    assert len(losses) == 1
    assert math.isfinite(losses[0])


@pytest.mark.slow
def test_segmentation(tmp_path: Path) -> None:
    dataset = voc_dataset(tmp_path / "voc", "segmentation")
    words = ["--size", "64", "--batch-size", "2", "--epochs", "1", "--model", "lraspp_mobilenet_v3_large"]
    assert 0 <= import_module("segmentation").main([str(dataset), *words]) <= 1


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # of matplotlib's font cache
def test_the_notebook_goes_from_photographs_to_a_network(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MPLBACKEND", "agg")
    make_folder(tmp_path / "photos", per_class=10)
    (notebook,) = EXAMPLES.glob("*.ipynb")
    cells = json.loads(notebook.read_text(encoding="utf-8"))["cells"]
    space: dict[str, Any] = {}
    for cell in (each for each in cells if each["cell_type"] == "code"):
        assert cell["outputs"], "run the notebook before you commit it"
        *most, last = ast.parse("".join(cell["source"])).body
        exec(compile(ast.Module(most, []), str(notebook), "exec"), space)
        shown = isinstance(last, ast.Expr) and "image/jpeg" in str(cell["outputs"])
        if shown:  # a picture
            assert min(eval(compile(ast.Expression(last.value), str(notebook), "eval"), space).size) > 50
        else:
            exec(compile(ast.Module([last], []), str(notebook), "exec"), space)
    assert len(space["losses"]) == 8
    assert 0 <= space["right"][-1] <= 1


def test_mean_iou() -> None:
    confusion = torch.tensor([[3.0, 1.0, 0.0], [0.0, 2.0, 0.0], [0.0, 0.0, 0.0]])
    assert import_module("segmentation").mean_iou(confusion) == pytest.approx((3 / 4 + 2 / 3) / 2)
