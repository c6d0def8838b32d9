"""Loaders and splits of an updated dataset: the rows of the version that was opened, from every tier and process."""

from __future__ import annotations

import pickle

import pytest
import torch
from loaded import images_of
from torch.utils.data import DataLoader
from updating import add_pictures

import mmload
from mmload.builder.pipeline import update
from mmload.builder.recipe import BuildRecipe


@pytest.mark.parametrize("tier", ["disk", "memory"])
def test_an_updated_dataset_is_loaded_from_every_tier(squares: BuildRecipe, tier: str) -> None:
    add_pictures(squares.root, 1)
    update(squares)
    split = mmload.open(squares.out)["train"]
    images = images_of(mmload.Loader(split, batch_size=4, shuffle=True, tier=tier))
    assert len(images) == 16
    assert all(torch.equal(image, split[row].images) for row, image in images.items())


def test_a_split_keeps_its_version_in_a_pickle_and_in_workers(squares: BuildRecipe) -> None:
    split = mmload.open(squares.out)["train"]
    images = split[:].images.clone()
    sent = pickle.dumps(split)
    add_pictures(squares.root, 1)
    update(squares)
    copy = pickle.loads(sent)
    assert copy.version == 1
    assert torch.equal(copy[:].images, images)
    batches = DataLoader(split, batch_size=5, num_workers=2, collate_fn=mmload.Collate())
    assert sum(len(batch) for batch in batches) == 15
