"""The batches of a loader, made in one subprocess with threads, so that they need no time of the training process.

Threads of one process share its interpreter: beside a training loop that keeps it busy, a loader's threads wait for it,
and the loop waits for them. Here the training process only writes down rows and reads where the batch is. The batch
itself is in memory that both processes map; nothing is copied.
"""

from __future__ import annotations

import os
import pickle
import sys
import threading
import weakref
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from multiprocessing import current_process
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from typing import Any

from mmload.errors import UsageError
from mmload.loader import subprocess_worker as protocol
from mmload.loader.batch_worker import BatchSettings, Statistics
from mmload.loader.epoch_iterator import Prefetcher, check_open, end_daemon
from mmload.loader.order import RowSelection
from mmload.loader.subprocess_worker import Message, receive
from mmload.runtime.memory_pool import Place, SharedArena
from mmload.runtime.processes import cause_of_death, context, start_process

_LOOK_S = 1.0  # between looks at a subprocess that has not answered yet
_SECONDS_TO_END = 5.0

_STARTING = threading.Lock()


class Reply:
    """Batch of a request, which :meth:`SubprocessPool.receive` waits for; an unused one is cancelled."""

    def __init__(self, pool: SubprocessPool, slot: int) -> None:
        self.slot: int | None = slot
        self._pool = pool

    def cancel(self) -> None:
        """Cancels the request."""
        slot, self.slot = self.slot, None
        if slot is not None:
            self._pool.abandon(slot)

    def __del__(self) -> None:
        self.cancel()


class SubprocessPool:
    """Subprocess that makes batches; it ends with this object, or with the training process. Thread-safe.

    Args:
        settings: settings of the batches.
        prefetcher: prefetches what an epoch reads from object storage.
        threads: number of batches that the subprocess makes at once.

    Raises:
        UsageError: if the collate cannot be sent to another process, or this process may not start one.
    """

    def __init__(self, settings: BatchSettings, prefetcher: Prefetcher, threads: int) -> None:
        if current_process().daemon:
            raise UsageError(
                "subprocess=True cannot be used in a worker process, which may not start another one; leave it out"
            )
        payload = _pickled((settings, prefetcher))
        self._arena = SharedArena()
        slots = max(protocol.SLOTS, protocol.EPOCHS * settings.slots)
        self._records = protocol.records_in(self._arena, settings.batch_size, slots)
        semaphores = context()
        done = [semaphores.Semaphore(0) for _ in range(slots)]
        self._signals = protocol.Signals(semaphores.Semaphore(0), done)
        self._free, self._abandoned = list(range(slots)), deque[int]()
        self._next, self._lock = 0, threading.RLock()  # a Reply may be collected while the lock is held
        # Bound early: a Reply may be collected at exit, when modules are empty.
        self._process_id, self._cancelled = os.getpid, protocol.CANCELLED
        self._owner, self._closed, self._threads = os.getpid(), False, threads
        with _hidden_main(payload):
            self._process, self._pipe = start_process(
                protocol.serve,
                payload,
                self._arena,
                self._signals,
                settings.batch_size,
                threads,
                name="mmload-loader",
                daemon=True,
            )
        self._end = weakref.finalize(self, _end, self._process, self._pipe, self._owner)

    @property
    def usable(self) -> bool:
        return not self._closed and self._owner == os.getpid()

    def check_open(self) -> None:
        check_open(self._owner, self._closed)

    def submit(self, selection: RowSelection, epoch: int) -> Reply:
        """Requests a batch."""
        with self._lock:
            self.check_open()
            slot = self._free_slot()
            count = selection.rows.numel()  # len takes five times as long
            # Memoryviews: numpy gives the interpreter lock away for 500 numbers or more.
            self._records.rows[slot][:count] = selection.rows.numpy().data
            occurrences = selection.occurrences
            if occurrences is not None:
                self._records.occurrences[slot][:count] = occurrences.numpy().data
            return self._requested(slot, protocol.BATCH, epoch, count, occurrences is not None)

    def prefetch(self, epoch: int, offset: int) -> None:
        with self._lock:
            slot = self._free_slot()
            self._requested(slot, protocol.PREFETCH, epoch, offset).slot = None  # else its end would cancel the request
            self._abandoned.append(slot)  # nobody waits for the reply

    def statistics(self) -> Statistics:
        with self._lock:
            reply = self._requested(self._free_slot(), protocol.STATISTICS)
        found: Statistics = self.receive(reply)
        return found

    def receive(self, reply: Reply) -> Any:
        """Waits for a batch and returns it.

        Raises:
            RuntimeError: if the subprocess has died.
            Exception: the error of the subprocess while it made the batch.
        """
        if reply.slot is None:
            self.check_open()
            raise UsageError("the batch was cancelled; begin another epoch with iter(loader)")
        done = self._signals.done[reply.slot]
        if not done.acquire(False):  # which keeps the interpreter lock, where waiting gives it away
            while not done.acquire(True, _LOOK_S):
                self._check_alive()
        slot, reply.slot = reply.slot, None
        kind, made = self._read(slot)
        if kind == protocol.FAILED:
            error, text = made
            raise error from protocol.SubprocessTraceback(text)
        return made

    def abandon(self, slot: int) -> None:
        """Cancels a request that nobody waits for."""
        if self._process_id() == self._owner:
            with self._lock:
                self._records.requests[slot][self._cancelled] = 1
                self._abandoned.append(slot)

    def close(self) -> None:
        """Ends the subprocess, after the batches that it is making."""
        if self.usable:
            with self._lock, suppress(UsageError):
                for _ in range(self._threads):
                    self._requested(self._free_slot(), protocol.END)
            self._process.join(_SECONDS_TO_END)
        self._closed = True
        self._end()

    def _requested(self, slot: int, kind: int, epoch: int = 0, rows: int = 0, has_occurrences: bool = False) -> Reply:
        protocol.REQUEST.pack_into(self._records.requests[slot], 0, kind, epoch, rows, has_occurrences, False)
        protocol.REPLY.pack_into(self._records.replies[slot], 0, 0, 0, 0, 0, 0, 0, 0)
        self._records.queue[self._next % len(self._records.queue)] = slot
        self._next += 1
        self._signals.requested.release()
        return Reply(self, slot)

    def _free_slot(self) -> int:
        """Returns a slot without a request.

        Raises:
            UsageError: if all requests are open.
        """
        for _ in range(len(self._abandoned)):
            slot = self._abandoned.popleft()
            if self._signals.done[slot].acquire(False):
                self._read(slot)  # frees the memory of a batch that was made nevertheless
            else:
                self._abandoned.append(slot)
        if not self._free and self._abandoned:
            done = self._signals.done[self._abandoned[0]]
            while not done.acquire(True, _LOOK_S):
                self._check_alive()
            self._read(self._abandoned.popleft())
        if not self._free:
            open_requests = len(self._records.queue)
            raise UsageError(f"{open_requests} batches are requested already; end other epochs of this loader first")
        return self._free.pop()

    def _read(self, slot: int) -> tuple[int, Any]:
        """Reads the reply of a slot that is done, and frees the slot."""
        kind, buffer, start, size, *parts = protocol.REPLY.unpack_from(self._records.replies[slot])
        try:  # size 0: the request was cancelled before anybody took it
            return kind, receive(Message(Place(buffer, start, size), *parts), self._arena) if size else None
        finally:
            self._free.append(slot)

    def _check_alive(self) -> None:
        """Raises the error of a subprocess that has ended."""
        with suppress(OSError):  # another thread has closed the pipe
            # Not is_alive: if the program ignores SIGCHLD or waits for all children, that is true for ever. A long
            # error is not sent before it is read.
            if not wait((self._process.sentinel, self._pipe), 0):
                return
        self._closed = True
        end_daemon()
        with suppress(EOFError, OSError):
            if self._pipe.poll():
                error, text = self._pipe.recv()
                raise error from protocol.SubprocessTraceback(text)
        raise RuntimeError(f"the loader's subprocess died ({cause_of_death(self._process)}); begin another epoch")


def _end(process: BaseProcess, pipe: Connection, owner: int) -> None:
    """Ends a subprocess that nobody can use anymore; a forked process has none."""
    if owner == os.getpid():
        process.kill()
        process.join()
        pipe.close()


def _pickled(value: object) -> bytes:
    try:
        return pickle.dumps(value)
    except Exception as error:
        raise UsageError(
            f"subprocess=True sends the collate to another process, and it cannot be pickled ({error}); "
            "define what it uses at the top level of a module, or use subprocess=False"
        ) from error


@contextmanager
def _hidden_main(payload: bytes) -> Iterator[None]:
    """Prevents processes started inside from running the user's script again, unless the payload needs it.

    A spawned process imports the main module first: a script without ``if __name__ == "__main__"`` would start itself
    over and over.
    """
    main: Any = sys.modules["__main__"]
    names = ("__spec__", "__file__")
    if b"__main__" in payload:
        yield
        return
    with _STARTING:
        hidden = {name: getattr(main, name) for name in names if hasattr(main, name)}
        main.__spec__ = None
        with suppress(AttributeError):
            del main.__file__
        try:
            yield
        finally:
            for name, value in hidden.items():
                setattr(main, name, value)
