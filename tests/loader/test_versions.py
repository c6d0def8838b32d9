"""A loader keeps its version, its state names it, and another version is resumed only if asked for."""

from __future__ import annotations

import pickle
import shutil

import pytest
import torch
from building import make_pictures, recipe

import mmload
from mmload.builder.pipeline import build, update


@pytest.fixture
def made(tmp_path):
    made = recipe(make_pictures(tmp_path / "photos"), tmp_path / "out")
    build(made)
    return made


def updated(made):
    file = sorted(made.root.rglob("*.*"))[0]
    shutil.copy(file, file.with_name("new.jpg"))
    update(made)


def loader_of(made, version=None):
    split = mmload.open(made.out, version=version)["train"]
    return mmload.Loader(split, batch_size=4, shuffle=True, seed=3)


def test_a_state_is_of_a_version(made):
    loader = loader_of(made)
    batches = iter(loader)
    next(batches)
    state, second = loader.state_dict(), next(batches)
    assert state["version"] == 1
    updated(made)
    with pytest.raises(
        ValueError, match=r"state is of version 1 of the dataset, this loader reads version 2; open that"
    ):
        loader_of(made).load_state_dict(state)
    other = loader_of(made, version=1)
    other.load_state_dict(state)
    assert torch.equal(next(iter(other)).ids, second.ids)


def test_another_version_is_resumed_if_asked_for(made):
    loader = loader_of(made)
    next(iter(loader))
    updated(made)
    other = loader_of(made)
    other.load_state_dict(loader.state_dict(), other_version=True)
    assert sum(len(batch) for batch in other) == 16 - 4


@pytest.mark.parametrize("options", [{}, {"tier": "memory"}])
def test_an_updated_dataset_is_loaded_from_every_tier(made, options):
    updated(made)
    split = mmload.open(made.out)["train"]
    expected = split[:].images
    loader = mmload.Loader(split, batch_size=4, shuffle=True, **options)
    for batch in loader:
        assert torch.equal(batch.images, expected[batch.ids])


def test_a_pickled_split_keeps_its_version(made):
    split = mmload.open(made.out)["train"]
    images = split[:].images.clone()
    sent = pickle.dumps(split)
    updated(made)
    copy = pickle.loads(sent)
    assert copy.version == 1
    assert torch.equal(copy[:].images, images)


def test_workers_of_a_dataloader_read_an_old_version(made):
    split = mmload.open(made.out)["train"]
    updated(made)
    batches = torch.utils.data.DataLoader(split, batch_size=5, num_workers=2, collate_fn=mmload.Collate())
    assert sum(len(batch) for batch in batches) == 15
