"""Serves the page on this machine alone, to whoever has its address: the token in it, the right host, nothing else.

Every request is checked before anything else looks at it: its Host header, against names that were made to lead here
(DNS rebinding), and the token, in constant time. No file is served by its name: pages come from
:mod:`mmload.view.browse_pages`, as data and pictures that it made.
"""

from __future__ import annotations

import errno
import hmac
import secrets
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from socketserver import TCPServer
from urllib.parse import parse_qsl, urlsplit

from mmload.errors import MmloadError, UsageError
from mmload.view.browse_pages import PageReply, Pages

ADDRESS = "127.0.0.1"

_MOST_BODY = 4096
_IDLE = 60  # seconds until a connection that sends nothing is closed
_REFUSED = {errno.EADDRINUSE: "is taken by another program", errno.EACCES: "may not be used"}
"""Errors of the system about a port -> what they mean."""
_HEADERS = {
    "Cache-Control": "no-store",
    "Content-Security-Policy": "default-src 'none'; img-src 'self' data:; style-src 'self'; script-src 'self'; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
}


class Server(ThreadingHTTPServer):
    """A server of one dataset's pages, at a port or any that is free; ``serve_forever`` runs it.

    Attributes:
        address: address of the page, with its token.

    Raises:
        UsageError: if the port is taken or may not be used.
    """

    daemon_threads = True
    block_on_close = False

    def __init__(self, pages: Pages, port: int = 0) -> None:
        self.pages, self.token = pages, secrets.token_urlsafe(24)
        try:
            super().__init__((ADDRESS, port), _Handler)
        except OSError as error:
            if why := _REFUSED.get(error.errno or 0):
                raise UsageError(f"--port is {port}, which {why}; give another, or none for any free one") from error
            raise MmloadError(f"cannot listen on {ADDRESS} ({error.strerror})") from error
        self.hosts = {f"{name}:{self.server_port}" for name in (ADDRESS, "localhost")}
        self.address = f"http://{ADDRESS}:{self.server_port}/{self.token}/"

    def server_bind(self) -> None:
        """Binds, without the look-up of the own name that ``http.server`` makes, which may wait for a network."""
        TCPServer.server_bind(self)
        self.server_name, self.server_port = ADDRESS, self.server_address[1]

    def handle_error(self, request: object, client_address: object) -> None:
        """Ignores a browser that closes a connection early."""


class _Handler(BaseHTTPRequestHandler):
    """One connection."""

    server: Server
    protocol_version = "HTTP/1.1"
    server_version, sys_version = "mmload", ""
    timeout = _IDLE

    def do_GET(self) -> None:
        """Answers a request to read."""
        place = self._place()
        if place is not None:
            query = dict(parse_qsl(urlsplit(self.path).query, keep_blank_values=True, max_num_fields=20))
            self._send(self.server.pages.get(place, query))

    def do_POST(self) -> None:
        """Answers a request to change a mark."""
        self.close_connection = True  # whatever is refused below leaves its body unread
        place = self._place()
        if place is None:
            return
        host, length = self.headers["Host"], self.headers.get("Content-Length", "")
        if self.headers.get("Origin", f"http://{host}") != f"http://{host}":
            return self._refuse(403, "another page may not change anything here")
        if self.headers.get_content_type() != "application/json":
            return self._refuse(415, "send JSON")
        if not length.isascii() or not length.isdigit() or len(length) > 4 or int(length) > _MOST_BODY:
            return self._refuse(413, f"send at most {_MOST_BODY} bytes, and say how many")
        self._send(self.server.pages.post(place, self.rfile.read(int(length))))

    def _place(self) -> str | None:
        """Returns the path after the token; None if the request was refused."""
        hosts = self.headers.get_all("Host", [])
        if len(hosts) != 1 or hosts[0].lower() not in self.server.hosts:
            self._refuse(403, "this is not the address of the page")
            return None
        token, slash, place = urlsplit(self.path).path.removeprefix("/").partition("/")
        if not hmac.compare_digest(token.encode("utf-8", "replace"), self.server.token.encode()) or not slash:
            self._refuse(403, "open the address that mmload browse has shown, with all its letters")
            return None
        return place

    def _refuse(self, status: int, text: str) -> None:
        self.close_connection = True
        self._send(PageReply(status, "text/plain; charset=utf-8", f"{text}\n".encode()))

    def _send(self, reply: PageReply) -> None:
        self.send_response(reply.status)
        headers = {**_HEADERS, "Content-Type": reply.kind, "Content-Length": str(len(reply.body))}
        if self.close_connection:
            headers["Connection"] = "close"
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(reply.body)

    def log_message(self, format: str, *args: object) -> None:
        """Writes nothing: a line for each picture helps nobody."""
