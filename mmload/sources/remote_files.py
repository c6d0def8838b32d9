"""The files of a source in object storage: reads them in place, some ahead of the threads that decode them."""

from __future__ import annotations

import threading
from collections.abc import Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from typing import Any

from mmload.cloud.client import PARALLEL, Found, Objects
from mmload.cloud.urls import Location, is_url, location
from mmload.errors import RemoteMissingError, SampleError, SourceError

MAX_AHEAD = 2 * PARALLEL
"""Files that are on their way, or have come and were not asked for yet."""


class RemoteFiles:
    """The objects under a URL as files. Thread-safe; picklable: a copy connects again.

    A name is relative to the URL, or a whole URL of an object anywhere.

    Args:
        place: where they lie.

    Raises:
        UsageError: if obstore is not installed.
    """

    def __init__(self, place: Location) -> None:
        self.place = place
        self._objects = Objects(place.url)
        self._elsewhere: dict[str, Objects] = {}
        self._lock = threading.Lock()
        self._wanted: dict[str, None] = {}  # in order, and each once
        self._coming: dict[str, Future[bytes]] = {}
        self._pool: ThreadPoolExecutor | None = None

    def __reduce__(self) -> tuple[Any, ...]:
        return RemoteFiles, (self.place,)

    def __str__(self) -> str:
        return self.place.url

    def listed(self) -> list[Found]:
        """All of them.

        Raises:
            SourceError: if there is none; RemoteError: if they cannot be listed.
        """
        try:
            found = self._objects.listed()
        except RemoteMissingError as error:
            raise SourceError(str(error)) from error
        if not found:
            raise SourceError(f"there is nothing at {self}; check the bucket and the prefix")
        return found

    def read(self, name: str, sample: str) -> bytes:
        """A whole file.

        Raises:
            SampleError: of ``sample``, if there is no such file.
            RemoteError: if the store cannot be read.
        """
        with self._lock:
            self._wanted.pop(name, None)
            coming = self._coming.pop(name, None)
            self._ask()
        try:
            return self._get(name) if coming is None else coming.result()
        except RemoteMissingError as error:
            raise SampleError(sample, str(error)) from error

    def fetch_ahead(self, names: Iterable[str]) -> None:
        """Get files that are read soon, in this order, as many at once as :data:`MAX_AHEAD` allows."""
        with self._lock:
            self._wanted.update(dict.fromkeys(names))
            self._ask()

    def _ask(self) -> None:
        """Under the lock."""
        while self._wanted and len(self._coming) < MAX_AHEAD:
            name = next(iter(self._wanted))
            del self._wanted[name]
            if name not in self._coming:
                self._pool = self._pool or ThreadPoolExecutor(PARALLEL, thread_name_prefix="mmload-source")
                self._coming[name] = self._pool.submit(self._get, name)

    def _get(self, name: str) -> bytes:
        if not is_url(name):
            return bytes(self._objects.get(name))
        found = location(name)
        bucket = replace(found, prefix="").url
        objects = self._elsewhere.get(bucket) or self._elsewhere.setdefault(bucket, Objects(bucket))
        return bytes(objects.get(found.prefix))
