"""The server of ``mmload browse``: only who has the address gets anything, and nothing outside of the data is there."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest
from browsing import Page, browsed
from conftest import complaint, mmload

from mmload.store.dataset import Dataset
from mmload.view import browse_server as server


@pytest.fixture(scope="module")
def page(dataset: Dataset, folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Page]:
    place = tmp_path_factory.mktemp("served")
    with browsed(dataset.path, place / "marks.txt", source=folder) as served:
        yield served


PLACES = ("", "style.css", "script.js", "api/about", "api/rows?split=train", "image/thumbnail?split=train&row=0")


@pytest.mark.parametrize("place", PLACES)
def test_the_token_is_needed_for_everything(page: Page, place: str) -> None:
    assert page.get(place).status == 200
    wrong = page.token[:-1] + ("A" if page.token[-1] != "A" else "B")
    for token in ("", wrong, page.token[:-1], page.token + "A", page.token.swapcase(), "%00", "%C3%A4", "."):
        got = page.ask(f"/{token}/{place}")
        assert got.status == 403
        assert page.token.encode() not in got.body
    assert page.ask(f"/?token={page.token}").status == 403
    assert page.ask(f"/{page.token}").status == 403


def test_the_token_is_compared_in_constant_time(page: Page, monkeypatch: pytest.MonkeyPatch) -> None:
    seen = []
    compare = server.hmac.compare_digest
    monkeypatch.setattr(server.hmac, "compare_digest", lambda a, b: seen.append((a, b)) or compare(a, b))
    assert page.ask("/wrong/").status == 403
    assert seen == [(b"wrong", page.token.encode())]


@pytest.mark.parametrize(
    "host", ["evil.example", "evil.example:{port}", "127.0.0.1", "127.0.0.1:1", "0.0.0.0:{port}", ""]
)
def test_other_hosts_are_refused_also_with_the_token(page: Page, host: str) -> None:
    headers = {"Host": host.format(port=page.server.server_port)}
    assert page.ask(f"/{page.token}/", headers=headers).status == 403
    assert page.mark(0, "broken", **headers).status == 403
    assert page.ask(f"/{page.token}/", headers={"Host": f"LOCALHOST:{page.server.server_port}"}).status == 200


def answer_to(page: Page, request: str) -> bytes:
    """The first line that the server says to a request, as it is."""
    with socket.create_connection((server.ADDRESS, page.server.server_port)) as connection:
        connection.sendall(request.format(token=page.token, port=page.server.server_port).encode())
        return connection.recv(4096).split(b"\r\n")[0]


@pytest.mark.parametrize("lines", ["", "Host: 127.0.0.1:{port}\r\nHost: evil.example\r\n"])
def test_two_hosts_or_none_are_refused(page: Page, lines: str) -> None:
    assert answer_to(page, f"GET /{{token}}/ HTTP/1.1\r\n{lines}\r\n").startswith(b"HTTP/1.1 403")


def test_it_listens_on_this_machine_only(page: Page) -> None:
    assert page.server.socket.getsockname()[0] == "127.0.0.1"


def test_no_other_page_may_read_anything(page: Page) -> None:
    for got in (page.get(""), page.get("api/about"), page.get("image/stored?split=train&row=1"), page.ask("/")):
        assert not [name for name in got.headers if name.startswith("access-control")]
        assert got.headers["x-content-type-options"] == "nosniff"
        assert got.headers["referrer-policy"] == "no-referrer"
        assert "default-src 'none'" in got.headers["content-security-policy"]
        assert got.headers["cross-origin-resource-policy"] == "same-origin"


@pytest.mark.parametrize(
    ("method", "place", "headers", "status"),
    [
        ("POST", "api/marks", {"Origin": "http://evil.example"}, 403),
        ("POST", "api/marks", {"Content-Type": "text/plain"}, 415),
        *((method, "api/marks", {}, 501) for method in ("OPTIONS", "PUT", "DELETE", "PATCH")),
        ("POST", "api/rows?split=train", {}, 404),
        ("GET", "api/marks", {}, 404),
    ],
)
def test_other_requests_change_nothing(
    page: Page, method: str, place: str, headers: dict[str, str], status: int
) -> None:
    body = json.dumps({"split": "train", "row": 0, "reason": "broken"}).encode()
    sent = {"Content-Type": "application/json", **headers}
    assert page.ask(f"/{page.token}/{place}", method, body, sent).status == status
    assert page.get("api/about").json["marked"] == 0


@pytest.mark.parametrize("length", ["", "-1", "x", "99999", "5000", "٣"])
def test_a_body_of_no_or_a_wrong_length_is_refused(page: Page, length: str) -> None:
    head = "POST /{token}/api/marks HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nContent-Type: application/json\r\n"
    assert answer_to(page, f"{head}Content-Length: {length}\r\n\r\n").startswith(b"HTTP/1.1 413")


@pytest.mark.parametrize(
    "place",
    [
        "../../etc/passwd",
        "..%2f..%2fetc%2fpasswd",
        "dataset.json",
        "page.html",
        "pages.py",
        "train/000000/images.memmap",
        "/etc/passwd",
        "style.css/../pages.py",
        "%2e%2e/server.py",
        "image/",
        "api/rows/",
    ],
)
def test_no_file_is_served_by_its_name(page: Page, place: str) -> None:
    got = page.get(place)
    assert got.status == 404
    assert set(got.json) == {"error"}


@pytest.mark.parametrize(
    ("words", "code", "expected"),
    [
        (["--port", "{port}"], 2, "--port is {port}, which is taken by another program"),
        (["--port", 70000], 2, "--port is '70000'"),
        (["--seed", -1], 2, "--seed is '-1'"),
        (["--source", "none"], 2, "which is not a folder"),
        (["--augment", "Nothing()"], 2, "step Nothing does not exist"),
        (["--marks", "copy/marks.txt"], 2, "which lies in"),
        (["--marks", "four.txt"], 2, "line 1 has 4 fields"),
    ],
    ids=str,
)
def test_a_port_that_is_taken_and_wrong_options_are_one_line(
    words: list[object], code: int, expected: str, page: Page, copy: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(copy.parent)
    Path("four.txt").write_text("a\tb\tc\td\n")
    port = page.server.server_port
    told = complaint(mmload("browse", copy, "--no-open", *(str(word).format(port=port) for word in words)), code)
    assert expected.format(port=port) in told


def test_ctrl_c_ends_it_with_one_line(dataset: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(self: server.Server, poll_interval: float = 0.5) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(server.Server, "serve_forever", interrupted)
    done = mmload("browse", dataset.path, "--no-open", "--marks", tmp_path / "marks.txt")
    assert done.returncode == 130
    assert done.stderr == f"mmload: interrupted; marks that were made are in {tmp_path / 'marks.txt'}\n"
    first, second = done.stdout.splitlines()
    assert first.startswith(f"{dataset.path} is shown at http://127.0.0.1:")
    assert second == f"marks go to {tmp_path / 'marks.txt'}; Ctrl-C stops it"
