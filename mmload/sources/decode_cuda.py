"""Decodes JPEG files on a CUDA device, in batches of the files that a build's threads submit.

Each thread submits one file and gets uint8 pixels on the device, or None if nvJPEG cannot read it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor

from torch import Tensor

from mmload.runtime import nvjpeg

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


in_color = Batches(lambda files: nvjpeg.decode_batch(files, gray=False))
in_gray = Batches(lambda files: nvjpeg.decode_batch(files, gray=True))
