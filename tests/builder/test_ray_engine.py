"""Builds on a Ray cluster: the bytes of a local build, whatever dies; and what a node lacks is said."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from conftest import contents, make_folder, mmload
from meanwhile import interrupt_after
from PIL import Image
from ray_cluster import add_node, builders, ray_cluster
from waiting import until

from mmload.builder import ray_engine
from mmload.builder.pipeline import build, update
from mmload.builder.ray_engine import RayEngine
from mmload.builder.recipe import BuildRecipe, square
from mmload.builder.shard_job import ShardJob
from mmload.builder.shards import ShardPlan
from mmload.errors import BuildError, SampleError, UsageError
from mmload.store.manifest import loads

slow = pytest.mark.slow


def recipe(source: Path, out: Path) -> BuildRecipe:
    size = 4 * (3 * 16 * 16 + 8)
    return BuildRecipe(kind="imagefolder", root=source, out=out, transforms=square(16), shard_bytes=size)


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """160 links to 8 photographs that take some 20 ms each."""
    folder = tmp_path_factory.mktemp("ray") / "photos" / "ant"
    folder.mkdir(parents=True)
    for number in range(160):
        file = folder / f"{number:03d}.jpg"
        if number < 8:
            Image.effect_noise((1400, 1100), 20 + number).convert("RGB").save(file)
        else:
            os.link(folder / f"{number % 8:03d}.jpg", file)
    return folder.parent


@pytest.fixture(scope="module")
def whole(photos: Path) -> Path:
    return build(recipe(photos, photos.parent / "whole")).out


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    """Two nodes, and this process connected: so the workers are those of all tests."""
    ray = pytest.importorskip("ray", reason="ray is not installed")
    with ray_cluster(1, 1) as started:
        ray.init(address=started.address, log_to_driver=False, logging_level="ERROR")
        try:
            yield started
        finally:
            ray.shutdown()


@slow
def test_a_node_is_killed_and_the_bytes_are_those_of_a_local_build(
    cluster: Any, photos: Path, whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    third, seen, again, stopped = add_node(cluster, 1), [], [], []
    begin_again = ray_engine._Tasks._begin_again

    def stop_one() -> bool:
        for builder in builders(third):
            os.kill(builder, signal.SIGSTOP)  # so that it does not finish before its node is killed
            if builder in builders(third):
                stopped.append(builder)
                return True
            os.kill(builder, signal.SIGCONT)
        return False

    def kill(done: int, total: int) -> None:
        if not seen:
            until(stop_one)
            cluster.remove_node(third, allow_graceful=False)
            for builder in stopped:  # a stopped process may outlive its node, which no process of a dead machine does
                with suppress(ProcessLookupError):
                    os.kill(builder, signal.SIGKILL)
        seen.append(done)

    def note(tasks: Any, plan: ShardPlan, cause: str) -> None:
        again.append(cause)
        begin_again(tasks, plan, cause)

    monkeypatch.setattr(ray_engine._Tasks, "_begin_again", note)
    try:
        report = build(recipe(photos, tmp_path / "out"), engine=RayEngine(), progress=kill)
    finally:
        if not seen:
            cluster.remove_node(third)
    assert again, "nothing ran on the node that was killed"
    assert (report.built, seen[-1]) == (160, 160)
    assert seen == sorted(seen)
    assert contents(tmp_path / "out") == contents(whole)
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


@slow
def test_an_interrupted_build_goes_on_without_ray(cluster: Any, photos: Path, whole: Path, tmp_path: Path) -> None:
    job = recipe(photos, tmp_path / "out")
    with pytest.raises(KeyboardInterrupt):
        build(job, engine=RayEngine(), progress=interrupt_after(54))
    assert 0 < build(job).built < 160
    assert contents(tmp_path / "out") == contents(whole)
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


@slow
def test_an_update_on_a_cluster_gives_the_version_of_a_local_one(cluster: Any, photos: Path, tmp_path: Path) -> None:
    source = Path(shutil.copytree(photos, tmp_path / "photos"))
    jobs = [recipe(source, tmp_path / name) for name in ("there", "here")]
    for job in jobs:
        build(job)
    for number in range(20):
        shutil.copy(source / "ant" / f"{number:03d}.jpg", source / "ant" / f"x{number:03d}.jpg")
    (source / "ant" / "011.jpg").unlink()
    reports = [update(job, engine=engine) for job, engine in zip(jobs, (RayEngine(), None), strict=True)]
    assert [(report.added, report.removed, report.built) for report in reports] == [(20, 1, 20)] * 2
    there, here = (contents(tmp_path / name) for name in ("there", "here"))
    manifests = [there.pop("dataset.json"), here.pop("dataset.json")]
    assert there == here
    assert [loads(text.decode(), "x").contents for text in manifests] == [reports[0].manifest.contents] * 2


@slow
def test_errors_and_skips_are_those_of_a_local_build(cluster: Any, tmp_path: Path) -> None:
    source = make_folder(tmp_path / "photos", per_class=6)
    sorted(source.rglob("*.*"))[7].write_bytes(b"no image")
    job = recipe(source, tmp_path / "out")
    with pytest.raises(SampleError, match="add --on-error skip"):
        build(job, engine=RayEngine())
    assert build(job, engine=RayEngine(), on_error="skip").skipped == 1
    build(replace(job, out=tmp_path / "whole"), on_error="skip")
    assert contents(tmp_path / "out") == contents(tmp_path / "whole")
    with pytest.raises(BuildError, match="more than --max-errors 0 allows"):
        build(replace(job, out=tmp_path / "none"), engine=RayEngine(), on_error="skip", max_errors=0)


@slow
def test_a_node_that_lacks_something_is_named_before_anything_is_built(
    cluster: Any, photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job, folders = recipe(photos, tmp_path / "out"), ShardJob.folders
    made_by = ray_engine.made_by()
    checksum = ray_engine.samples_checksum
    faults: list[tuple[Any, str, Any, str]] = [
        (ray_engine, "made_by", lambda: made_by | {"torch": "9.9"}, r"has torch .*, the machine .* has torch 9\.9"),
        (ray_engine, "made_by", lambda: made_by | {"no-package": "1"}, "has no-package none, the machine"),
        (ShardJob, "folders", lambda self: (Path("/not/there"), *folders(self)), "does not see /not/there; mount"),
        (
            ray_engine,
            "samples_checksum",
            lambda *words: checksum(*words) + 1,
            "cannot read the first samples of train, or",
        ),
    ]
    for place, name, value, message in faults:
        with monkeypatch.context() as patch:
            patch.setattr(place, name, value)
            with pytest.raises(BuildError, match=rf"Ray node \S+ {message}"):
                build(job, engine=RayEngine())
    with pytest.raises(BuildError, match="no node of the Ray cluster has 64 CPUs for a task"):
        build(job, engine=RayEngine(threads=64))
    assert not list((tmp_path / ".out.building" / "dataset").iterdir())


@slow
def test_the_command_builds_and_its_death_leaves_a_build_that_goes_on(
    cluster: Any, photos: Path, whole: Path, tmp_path: Path
) -> None:
    words = ["build", "imagefolder", str(photos), str(tmp_path / "out"), "--size", "16", "--shard-size", "3104"]
    on_ray = [*words, "--engine", "ray", "--address", cluster.address]
    driver = subprocess.Popen([sys.executable, "-m", "mmload", *on_ray], stderr=subprocess.DEVNULL)
    sealed = tmp_path / ".out.building" / "notes" / "train"
    until(lambda: list(sealed.glob("*.json")))
    driver.send_signal(signal.SIGKILL)
    driver.wait()
    done = mmload(*on_ray)
    assert (done.returncode, done.stderr.splitlines()[0]) == (
        0,
        f"mmload: builds on the Ray cluster at {cluster.address}",
    )
    assert "from an earlier run" in done.stdout
    assert contents(tmp_path / "out") == contents(whole)


@pytest.mark.parametrize("more", [["--processes", 2], ["--threads", 0], ["--address", "ray://a:1"]])
def test_ray_engine_options_that_it_cannot_take_are_refused(more: list[object], photos: Path, tmp_path: Path) -> None:
    pytest.importorskip("ray", reason="ray is not installed")
    assert mmload("build", "imagefolder", photos, tmp_path / "out", "--engine", "ray", *more).returncode == 2
    assert not list(tmp_path.iterdir())


def test_options_of_a_ray_engine_are_given_to_it_and_it_needs_ray(
    photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("ray", reason="ray is not installed")
    with pytest.raises(UsageError, match="give them to the engine"):
        build(recipe(photos, tmp_path / "out"), engine=RayEngine(), threads=2)
    assert mmload("build", "imagefolder", photos, tmp_path / "out", "--engine", "dask").returncode == 2
    monkeypatch.setattr(ray_engine, "find_spec", lambda name: None)
    done = mmload("build", "imagefolder", photos, tmp_path / "out", "--engine", "ray")
    assert done.stderr == f"mmload: {ray_engine.EXTRA}\n"
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("words", "environment", "used", "said"),
    [
        ([], None, "local", "builds on a Ray cluster of this machine's cores, which ends with the build; "),
        ([], "head:6379", "head:6379", "builds on the Ray cluster at head:6379, from RAY_ADDRESS"),
        (["--address", "auto"], None, "auto", "builds on the Ray cluster at auto"),
        (["--address", "other:1"], "head:6379", "other:1", "builds on the Ray cluster at other:1"),
    ],
)
def test_the_cluster_is_the_one_that_is_named_else_a_new_one(
    words: list[str],
    environment: str | None,
    used: str,
    said: str,
    photos: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ray = pytest.importorskip("ray", reason="ray is not installed")
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    if environment is not None:
        monkeypatch.setenv("RAY_ADDRESS", environment)
    asked = []

    def init(address: str | None = None, **options: Any) -> None:
        asked.append(address)
        raise ConnectionError("as far as this test goes")

    monkeypatch.setattr(ray, "init", init)
    monkeypatch.setattr(ray, "is_initialized", lambda: False)
    monkeypatch.setattr(socket, "create_connection", lambda *_, **__: socket.socket())
    done = mmload("build", "imagefolder", photos, tmp_path / "out", "--size", 16, "--engine", "ray", *words)
    assert done.returncode == 1
    assert asked == [used]
    assert done.stderr.startswith(f"mmload: {said}")
    assert done.stderr.count("\n") == 3


def test_an_address_where_nothing_listens_is_an_error_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    ray = pytest.importorskip("ray", reason="ray is not installed")
    monkeypatch.setattr(ray, "is_initialized", lambda: False)  # though the cluster of other tests may be connected
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
        with pytest.raises(BuildError, match=f"no Ray cluster answers at {address}"), ray_engine.connected(address):
            pass


def test_a_shard_that_is_begun_again_counts_once_and_not_for_ever() -> None:
    reports: list[tuple[int, int]] = []
    plan = ShardPlan(split="train", index=3, start=0, stop=10)
    tasks = ray_engine._Tasks(None, None, [plan], lambda *counts: reports.append(counts), 1)  # type: ignore[arg-type]
    for _ in range(4):
        tasks._begin_again(tasks.waiting.pop(), "NodeDiedError")
        assert tasks.waiting == [plan]
    with pytest.raises(BuildError, match=r"shard 3 of train was begun 5 times, .* \(NodeDiedError\)"):
        tasks._begin_again(plan, "NodeDiedError")
    assert reports == []
