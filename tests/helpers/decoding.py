"""A pretended device that decodes JPEGs."""

from __future__ import annotations

import time
from typing import Any

import pytest
import simplejpeg
import torch
import torchvision.io
from torch import Tensor


class Device:
    """A pretended device: decodes on the CPU, as torchvision's function for a list of files.

    Attributes:
        batches: how many files each call had.
        options: of simplejpeg: with ``fastupsample`` it has other pixels than a build on the CPU.
        refuses: files that make a whole batch fail.
        fails: what every call ends with; empty for none.
    """

    def __init__(self) -> None:
        self.batches: list[int] = []
        self.options: dict[str, bool] = {}
        self.refuses: set[bytes] = set()
        self.fails = ""

    def __call__(self, files: list[Tensor], *, mode: Any, device: str) -> list[Tensor]:
        assert device == "cuda"
        self.batches.append(len(files))
        time.sleep(0.01)
        datas = [file.numpy().tobytes() for file in files]
        if self.fails:
            raise RuntimeError(self.fails)
        if self.refuses & set(datas):
            raise RuntimeError("Error while decoding JPEG images: 2")
        space = {"GRAY": "Gray", "RGB": "RGB"}[mode.name]
        made = [simplejpeg.decode_jpeg(data, space, **self.options) for data in datas]
        return [torch.from_numpy(pixels).permute(2, 0, 1).contiguous() for pixels in made]


def pretended(monkeypatch: pytest.MonkeyPatch) -> Device:
    """The device in torchvision's place, until the test ends."""
    there = Device()
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    monkeypatch.setattr(torchvision.io, "decode_jpeg", there)
    return there
