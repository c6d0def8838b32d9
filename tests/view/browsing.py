"""A page of ``mmload browse`` that a test serves in a thread, and requests to it with any headers."""

from __future__ import annotations

import http.client
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from mmload.view.browse_pages import Pages
from mmload.view.browse_server import ADDRESS, Server


class Got(NamedTuple):
    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)


class Page:
    """A running page."""

    def __init__(self, server: Server) -> None:
        self.server = server
        self.token, self.address = server.token, server.address

    def ask(
        self, path: str, method: str = "GET", body: bytes | None = None, headers: dict[str, str] | None = None
    ) -> Got:
        """A request for a whole path, as it is."""
        connection = http.client.HTTPConnection(ADDRESS, self.server.server_port, timeout=60)
        try:
            connection.request(method, path, body, headers or {})
            reply = connection.getresponse()
            return Got(reply.status, {name.lower(): value for name, value in reply.getheaders()}, reply.read())
        finally:
            connection.close()

    def get(self, place: str) -> Got:
        """What is at a place of the page."""
        return self.ask(f"/{self.token}/{place}")

    def mark(self, row: int, reason: str | None, split: str = "train", **headers: str) -> Got:
        """A row marked, or unmarked."""
        body = json.dumps({"split": split, "row": row, "reason": reason}).encode()
        sent = {
            "Content-Type": "application/json",
            **{name.replace("_", "-"): value for name, value in headers.items()},
        }
        return self.ask(f"/{self.token}/api/marks", "POST", body, sent)


@contextmanager
def browsed(dataset: Path, marks: Path, **options: Any) -> Iterator[Page]:
    """The page of a dataset, served until the end of the block."""
    with Server(Pages(dataset, marks, **options)) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
        thread.start()
        try:
            yield Page(server)
        finally:
            server.shutdown()
            thread.join()
