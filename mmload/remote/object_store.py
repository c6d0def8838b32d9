"""Client of object storage: reads, writes and lists objects under a URL, retries, and names what failed.

It uses obstore (Rust): one package without dependencies of its own, one call for each of S3, Google Cloud Storage,
Azure, files and memory, and requests that run without the interpreter lock. Credentials are what obstore finds: the
environment variables of the store, the metadata service of its machines, web identities. None is ever an argument here,
so none can be written down or pickled.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from datetime import timedelta
from functools import cache
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from mmload.errors import RemoteError, RemoteMissingError, UsageError
from mmload.remote.urls import location

T = TypeVar("T")
R = TypeVar("R")

EXTRA = "object storage needs obstore; in a clone of mmload run: pip install '.[cloud]'"

MOST_PARALLEL = 512
"""Upper bound that catches typing errors."""

PART_BYTES = 8 * 2**20
"""Bytes of a large object that one request reads or writes."""


RETRIES: Any = {
    "max_retries": 8,
    "retry_timeout": timedelta(seconds=120),
    "backoff": {"init_backoff": timedelta(seconds=0.1), "max_backoff": timedelta(seconds=10), "base": 2},
}
"""When obstore tries a failed request again: after ``retry_timeout`` no more. It multiplies each wait by a random
share, so that clients do not all come back at the same moment."""


class Found(NamedTuple):
    """Object in a listing.

    Attributes:
        name: name relative to the URL.
        size: bytes.
        revision: text that changes when its content does: size, and entity tag or time of its last change.
    """

    name: str
    size: int
    revision: str


class Objects:
    """Objects under a URL. Thread-safe; picklable: a copy connects again.

    Raises:
        UsageError: if the URL is wrong, or obstore is not installed.
    """

    def __init__(self, url: str) -> None:
        self.location = location(url)
        check_process()
        _obstore()

    @property
    def url(self) -> str:
        """URL of the prefix that contains all objects."""
        return self.location.url

    def url_of(self, name: str) -> str:
        """Returns the URL of an object."""
        return f"{self.url.rstrip('/')}/{name}" if name else self.url

    def get(self, name: str) -> memoryview:
        """Reads a complete object.

        Raises:
            RemoteMissingError: if there is none; RemoteError: if it cannot be read.
        """
        return self._tried(name, "read", lambda store, key: memoryview(_obstore().get(store, key).bytes()))

    def get_range(self, name: str, start: int, length: int) -> memoryview:
        """Reads `length` bytes of an object from `start` on.

        Raises:
            RemoteMissingError: if there is no such object; RemoteError: if it cannot be read, or ends before.
        """
        if length == 0:
            return memoryview(b"")

        got = self._tried(
            name, "read", lambda store, key: memoryview(_obstore().get_range(store, key, start=start, length=length))
        )
        if len(got) != length:
            raise RemoteError(
                f"{self.url_of(name)} ends at byte {start + len(got):,}, {start + length:,} were expected: "
                "it was replaced or truncated"
            )
        return got

    def size(self, name: str) -> int:
        """Returns the size of an object in bytes.

        Raises:
            RemoteMissingError: if there is none; RemoteError: if the store fails.
        """
        return int(self._tried(name, "read", lambda store, key: _obstore().head(store, key)["size"]))

    def put(self, name: str, content: bytes | Path) -> None:
        """Writes an object, a large file in parts; the object appears complete or not at all.

        Raises:
            RemoteError: if it cannot be written.
        """
        options = {"chunk_size": PART_BYTES, "max_concurrency": 4}
        self._tried(name, "write", lambda store, key: _obstore().put(store, key, content, **options))

    def delete(self, name: str) -> None:
        """Removes an object if it exists.

        Raises:
            RemoteError: if it cannot be removed.
        """
        try:
            self._tried(name, "remove", lambda store, key: _obstore().delete(store, key))
        except RemoteMissingError:
            return

    def listed(self) -> list[Found]:
        """Lists the objects in the store's order.

        Raises:
            RemoteError: if the store cannot be listed.
        """
        try:  # the complete list at once, as one that broke off cannot be continued
            listed = self._tried("", "list", lambda store, key: _obstore().list(store, prefix=key or None).collect())
        except RemoteMissingError:
            if self.location.scheme == "file":
                return []  # a folder that is not there
            raise
        return [found for meta in listed if (found := _found(meta, self.location.prefix)).name]

    def _tried(self, name: str, verb: str, do: Callable[[Any, str], T]) -> T:
        """Calls ``do``. obstore retries refused, failed and interrupted requests."""
        check_process()
        try:
            return do(_store(self.location.scheme, self.location.bucket), self.location.key(name))
        except Exception as error:
            raise self._error(name, verb, error) from error

    def _error(self, name: str, verb: str, error: Exception) -> RemoteError:
        """Returns the error of a request, for an error of obstore."""
        where = self.url_of(name)
        if "NoSuchBucket" in str(error):
            return RemoteMissingError(f"bucket {self.location.bucket!r} does not exist; correct the URL {where}")
        if isinstance(error, FileNotFoundError):
            return RemoteMissingError(f"{where} does not exist")
        reason = _reason(error)
        return RemoteError(f"cannot {verb} {where} ({reason}){_advice(reason, error)}")


def check_process() -> None:
    """Checks that this process was not forked after it used object storage: it has neither threads nor free locks.

    Raises:
        UsageError: in a forked process, where a request would wait forever.
    """
    if os.getpid() != _process():
        raise UsageError(
            "object storage was used before this process was forked; start processes by spawn or forkserver "
            "(multiprocessing_context='spawn' of a DataLoader)"
        )


def _found(meta: Any, prefix: str) -> Found:
    size = meta["size"]
    name = meta["path"].removeprefix(prefix).removeprefix("/")
    return Found(name, size, f"{size} {meta['e_tag'] or meta['last_modified'].isoformat()}")


@cache
def _process() -> int:
    """Returns the process that first used object storage, of this one and those it was forked from."""
    return os.getpid()


@cache
def _obstore() -> Any:
    try:
        import obstore
    except ImportError as error:
        raise UsageError(EXTRA) from error
    return obstore


@cache
def _store(scheme: str, bucket: str) -> Any:
    """Returns the store of a bucket, with its connections."""
    from obstore import store

    if scheme == "memory":
        return store.MemoryStore()  # of this process, for tests
    if scheme == "file":
        return store.LocalStore()
    try:
        return store.from_url(f"{scheme}://{bucket}/", retry_config=RETRIES)
    except Exception as error:
        raise RemoteError(f"cannot use {scheme}://{bucket} ({_reason(error)}); set the store's variables") from error


def _reason(error: Exception) -> str:
    """Returns the cause in one short line without query strings, which may contain signatures."""
    text = str(error)
    if found := re.findall(r"<(?:Code|Message)>(.*?)</(?:Code|Message)>", text, re.DOTALL):
        return ": ".join(map(str.strip, found))
    first = re.sub(r"\?\S+", "", text.split("\n", 1)[0])
    if "retries" in first and "HTTP error" in first:
        tries = re.search(r"after (\d+) retries", first)
        return f"the store does not answer, after {tries[1] if tries else 'several'} tries"
    return first or type(error).__name__


_RIGHTS = "; check the credentials in the store's environment variables, and their rights"
_CONNECTION = "; check the connection and the store's address, then run the same command again"
_ADVICE = {
    "TimeTooSkewed": "; the clock of this machine is wrong: set it",
    "PermissionDeniedError": _RIGHTS,
    "UnauthenticatedError": _RIGHTS,
    "does not answer": _CONNECTION,
    "SlowDown": _CONNECTION,
}
"""What to do about a failed request, by words of its reason or its kind."""


def _advice(reason: str, error: Exception) -> str:
    said = f"{type(error).__name__} {reason}"
    return next((advice for words, advice in _ADVICE.items() if words in said), "")


def check_parallel(parallel: int) -> None:
    """Checks the number of parallel requests.

    Raises:
        UsageError: if it is not from 1 to :data:`MOST_PARALLEL`.
    """
    if type(parallel) is not int or not 1 <= parallel <= MOST_PARALLEL:
        raise UsageError(f"parallel is {parallel!r}; use 1 to {MOST_PARALLEL}")


def in_parallel(do: Callable[[T], R], tasks: Iterable[T], parallel: int) -> Iterator[R]:
    """Yields what ``do`` returns for each task, in the order in which they end.

    The first error is raised once the running tasks have ended; waiting tasks are dropped. Tasks are read in the
    caller's thread, when one of the threads becomes free; ``do`` is thread-safe.
    """
    remaining = iter(tasks)
    with ThreadPoolExecutor(parallel, thread_name_prefix="mmload-cloud") as pool:
        running: set[Future[R]] = {pool.submit(do, task) for task in islice(remaining, 2 * parallel)}
        try:
            while running:
                done, running = wait(running, return_when=FIRST_COMPLETED)
                for future in done:
                    yield future.result()
                running |= {pool.submit(do, task) for task in islice(remaining, len(done))}
        finally:
            for future in running:
                future.cancel()
