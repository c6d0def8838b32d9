"""A bucket of the S3 server on loopback for each test, and clients that wait for no one."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).parents[2] / "scripts"))

from s3_server import Running, running

__all__ = ["Bucket", "Running", "serving"]


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


def serving(root: Path) -> Iterator[Running]:
    pytest.importorskip("obstore", reason="object storage needs obstore")
    with running(root) as server:
        yield server
