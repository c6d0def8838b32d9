"""A small S3 server on loopback, for tests and benchmarks of object storage: one process, only the standard library.

It keeps each bucket as a folder and answers what object storage clients ask for: GET with a range, HEAD, PUT, uploads
in parts, DELETE, and lists. It checks no signature. Each bucket can be told to misbehave: to answer 503 to every third
request, to refuse the clock of its clients, to flip a byte of an object, to wait before it answers.

    python tests/helpers/s3_server.py ROOT     prints its port, then serves until its standard input ends

``POST /-/BUCKET`` with a JSON object sets a bucket's faults; ``GET /-/BUCKET`` gives what was asked of it since.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import socket
import socketserver
import subprocess
import sys
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from hashlib import md5
from pathlib import Path
from typing import Any, ClassVar
from urllib.parse import parse_qs, quote, unquote, urlsplit
from urllib.request import Request, urlopen
from xml.sax.saxutils import escape, unescape

MOST_LISTED = 1000


@dataclass
class BucketState:
    """What a bucket was asked for, and how it misbehaves.

    Attributes:
        counts: requests by method, those that failed on purpose too; ``bytes`` of all GETs.
        fail_every: answers 503 to every n-th request, but from 2 on not to its next try, so that requests that come at
            once do not exhaust one's tries; 0: to none.
        failed: method, key and range of the requests whose last try was answered so.
        skewed: answers that the client's clock is wrong.
        corrupt: the end of keys whose objects come with a flipped byte.
        stall: the end of keys whose objects come only in half.
    """

    counts: Counter[str] = field(default_factory=Counter)
    seen: int = 0
    fail_every: int = 0
    failed: set[tuple[str, str, str]] = field(default_factory=set)
    skewed: bool = False
    corrupt: str = ""
    stall: str = ""


class Server(socketserver.ThreadingTCPServer):
    """The server over a folder."""

    daemon_threads = True
    request_queue_size = 256

    def __init__(self, root: Path) -> None:
        super().__init__(("127.0.0.1", 0), Connection)
        self.root = root
        self.buckets: dict[str, BucketState] = defaultdict(BucketState)
        self.lock = threading.Lock()


@dataclass
class Asked:
    """A request."""

    method: str
    bucket: str
    key: str
    query: dict[str, str]
    headers: dict[str, str]
    body: bytes


class Connection(socketserver.StreamRequestHandler):
    """One client's connection, many requests."""

    disable_nagle_algorithm = True
    wbufsize = 0
    server: Server
    REASONS: ClassVar = {200: "OK", 204: "No Content", 206: "Partial Content"}

    def handle(self) -> None:
        """Answer until the client ends."""
        with suppress(ConnectionError, BrokenPipeError):
            while (asked := self.asked()) is not None:
                self.answer(asked)

    def asked(self) -> Asked | None:
        """The next request."""
        line = self.rfile.readline().decode()
        if not line.strip():
            return None
        method, target, _ = line.split(" ", 2)
        headers = {}
        while raw := self.rfile.readline().decode("latin-1").strip():
            name, _, value = raw.partition(":")
            headers[name.lower()] = value.strip()
        body = self.rfile.read(int(headers.get("content-length", 0)))
        parts = urlsplit(target)
        bucket, _, key = unquote(parts.path).lstrip("/").partition("/")
        query = {name: values[0] for name, values in parse_qs(parts.query, keep_blank_values=True).items()}
        return Asked(method, bucket, key, query, headers, body)

    def answer(self, asked: Asked) -> None:
        """Fail as the bucket was told to, or do what is asked."""
        if asked.bucket == "-":
            return self.control(asked)
        bucket = self.server.buckets[asked.bucket]
        with self.server.lock:
            bucket.seen += 1
            bucket.counts[asked.method] += 1
            request = asked.method, asked.key, asked.headers.get("range", "")
            fails = bucket.fail_every and bucket.seen % bucket.fail_every == 0
            if fails and (bucket.fail_every == 1 or request not in bucket.failed):
                bucket.failed.add(request)
            else:
                fails = False
                bucket.failed.discard(request)
        if fails:
            return self.error(503, "SlowDown", "Please reduce your request rate.")
        if bucket.skewed:
            return self.error(403, "RequestTimeTooSkewed", "The difference between the times is too large.")
        return {
            "GET": self.get if asked.key else self.list,
            "HEAD": self.get,
            "PUT": self.put,
            "POST": self.post,
            "DELETE": self.delete,
        }[asked.method](asked)

    def control(self, asked: Asked) -> None:
        """Set or show a bucket's state."""
        with self.server.lock:
            bucket = self.server.buckets[asked.key]
            if asked.method == "POST":
                self.server.buckets[asked.key] = BucketState(**json.loads(asked.body))
        self.send(200, json.dumps(dict(bucket.counts)).encode())

    def path(self, asked: Asked) -> Path:
        """The file of an object."""
        return self.server.root / asked.bucket / asked.key

    def get(self, asked: Asked) -> None:
        """An object, or a range of it."""
        path, bucket = self.path(asked), self.server.buckets[asked.bucket]
        if not path.is_file():
            return self.error(404, "NoSuchKey", "The specified key does not exist.", asked.method)
        with open(path, "rb") as file:
            size = os.fstat(file.fileno()).st_size
            first, last = 0, size - 1
            if wanted := asked.headers.get("range", "").removeprefix("bytes="):
                low, _, high = wanted.partition("-")
                first, last = (int(low), min(last, int(high or last))) if low else (max(0, size - int(high)), last)
                if first >= size:
                    return self.error(416, "InvalidRange", "The requested range is not satisfiable")
            count = last - first + 1
            head = {"ETag": f'"{os.fstat(file.fileno()).st_mtime_ns:x}"', "Last-Modified": _date(path)}
            if wanted:
                head["Content-Range"] = f"bytes {first}-{last}/{size}"
            self.head(206 if wanted else 200, count, head)
            if asked.method == "HEAD":
                return None
            with self.server.lock:
                bucket.counts["bytes"] += count
            if any(end and asked.key.endswith(end) for end in (bucket.corrupt, bucket.stall)):
                self.spoiled(bucket, file.fileno(), first, count)
                return None
            while count:
                sent = os.sendfile(self.request.fileno(), file.fileno(), first, count)
                first, count = first + sent, count - sent
        return None

    def spoiled(self, bucket: BucketState, handle: int, first: int, count: int) -> None:
        """The bytes with one flipped, or half of them and the end of the connection."""
        data = bytearray(os.pread(handle, count, first))
        if bucket.stall:
            self.wfile.write(data[: count // 2])
            raise ConnectionError
        if data:
            data[len(data) // 2] ^= 1
        self.wfile.write(data)

    def put(self, asked: Asked) -> None:
        """A bucket, an object, or a part of an upload."""
        path = self.path(asked)
        if "uploadId" in asked.query:
            path = self.uploads(asked) / f"{int(asked.query['partNumber']):05d}"
        if asked.key:
            path.parent.mkdir(parents=True, exist_ok=True)
            partial = path.with_name(f".{path.name}.{threading.get_ident()}")
            partial.write_bytes(asked.body)
            partial.replace(path)
        else:
            path.mkdir(parents=True, exist_ok=True)
        self.send(200, b"", {"ETag": f'"{md5(asked.body, usedforsecurity=False).hexdigest()}"'})

    def uploads(self, asked: Asked) -> Path:
        """The folder of an upload's parts."""
        return self.server.root / "-uploads" / Path(asked.query["uploadId"]).name

    def post(self, asked: Asked) -> None:
        """Begin or end an upload in parts, or delete several objects."""
        if "uploads" in asked.query:
            number = f"{time.time_ns():x}{threading.get_ident():x}"
            text = f"<Bucket>{asked.bucket}</Bucket><Key>{escape(asked.key)}</Key><UploadId>{number}</UploadId>"
            (self.server.root / "-uploads" / number).mkdir(parents=True)
            return self.xml("InitiateMultipartUploadResult", text)
        if "delete" in asked.query:
            keys = re.findall(r"<Key>(.*?)</Key>", asked.body.decode())
            for key in keys:
                (self.server.root / asked.bucket / unescape(key)).unlink(missing_ok=True)
            return self.xml("DeleteResult", "".join(f"<Deleted><Key>{key}</Key></Deleted>" for key in keys))
        folder, path = self.uploads(asked), self.path(asked)
        path.parent.mkdir(parents=True, exist_ok=True)
        partial = path.with_name(f".{path.name}.{folder.name}")
        with open(partial, "wb") as out:
            for part in sorted(folder.iterdir()):
                with open(part, "rb") as file:
                    shutil.copyfileobj(file, out, 2**20)
        partial.replace(path)
        shutil.rmtree(folder)
        return self.xml("CompleteMultipartUploadResult", f'<Key>{escape(asked.key)}</Key><ETag>"{folder.name}"</ETag>')

    def delete(self, asked: Asked) -> None:
        """Remove an object or an upload."""
        if "uploadId" in asked.query:
            shutil.rmtree(self.uploads(asked), ignore_errors=True)
        else:
            self.path(asked).unlink(missing_ok=True)
        self.send(204, b"")

    def list(self, asked: Asked) -> None:
        """The objects of a prefix, some at a time."""
        root, prefix = self.server.root / asked.bucket, asked.query.get("prefix", "")
        if not root.is_dir():
            return self.error(404, "NoSuchBucket", "The specified bucket does not exist")
        start = root / prefix.rpartition("/")[0]
        found = (path for path in start.rglob("*") if path.is_file() and not path.name.startswith("."))
        names = sorted(name for path in found if (name := path.relative_to(root).as_posix()).startswith(prefix))
        after = asked.query.get("continuation-token", asked.query.get("start-after", ""))
        names = [name for name in names if name > after]
        page, more = names[:MOST_LISTED], len(names) > MOST_LISTED
        text = "".join(
            f"<Contents><Key>{escape(quote(name) if 'encoding-type' in asked.query else name)}</Key>"
            f"<LastModified>2026-01-01T00:00:00.000Z</LastModified><ETag>&quot;0&quot;</ETag>"
            f"<Size>{(root / name).stat().st_size}</Size></Contents>"
            for name in page
        )
        token = f"<NextContinuationToken>{escape(page[-1])}</NextContinuationToken>" if more else ""
        return self.xml("ListBucketResult", f"<IsTruncated>{str(more).lower()}</IsTruncated>{token}{text}")

    def xml(self, name: str, text: str) -> None:
        """An answer as S3 gives it."""
        self.send(200, f'<?xml version="1.0" encoding="UTF-8"?><{name}>{text}</{name}>'.encode())

    def error(self, code: int, name: str, text: str, method: str = "GET") -> None:
        """A argument_error as S3 gives it."""
        self.send(
            code, b"" if method == "HEAD" else f"<Error><Code>{name}</Code><Message>{text}</Message></Error>".encode()
        )

    def send(self, code: int, body: bytes, headers: dict[str, str] | None = None) -> None:
        """A whole answer."""
        self.head(code, len(body), headers or {}, body)

    def head(self, code: int, length: int, headers: dict[str, str], body: bytes = b"") -> None:
        """The beginning of an answer."""
        lines = [f"HTTP/1.1 {code} {self.REASONS.get(code, 'Error')}", f"Content-Length: {length}"]
        lines += [f"{name}: {value}" for name, value in headers.items()]
        self.request.sendall(("\r\n".join(lines) + "\r\n\r\n").encode() + body)


def _date(path: Path) -> str:
    return time.strftime("%a, %d %b %Y %H:%M:%S GMT", time.gmtime(path.stat().st_mtime))


@dataclass(frozen=True)
class Running:
    """A server in a process of its own.

    Attributes:
        port: where it listens.
        root: the folder of its buckets.
    """

    port: int
    root: Path

    @property
    def environment(self) -> dict[str, str]:
        """What makes clients find it."""
        return {
            "AWS_ENDPOINT_URL": f"http://127.0.0.1:{self.port}",
            "AWS_ALLOW_HTTP": "true",
            "AWS_ACCESS_KEY_ID": "nobody",
            "AWS_SECRET_ACCESS_KEY": "nothing",
            "AWS_REGION": "us-east-1",
        }

    def bucket(self, name: str, **faults: object) -> str:
        """The URL of a bucket, made if it is not there, with these faults from now on and its counts at 0."""
        (self.root / name).mkdir(exist_ok=True)
        self._control(name, json.dumps(faults).encode())
        return f"s3://{name}"

    def counts(self, bucket: str) -> dict[str, int]:
        """What was asked of a bucket."""
        return self._control(bucket)

    def _control(self, bucket: str, body: bytes | None = None) -> Any:
        with urlopen(Request(f"http://127.0.0.1:{self.port}/-/{bucket}", data=body), timeout=30) as answer:
            return json.loads(answer.read())


@dataclass
class Bucket:
    """A bucket that a test has for itself."""

    server: Running
    name: str

    @property
    def url(self) -> str:
        return f"s3://{self.name}"

    @property
    def folder(self) -> Path:
        """Where its objects lie, to be damaged."""
        return self.server.root / self.name

    def faults(self, **faults: object) -> None:
        """Misbehave so from now on, and count from 0."""
        self.server.bucket(self.name, **faults)

    @property
    def counts(self) -> dict[str, int]:
        return self.server.counts(self.name)


@contextmanager
def running(root: Path) -> Iterator[Running]:
    """A server in a process of its own, over an empty folder; it ends with this block or this process."""
    command = [sys.executable, "-S", str(Path(__file__).resolve()), str(root)]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        if process.stdout is None:
            raise RuntimeError("the server has no output")
        yield Running(int(process.stdout.readline()), root)
    finally:
        process.kill()
        process.communicate()


def main() -> None:
    """Serve until the standard input ends."""
    server = Server(Path(sys.argv[1]))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    print(server.server_address[1], flush=True)
    with suppress(KeyboardInterrupt):
        sys.stdin.read()
    with suppress(OSError):
        server.socket.shutdown(socket.SHUT_RDWR)


if __name__ == "__main__":
    main()
