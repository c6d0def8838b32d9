"""Arguments of presets that are invalid are refused in one line that names them, when the preset is made."""

from __future__ import annotations

import math
from typing import Any

import pytest

from mmload import presets

GIVEN: dict[str, dict[str, Any]] = {
    **{name: {"num_classes": 5} for name in ("torchvision_reference", "rsb_a2", "deit3")},
    **{name: {} for name in ("simclr", "dinov2", "mae", "ffcv_rn50", "airbench", "evaluation")},
}
SIZES = (0, -1, True, "8", 8.5, math.nan, 10**9, [], (8, 8, 8))
BAD: dict[str, tuple[Any, ...]] = {
    "size": SIZES,
    "local_size": (*SIZES, None, (8, 8)),
    "resize": (*SIZES, (8, 8)),
    "local_crops": (-1, 10**9, True, 1.5, None, "2"),
    "blur": (0.5, (0.5, 0.5), (0.5, 0.5, 1.5), (math.nan, 0, 0), None, "abc", ()),
    "strength": (-1, 3, math.nan, math.inf, None, "1", (0.5, 1)),
    "translate": (-1, 1.5, True, None, "2"),
    "cutout": (-1, 1.5, True, None, 33),
    "num_classes": (0, -1, 1.5, True, "5"),
    "normalize": (False, 0, "imagenet", (0.5, 0.5)),
    "interpolation": ("area", None, 2),
}


@pytest.mark.parametrize("recipe", presets.__all__)
def test_invalid_arguments_are_refused_by_their_names(recipe: str) -> None:
    make: Any = getattr(presets, recipe)
    names = [*(make.__kwdefaults__ or {}), *GIVEN[recipe]]
    assert set(names) <= set(BAD)
    for name in names:
        for value in BAD[name]:
            with pytest.raises((ValueError, TypeError), match=rf"^{name} is ") as raised:
                make(**{**GIVEN[recipe], name: value})
            assert len(str(raised.value).splitlines()) == 1
