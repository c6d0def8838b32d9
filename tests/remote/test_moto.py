"""The same against moto's server, as the tests' own server knows only what it was written for."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from urllib.request import Request, urlopen

import pytest
from conftest import contents
from s3_server import Running

from mmload.remote.copies import pull, push
from mmload.remote.object_store import Objects
from mmload.store.dataset import Dataset

pytestmark = pytest.mark.slow


@pytest.fixture
def moto_url(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A bucket of a moto server."""
    pytest.importorskip("obstore", reason="object storage needs obstore")
    pytest.importorskip("flask_cors", reason="moto's server is not installed")
    moto = pytest.importorskip("moto.server", reason="moto's server is not installed")
    server = moto.ThreadedMotoServer("127.0.0.1", port=0, verbose=False)
    server.start()
    _, port = server.get_host_and_port()
    for name, value in Running(port, Path()).environment.items():
        monkeypatch.setenv(name, value)
    signed = {"Authorization": "AWS4-HMAC-SHA256 Credential=nobody/20260101/us-east-1/s3/aws4_request"}
    url = f"http://127.0.0.1:{port}/moto-bucket"
    urlopen(Request(url, data=b"", method="PUT", headers=signed), timeout=300).close()
    yield "s3://moto-bucket"
    server.stop()


def test_a_dataset_goes_there_and_comes_back(dataset: Dataset, moto_url: str, tmp_path: Path) -> None:
    assert push(dataset.path, f"{moto_url}/a b/photos#1").present == 0
    assert push(dataset.path, f"{moto_url}/a b/photos#1").files == 0
    pull(f"{moto_url}/a b/photos#1", tmp_path / "back")
    assert contents(tmp_path / "back") == contents(dataset.path)
    objects, large = Objects(moto_url), bytes(range(256)) * 70_000  # more than a part
    objects.put("large", large)
    assert objects.get_range("large", 9_000_000, 1000) == large[9_000_000:9_001_000]
