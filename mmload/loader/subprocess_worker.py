"""The subprocess of a loader: its threads make the batches that the training process requests.

Requests and replies are fixed records in shared memory, and semaphores count them: neither side needs a thread that
waits for the other one, and a finished reply is read without releasing the interpreter lock. A reply is a message: a
pickle in which every tensor is replaced by the place of its values. Tensors that are not in shared memory yet are
copied into the buffer of the message.
"""

from __future__ import annotations

import os
import pickle
import threading
import time
import traceback
from contextlib import suppress
from multiprocessing.connection import Connection
from multiprocessing.synchronize import Semaphore
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from tensordict import TensorDict
from torch import Tensor

from mmload.batch import Batch
from mmload.loader.batch_worker import BatchSettings, BatchWorker
from mmload.loader.epoch_iterator import Prefetcher
from mmload.loader.order import RowSelection
from mmload.runtime.memory_pool import Bytes, MemoryPool, Place, SharedArena, SharedBuffers
from mmload.runtime.processes import depend_on_parent
from mmload.runtime.resources import single_op_pool

_DTYPES = {
    torch.uint8: np.uint8,
    torch.int8: np.int8,
    torch.int16: np.int16,
    torch.int32: np.int32,
    torch.int64: np.int64,
    torch.float16: np.float16,
    torch.bfloat16: np.uint16,  # which numpy does not have
    torch.float32: np.float32,
    torch.float64: np.float64,
    torch.bool: np.bool_,
}
_CODES = list(_DTYPES)

_ALIGN = 64

_SMALL = 2**17
"""Largest message that is copied: that takes less time than watching for the end of its use."""

_OBJECT, _TENSOR, _BATCH, _TUPLE, _LIST, _DICT = range(6)
"""The first item of each node of a message."""


class Message(NamedTuple):
    """Place of a batch: the buffer with the message, and the part of it that is the pickle."""

    place: Place
    first: int
    size: int


class _Description:
    """Description of batches by plain numbers and names, which are read ten times as fast as a pickle of tensors.

    Attributes:
        places: buffers with values of tensors.
        copied: tensors that have to be copied into the message's buffer, and the byte where each begins.
        end: the bytes that they take.
    """

    def __init__(self, buffers: SharedBuffers) -> None:
        self._buffers = buffers
        self.places: list[Place] = []
        self.copied: list[tuple[int, Tensor]] = []
        self.end = 0

    def describe(self, value: Any) -> tuple[Any, ...]:
        """Returns a node for a value; an object of an unknown type is its own node, to be pickled as it is."""
        kind = type(value)
        if kind is Tensor and value.layout == torch.strided and value.device.type == "cpu":
            if value.dtype in _DTYPES and not value.requires_grad:
                return self._tensor(value)
        elif kind is Batch and not hasattr(value, "tensordicts"):
            fields = {name: field for name, field in value.items() if field is not None}
            extra = fields.pop("extra", None)
            more = None if extra is None else self.describe(dict(extra.items()))
            return (
                _BATCH,
                [(name, self.describe(field)) for name, field in fields.items()],
                more,
                list(value.batch_size),
            )
        elif kind is tuple or kind is list:
            return _TUPLE if kind is tuple else _LIST, [self.describe(item) for item in value]
        elif kind is dict:
            return _DICT, [(key, self.describe(item)) for key, item in value.items()]
        return _OBJECT, value

    def _tensor(self, value: Tensor) -> tuple[Any, ...]:
        """Returns the node of a tensor: buffer or None, first byte in it, shape, strides in bytes, dtype."""
        item, shape, code = value.dtype.itemsize, tuple(value.shape), _CODES.index(value.dtype)
        place = self._buffers.place_of(value.data_ptr()) if value.numel() else None
        if place is not None:
            self.places.append(place)
            first = self._buffers.offset(value.data_ptr(), place)
            return _TENSOR, tuple(place), first, shape, tuple(step * item for step in value.stride()), code
        first = self.end
        self.copied.append((first, value))
        self.end = -(-(first + value.numel() * item) // _ALIGN) * _ALIGN
        return _TENSOR, None, first, shape, None, code


def send(made: Any, buffers: SharedBuffers) -> Message:
    """Writes a batch, or any other picklable object, where the other process can read it by :func:`receive`.

    Raises:
        MemoryError: if no shared memory is left.
        Exception: if an object cannot be pickled.
    """
    description = _Description(buffers)
    text = pickle.dumps(description.describe(made), protocol=pickle.HIGHEST_PROTOCOL)
    first = description.end
    place, memory = buffers.allocate(first + len(text))
    for start, tensor in description.copied:
        if tensor.numel():
            values = tensor.contiguous().reshape(-1).view(torch.uint8)
            torch.from_numpy(memory[start : start + len(values)]).copy_(values)
    memory[first:] = np.frombuffer(text, np.uint8)
    for each in (*description.places, place):
        buffers.hand_over(each)
    return Message(place, first, len(text))


class _Reading:
    """Reader of described batches.

    No step of it releases the interpreter lock, which costs 5 ms beside a thread of pure Python: numpy makes the views,
    not torch.
    """

    def __init__(self, memory: Bytes, arena: SharedArena) -> None:
        self._memory, self._arena = memory, arena
        self._views: dict[int, Bytes] = {}

    def made(self, node: tuple[Any, ...]) -> Any:
        """Returns the value of a node."""
        kind, value = node[0], node[1]
        if kind == _TENSOR:
            return self._tensor(*node[1:])
        if kind == _BATCH:
            attributes = {name: self.made(field) for name, field in value}
            if node[2] is not None:
                attributes["extra"] = TensorDict(self.made(node[2]), batch_size=node[3])
            return Batch.from_tensordict(TensorDict(attributes, batch_size=node[3]))
        if kind == _DICT:
            return {key: self.made(item) for key, item in value}
        if kind == _OBJECT:
            return value
        items = [self.made(item) for item in value]
        return tuple(items) if kind == _TUPLE else items

    def _tensor(
        self, place: tuple[int, int, int] | None, first: int, shape: tuple[int, ...], strides: Any, code: int
    ) -> Tensor:
        dtype, memory = _CODES[code], self._memory
        if place is not None:  # one view for all tensors in a buffer: the buffer is free with the last of them
            found = self._views.get(place[0])
            memory = found if found is not None else self._views.setdefault(place[0], self._arena.view(Place(*place)))
        if 0 in shape:
            return torch.empty(shape, dtype=dtype)
        tensor = torch.from_numpy(np.ndarray(shape, _DTYPES[dtype], memory, first, strides))
        return tensor.view(dtype) if dtype is torch.bfloat16 else tensor


def receive(message: Message, arena: SharedArena) -> Any:
    """Returns what :func:`send` wrote; buffers are free once nothing refers to their tensors."""
    is_small = message.place.size <= _SMALL
    memory = arena.copy(message.place) if is_small else arena.view(message.place)
    return _Reading(memory, arena).made(pickle.loads(memory[message.first : message.first + message.size].data))


SLOTS = 64
"""Largest number of open requests: those of about ten epochs in progress."""

BATCH, PREFETCH, STATISTICS, END = range(4)
"""Kinds of requests: make a batch, prefetch for an epoch, report counters, end a thread."""

_PAUSES = (1e-4, 2e-4, *[4e-4] * 250)
"""Seconds between looks for a request, before a thread waits until the training process wakes it.

Linux starts a thread that is woken on the core of the one that wakes it, where it would stop the training thread:
beside 4,000 crops/s that kept 0.87 to 0.92 of its rate on two cores, and keeps 0.93 to 0.98 with these looks.
"""

DONE, FAILED = range(2)
"""Kinds of replies."""

SLOT = np.dtype(
    [
        ("request", np.int64),  # BATCH, PREFETCH, STATISTICS or END
        ("epoch", np.int64),
        ("rows", np.int64),  # how many; of PREFETCH the offset in the epoch
        ("has_occurrences", np.int64),
        ("is_cancelled", np.int64),
        ("reply", np.int64),  # DONE or FAILED
        ("place", np.int64, 3),
        ("first", np.int64),
        ("size", np.int64),
    ]
)
"""A request and its reply."""


class Records(NamedTuple):
    """Requests and replies, in shared memory.

    Attributes:
        queue: int64 [:data:`SLOTS`], numbers of slots in the order of their requests, in a ring.
        slots: :data:`SLOT` [:data:`SLOTS`].
        rows: int64 [:data:`SLOTS`, 2, batch size], the rows of each request and their occurrences.
        end: the first byte of the arena after them.
    """

    queue: npt.NDArray[np.int64]
    slots: npt.NDArray[np.void]
    rows: npt.NDArray[np.int64]
    end: int


def records_in(arena: SharedArena, batch_size: int) -> Records:
    """Returns the records at the beginning of an arena."""
    memory, first = arena.bytes, len(arena.is_read)
    queue: npt.NDArray[np.int64] = np.ndarray(SLOTS, np.int64, memory, first)
    slots: npt.NDArray[np.void] = np.ndarray(SLOTS, SLOT, memory, first + queue.nbytes)
    begin = first + queue.nbytes + slots.nbytes
    rows: npt.NDArray[np.int64] = np.ndarray((SLOTS, 2, batch_size), np.int64, memory, begin)
    return Records(queue, slots, rows, begin + rows.nbytes)


class Signals(NamedTuple):
    """Semaphores of a loader and its subprocess.

    Attributes:
        requested: counts the requests that no thread has taken yet.
        done: one per slot, raised with its reply.
    """

    requested: Semaphore
    done: list[Semaphore]


def serve(
    pipe: Connection, payload: bytes, arena: SharedArena, signals: Signals, batch_size: int, threads: int
) -> None:
    """Runs the subprocess: makes batches until the loader ends it or the training process is gone.

    Args:
        pipe: receives the error that keeps the subprocess from starting.
        payload: settings of the batches and the Prefetcher, pickled.
        arena: memory of requests and batches.
        signals: semaphores of both processes.
        batch_size: largest number of rows per batch.
        threads: number of batches that are made at once.
    """
    depend_on_parent(lambda: os._exit(0))
    try:
        settings: BatchSettings
        prefetcher: Prefetcher
        settings, prefetcher = pickle.loads(payload)
        records = records_in(arena, batch_size)
        buffers = SharedBuffers(arena, records.end)
        worker = BatchWorker(settings, new_pool=lambda: MemoryPool(source=buffers.buffer))
        server = _Server(worker, prefetcher, records, buffers, signals)
    except Exception as error:
        pipe.send(portable(error))
        return
    with single_op_pool(threads, "mmload-loader") as pool:
        for _ in range(threads):
            pool.submit(server.answer_requests)


class _Server:
    """Server of requests; its threads share the queue."""

    def __init__(
        self, worker: BatchWorker, prefetcher: Prefetcher, records: Records, buffers: SharedBuffers, signals: Signals
    ) -> None:
        self._worker, self._prefetcher = worker, prefetcher
        self._records, self._buffers, self._signals = records, buffers, signals
        self._next, self._lock = 0, threading.Lock()

    def answer_requests(self) -> None:
        """Answers requests until one says to end."""
        while True:
            number = self._next_request()
            slot = self._records.slots[number]
            kind = int(slot["request"])
            if not slot["is_cancelled"]:
                try:
                    self._answer(number, slot, kind)
                except BaseException:  # no shared memory for an error; the training process reports the death
                    traceback.print_exc()
                    os._exit(1)
            self._signals.done[number].release()
            if kind == END:
                return

    def _next_request(self) -> int:
        """Waits for a request, one thread at a time, and returns its slot."""
        with self._lock:
            for pause in _PAUSES:
                if self._signals.requested.acquire(False):
                    break
                time.sleep(pause)
            else:
                self._signals.requested.acquire()
            number = int(self._records.queue[self._next % SLOTS])
            self._next += 1
            return number

    def _answer(self, number: int, slot: Any, kind: int) -> None:
        """Writes the reply to a request; nothing here refers to a batch afterwards."""
        try:
            message = send(self._made(number, slot, kind), self._buffers)
            slot["reply"] = DONE
        except Exception as error:
            message = send(portable(error), self._buffers)
            slot["reply"] = FAILED
        slot["place"], slot["first"], slot["size"] = message

    def _made(self, number: int, slot: Any, kind: int) -> Any:
        """Returns the result of a request."""
        worker, epoch, count = self._worker, int(slot["epoch"]), int(slot["rows"])
        if kind == BATCH:
            rows, occurrences = (torch.from_numpy(numbers[:count].copy()) for numbers in self._records.rows[number])
            return worker.make(RowSelection(rows, occurrences if slot["has_occurrences"] else None), epoch)()
        if kind == PREFETCH:
            return self._prefetcher.prefetch(epoch, count)
        return worker.statistics()


class SubprocessTraceback(Exception):
    """Cause of an error that the subprocess reports: its text is the traceback in the subprocess."""

    def __str__(self) -> str:
        return f"\n{self.args[0]}"


def portable(error: Exception) -> tuple[Exception, str]:
    """Returns an error that another process can raise, and its traceback as text."""
    text = "".join(traceback.format_exception(error))
    with suppress(Exception):
        if type(pickle.loads(pickle.dumps(error))) is type(error):
            return error, text
    return RuntimeError(f"{type(error).__name__}: {error}"), text
