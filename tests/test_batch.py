"""What a Batch says of itself, and of what is done to it by mistake."""

from __future__ import annotations

import pickle

import pytest
import torch
from tensordict import TensorDict

from mmload.batch import Batch, make_batch, make_variable_size_batch


@pytest.fixture
def batch() -> Batch:
    fields = {
        "images": torch.zeros(4, 3, 8, 8, dtype=torch.uint8),
        "targets": torch.arange(4),
        "depth": torch.ones(4),
    }
    return make_batch(fields, 4)


def test_batch_repr_lists_present_fields_with_full_shapes(batch: Batch) -> None:
    assert repr(batch).splitlines() == [
        "Batch(",
        "    images: uint8 [4, 3, 8, 8],",
        "    targets: int64 [4],",
        "    depth: float32 [4],",
        "    batch_size=[4], device=None)",
    ]


@pytest.mark.parametrize(("name", "field"), [("label", "targets"), ("target", "targets"), ("image", "images")])
def test_a_singular_name_is_an_error_that_names_the_field(batch: Batch, name: str, field: str) -> None:
    assert not hasattr(batch, name)
    with pytest.raises(AttributeError, match=f"no field '{name}'; read batch.{field}$"):
        getattr(batch, name)


@pytest.mark.parametrize("layer", [torch.nn.Conv2d(3, 2, 3), torch.nn.Linear(8, 2), torch.nn.ReLU()])
def test_a_model_that_is_called_with_a_batch_says_to_give_its_images(batch: Batch, layer: torch.nn.Module) -> None:
    with pytest.raises(TypeError, match=r"called with a Batch; call model\(batch.images\)"):
        layer(batch)


def test_functions_of_tensordict_still_work(batch: Batch) -> None:
    assert torch.stack([batch, batch]).shape == (2, 4)  # type: ignore[call-overload]
    assert torch.cat([batch, batch]).images.shape == (8, 3, 8, 8)  # type: ignore[call-overload]


def test_batch_of_images_and_targets_unpacks_into_them() -> None:
    fields = {"images": torch.zeros(4, 3, 8, 8, dtype=torch.uint8), "targets": torch.arange(4)}
    batch = make_batch(fields, 4, ids=torch.arange(4), seeds=torch.arange(4))
    images, targets = batch
    assert images is batch.images
    assert targets is batch.targets
    assert len(batch) == len(list(batch)) * 2 == 4
    image, target = batch[2]
    assert (image.shape, target) == ((3, 8, 8), 2)


def test_batch_of_other_fields_names_them_when_it_is_unpacked(batch: Batch) -> None:
    with pytest.raises(ValueError, match=r"images, targets, depth .*returns=\('images', 'targets', 'depth'\)"):
        _images, _targets = batch
    with pytest.raises(ValueError, match=r"a batch of targets .*read batch.targets"):
        _images, _targets = make_batch({"targets": torch.arange(2)}, 2)


def test_rows_of_variable_size_do_not_unpack() -> None:
    rows = {"images": [torch.zeros(3, size, size, dtype=torch.uint8) for size in (4, 5)]}
    batch = make_variable_size_batch({"targets": torch.arange(2)}, rows, torch.arange(2))
    with pytest.raises(ValueError, match="variable size"):
        _images, _targets = batch
    image, target = batch[1]
    assert (image.shape, target) == ((3, 5, 5), 1)


def test_a_field_of_extra_is_an_attribute(batch: Batch) -> None:
    with_logits = batch.replace(extra=TensorDict({"logits": torch.arange(4)}, batch_size=[4]))
    assert with_logits.logits.tolist() == [0, 1, 2, 3]
    assert with_logits[1].logits == 1
    assert pickle.loads(pickle.dumps(with_logits)).logits.tolist() == [0, 1, 2, 3]
    with pytest.raises(AttributeError, match="logits"):
        _ = batch.logits
