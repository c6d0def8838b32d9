"""Kernels: their arguments and results, working memory, calls by address, and the cache of what was compiled."""

from __future__ import annotations

import ctypes
import fcntl
import os
import pkgutil
import signal
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
from forked_program import run_program

from mmload.runtime import machine_code, numba_compile
from mmload.runtime.arena import carve
from mmload.runtime.declarations import ARENA, CallBy, RecordArray, Signature, tuple_type, void
from mmload.runtime.numba_compile import Kernel, address_of, numba_compiled
from mmload.runtime.numba_compile import variant as variant_of

PROGRAM = """
import sys
sys.path.insert(0, {folder!r})
{before}
import numpy as np
import doubling
values = np.arange(5, dtype=np.float32)
doubling.double(values)
print(values.tolist(), "mmload.runtime.kernel_compiler" in sys.modules)
"""

SOURCE = """
from mmload.runtime.declarations import inlined
from mmload.runtime.numba_compile import numba_compiled

@inlined
def twice(value):
    return value + value

@numba_compiled("void(float32[::1])")
def double(values):
    for i in range(values.shape[0]):
        values[i] = twice(values[i])
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "doubling.py").write_text(SOURCE)
    return tmp_path


def run(folder: Path, cache: Path, before: str = "") -> str:
    """Calls a kernel in another process; returns where its machine code came from."""
    done = run_program(PROGRAM.format(folder=str(folder), before=before), place={"NUMBA_CACHE_DIR": str(cache)})
    assert done.returncode == 0, done.stderr
    values, has_compiled = done.stdout.strip().rsplit(" ", 1)
    assert values == "[0.0, 2.0, 4.0, 6.0, 8.0]"
    assert ("compiling machine code" in done.stderr) is (has_compiled == "True")
    assert len(done.stderr.splitlines()) <= 1
    return "compiled" if has_compiled == "True" else "from the cache"


def test_processes_that_start_at_once_compile_once(folder: Path, tmp_path: Path) -> None:
    with ThreadPoolExecutor(3) as pool:
        made = list(pool.map(lambda _: run(folder, tmp_path / "cache"), range(3)))
    assert sorted(made) == ["compiled", "from the cache", "from the cache"]


def test_a_process_that_was_stopped_while_it_compiled_is_not_waited_for(folder: Path, tmp_path: Path) -> None:
    cache = tmp_path / "cache" / "mmload"
    cache.mkdir(parents=True, mode=0o700)
    with open(cache / "mmload.lock", "ab") as held:
        fcntl.lockf(held, fcntl.LOCK_EX)
        impatient = "from mmload.runtime import machine_code; machine_code._PATIENCE_S = 0.1"
        assert run(folder, tmp_path / "cache", impatient) == "compiled"
    assert run(folder, tmp_path / "cache") == "from the cache"


def test_the_symbol_of_a_kernel_changes_with_all_that_decides_on_its_code(monkeypatch: pytest.MonkeyPatch) -> None:
    from mmload.render.level_kernels import run_operations

    def symbol(signature: str = "void(int64)", changed: tuple[str, ...] = ()) -> str:
        monkeypatch.setattr(pkgutil, "get_data", lambda *of: read(*of) + b"#" * (of[1] in changed))
        machine_code._source.cache_clear()
        machine_code._sources.cache_clear()
        return machine_code.symbol_of(run_operations.function, signature)  # type: ignore[attr-defined]

    read = pkgutil.get_data
    before = symbol()
    assert symbol("void(int32)") != before
    for name in ("warp_kernels.py", "level_program.py", "declarations.py", "kernel_compiler.py", "plan_parts.py"):
        assert symbol(changed=(name,)) != before, name
    assert symbol(changed=("collate.py", "mix.py")) == before


def test_nowhere_to_keep_code_is_no_failure(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    assert run(folder, tmp_path / "file") == "compiled"


def test_a_full_disk_is_no_failure(folder: Path, tmp_path: Path) -> None:
    limit = "import resource; resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))"  # for a message only
    assert run(folder, tmp_path / "cache", limit) == "compiled"


ABSOLUTE = ctypes.cast(ctypes.CDLL(None).labs, ctypes.c_void_p).value or 0
"""Address of a C function that takes a word and returns it."""


def test_a_kernel_is_loaded_once_for_all_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    loaded, running = [], threading.Event()

    def load(symbol: str, _: object) -> int:
        loaded.append(symbol)
        running.wait(0.1)
        return ABSOLUTE

    monkeypatch.setattr(numba_compile, "load", load)
    kernel = Kernel(lambda value: None, Signature("int64", ("int64",)), nogil=True)
    with ThreadPoolExecutor(4) as pool:
        assert all(pool.map(kernel, range(20)))
    assert loaded == [kernel.symbol]


PAIR = np.dtype([("first", np.int64), ("second", np.uint8)], align=True)


class Things(NamedTuple):
    """Arguments of every kind."""

    numbers: np.ndarray
    pairs: np.ndarray
    scale: float
    inner: tuple[int, bool]


class Inner(NamedTuple):
    """Numbers in a tuple in a tuple."""

    count: int
    is_on: bool


THINGS = tuple_type(Things, "float32[:, ::1]", RecordArray(PAIR), "float32", tuple_type(Inner, "int64", "boolean"))


@numba_compiled(void(THINGS, "uint8[::1]", "uint64", ARENA, "int64[:, :]"))
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


def test_a_kernel_takes_numbers_arrays_records_and_tuples() -> None:
    for mask, expected in ((-1, [30, 45 + 42, 6 + 15]), (np.uint64(2**63), [30, 87, 14])):
        sums = np.zeros((2, 2), np.int64).T
        sum_of_all(things(), np.arange(10, dtype=np.uint8), mask, sums)
        assert [sums[0, 0], sums[0, 1], sums[1, 0]] == expected


def test_working_memory_that_is_too_small_grows() -> None:
    for size in (10, 1_000_000, 1_000_000, 3_000_000):
        levels, sums = np.arange(size).astype(np.uint8), np.zeros((2, 2), np.int64)
        sum_of_all(things(), levels, 0, sums)
        assert sums[0, 1] == levels.sum(dtype=np.int64) + 42


def of_things(**changes: Any) -> None:
    sum_of_all(things(**changes), np.zeros(1, np.uint8), 0, np.zeros((2, 2), np.int64))


@pytest.mark.parametrize(
    ("call", "match"),
    [
        (lambda: of_things(numbers=np.zeros((2, 3))), "takes float32 in 2 dimensions, and got float64 in 2"),
        (lambda: of_things(numbers=np.zeros(6, np.float32)), "got float32 in 1"),
        (lambda: of_things(numbers=np.zeros((3, 2), np.float32).T), "not C contiguous"),
        (lambda: of_things(numbers=np.zeros((2, 3), ">f4")), "got >f4"),
        (lambda: of_things(pairs=np.zeros(2, np.int64)), "got int64"),
        (lambda: sum_of_all(things()), r"sum_of_all\(\) missing 3"),  # type: ignore[call-arg]
        (lambda: add(np.frombuffer(bytes(32), np.int64).reshape(2, 2), 1), "not writable"),
        (lambda: numba_compiled("float64(float64[::1])")(add), "returns float64"),
    ],
)
def test_arguments_and_results_of_other_types_are_refused(call: Callable[[], object], match: str) -> None:
    with pytest.raises(TypeError, match=match):
        call()


def test_references_to_arguments_are_not_lost() -> None:
    given, levels = things(), np.zeros(4, np.uint8)
    held = (given, given.numbers, given.pairs, levels, None)
    before = [sys.getrefcount(one) for one in held]
    for _ in range(100):
        sum_of_all(given, levels, 7, np.zeros((2, 2), np.int64))
    after = [sys.getrefcount(one) for one in held]
    assert after[:-1] == before[:-1]
    assert abs(after[-1] - before[-1]) < 50


ADD = Signature.parsed("void(int64[:, ::1], int64)")


@numba_compiled(ADD)
def add(array: np.ndarray, number: int) -> None:
    for i in range(array.shape[0]):
        for k in range(array.shape[1]):
            array[i, k] += number


call = CallBy(Signature.parsed("void(float32[::1])"), ADD)


@numba_compiled("void(int64[:, ::1], int64[::1], uintp)")
def add_to_each(array: np.ndarray, numbers: np.ndarray, address: int) -> None:
    for k in range(len(numbers)):
        call(address, (array[k : k + 1], numbers[k]))


def test_a_kernel_is_called_by_address_with_its_arguments() -> None:
    array = np.zeros((3, 2), np.int64)
    add_to_each(array, np.array([5, 0, 7]), address_of(add, ADD))
    assert array.tolist() == [[5, 5], [0, 0], [7, 7]]


def add_floats(array: np.ndarray, address: int) -> None:
    call(address, (array, 1))


def check(values: np.ndarray) -> None:
    if values[0] < 0:
        raise ValueError("a negative number")


def allocate(count: int) -> int:
    return len(np.empty(count))


@pytest.mark.parametrize(
    ("function", "signature", "given", "message"),
    [
        (add_floats, "void(float64[:, ::1], uintp)", (np.zeros((1, 1)), 0), "no kernel of these"),
        (check, "void(int64[::1])", (np.zeros(1, int),), "numba_do_raise.* kernels allocate and raise nothing"),
        (allocate, "int64(int64)", (3,), "empty"),
    ],
)
def test_kernels_that_call_other_types_raise_or_allocate_are_refused_when_they_are_compiled(
    function: Callable[..., Any], signature: str, given: tuple[Any, ...], message: str
) -> None:
    kernel = numba_compiled(signature)(function)
    with pytest.raises(Exception, match=message):
        kernel(*given)


@numba_compiled("int64(float64[::1])", "int64(float32[::1])")
def doubled(values: np.ndarray) -> int:
    return int(values[0] * 2)


def test_one_of_several_signatures_is_taken() -> None:
    assert doubled(np.array([2.5])) == 5, "the plain function"
    assert variant_of(doubled, Signature.parsed("int64(float32[::1])"))(np.array([1.5], np.float32)) == 3
    with pytest.raises(KeyError):
        variant_of(doubled, Signature.parsed("int64(int64[::1])"))


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
def test_a_process_that_is_forked_while_a_kernel_is_loaded_loads_others(monkeypatch: pytest.MonkeyPatch) -> None:
    begun, ends = threading.Event(), threading.Event()

    def load(symbol: str, _: object) -> int:
        if symbol == slow.symbol:
            begun.set()
            ends.wait(20)
        return ABSOLUTE

    monkeypatch.setattr(numba_compile, "load", load)
    slow, quick = (Kernel(lambda value: None, Signature("int64", (kind,)), nogil=True) for kind in ("int64", "float64"))
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


def test_what_killed_processes_left_is_removed_when_the_file_is_written_again(folder: Path, tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    run(folder, cache)
    [file] = (cache / "mmload").glob("*.o*")
    file.rename(file.with_name(f"{file.name}.{'a' * 16}.partial"))
    assert run(folder, cache) == "compiled"
    assert [path.name for path in (cache / "mmload").iterdir() if path.name != "mmload.lock"] == [file.name]
