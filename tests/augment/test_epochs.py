"""How a collate learns the epoch: from the loader that calls it, from its user, in copies and in worker processes."""

from __future__ import annotations

import copy
import pickle
import threading

import numpy as np
import pytest
import torch
from batches import batch_of
from torch import Tensor

from mmload.augment import AlternatingHorizontalFlip, RandomResizedCrop
from mmload.augment.collate import Collate
from mmload.augment.step import Draws, batch_of_epoch, epoch_of_loader
from mmload.augment.views import Views
from mmload.batch import Batch


def side(epoch: int) -> int:
    return 4 + epoch


def rows(count: int = 5) -> Batch:
    return batch_of(count, (3, 9, 8), ids=torch.arange(count) * 7)


def sides(images: Tensor) -> int:
    height, width = images.shape[-2:]
    assert height == width
    return int(height)


def test_the_users_epoch_stays_until_it_is_set_again() -> None:
    collate = Collate(RandomResizedCrop(side))
    assert collate.epoch is None
    for epoch in (3, 0, 5):
        collate.set_epoch(epoch)
        assert collate.epoch == epoch
        assert [sides(collate(rows()).images) for _ in range(2)] == [4 + epoch] * 2


def test_a_loaders_epoch_holds_in_its_thread_and_beats_the_users() -> None:
    collate = Collate(RandomResizedCrop(side))
    collate.set_epoch(1)
    seen: list[int] = []
    with batch_of_epoch(3):
        with batch_of_epoch(7):
            assert sides(collate(rows()).images) == 11
        other = threading.Thread(target=lambda: seen.append(sides(collate(rows()).images)))
        other.start()
        other.join()
        assert sides(collate(rows()).images) == 7
    assert seen == [5]
    assert sides(collate(rows()).images) == 5
    assert epoch_of_loader.get() is None


def test_a_batch_keeps_the_epoch_it_was_begun_in() -> None:
    collate = Collate(torch.nn.AvgPool2d(1), AlternatingHorizontalFlip(seed=1))
    batch = rows(40)
    with batch_of_epoch(0):
        expected = collate(batch).images
        prepared = collate.prepare(batch, (3, 9, 8))
    with batch_of_epoch(1):
        assert not torch.equal(collate(batch).images, expected)
        out = torch.empty(prepared.shape, dtype=prepared.dtype)
        prepared.render_batch(batch.images, out)
        assert torch.equal(prepared.finish(out).images, expected)


def test_both_views_get_the_epoch() -> None:
    views = Views(Collate(RandomResizedCrop(side)), Collate(RandomResizedCrop(lambda epoch: 9 - epoch)))
    views.set_epoch(2)
    assert [sides(view.images) for view in views(rows())] == [6, 7]
    with batch_of_epoch(3):
        assert [sides(view.images) for view in views(rows())] == [7, 6]


def test_copies_have_an_epoch_of_their_own() -> None:
    collate = Collate(RandomResizedCrop((4, 4)))
    never = pickle.loads(pickle.dumps(collate))
    assert never.epoch is None
    collate.set_epoch(4)
    copies = [pickle.loads(pickle.dumps(collate)), copy.deepcopy(collate)]
    collate.set_epoch(6)
    assert [one.epoch for one in copies] == [4, 4]
    copies[0].set_epoch(9)
    assert [collate.epoch, never.epoch, copies[1].epoch] == [6, None, 4]
    assert all(one._epoch.is_shared() for one in (collate, copies[0]))


def test_an_epoch_is_an_integer_from_0() -> None:
    for value in (-1, 0.5, "1", None, True):
        with pytest.raises(ValueError, match="epoch is .*, expected an integer from 0"):
            Collate().set_epoch(value)  # type: ignore[arg-type]  # the fault


def test_without_an_epoch_or_ids_it_says_what_to_do() -> None:
    message = "follows the epoch, which is not known: use the step in a Collate, and give that to a Loader, or call its"
    for step in (AlternatingHorizontalFlip(), RandomResizedCrop(side)):
        with pytest.raises(ValueError, match=f"{type(step).__name__}.* {message}"):
            Collate(step)(rows())
        with pytest.raises(ValueError, match=message):
            step(rows().images)
    collate = Collate(AlternatingHorizontalFlip())
    collate.set_epoch(0)
    for bare in (rows().images, rows().replace(ids=None)):
        with pytest.raises(ValueError, match="HorizontalFlip depends on the rows' ids, and the batch has none"):
            collate(bare)


def test_parts_of_a_step_know_what_the_step_knows() -> None:
    draws = Draws(np.arange(3), 0, epoch=5, ids=np.arange(3)).branch(2)
    assert draws.epoch("it") == 5
    assert draws.ids("it").tolist() == [0, 1, 2]
