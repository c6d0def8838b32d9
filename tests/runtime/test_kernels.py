"""Kernels: their arguments and results, working memory, calls by address, and the cache of what was compiled."""

from __future__ import annotations

import ctypes
import fcntl
import os
import runpy
import signal
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import numpy as np
import pytest
from forked_program import run_program

from mmload.errors import UsageError
from mmload.runtime import files, kernels, machine_code
from mmload.runtime.intrinsics import carve
from mmload.runtime.kernels import ARENA, CallC, Kernel, RecordArray, numba_compiled

PROGRAM = """
import sys
sys.path.insert(0, {folder!r})
import numpy as np
import doubling
values = np.arange(5, dtype=np.float32)
doubling.double(values)
print(values.tolist(), "mmload.runtime.kernel_compiler" in sys.modules)
"""

SOURCE = """
from mmload.runtime.kernels import inlined
from mmload.runtime.kernels import numba_compiled

@inlined
def twice(value):
    return value + value

@numba_compiled("float32[::1]")
def double(values):
    for i in range(values.shape[0]):
        values[i] = twice(values[i])
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "doubling.py").write_text(SOURCE)
    return tmp_path


def run(folder: Path, **variables: str) -> str:
    """Calls a kernel in another process; returns where its machine code came from."""
    done = run_program(PROGRAM.format(folder=str(folder)), place=variables)
    assert done.returncode == 0, done.stderr
    values, has_compiled = done.stdout.strip().rsplit(" ", 1)
    assert values == "[0.0, 2.0, 4.0, 6.0, 8.0]"
    assert ("compiling machine code" in done.stderr) is (has_compiled == "True")
    assert len(done.stderr.splitlines()) <= 1
    return "compiled" if has_compiled == "True" else "from the cache"


def cached(cache: Path) -> list[Path]:
    return [path for path in cache.rglob("*.o*") if path.is_file()]


def test_processes_that_start_at_once_compile_once(folder: Path, tmp_path: Path) -> None:
    cache = str(tmp_path / "cache")
    with ThreadPoolExecutor(3) as pool:
        made = list(pool.map(lambda _: run(folder, NUMBA_CACHE_DIR=cache), range(3)))
    assert sorted(made) == ["compiled", "from the cache", "from the cache"]


def test_the_symbol_of_a_kernel_changes_with_all_that_decides_on_its_code(monkeypatch: pytest.MonkeyPatch) -> None:
    from mmload.render.level_kernels import run_operations

    monkeypatch.setattr(machine_code, "_sources", machine_code._sources.__wrapped__)
    read, plain = machine_code._source, run_operations.function
    before = machine_code.symbol_of(plain, "int64")
    assert machine_code.symbol_of(plain, "int32") != before
    decisive = ("render.warp_kernels", "render.level_operations", "runtime.kernels", "runtime.kernel_compiler")
    for changed in (*decisive, "augment.collate", "augment.mix"):
        one = f"mmload.{changed}"
        monkeypatch.setattr(machine_code, "_source", lambda name, one=one: read(name) + b"#" * (name == one))
        assert (machine_code.symbol_of(plain, "int64") != before) is (changed in decisive), changed


def test_nowhere_to_keep_code_is_no_failure(folder: Path, tmp_path: Path) -> None:
    nothing = tmp_path / "file"
    nothing.write_text("")
    assert run(folder, NUMBA_CACHE_DIR=str(nothing)) == "compiled"


def test_a_full_disk_is_no_failure(folder: Path, tmp_path: Path) -> None:
    pytest.importorskip("resource")
    limit = "import resource; resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))"  # for a message only
    program = f"{limit}\n{PROGRAM.format(folder=str(folder))}"
    done = run_program(program, place={"NUMBA_CACHE_DIR": str(tmp_path / "cache")})
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("[0.0, 2.0, 4.0, 6.0, 8.0]")


ABSOLUTE = ctypes.cast(ctypes.CDLL(None).labs, ctypes.c_void_p).value or 0
"""Address of a C function that takes a word and returns it."""


def test_a_kernel_is_loaded_once_for_all_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    loaded, running = [], threading.Event()

    def load(symbol: str, _: object) -> int:
        loaded.append(symbol)
        running.wait(0.1)
        return ABSOLUTE

    monkeypatch.setattr(kernels, "load", load)
    kernel = Kernel(lambda value: None, ["int64"], "int64", nogil=True)
    with ThreadPoolExecutor(4) as pool:
        assert all(pool.map(kernel, range(20)))
    assert loaded == [kernel.symbol]


def test_a_kernel_that_is_loaded_waits_for_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernels, "load", lambda symbol, compile_: ABSOLUTE)
    kernel = Kernel(lambda value: None, ["int64"], "int64", nogil=True)
    assert kernel.address == ABSOLUTE
    with ThreadPoolExecutor(1) as pool, kernels._loading:  # as a thread holds it that compiles another kernel
        assert pool.submit(lambda: kernel.address).result(timeout=10) == ABSOLUTE


def test_a_process_that_was_stopped_is_not_waited_for(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(machine_code, "cache_folder", lambda: tmp_path)
    monkeypatch.setattr(files, "LOCK_WAIT_S", 0.05)
    monkeypatch.setattr(machine_code, "_announce", lambda: None)

    assert machine_code._object_file("kernel", lambda: b"code") == b"code"
    [file] = cached(tmp_path)
    file.write_bytes(b"")
    with open(file, "ab") as stopped:
        fcntl.flock(stopped, fcntl.LOCK_EX)
        assert machine_code._object_file("kernel", lambda: b"more") == b"more"
    assert machine_code._object_file("kernel", bytes) == b"more", "it was kept"


def test_what_a_killed_process_wrote_is_removed_when_its_kernel_is_compiled(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(machine_code, "cache_folder", lambda: tmp_path)
    name = f"kernel.{machine_code._processor_digest()}.o"
    (tmp_path / f"{name}.{'0' * 16}.partial").write_bytes(b"co")
    assert machine_code._object_file("kernel", lambda: b"code") == b"code"
    assert [path.name for path in tmp_path.iterdir()] == [name]


PAIR = np.dtype([("first", np.int64), ("second", np.uint8)], align=True)


class Things(NamedTuple):
    """Arguments of every kind."""

    numbers: Annotated[np.ndarray, "float32[:, ::1]"]
    pairs: Annotated[np.ndarray, RecordArray(PAIR)]
    scale: Annotated[float, "float32"]
    inner: Inner


class Inner(NamedTuple):
    """Numbers in a tuple in a tuple."""

    count: int
    is_on: bool


@numba_compiled(Things, "uint8[::1], uint64", ARENA, "int64[:, ::1]")
def sum_of_all(things: Any, levels: Any, mask: Any, arena: Any, sums: Any) -> None:
    total = np.float32(0)
    for i in range(things.numbers.shape[0]):
        for j in range(things.numbers.shape[1]):
            total += things.numbers[i, j] * things.scale
    work = carve(arena, (2, len(levels)), np.int64)
    for k in range(len(levels)):
        work[1, k] = levels[k]
    sums[0, 0] = int(total)
    sums[0, 1] = things.pairs[0].first + things.pairs[1].second
    for k in range(len(levels)):
        sums[0, 1] += work[1, k]
    sums[1, 0] = things.inner.count + (1 if things.inner.is_on else 0) + int(mask >> 60)


def things(**changes: Any) -> Things:
    numbers = np.arange(6, dtype=np.float32).reshape(2, 3)
    pairs = np.array([(40, 1), (7, 2)], PAIR)
    return Things(numbers, pairs, np.float32(2), Inner(5, np.True_))._replace(**changes)  # type: ignore[arg-type]


def summed(mask: Any, size: int = 10) -> list[int]:
    sums = np.zeros((2, 2), np.int64)
    sum_of_all(things(), np.arange(size, dtype=np.uint8), mask, sums)
    return [int(each) for each in (sums[0, 0], sums[0, 1], sums[1, 0])]


def test_a_kernel_takes_numbers_arrays_records_and_tuples() -> None:
    assert summed(-1) == [30, 45 + 42, 6 + 15]
    assert summed(np.uint64(2**63)) == [30, 87, 14]


def test_working_memory_that_is_too_small_grows() -> None:
    for size in (10, 1_000_000, 1_000_000, 3_000_000):
        levels = np.arange(size).astype(np.uint8)
        sums = np.zeros((2, 2), np.int64)
        sum_of_all(things(), levels, 0, sums)
        assert sums[0, 1] == levels.sum(dtype=np.int64) + 42


@pytest.mark.parametrize(
    ("changes", "match"),
    [
        ({"numbers": np.zeros((2, 3))}, "takes float32 in 2 dimensions, and got float64 in 2"),
        ({"numbers": np.zeros(6, np.float32)}, "got float32 in 1"),
        ({"numbers": np.zeros((3, 2), np.float32).T}, "not C contiguous"),
        ({"numbers": np.zeros((2, 3), ">f4")}, "got >f4"),
        ({"pairs": np.zeros(2, np.int64)}, "got int64"),
    ],
)
def test_arguments_of_other_types_are_refused(changes: dict[str, Any], match: str) -> None:
    with pytest.raises(TypeError, match=match):
        sum_of_all(things(**changes), np.zeros(1, np.uint8), 0, np.zeros((2, 2), np.int64))


def test_a_kernel_with_too_few_arguments_is_refused() -> None:
    with pytest.raises(TypeError, match=r"sum_of_all\(\) missing 3"):
        sum_of_all(things())  # type: ignore[call-arg]


def test_arrays_that_cannot_be_written_are_refused() -> None:
    numbers = np.zeros((2, 2), np.int64)
    numbers.flags.writeable = False
    with pytest.raises(TypeError, match="not writable"):
        add(numbers, 1)


@numba_compiled("int64[:, ::1], int64")
def add(array: np.ndarray, number: int) -> None:
    for i in range(array.shape[0]):
        for k in range(array.shape[1]):
            array[i, k] += number


call = CallC("int64(uintp)")


@numba_compiled("uintp[:, ::1]")
def make_calls(calls: np.ndarray) -> None:
    for k in range(len(calls)):
        call(calls[k, 0], (calls[k, 1],))


def test_calls_that_are_prepared_are_made_by_another_kernel() -> None:
    array = np.zeros((3, 2), np.int64)
    calls = [add.prepare(array[k : k + 1], number) for k, number in enumerate((5, 0, 7))]
    make_calls(np.array([step.words for step in calls], np.uintp))
    assert array.tolist() == [[5, 5], [0, 0], [7, 7]]
    calls[1].run()
    calls[2].run()
    assert array.tolist() == [[5, 5], [0, 0], [14, 14]]


def test_a_kernel_that_may_raise_is_refused_when_it_is_compiled() -> None:
    @numba_compiled("int64[::1]")
    def check(values: np.ndarray) -> None:
        if values[0] < 0:
            raise ValueError("a negative number")

    with pytest.raises(RuntimeError, match="numba_do_raise.* kernels allocate and raise nothing"):
        check(np.zeros(1, np.int64))


def test_a_kernel_that_allocates_is_refused_when_it_is_compiled() -> None:
    @numba_compiled("int64", returns="int64")
    def allocate(count: int) -> int:
        return len(np.empty(count))

    with pytest.raises(Exception, match="empty"):
        allocate(3)


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
def test_a_process_that_is_forked_while_a_kernel_is_loaded_loads_others(monkeypatch: pytest.MonkeyPatch) -> None:
    begun, ends = threading.Event(), threading.Event()

    def load(symbol: str, _: object) -> int:
        if symbol == slow.symbol:
            begun.set()
            ends.wait(20)
        return ABSOLUTE

    monkeypatch.setattr(kernels, "load", load)
    slow, quick = (Kernel(lambda value: None, [kind], "int64", nogil=True) for kind in ("int64", "float64"))
    thread = threading.Thread(target=slow, args=(1,))
    thread.start()
    begun.wait(20)
    threading.Timer(0.2, ends.set).start()
    child = os.fork()
    if child == 0:
        signal.alarm(20)  # ends it if it waits
        os._exit(int(quick(1.5) == 0))
    thread.join()
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


@pytest.mark.parametrize("damage", ["cut off", "empty", "changed"])
def test_a_damaged_file_of_the_cache_is_compiled_again(folder: Path, tmp_path: Path, damage: str) -> None:
    cache = str(tmp_path / "cache")
    run(folder, NUMBA_CACHE_DIR=cache)
    [file] = cached(tmp_path / "cache")
    whole = file.read_bytes()
    file.write_bytes({"cut off": whole[:-100], "empty": b"", "changed": whole[:64] + bytes(64) + whole[128:]}[damage])
    assert run(folder, NUMBA_CACHE_DIR=cache) == "compiled"
    assert file.read_bytes() == whole
    assert run(folder, NUMBA_CACHE_DIR=cache) == "from the cache"


def test_a_python_without_the_interpreter_lock_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "_is_gil_enabled", lambda: False, raising=False)
    with pytest.raises(UsageError, match="set PYTHON_GIL=1"):
        runpy.run_path(kernels.__file__)
