"""What a Batch says of itself, and of what is done to it by mistake."""

from __future__ import annotations

import pytest
import torch

from mmload.batch import Batch, make_batch


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
        "    extra['depth']: float32 [4],",
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
