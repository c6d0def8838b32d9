"""The subprocess of a loader: its threads make the batches that the training process requests.

Requests and replies are fixed records in shared memory, and semaphores count them: neither side needs a thread that
waits for the other one, and a finished reply is read without releasing the interpreter lock. A reply is a message: the
layout of a batch, which is the same for most batches and read once, and where its values are. Tensors that are not in
shared memory yet are copied into the buffer of the message.
"""

from __future__ import annotations

import os
import pickle
import struct
import threading
import time
import traceback
from contextlib import suppress
from functools import lru_cache
from multiprocessing.connection import Connection
from multiprocessing.synchronize import Semaphore
from typing import Any, NamedTuple

import numpy as np
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

_OBJECT, _TENSOR, _EMPTY, _BATCH, _TUPLE, _LIST, _DICT = range(7)
"""The first item of each node of a layout."""


class Message(NamedTuple):
    """Place of a batch.

    Attributes:
        place: buffer of the message.
        layout: the first byte of the layout in it.
        values: one past the layout, where a pickle of places and objects begins.
        end: one past that.
    """

    place: Place
    layout: int
    values: int
    end: int


class _Description:
    """Description of a batch: its layout of plain numbers and names, and what differs between batches of one layout.

    Attributes:
        places: buffers with values of tensors, each once.
        objects: values of other types, and the keys of dicts.
        copied: tensors that have to be copied into the message's buffer, and the byte where each begins.
        end: the bytes that they take.
    """

    def __init__(self, buffers: SharedBuffers) -> None:
        self._buffers = buffers
        self.places: list[Place] = []
        self.objects: list[Any] = []
        self.copied: list[tuple[int, Tensor]] = []
        self.end = 0

    def layout(self, value: Any) -> tuple[Any, ...]:
        """Returns the node of a value, the root of its layout."""
        kind = type(value)
        if kind is Tensor and value.layout == torch.strided and value.device.type == "cpu":
            if value.dtype in _DTYPES and not value.requires_grad:
                return self._tensor(value)
        elif kind is Batch and not hasattr(value, "tensordicts"):
            fields = {name: field for name, field in value.items() if field is not None}
            extra = fields.pop("extra", None)
            more = None if extra is None else self.layout(dict(extra.items()))
            nodes = [(name, self.layout(field)) for name, field in fields.items()]
            return _BATCH, nodes, more, tuple(value.batch_size)
        elif kind is tuple or kind is list:
            return _TUPLE if kind is tuple else _LIST, [self.layout(item) for item in value]
        elif kind is dict:
            return _DICT, [self.layout(item) for item in value.values()], self._object(list(value))
        return _OBJECT, self._object(value)

    def _object(self, value: Any) -> int:
        """Returns the number of an object, which is pickled as it is."""
        self.objects.append(value)
        return len(self.objects) - 1

    def _tensor(self, value: Tensor) -> tuple[Any, ...]:
        """Returns the node of a tensor: buffer, first byte in it, shape, strides in bytes, dtype.

        The buffer is 0 for that of the message, i for the i-th of :attr:`places`.
        """
        item, shape, code = value.dtype.itemsize, tuple(value.shape), _CODES.index(value.dtype)
        if not value.numel():
            return _EMPTY, shape, code
        place = self._buffers.place_of(value.data_ptr())
        if place is not None:
            if place not in self.places:
                self.places.append(place)
            first = self._buffers.offset(value.data_ptr(), place)
            strides = tuple(step * item for step in value.stride())
            return _TENSOR, self.places.index(place) + 1, first, shape, strides, code
        first = self.end
        self.copied.append((first, value))
        self.end = -(-(first + value.numel() * item) // _ALIGN) * _ALIGN
        return _TENSOR, 0, first, shape, None, code


def send(made: Any, buffers: SharedBuffers) -> Message:
    """Writes a batch, or any other picklable object, where the other process can read it by :func:`receive`.

    Raises:
        MemoryError: if no shared memory is left.
        Exception: if an object cannot be pickled.
    """
    description = _Description(buffers)
    layout = pickle.dumps(description.layout(made), protocol=pickle.HIGHEST_PROTOCOL)
    places = [tuple(place) for place in description.places]
    text = layout + pickle.dumps((places, description.objects), protocol=pickle.HIGHEST_PROTOCOL)
    first = description.end
    place, memory = buffers.allocate(first + len(text))
    for start, tensor in description.copied:
        values = tensor.contiguous().reshape(-1).view(torch.uint8)
        torch.from_numpy(memory[start : start + len(values)]).copy_(values)
    memory[first:] = np.frombuffer(text, np.uint8)
    for each in (*description.places, place):
        buffers.hand_over(each)
    return Message(place, first, first + len(layout), first + len(text))


def receive(message: Message, arena: SharedArena) -> Any:
    """Returns what :func:`send` wrote; buffers are free once nothing refers to their tensors."""
    place, layout, values, end = message
    memory = arena.copy(place) if place.size <= _SMALL else arena.view(place)
    root = _parsed(bytes(memory[layout:values]))
    places, objects = pickle.loads(bytes(memory[values:end]))
    # One view of each buffer for all tensors in it: the buffer is free with the last of them.
    return _made(root, [memory, *(arena.view(Place(*each)) for each in places)], objects)


@lru_cache(maxsize=64)
def _parsed(layout: bytes) -> tuple[Any, ...]:
    """Returns the root of a layout, which all batches of it share: nothing of it gets into a batch."""
    root: tuple[Any, ...] = pickle.loads(layout)
    return root


def _made(node: tuple[Any, ...], buffers: list[bytearray | Bytes], objects: list[Any]) -> Any:
    """Returns the value of a node.

    No step of it releases the interpreter lock, which costs 5 ms beside a thread of pure Python: numpy makes the views,
    not torch.
    """
    kind = node[0]
    if kind == _TENSOR:
        _, buffer, first, shape, strides, code = node
        dtype = _CODES[code]
        tensor = torch.from_numpy(np.ndarray(shape, _DTYPES[dtype], buffers[buffer], first, strides))
        return tensor.view(dtype) if dtype is torch.bfloat16 else tensor
    if kind == _BATCH:
        _, nodes, extra, batch_size = node
        fields = {name: _made(field, buffers, objects) for name, field in nodes}
        if extra is not None:
            fields["extra"] = TensorDict(_made(extra, buffers, objects), batch_size=batch_size)
        return Batch.from_tensordict(TensorDict(fields, batch_size=batch_size))
    if kind == _EMPTY:
        return torch.empty(node[1], dtype=_CODES[node[2]], device="cpu")
    if kind == _OBJECT:
        return objects[node[1]]
    items = [_made(item, buffers, objects) for item in node[1]]
    if kind == _DICT:
        return dict(zip(objects[node[2]], items, strict=True))
    return tuple(items) if kind == _TUPLE else items


SLOTS, EPOCHS = 64, 4
"""Least number of slots, one per open request, and least number of epochs in progress that they suffice for."""

BATCH, PREFETCH, STATISTICS, END = range(4)
"""Kinds of requests: make a batch, prefetch for an epoch, report counters, end a thread."""

_PAUSES = (1e-4, 2e-4, *[4e-4] * 250)
"""Seconds between looks for a request, before a thread waits until the training process wakes it.

Linux starts a thread that is woken on the core of the one that wakes it, where it would stop the training thread:
beside 4,000 crops/s that kept 0.87 to 0.92 of its rate on two cores, and keeps 0.93 to 0.98 with these looks.
"""

DONE, FAILED = range(2)
"""Kinds of replies."""

REQUEST = struct.Struct("5q")
"""BATCH, PREFETCH, STATISTICS or END; epoch; number of rows, or of PREFETCH the offset in the epoch; whether there are
occurrences; whether the request is cancelled, which is item :data:`CANCELLED`."""

CANCELLED = 4

REPLY = struct.Struct("7q")
"""DONE or FAILED, and the numbers of a :class:`Message`; all are 0 of a request that was cancelled before it began."""


class Records(NamedTuple):
    """Requests and replies in shared memory, as memoryviews of int64: of numpy they take three times as long.

    Attributes:
        queue: numbers of slots in the order of their requests, in a ring of as many.
        requests: one :data:`REQUEST` per slot.
        replies: one :data:`REPLY` per slot.
        rows: rows of each request, [batch size] per slot.
        occurrences: occurrences of these rows, [batch size] per slot.
        end: the first byte of the arena after them.
    """

    queue: memoryview
    requests: list[memoryview]
    replies: list[memoryview]
    rows: list[memoryview]
    occurrences: list[memoryview]
    end: int


def records_in(arena: SharedArena, batch_size: int, slots: int) -> Records:
    """Returns the records at the beginning of an arena; raises ValueError if they do not fit."""
    items = [1, REQUEST.size // 8, REPLY.size // 8, batch_size, batch_size]
    begin, end = len(arena.is_read), len(arena.is_read) + 8 * slots * sum(items)
    if end > len(arena.bytes):
        raise ValueError(f"batch_size is {batch_size}, too large for subprocess=True; give at most the dataset's rows")
    queue, *others = np.split(arena.bytes[begin:end].view(np.int64), slots * np.cumsum(items)[:-1])
    requests, replies, rows, occurrences = ([slot.data for slot in each.reshape(slots, -1)] for each in others)
    return Records(queue.data, requests, replies, rows, occurrences, end)


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
        records = records_in(arena, batch_size, len(signals.done))
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
            request = REQUEST.unpack_from(self._records.requests[number])
            if not request[CANCELLED]:
                try:
                    self._answer(number, request)
                except BaseException:  # no shared memory for an error; the training process reports the death
                    traceback.print_exc()
                    os._exit(1)
            self._signals.done[number].release()
            if request[0] == END:
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
            number = self._records.queue[self._next % len(self._records.queue)]
            self._next += 1
            return number

    def _answer(self, number: int, request: tuple[int, ...]) -> None:
        """Writes the reply to a request; nothing here refers to a batch afterwards."""
        if request[0] == PREFETCH:  # nobody reads a reply; batches meet the same errors
            with suppress(Exception):
                self._prefetcher.prefetch(*request[1:3])
            return
        try:
            kind, message = DONE, send(self._made(number, request), self._buffers)
        except Exception as error:
            kind, message = FAILED, send(portable(error), self._buffers)
        place, *others = message
        REPLY.pack_into(self._records.replies[number], 0, kind, *place, *others)

    def _made(self, number: int, request: tuple[int, ...]) -> Any:
        """Returns the result of a request."""
        kind, epoch, count, has_occurrences, _ = request
        if kind == BATCH:
            numbers = self._records.rows[number], self._records.occurrences[number]
            rows, occurrences = (torch.frombuffer(each, dtype=torch.int64, count=count).clone() for each in numbers)
            return self._worker.make(RowSelection(rows, occurrences if has_occurrences else None), epoch)()
        return self._worker.statistics()


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
