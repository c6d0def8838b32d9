"""Loader(subprocess=True): what ends the subprocess or its loader, and what that leaves."""

from __future__ import annotations

import gc
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import crop_collate
from forked_program import Program

from mmload.batch import Batch
from mmload.errors import UsageError
from mmload.loader import Loader
from mmload.loader.subprocess_pool import SubprocessPool
from mmload.runtime import processes
from mmload.store.dataset import Dataset

pytestmark = pytest.mark.skipif(not hasattr(os, "memfd_create"), reason="this system has no memory files")


def process_of(loader: Loader) -> Any:
    assert isinstance(loader._pool, SubprocessPool)
    return loader._pool._process


def test_a_killed_subprocess_is_reported_and_replaced(dataset: Dataset) -> None:
    with Loader(dataset["train"], batch_size=1, subprocess=True) as loader:
        iterator = iter(loader)
        next(iterator)
        process_of(loader).kill()
        with pytest.raises(RuntimeError, match="the loader's subprocess died .signal SIGKILL"):
            list(iterator)
        with pytest.raises(UsageError, match="begin another"):
            next(iterator)
        assert loader.stats()["hits"] == 0
        assert len(list(loader)) == len(loader)


def test_closing_or_collecting_the_loader_ends_the_subprocess(dataset: Dataset) -> None:
    loader = Loader(dataset["train"], batch_size=4, subprocess=True, collate=crop_collate())
    iterator = iter(loader)
    batch = next(iterator)
    process = process_of(loader)
    loader.close()
    assert not process.is_alive()
    with pytest.raises(UsageError, match="was closed"):
        list(iterator)
    assert len(list(loader)) == len(loader)
    process = process_of(loader)
    del loader, iterator
    gc.collect()
    process.join(20)
    assert not process.is_alive()
    assert batch.images.isfinite().all()


def test_statistics_come_from_the_subprocess(dataset: Dataset) -> None:
    with Loader(dataset["train"], subprocess=True, collate=crop_collate()) as loader:
        assert loader.stats()["render_s"] == 0
        list(loader)
        stats = loader.stats()
        assert stats["render_s"] > 0
        assert stats["hits"] + stats["misses"] == len(dataset["train"])


def test_a_fork_leaves_the_memory_of_its_parent_alone(dataset: Dataset) -> None:
    with Loader(dataset["train"], batch_size=2, collate=crop_collate(), subprocess=True) as loader:
        iterator = iter(loader)
        batch = next(iterator)
        before = batch.images.clone()
        child = os.fork()
        if child == 0:
            code = 1
            try:
                del batch
                gc.collect()
                try:
                    next(iterator)
                except UsageError:
                    code = 0
            finally:
                os._exit(code)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        for _ in range(3):
            list(loader)
        assert torch.equal(batch.images, before)


PROGRAM = """
import sys, mmload
from mmload.augment import RandomCrop
split = mmload.open(sys.argv[1])["train"]
loader = mmload.Loader(split, batch_size=4, collate=mmload.Collate(RandomCrop(8)), subprocess=True)
print("begun", flush=True)
for batch in loader:
    print(len(batch.ids), flush=True)
    WAIT
"""


def test_a_script_without_a_main_guard_runs_once(dataset: Dataset, tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(PROGRAM.replace("WAIT", "pass"))
    run = subprocess.run([sys.executable, script, dataset.path], capture_output=True, text=True, timeout=300)
    assert run.stdout.split()[0] == "begun"
    assert run.stdout.count("begun") == 1
    assert sum(map(int, run.stdout.split()[1:])) == len(dataset["train"])
    assert run.stderr == ""


def test_a_script_that_ends_in_the_middle_of_an_epoch_reports_nothing(dataset: Dataset, tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(PROGRAM.replace("WAIT", "break") + "batches = iter(loader)\nnext(batches)\n")
    run = subprocess.run([sys.executable, script, dataset.path], capture_output=True, text=True, timeout=300)
    assert (run.returncode, run.stderr) == (0, "")


def test_the_subprocess_ends_with_a_killed_training_process(dataset: Dataset, tmp_path: Path) -> None:
    process = "print('process', loader._pool._process.pid, flush=True)\n    import time; time.sleep(600)"
    training = Program(PROGRAM.replace("WAIT", process), [dataset.path])
    training.wait_for("process")
    number = next(int(line.split()[1]) for line in training.printed.splitlines() if line.startswith("process"))
    training.send_signal(signal.SIGKILL)
    training.ended()
    deadline = time.monotonic() + 60
    while Path(f"/proc/{number}/stat").exists() and time.monotonic() < deadline:
        if Path(f"/proc/{number}/stat").read_text().split()[2] == "Z":
            break
        time.sleep(0.05)
    else:
        assert not Path(f"/proc/{number}/stat").exists()


def test_a_killed_subprocess_is_reported_where_nobody_waits_for_children(
    dataset: Dataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(processes, "START_METHOD", "spawn")
    before = signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    try:
        with Loader(dataset["train"], batch_size=1, subprocess=True) as loader:
            iterator = iter(loader)
            next(iterator)
            process_of(loader).kill()
            got = []
            thread = threading.Thread(target=lambda: got.append(raised(iterator)), daemon=True)
            thread.start()
            thread.join(30)
            assert "the loader's subprocess died" in str(got)
    finally:
        signal.signal(signal.SIGCHLD, before)


def raised(iterator: Any) -> str:
    with pytest.raises(RuntimeError) as error:
        list(iterator)
    return str(error.value)


class LongError:
    """A collate that cannot be read in another process, and says so at length."""

    def __call__(self, batch: Batch) -> Batch:
        return batch

    def __reduce__(self) -> tuple[Any, ...]:
        return _refused, (2**20,)


def _refused(length: int) -> None:
    raise ValueError("x" * length)


def test_a_long_error_at_the_start_is_raised(dataset: Dataset) -> None:
    with Loader(dataset["train"], subprocess=True, collate=LongError()) as loader, pytest.raises(ValueError, match="x"):
        next(iter(loader))
