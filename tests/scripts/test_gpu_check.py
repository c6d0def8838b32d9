"""Tiny runs of scripts/gpu_check on a CPU, and that it tells what is wrong."""

from __future__ import annotations

import dataclasses
import importlib
import json
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from conftest import script
from decoding import pretended
from forked_program import run_script
from interpreting import interpreted
from simulated_device import LatePort

from mmload.loader import device_batches
from mmload.runtime import nvjpeg

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def check() -> Iterator[ModuleType]:
    with script("gpu_check") as module:
        yield module


@pytest.fixture(scope="module")
def settings(check: ModuleType, tmp_path_factory: pytest.TempPathFactory) -> Any:
    work, out = tmp_path_factory.mktemp("work"), tmp_path_factory.mktemp("out")
    importlib.import_module("gpu_check_data").make(work, None, quick=True)
    return importlib.import_module("gpu_check_measure").Settings(device="cpu", quick=True, work=work, out=out)


def run(part: str, settings: Any) -> dict[str, dict[str, Any]]:
    rows = importlib.import_module(f"gpu_check_{part}").run(settings)
    assert all(row["value"] == "none" or float(row["value"]) >= 0 for row in rows)
    return {row["name"]: row for row in rows}


def test_transfer(settings: Any) -> None:
    rows = run("transfer", settings)
    assert rows["Loader on the device against Collate on a CPU"]["right"] is True
    assert rows["disk, 1 thread"]["value"] > 0
    assert 0 < rows["memory, 1 thread: share of the limit"]["value"] < 1.5
    assert rows["memory: least threads that reach 0.95"]["value"] in ("none", 1, 2, 4, 8)


def test_rows_fetched_by_a_kernel(settings: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("triton", reason="Triton comes with torch's CUDA builds for Linux")
    transfer = importlib.import_module("gpu_check_transfer")
    monkeypatch.setattr(transfer, "gpu_crop", lambda device: interpreted().crop)
    monkeypatch.setattr(transfer, "CROP", 32)
    monkeypatch.setattr(transfer, "registered", lambda mapped: "")
    split = importlib.import_module("gpu_check_data").squares(settings.work)
    rows = {row["name"]: row for row in transfer.fetched(settings, split)}
    for name in ("pinned memory", "the registered map"):
        assert rows[f"the kernel on {name} against Collate"]["right"] is True
        assert rows[f"the kernel reads {name}"]["value"] > 0
    assert rows["the copy engine, row by row from pinned memory"]["value"] > 0
    monkeypatch.setattr(transfer, "registered", lambda mapped: "error 801")
    rows = {row["name"]: row for row in transfer.fetched(settings, split)}
    assert rows["registering the files' map is refused"]["value"] == "error 801"
    assert "the kernel reads the registered map" not in rows


def test_device(settings: Any) -> None:
    rows = run("device", settings)
    assert rows["expression against Collate"]["right"] is True
    assert rows["floor: crop read, float16 written"]["value"] > 0
    assert rows["Loader, device tier: share of the floor"]["value"] > 0
    assert rows["CIFAR: Loader, device tier, times airbench's"]["value"] > 0


def test_training(settings: Any) -> None:
    rows = run("training", settings)
    assert rows["one cached batch: trained"]["value"] > 0
    assert 0 <= rows["mmload.Loader, disk, 4 threads: share of a step waited"]["value"] <= 1
    assert rows["stock DataLoader, 0 workers: headroom"]["value"] > 0


def test_decoding_on_a_pretended_device(settings: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    pretended(monkeypatch).options = {"fastupsample": True}
    monkeypatch.setattr(device_batches, "CudaPort", lambda device: LatePort())
    monkeypatch.setattr(device_batches, "decode_batch", lambda files, gray, device: nvjpeg.decode_batch(files, gray))
    rows = run("decode", dataclasses.replace(settings, device="cuda"))
    assert rows["build, decoded on the device"]["value"] > 0
    assert rows["Loader, decoded on the device"]["value"] > 0
    assert 0 < rows["cuda against CPU: mean difference"]["value"] < 2
    assert rows["files whose pixels depend on their batch"]["right"] is True
    assert rows["parity: mean difference of stored pixels"]["right"] is True


def test_gpu_check_wrong_expression_fails(settings: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    device = importlib.import_module("gpu_check_device")
    right = device.rendered
    monkeypatch.setattr(device, "rendered", lambda *words: right(*words).roll(1, -1))
    rows = {row["name"]: row for row in device.photographs(settings)}
    assert rows["expression against Collate"]["right"] is False


def test_airbenchs_batches_are_windows_of_the_images(settings: Any) -> None:
    device = importlib.import_module("gpu_check_device")
    images = torch.randint(0, 256, (40, 3, 32, 32), dtype=torch.uint8)
    torch.manual_seed(0)
    batches = list(device.Airbench(images, torch.arange(40), 16).epoch())
    assert [len(batch) for batch in batches] == [16, 16]
    mean, std = (values.view(-1, 1, 1) for values in device._cifar_constants())
    padded = F.pad((images / 255 - mean) / std, (4,) * 4, "reflect")
    windows = padded.unfold(2, 32, 1).unfold(3, 32, 1).permute(0, 2, 3, 1, 4, 5).reshape(-1, 3, 32, 32)
    for image in batches[0][:4].float():
        mirrored = min(float((windows - one).abs().amax((1, 2, 3)).min()) for one in (image, image.flip(-1)))
        assert mirrored < 0.02  # float16


@pytest.mark.parametrize("failing", [True, False])
def test_a_failing_test_is_wrong(check: ModuleType, tmp_path: Path, failing: bool) -> None:
    case = '<testcase classname="a" name="{}">{}</testcase>'
    body = case.format("right", "") + case.format("other", "<failure/>" if failing else "")
    (tmp_path / "tests.xml").write_text(f"<testsuites><testsuite>{body}</testsuite></testsuites>")
    rows = check.told(tmp_path / "tests.xml", needs_passes=True)
    assert rows[0]["value"] == 2 - failing
    assert rows[0]["right"] is not failing
    record = check.empty("tests") | {"rows": rows}
    assert check.wrong(record) is failing
    assert ("WRONG" in check.table([record])) is failing


def test_without_a_test_that_ran_nothing_is_right(check: ModuleType, tmp_path: Path) -> None:
    body = '<testcase classname="a" name="b"><skipped/></testcase>'
    (tmp_path / "tests.xml").write_text(f"<testsuites><testsuite>{body}</testsuite></testsuites>")
    assert check.told(tmp_path / "tests.xml", needs_passes=True)[0]["right"] is False
    assert check.told(tmp_path / "tests.xml", needs_passes=False)[0]["right"] is None


def test_a_part_by_itself_leaves_its_record(tmp_path: Path) -> None:
    done = run_script("gpu_check", "decode", "--device", "cpu", "--quick", "--out", tmp_path, "--budget", "2000")
    assert done.returncode == 0, done.stderr
    assert "a build's decoder" in done.stdout.splitlines()[-1]
    record = json.loads((tmp_path / "gpu-decode.json").read_text())
    assert record["format"] == "mmload gpu_check"
    assert record["failure"] == ""
    assert record["versions"]["torch"] == torch.__version__
    assert len(record["rows"]) == 3
    assert all(row["value"] > 0 for row in record["rows"])
    assert str(tmp_path) not in (tmp_path / "gpu-decode.json").read_text()


def test_gpu_check_part_beyond_its_budget_is_ended_and_reported(tmp_path: Path) -> None:
    done = run_script("gpu_check", "decode", "--device", "cpu", "--quick", "--out", tmp_path, "--budget", "0.5")
    assert done.returncode == 1
    assert "data (0 s)\n  FAILED: took longer than its 0 s" in done.stdout
    assert "decode (0 s)\n  FAILED" in done.stdout


def test_a_failing_part_does_not_keep_the_others(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    done = run_script(
        "gpu_check", "decode", "--device", "cpu", "--quick", "--photos", tmp_path / "empty", "--out", tmp_path
    )
    assert done.returncode == 1
    assert "holds no JPEGs" in done.stdout
    assert "decode (" in done.stdout


def test_photographs_can_be_given(settings: Any, tmp_path: Path) -> None:
    data = importlib.import_module("gpu_check_data")
    data.make(tmp_path, settings.work / "photos", quick=True)
    assert len(data.jpegs(tmp_path)) == 12
    assert tuple(data.squares(tmp_path).fields["images"].shape) == (3, 256, 256)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")
def test_without_a_gpu_it_says_so_in_one_line() -> None:
    done = run_script("gpu_check")
    assert done.returncode == 2
    assert len(done.stdout.splitlines()) == 1
    assert "no CUDA device" in done.stdout


def test_an_unknown_part_is_asked_wrongly() -> None:
    done = run_script("gpu_check", "speed")
    assert done.returncode == 2
    assert "there is no part speed" in done.stderr
