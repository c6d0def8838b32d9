"""The scripts in examples/clients that are our own: each trains, over mmload and over torchvision's ImageFolder."""

from __future__ import annotations

import difflib
import math
from importlib import import_module
from pathlib import Path
from typing import Any

import change_scripts
import pytest
from conftest import build_splits

PACKAGES = {
    "with_accelerate": "accelerate",
    "with_fastai": "fastai",
    "with_flax": "flax",
    "with_jax": "jax",
    "with_keras": "keras",
    "with_lightning": "lightning",
    "with_trainer": "transformers",
}


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with ``photos``, train and val of three classes, and ``built``, which is built from it."""
    return build_splits(tmp_path_factory.mktemp("frameworks"), per_class=(3, 3)).parent


def test_every_client_is_here_with_what_it_was_before() -> None:
    stems = {path.stem for path in change_scripts.CLIENTS.glob("with_*.py")}
    assert stems == PACKAGES.keys() | {f"{name}_before" for name in PACKAGES}


@pytest.mark.parametrize("name", PACKAGES)
def test_clients_differ_from_before_by_their_loaders(name: str) -> None:
    before, after = ((change_scripts.CLIENTS / f"{each}.py").read_text() for each in (f"{name}_before", name))
    lines = difflib.ndiff(before.splitlines(), after.splitlines())
    assert sum(line.startswith(("- ", "+ ")) for line in lines) <= 40


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # what another package warns of is not ours
@pytest.mark.parametrize("name", PACKAGES)
def test_a_client_trains_on_batches_of_the_form_that_it_had_before(
    name: str, photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In one test, as importing a framework takes seconds in each test process."""
    monkeypatch.syspath_prepend(change_scripts.CLIENTS)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("KERAS_BACKEND", "torch")  # before its import, which looks for TensorFlow
    pytest.importorskip(PACKAGES[name], reason=f"{PACKAGES[name]} is not installed")
    right = import_module(name).main(str(photos / "built"), size=24, batch_size=4)
    assert 0 <= right <= 1
    assert not math.isnan(right)
    before = batch_forms(f"{name}_before", import_module(f"{name}_before").loaders(str(photos / "photos"), 24, 4))
    assert batch_forms(name, import_module(name).loaders(str(photos / "built"), 24, 4)) == before


def batch_forms(name: str, loaders: tuple[Any, Any]) -> list[tuple[tuple[int, ...], str]]:
    """Checks the lengths of both loaders; returns shape and dtype of each value of an evaluation batch."""
    for loader, batches in zip(loaders, (2, 3), strict=True):  # the training loader drops its last, smaller batch
        assert (len(loader), len(loader.dataset), len(loader.dataset.classes)) == (batches, 9, 3)
    loaders[1].num_workers = 0
    batch = next(iter(loaders[1]))
    if name.startswith(("with_flax", "with_jax")):  # their batches differ in form: the script says so in one line
        batch = import_module(name).arrays(batch)
    values = list(batch.values() if isinstance(batch, dict) else batch)
    return [(tuple(each.shape), str(each.dtype)) for each in values]
