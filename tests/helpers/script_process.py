"""Scripts in processes of their own, which are forks of a server that has imported torch: it takes seconds."""

from __future__ import annotations

import multiprocessing
import os
import runpy
import sys
import tempfile
from pathlib import Path
from subprocess import CompletedProcess
from typing import Any

SCRIPTS = Path(__file__).parents[2] / "scripts"


def run_script(name: str, *words: object, seconds: float = 300) -> CompletedProcess[str]:
    """Run a script of scripts/ as a program: how it ended and what it printed.

    Raises:
        TimeoutError: if it takes longer.
    """
    context: Any = multiprocessing.get_context("forkserver" if hasattr(os, "fork") else "spawn")
    with tempfile.TemporaryDirectory() as folder:
        outputs = Path(folder) / "out", Path(folder) / "err"
        command = [str(SCRIPTS / name), *map(str, words)]
        process = context.Process(target=_run, args=(command, *outputs))
        process.start()
        process.join(seconds)
        if process.exitcode is None:
            process.kill()
            process.join()
            raise TimeoutError(f"{name} took more than {seconds:g} s; it printed: {outputs[0].read_text()}")
        return CompletedProcess(command, process.exitcode, *(path.read_text() for path in outputs))


def _run(command: list[str], *outputs: Path) -> None:
    for stream, path in zip((1, 2), outputs, strict=True):
        handle = os.open(path, os.O_WRONLY | os.O_CREAT)
        os.dup2(handle, stream)
        os.close(handle)
    sys.argv = command
    sys.path.insert(0, str(SCRIPTS))
    runpy.run_path(command[0], run_name="__main__")
