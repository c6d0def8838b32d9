"""Decodes JPEGs on a CUDA device with torchvision (nvJPEG), many at a time.

nvJPEG rounds and upsamples colors differently than libjpeg-turbo, so the pixels differ from a CPU's, and it does not
notice all damage that libjpeg does.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from simplejpeg import encode_jpeg  # type: ignore[import-untyped]

from mmload.errors import DeviceError, UsageError

if TYPE_CHECKING:
    from torch import Tensor

END = b"\xff\xd9"
"""The marker that ends a JPEG; nvJPEG decodes some that were cut off."""


def check() -> None:
    """Checks that there is a CUDA device.

    Raises:
        UsageError: if there is none.
    """
    import torch

    if not torch.cuda.is_available():
        raise UsageError(
            "decode device is 'cuda', and torch finds no CUDA device here; decode on the CPU, or where there is one"
        )


def decode_batch(files: Sequence[bytes], gray: bool, device: str = "cuda") -> list[Tensor | None]:
    """Decodes JPEGs, whole files, to uint8 [C, H, W] on the device; returns None for those that it cannot decode.

    Raises:
        UsageError: if there is no device.
        DeviceError: if it fails; falling back to the CPU would mix the pixels of two decoders.
    """
    check()
    try:
        return _decoded(files, gray, device)
    except RuntimeError as error:  # one of the files caused it; it does not say which
        if len(files) > 1:
            return [decode_batch([file], gray, device)[0] for file in files]
        if "out of memory" in str(error) or not _works(device):
            why = str(error).splitlines()[0]
            raise DeviceError(f"the CUDA device fails ({why}); free its memory, or decode on the CPU") from error
        return [None]


def _decoded(files: Sequence[bytes], gray: bool, device: str) -> list[Tensor | None]:
    if not files:
        return []
    import torch
    from torchvision.io import ImageReadMode, decode_jpeg  # here: a slow import, of a deprecated module

    mode = ImageReadMode.GRAY if gray else ImageReadMode.RGB
    tensors = [torch.from_numpy(np.frombuffer(file, dtype=np.uint8).copy()) for file in files]
    return list(decode_jpeg(tensors, mode=mode, device=device))


def _works(device: str) -> bool:
    """Returns whether the device can decode a plain JPEG."""
    try:
        return _decoded([encode_jpeg(np.full((64, 64, 3), 128, np.uint8))], False, device)[0] is not None
    except RuntimeError:
        return False
