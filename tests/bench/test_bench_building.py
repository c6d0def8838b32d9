"""A tiny run of the building bench, so that it cannot rot."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest
from ray_cluster import ray_cluster

from mmload.bench import building
from mmload.bench.building import linked, measure_builds
from mmload.errors import SourceError, UsageError

pytestmark = pytest.mark.slow


def test_every_way_builds_and_the_table_shows_it(folder: Path) -> None:
    said: list[str] = []
    record = measure_builds(folder, size=32, images=20, rounds=2, threads=2, progress=said.append)
    body = record.as_json()
    assert body["settings"]["images"] == 20
    assert body["machine"]["cores"] >= 1
    assert [result["name"] for result in body["results"]] == [
        "bare decode + resize, 1 thread x 2",
        "bare decode + resize, 2 threads",
        "tensordict tutorial, 2 workers",
        "FFCV DatasetWriter, 2 workers",
        "mmload build",
    ]
    for result in body["results"]:
        if "missing" in result:
            assert "ffcv is not installed" in result["missing"]
            continue
        assert len(result["rounds"]) == 2
        assert min(result["rounds"]) > 0
    lines = record.table().splitlines()
    assert len(lines) == 6
    assert all(len(line) <= 80 for line in lines)
    assert lines[-1].endswith("1.00x")
    assert any(line.startswith("mmload build: warm-up") for line in said)


@pytest.mark.filterwarnings("ignore::DeprecationWarning:ray.data.context")  # of its own attributes
def test_builds_on_ray_are_measured_on_the_cluster_that_is_there(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ray = pytest.importorskip("ray", reason="ray is not installed")
    with ray_cluster(1) as cluster:
        ray.init(address=cluster.address, log_to_driver=False, logging_level="ERROR")
        try:
            record = measure_builds(folder, size=32, images=20, rounds=1, threads=1, on_ray=True)
            assert ray.is_initialized()
        finally:
            ray.shutdown()
    measured = [(way.name, len(way.rates)) for way in record.ways[-3:]]
    names = ("Ray Data read_images, 1 CPU", "mmload build, 8 shards", "mmload build --engine ray, 8 shards")
    assert measured == [(name, 1) for name in names]
    assert all(len(line) <= 80 for line in record.table().splitlines())
    monkeypatch.setattr(building, "not_installed", lambda name, advice: f"{name} is not installed: {advice}")
    with pytest.raises(UsageError, match=r"--ray: ray is not installed: pip install 'ray\[data\]'"):
        measure_builds(folder, images=3, on_ray=True)


def test_images_are_repeated_or_thinned_out_evenly(folder: Path, tmp_path: Path) -> None:
    more = sorted(linked(folder, 40, tmp_path / "more").rglob("*.png"))
    assert len(more) == 40
    few = {path.resolve() for path in linked(folder, 6, tmp_path / "few").rglob("*.png")}
    assert len(few) == 6
    assert {path.parent.name for path in few} == {"ant", "bee", "cat"}


def test_what_cannot_be_measured(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(SourceError, match="no photographs below"):
        measure_builds(tmp_path, images=3)
    for name in ("size", "images", "rounds", "threads"):
        with pytest.raises(UsageError, match=f"{name} is 0"):
            measure_builds(folder, **{name: 0})  # type: ignore[arg-type]  # each is an integer


@pytest.mark.skipif(sys.platform == "win32", reason="there are no FIFOs")
def test_a_fifo_or_a_link_to_nothing_is_named_and_a_folder_is_no_photograph(folder: Path, tmp_path: Path) -> None:
    photos = tmp_path / "photos"
    (photos / "album.jpg").mkdir(parents=True)
    (photos / "album.jpg" / "a.png").symlink_to(folder / "ant" / "00.png")
    assert [path.name for path in linked(photos, 1, tmp_path / "fine").rglob("*.*") if path.is_file()] == [
        "000000000.png"
    ]
    os.mkfifo(photos / "b.jpg")
    with pytest.raises(SourceError, match=r"cannot read .*b\.jpg .it is a FIFO, not a regular file"):
        linked(photos, 2, tmp_path / "fifo")
    (photos / "b.jpg").unlink()
    (photos / "b.jpg").symlink_to("gone.jpg")
    with pytest.raises(SourceError, match=r"cannot read .*b\.jpg .No such file"):
        linked(photos, 2, tmp_path / "gone")
