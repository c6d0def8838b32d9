"""The page of a parity run: differences made visible, and whatever a file is called."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from parity_stores import built, check, photo

from mmload.parity.report import amplified, page


def test_the_difference_is_amplified_around_gray() -> None:
    right = torch.full((3, 4, 4), 100, dtype=torch.uint8)
    stored = right.clone()
    stored[0, 0, 0], stored[1, 1, 1] = 102, 99
    difference, factor = amplified(stored, right)
    assert factor == 63
    assert difference[0, 0, 0] == 128 + 126
    assert difference[1, 1, 1] == 128 - 63
    assert (difference == 128).sum() == 46


def test_parity_page_is_complete_and_escaped(tmp_path: Path) -> None:
    source = tmp_path / "photos"
    (source / "a<b>&").mkdir(parents=True)
    photo(np.random.default_rng(0)).save(source / "a<b>&" / "x.png")
    report = check(built(source, tmp_path / "out"), source)
    text = page(report)
    assert "a&lt;b&gt;&amp;/x.png" in text
    assert "<b>&" not in text
    assert text.count("data:image/png;base64,") == 3
    assert "everything holds" in text
