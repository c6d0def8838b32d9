"""What ``decode="scaled"`` of a Loader changes on a dataset, where windows shrink by just as much as it asks for."""

from __future__ import annotations

import numpy as np
import torch
from torchvision.transforms.v2 import functional as F

from mmload.augment import Resize
from mmload.augment.collate import Collate
from mmload.loader import Loader
from mmload.parity.verdict import Verdict
from mmload.render.needed_lines import RESERVE, SHRINKS
from mmload.store.dataset import Split
from mmload.store.whole_rows import JPEG

LIMIT = 2.0
"""Levels of 255 by which pixels may differ on average, as for JPEGs that a device decodes."""

_ROWS = 32


def check_scaled(split: Split) -> list[Verdict]:
    """Compare JPEGs that the Loader decodes smaller with torchvision's resize of their pixels.

    Above the limit it is a note, as the Loader decodes them exactly unless it is told otherwise.

    Args:
        split: of whole photographs; without JPEGs nothing is compared.
    """
    reader = split.reader.sized("images")
    jpegs = np.flatnonzero(reader.index.encodings == JPEG)
    sizes = reader.index.sizes
    found = []
    for shrink in SHRINKS:
        large = jpegs[(sizes[jpegs] >= 8 * shrink).all(1)]
        rows = large[np.unique(np.linspace(0, len(large) - 1, min(len(large), _ROWS)).astype(np.int64))]
        if not len(rows):
            continue
        means = [_difference(split, int(row), (sizes[row] / (RESERVE * shrink)).astype(int).tolist()) for row in rows]
        mean, most = sum(means) / len(means), max(means)
        text = f"mean {mean:.2f} levels from the whole, {most:.2f} in one row; limit: mean {LIMIT:g}"
        if mean > LIMIT:
            text += ': leave out decode="scaled" where it matters'
        found.append(
            Verdict(
                part="load",
                name=f"JPEGs decoded to 1/{shrink}",
                state="pass" if mean <= LIMIT else "note",
                text=text,
                numbers={"rows": len(rows), "mean": mean, "most": most},
            )
        )
    return found


def _difference(split: Split, row: int, size: list[int]) -> float:
    """The mean difference of a row at this height and width, in levels."""
    collate = Collate(Resize((size[0], size[1])), dtype=torch.uint8)
    options = {"fields": ("images",), "sampler": [row], "batch_size": 1, "tier": "disk", "threads": 1}
    with Loader(split, collate=collate, decode="scaled", **options) as loader:  # type: ignore[arg-type]  # a mapping
        (batch,) = loader
    whole = split.reader.sized("images").tensors(torch.tensor([row]))[0]
    expected = F.resize(whole, size, antialias=True)
    return float((batch.images[0].int() - expected.int()).abs().float().mean())
