"""Images per second of other projects' scripts, before and after the changes in examples/clients, without a model.

Such a script runs with its own arguments up to its first epoch of training. There its training loader is read to the
end a few times instead, in the same process. ``python client_scripts.py OUT ROUNDS SCRIPT ARGUMENT...``
does that to one script and writes [images, seconds, CPU seconds] of each epoch to OUT.
"""

from __future__ import annotations

import inspect
import json
import os
import resource
import subprocess
import sys
import time
import tomllib
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path, PurePosixPath
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

CLIENTS = Path(__file__).parents[2] / "examples" / "clients"
VISION = ["--device", "cpu", "--epochs", "1", "--workers", "2", "--output-dir", ""]

# Each with the names of its data before and after the change, which take the place of {}, and its arguments.
SCRIPTS: dict[str, tuple[str, str, list[str]]] = {
    "imagenet_main": ("photos", "photos-256", ["{}", "-a", "squeezenet1_1", "-b", "32", "-j", "2", "--no-accel"]),
    "torchvision_classification": (
        "photos",
        "photos-256",
        ["--data-path", "{}", "--model", "squeezenet1_1", "-b", "32", *VISION],
    ),
    "torchvision_detection": (
        "coco",
        "voc-512",
        ["--data-path", "{}", "--model", "ssdlite320_mobilenet_v3_large", "-b", "8", *VISION],
    ),
    "torchvision_segmentation": (
        "masks",
        "masks-512",
        ["--data-path", "{}", "--dataset", "voc", "--model", "lraspp_mobilenet_v3_large", "-b", "8"] + [*VISION],
    ),
    "timm_train": (
        "photos",
        "photos-256",
        ["--data-dir", "{}", "--val-split", "val", "--model", "resnet18", "--device", "cpu", "--workers", "2"]
        + ["-b", "32", "--color-jitter", "0"],
    ),
}
EPOCH_FUNCTIONS = ("train_one_epoch", "train")  # what the scripts call for an epoch of training
LOADERS = ("train_loader", "data_loader", "loader")  # and how that calls what it reads


class _Measured(Exception):
    """Ends a script after the last epoch."""


def cpu_seconds() -> float:
    """Of this process and of the processes that it started, those that still run and those that have ended."""
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    ticks = 0
    for listed in Path("/proc/self/task").glob("*/children"):
        for child in listed.read_text().split():
            fields = Path(f"/proc/{child}/stat").read_text().rpartition(")")[2].split()
            ticks += int(fields[11]) + int(fields[12])
    return sum(each.ru_utime + each.ru_stime for each in used) + ticks / os.sysconf("SC_CLK_TCK")


def one_epoch(loader: Any) -> tuple[int, float, float]:
    """(images, seconds, CPU seconds) of an epoch."""
    began, cpu, images = time.perf_counter(), cpu_seconds(), 0
    for batch in loader:
        first = next(iter(batch.values())) if isinstance(batch, dict) else batch[0]
        images += len(first)
    return images, time.perf_counter() - began, cpu_seconds() - cpu


def epochs_of(script: Path, words: list[str], rounds: int) -> list[tuple[int, float, float]]:
    """Runs a script up to its first epoch; that of its loader ``rounds`` times, after one that warms up."""
    sys.path.insert(0, str(script.parent))
    sys.argv = [str(script), *words]
    spec = spec_from_file_location("script", script)
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules["script"] = module_from_spec(spec)
    spec.loader.exec_module(module)
    name = next(name for name in EPOCH_FUNCTIONS if hasattr(module, name))
    parameters = inspect.signature(getattr(module, name))
    measured = []

    def read(*given: Any, **named: Any) -> None:
        arguments = parameters.bind(*given, **named).arguments
        loader = next(arguments[each] for each in LOADERS if each in arguments)
        measured.extend([one_epoch(loader) for _ in range(rounds + 1)][1:])
        raise _Measured

    setattr(module, name, read)
    try:
        module.main(*([module.get_args_parser().parse_args()] if hasattr(module, "get_args_parser") else []))
    except _Measured:
        return measured
    raise RuntimeError(f"{script} ended without an epoch of training")


def take(upstream: dict[str, str], clones: Path, folder: Path) -> Path:
    """A script as it is at its commit, with the modules beside it, in ``folder``."""
    clone = clones / upstream["repository"].rpartition("/")[2]
    path = PurePosixPath(upstream["path"])
    wanted = f":(glob){path.parent}/*.py" if path.parent.parts else ":(glob)*.py"
    git = ["git", "-C", clone, "archive", upstream["commit"], wanted]
    try:
        archive = subprocess.run(git, check=True, capture_output=True).stdout
    except (OSError, subprocess.CalledProcessError) as error:
        raise FileNotFoundError(f"no clone of {upstream['repository']} with its commit in {clone}") from error
    subprocess.run(["tar", "-x", "-C", folder], input=archive, check=True)
    return folder / path


def rates_of(name: str, clones: Path, data: dict[str, Path], rounds: int) -> dict[str, float]:
    """Images per second of a script before and after its change, by the clock and by CPU time: medians of the rounds.

    Raises:
        FileNotFoundError: if there is no clone of its project that has the commit, or no data of these names.
    """
    change = CLIENTS / f"{name}.toml"
    upstream = tomllib.loads(change.read_text(encoding="utf-8"))["upstream"]
    *names, words = SCRIPTS[name]
    found = {}
    with TemporaryDirectory() as folder:
        script, out = take(upstream, clones, Path(folder)), Path(folder, "epochs.json")
        changed = script.with_name("changed.py")
        lines = subprocess.run([sys.executable, CLIENTS / "change.py", change, script], check=True, capture_output=True)
        changed.write_bytes(lines.stdout)
        for which, path, source in zip(("before", "after"), (script, changed), names, strict=True):
            if not data[source].is_dir():
                raise FileNotFoundError(f"no folder {data[source]}")
            given = [str(data[source].resolve()) if word == "{}" else word for word in words]
            command = [sys.executable, __file__, out, str(rounds), path, *given]
            done = subprocess.run(command, cwd=folder, capture_output=True, text=True)
            if done.returncode:
                raise RuntimeError(f"{name}, {which}: {done.stderr}")
            epochs = json.loads(out.read_text(encoding="utf-8"))
            found[which] = round(median(images / seconds for images, seconds, _ in epochs))
            found[f"{which}, of CPU time"] = round(median(images / cpu for images, _, cpu in epochs))
    return found


if __name__ == "__main__":
    out, rounds, script, *words = sys.argv[1:]
    Path(out).write_text(json.dumps(epochs_of(Path(script), words, int(rounds))), encoding="utf-8")
