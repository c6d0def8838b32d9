"""The same against moto's server, as the tests' own server knows only what it was written for."""

from __future__ import annotations

import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import pytest
from conftest import contents

from mmload.remote.copies import pull, push
from mmload.remote.object_store import Objects
from mmload.store.dataset import Dataset

pytestmark = pytest.mark.slow


@pytest.fixture
def moto_url(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A bucket of a moto server in a process of its own."""
    pytest.importorskip("obstore", reason="object storage needs obstore")
    pytest.importorskip("flask_cors", reason="moto's server is not installed")
    pytest.importorskip("moto", reason="moto's server is not installed")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "moto.server", "-p", str(port), "-H", "127.0.0.1"]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    signed = {"Authorization": "AWS4-HMAC-SHA256 Credential=nobody/20260101/us-east-1/s3/aws4_request"}
    make = Request(f"http://127.0.0.1:{port}/moto-bucket", data=b"", method="PUT", headers=signed)
    try:
        _answered(make)
        for name, value in {
            "AWS_ENDPOINT_URL": f"http://127.0.0.1:{port}",
            "AWS_ALLOW_HTTP": "true",
            "AWS_ACCESS_KEY_ID": "nobody",
            "AWS_SECRET_ACCESS_KEY": "nothing",
            "AWS_REGION": "us-east-1",
        }.items():
            monkeypatch.setenv(name, value)
        yield "s3://moto-bucket"
    finally:
        process.kill()
        process.wait()


def _answered(request: Request) -> None:
    """Ask until the server is there."""
    deadline = time.monotonic() + 300
    while True:
        try:
            urlopen(request, timeout=10).close()
            return
        except HTTPError:
            raise
        except OSError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.05)


def test_a_dataset_goes_there_and_comes_back(dataset: Dataset, moto_url: str, tmp_path: Path) -> None:
    assert push(dataset.path, f"{moto_url}/a b/photos#1").present == 0
    assert push(dataset.path, f"{moto_url}/a b/photos#1").files == 0
    pull(f"{moto_url}/a b/photos#1", tmp_path / "back")
    assert contents(tmp_path / "back") == contents(dataset.path)
    objects, large = Objects(moto_url), bytes(range(256)) * 70_000  # more than a part
    objects.put("large", large)
    assert objects.get_range("large", 9_000_000, 1000) == large[9_000_000:9_001_000]
