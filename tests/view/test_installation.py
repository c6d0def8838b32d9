"""What ``mmload doctor`` finds, and what it warns of."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from conftest import mmload, ran

import mmload as package
from mmload.store.dataset import Dataset
from mmload.view.installation import installation_facts, installation_warnings


def healthy(**changes: Any) -> dict[str, Any]:
    """Facts of which nothing is to be said; ``changes`` are ``part__key``."""
    facts: dict[str, Any] = {
        "processor": {"cores": 8, "quota": None, "threads": 8, "threads_reason": "8 cores available"},
        "machine_code": {"level": "x86-64-v3", "cache": "/cache"},
        "packages": {"numba": None},
        "turbojpeg": True,
        "memory": {"free_bytes": 2**34, "limit_bytes": None},
        "dataset": {
            "path": "photos",
            "bytes": 2**30,
            "file_system": "ext4",
            "needs_reads": False,
            "can_populate": True,
        },
    }
    for name, value in changes.items():
        part, key = name.split("__")
        facts[part][key] = value
    return facts


def test_a_healthy_installation_has_no_warnings() -> None:
    assert installation_warnings(healthy()) == []
    assert installation_warnings(healthy() | {"dataset": None}) == []


def test_a_missing_library_of_turbojpeg_is_named_with_what_to_install() -> None:
    [line] = installation_warnings(healthy() | {"turbojpeg": False})
    assert "mmload[jpeg]" in line


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"machine_code__cache": None}, "no cache folder is writable; set NUMBA_CACHE_DIR"),
        ({"machine_code__level": None}, "on a machine, which needs pip install 'mmload[compile]'"),
        ({"processor__quota": 1.5}, "limits this process to 1.5 of 8 cores"),
        (
            {"processor__threads": 1, "processor__threads_reason": "8 cores for 8 ranks here"},
            "a rank has 1 core (8 cores",
        ),
        ({"memory__limit_bytes": 2**31}, "a cgroup leaves 2.0 GiB of memory"),
        (
            {"dataset__needs_reads": True, "dataset__file_system": "nfs4"},
            "photos is on a network or FUSE file system (nfs4)",
        ),
        ({"dataset__can_populate": False}, "cannot fault in mapped rows"),
        ({"dataset__bytes": 2**35}, "photos has 32.0 GiB, more than the 16.0 GiB of memory that are free"),
    ],
)
def test_what_slows_down_is_one_warning(changes: dict[str, Any], text: str) -> None:
    [line] = installation_warnings(healthy(**changes))
    assert text in line


def test_facts_are_those_of_this_installation(dataset: Dataset) -> None:
    path = next(iter(dataset.values())).folder.path
    facts = json.loads(json.dumps(installation_facts(path)))
    assert facts["mmload"] == package.__version__
    assert facts["packages"]["torch"]
    assert facts["processor"]["available_cores"] >= 1
    assert facts["dataset"]["rows"] == sum(map(len, dataset.values()))
    assert facts["dataset"]["bytes"] >= facts["dataset"]["rows"]
    assert facts["dataset"]["file_system"] != "unknown"


def test_doctor_counts_the_rows_of_a_subset_once(copy: Path) -> None:
    rows = package.open(copy)["train"]
    package.save_subset(copy, "few", [0, 1])
    assert installation_facts(copy)["dataset"]["rows"] == len(rows)


def test_doctor_shows_facts_as_lines_or_json(tmp_path: Path) -> None:
    done = ran("doctor")
    assert done.stdout.startswith(f"mmload {package.__version__}, Python ")
    assert "machine code" in done.stdout
    body = json.loads(mmload("doctor", "--json").stdout)
    assert body["dataset"] is None
    assert isinstance(body["warnings"], list)
    assert mmload("doctor", tmp_path).returncode == 1
