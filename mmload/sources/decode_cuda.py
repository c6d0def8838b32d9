"""Decodes JPEG files on a CUDA device with torchvision (nvJPEG), in batches of the files that a build's threads submit.

Each thread submits one file and gets uint8 pixels on the device, or None if nvJPEG cannot read it. nvJPEG rounds
and upsamples colors differently than libjpeg-turbo, so the pixels differ from a CPU's.
"""

from __future__ import annotations

import io
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from mmload.errors import BuildError, UsageError

BATCH = 64
"""The most files that are decoded at a time."""


class Batches:
    """Batches the calls of many threads: while a worker thread decodes one batch, the next one fills.

    Args:
        decode: gives each file's pixels, or None.
    """

    def __init__(self, decode: Callable[[list[bytes]], list[Tensor | None]]) -> None:
        self._decode = decode
        self._waiting: deque[tuple[bytes, Future[Tensor | None]]] = deque()
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="mmload-cuda")  # starts lazily

    def __call__(self, data: bytes) -> Tensor | None:
        """The pixels of one file, or None; what ``decode`` raises, for every file of the batch."""
        answer: Future[Tensor | None] = Future()
        self._waiting.append((data, answer))
        self._thread.submit(self._answer)
        return answer.result()

    def _answer(self) -> None:
        """Decode the waiting files, unless an earlier batch contained them all."""
        batch = [self._waiting.popleft() for _ in range(min(BATCH, len(self._waiting)))]
        if not batch:
            return
        try:
            decoded = self._decode([data for data, _ in batch])
        except Exception as error:  # every waiting thread gets it, or it would wait forever
            for _, answer in batch:
                answer.set_exception(error)
            return
        for (_, answer), pixels in zip(batch, decoded, strict=True):
            answer.set_result(pixels)


def check() -> None:
    """Check that there is a CUDA device.

    Raises:
        UsageError: if there is none.
    """
    if not torch.cuda.is_available():
        raise UsageError(
            "decode device is 'cuda', and torch finds no CUDA device here; decode on the CPU, or where there is one"
        )


def decode_batch(files: list[bytes], gray: bool) -> list[Tensor | None]:
    """A batch of JPEGs as uint8 [C, H, W] on the device; None for those that it refuses.

    Args:
        files: whole files.
        gray: one channel, the luma, instead of three.

    Raises:
        UsageError: if there is no device.
        BuildError: if the device fails; falling back to the CPU would mix the pixels of two decoders.
    """
    check()
    try:
        return _decoded(files, gray)
    except RuntimeError as error:  # one of the files caused it; it does not say which
        if len(files) > 1:
            return [decode_batch([file], gray)[0] for file in files]
        if "out of memory" in str(error) or not _works():
            why = str(error).splitlines()[0]
            raise BuildError(f"the CUDA device fails ({why}); free its memory, or decode on the CPU") from error
        return [None]


def _decoded(files: list[bytes], gray: bool) -> list[Tensor | None]:
    from torchvision.io import ImageReadMode, decode_jpeg  # here: a slow import, of a deprecated module

    mode = ImageReadMode.GRAY if gray else ImageReadMode.RGB
    tensors = [torch.from_numpy(np.frombuffer(file, dtype=np.uint8).copy()) for file in files]
    return list(decode_jpeg(tensors, mode=mode, device="cuda"))


def _works() -> bool:
    """Whether the device can decode a plain JPEG."""
    file = io.BytesIO()
    Image.new("RGB", (64, 64), "gray").save(file, "JPEG")
    try:
        return _decoded([file.getvalue()], gray=False)[0] is not None
    except RuntimeError:
        return False


in_color = Batches(lambda files: decode_batch(files, gray=False))
in_gray = Batches(lambda files: decode_batch(files, gray=True))
