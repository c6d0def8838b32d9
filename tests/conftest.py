"""What several test modules share: tiny sources, a built dataset, commands run here, the real photographs."""

from __future__ import annotations

import contextlib
import importlib.util
import io
import math
import multiprocessing
import os
import shutil
import signal
import sys
from collections import Counter
from collections.abc import Iterator
from datetime import timedelta
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from bounds import BOUNDS_CHECK, check_bounds
from building import make_pictures, recipe
from cached_datasets import CHUNK_BYTES, NotedFolder, end_all
from devkit import Devkit
from forked_program import path_of
from hypothesis import settings
from parity_stores import boxed_split, make_photos
from PIL import Image
from s3_server import Bucket, Running, running
from threads import one_thread
from updating import make_old

from mmload.augment import Normalize, RandomCrop, RandomHorizontalFlip
from mmload.augment.collate import Collate
from mmload.builder.pipeline import build
from mmload.builder.recipe import BuildRecipe, square
from mmload.cli.app import main
from mmload.remote import cached_dataset, chunks, object_store
from mmload.remote.opening import open as open_dataset
from mmload.runtime import files, processes
from mmload.sources.files import SampleFiles
from mmload.store.dataset import Dataset, Split

# The same examples in each run; `scripts/test --hypothesis-profile explore` draws others.
settings.register_profile("repeat", deadline=None, derandomize=True)
settings.register_profile("explore", deadline=None)
settings.load_profile("repeat")

AT_ONCE = {"init_backoff": timedelta(seconds=0.001), "max_backoff": timedelta(seconds=0.002), "base": 2}
"""Waits between requests that fail."""

if BOUNDS_CHECK:
    check_bounds()

os.environ["MMLOAD_QUIET"] = "1"  # a busy machine would add lines to what tests compare
torch.utils.data._utils.MP_STATUS_CHECK_INTERVAL = 0.1  # for each worker after an error, not 5 s

LONGEST = (
    "test_bench_cli.py",
    "test_variable_bench.py",
    "test_kernels.py",
    "test_terminal.py",
    "test_engines.py",
    "test_cli.py",
    "test_bench_measure.py",
    "test_bench_contenders.py",
    "test_bench.py",
    "test_integrations.py",
    "test_interrupt.py",
)
"""Modules with tests or fixtures of many seconds."""


def pytest_addoption(parser: pytest.Parser) -> None:
    """One option: it writes what tests/net compares."""
    parser.addoption("--freeze", action="store_true", help="write the digests of tests/net instead of comparing them")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The longest first: one that starts last would leave cores idle at the end of a parallel run."""
    items.sort(key=lambda item: item.path.name not in LONGEST)


def make_folder(
    root: Path, per_class: int = 6, classes: tuple[str, ...] = ("ant", "bee", "cat"), seed: int = 0
) -> Path:
    """An ImageFolder of noisy PNGs of several sizes."""
    rng = np.random.default_rng(seed)
    for name in classes:
        (root / name).mkdir(parents=True)
        for number in range(per_class):
            height, width = rng.integers(40, 70, 2)
            pixels = rng.integers(0, 256, (height, width, 3), dtype=np.uint8)
            Image.fromarray(pixels).save(root / name / f"{number:02d}.png")
    return root


def build_splits(root: Path, side: int = 40, per_class: tuple[int, int] = (2, 2), **more: Any) -> Path:
    """An ImageFolder ``root/photos`` with train and val, and ``root/built``, which is built from it."""
    for seed, (split, count) in enumerate(zip(("train", "val"), per_class, strict=True)):
        make_folder(root / "photos" / split, per_class=count, seed=seed, **more)
    return build(BuildRecipe(kind="imagefolder", root=root / "photos", out=root / "built", transforms=square(side))).out


@pytest.fixture(autouse=True)
def _interrupts() -> Iterator[None]:
    """Ctrl-C as tests and their programs expect it: a job in the background of a shell inherits that it is ignored."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An ImageFolder of 18 PNGs in 3 classes. Read-only: shared by the session."""
    return make_folder(tmp_path_factory.mktemp("source") / "photos")


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """An ImageFolder of 15 JPEGs and PNGs in 3 classes, all old, to be changed or damaged."""
    root = make_pictures(tmp_path / "photos")
    make_old(root)
    return root


@pytest.fixture
def squares(source: Path, tmp_path: Path) -> BuildRecipe:
    """The recipe of ``source``, built in shards of 4 rows, to be changed or damaged."""
    made: BuildRecipe = recipe(source, tmp_path / "out")
    build(made)
    return made


@pytest.fixture
def out(squares: BuildRecipe) -> Path:
    """Folder of ``squares``."""
    return squares.out


@pytest.fixture(scope="session")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An ImageFolder of 20 images with edges, color and grain in 4 classes. Read-only: shared by the session."""
    return make_photos(tmp_path_factory.mktemp("parity") / "photos")


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """Counts how often each file of a source is read."""
    read, counts = SampleFiles.read, Counter[str]()

    def counted(files: SampleFiles, name: str, *more: Any) -> bytes:
        counts[name] += 1
        return read(files, name, *more)

    monkeypatch.setattr(SampleFiles, "read", counted)
    return counts


@pytest.fixture
def devkit(tmp_path: Path) -> Devkit:
    """An empty devkit of 2007."""
    return Devkit(tmp_path / "devkit")


@pytest.fixture(scope="session")
def dataset(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    """``folder`` built at 32 x 32, in shards of 5 rows. Read-only: shared by the session."""
    out = tmp_path_factory.mktemp("built") / "photos-32"
    shard_bytes = 5 * (3 * 32 * 32 + 8)
    build(
        BuildRecipe(kind="imagefolder", root=folder, out=out, transforms=square(32), shard_bytes=shard_bytes), threads=2
    )
    return open_dataset(out)


@pytest.fixture
def rows(dataset: Dataset) -> Split:
    """The split of ``dataset``."""
    return dataset["train"]


@pytest.fixture(scope="session")
def boxed(tmp_path_factory: pytest.TempPathFactory) -> Split:
    """Ten rows of 40 x 48 with boxes and masks. Read-only: shared by the session."""
    return boxed_split(tmp_path_factory.mktemp("boxed"))


@pytest.fixture
def copy(dataset: Dataset, tmp_path: Path) -> Path:
    """A copy of ``dataset``, to be damaged."""
    return Path(shutil.copytree(dataset.path, tmp_path / "copy"))


@pytest.fixture
def images(dataset: Dataset) -> torch.Tensor:
    """All stored pixels of ``dataset``, read by numpy from the files themselves."""
    files = sorted((dataset.path / "train").glob("*/images.memmap"))
    return torch.from_numpy(
        np.concatenate([np.fromfile(file, dtype=np.uint8) for file in files]).reshape(-1, 3, 32, 32)
    )


@pytest.fixture(scope="session")
def s3_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """An S3 server in a process of its own, on loopback."""
    pytest.importorskip("obstore", reason="object storage needs obstore")
    with running(tmp_path_factory.mktemp("buckets")) as server:
        yield server


@pytest.fixture
def bucket(s3_server: Running, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Bucket:
    """An empty bucket of it, and the environment in which clients find it and try again at once."""
    for name, value in s3_server.environment.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(object_store, "RETRIES", object_store.RETRIES | {"max_retries": 3, "backoff": AT_ONCE})
    own = Bucket(s3_server, tmp_path.name.replace("_", "-").lower())
    own.faults()
    return own


@pytest.fixture
def fresh_caches(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """No dataset of object storage is open afterwards; chunks are small."""
    monkeypatch.setattr(cached_dataset, "CacheFolder", NotedFolder)
    monkeypatch.setattr(chunks, "CHUNK_BYTES", CHUNK_BYTES)
    yield
    end_all()


def contents(folder: Path) -> dict[str, bytes]:
    """Name -> bytes of every file under a folder, but of the hint that is no part of a dataset."""
    files = (path for path in folder.rglob("*") if path.is_file() and path.name != ".source")
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in files}


def crop_collate() -> Collate:
    """Random crops and flips: what a loader's batches are compared under."""
    return Collate(RandomCrop(24), RandomHorizontalFlip(), Normalize.imagenet())


def deviation(counts: np.ndarray) -> float:
    """Chi-square against equal counts, in standard deviations of its distribution."""
    expected = counts.sum() / counts.size
    freedom = counts.size - 1
    return float((((counts - expected) ** 2 / expected).sum() - freedom) / math.sqrt(2 * freedom))


@pytest.fixture(scope="session", autouse=True)
def quick_processes() -> None:
    """Start the processes of builds and benches from a server that has imported torch: 6 s of processor time each."""
    if "forkserver" in multiprocessing.get_all_start_methods():
        preloaded = ["mmload.bench.contender_process", "mmload.builder.pipeline", "torchvision.transforms.v2"]
        preloaded += ["mmload.loader", "mmload.builder.shards"]
        multiprocessing.set_forkserver_preload(preloaded)
        multiprocessing.set_forkserver_preload = lambda names: None  # a bench names fewer
        processes.START_METHOD = "forkserver"


class OsWithoutSync:
    """The module ``os``, but for ``fsync``, which does not wait for the disk."""

    def __getattr__(self, name: str) -> Any:
        return getattr(os, name)

    def fsync(self, handle: int) -> None:
        """Do nothing."""


@pytest.fixture(scope="session", autouse=True)
def quick_disk() -> None:
    """Builds do not wait for the disk: a third of their time. What a killed process has written, the system keeps."""
    files.os = OsWithoutSync()


class Done(NamedTuple):
    """How a command ended and what it showed."""

    returncode: int
    stdout: str
    stderr: str


def mmload(*words: object) -> Done:
    """Run a command in this process: a fresh one would spend two seconds on imports."""
    out, err = io.StringIO(), io.StringIO()
    before, sys.argv = sys.argv, ["mmload", *map(str, words)]
    try:
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            main()
        code = 0
    except SystemExit as exit_:
        code = exit_.code if isinstance(exit_.code, int) else int(exit_.code is not None)
    finally:
        sys.argv = before
    return Done(code, out.getvalue(), err.getvalue())


def ran(*words: object) -> Done:
    """A command that has to succeed."""
    done = mmload(*words)
    assert done.returncode == 0, done.stderr
    return done


def complaint(done: Done, code: int) -> str:
    """The one line of an error; nothing else is said, but what a build writes, and the exit code is as expected."""
    assert done.returncode == code, done.stderr
    assert done.stdout == ""
    said = [line for line in done.stderr.splitlines() if line.startswith("mmload: ")]
    lines = [line for line in said if not line.startswith("mmload: writes ") and " are enlarged to --size " not in line]
    assert len(lines) == 1, done.stderr
    assert "Traceback" not in done.stderr
    return lines[0]


@contextlib.contextmanager
def script(name: str) -> Iterator[ModuleType]:
    """A script of scripts/ or benchmarks/ as a module; one intra-op thread, as its batches are tiny in the tests."""
    path = path_of(name)
    sys.path.insert(0, str(path.parent))
    loader = SourceFileLoader(name, str(path))
    spec = importlib.util.spec_from_loader(name, loader)

    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    loader.exec_module(module)
    try:
        with one_thread():
            yield module
    finally:
        sys.path.remove(str(path.parent))
