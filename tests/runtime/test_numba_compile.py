"""Compiled functions: their code is cached, and a process that cannot write or read the cache compiles for itself."""

from __future__ import annotations

import pkgutil
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from forked_program import run_program

from mmload.runtime import numba_compile
from mmload.runtime.numba_compile import CodeCache, variant

PROGRAM = """
import sys, numba
numba.config.reload_config()  # of this environment: the server that this is a fork of read its own
sys.path.insert(0, {folder!r})
import numpy as np
import doubling
values = np.arange(5, dtype=np.float32)
doubling.double(values)
print(values.tolist(), sum(doubling.double.stats.cache_hits.values()))
"""

SOURCE = """
from mmload.runtime.numba_compile import numba_compiled, inlined

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


def run(folder: Path, **variables: str) -> str:
    done = run_program(PROGRAM.format(folder=str(folder)), place=variables)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("[0.0, 2.0, 4.0, 6.0, 8.0]")
    return done.stdout


def hits(output: str) -> str:
    return "from the cache" if output.endswith(" 1\n") else "compiled"


def test_machine_code_in_the_next_process_comes_from_the_cache(folder: Path, tmp_path: Path) -> None:
    cache = str(tmp_path / "cache")
    assert hits(run(folder, NUMBA_CACHE_DIR=cache)) == "compiled"
    assert hits(run(folder, NUMBA_CACHE_DIR=cache)) == "from the cache"


def test_machine_code_that_is_damaged_is_recompiled_and_cached(folder: Path, tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    run(folder, NUMBA_CACHE_DIR=str(cache))
    [cached] = [path for path in cache.rglob("*") if path.is_file()]
    intact = cached.read_bytes()
    middle = len(intact) // 2
    for content in (b"", intact[:middle], intact[:middle] + bytes([intact[middle] ^ 4]) + intact[middle + 1 :]):
        cached.write_bytes(content)
        assert hits(run(folder, NUMBA_CACHE_DIR=str(cache))) == "compiled"
    assert hits(run(folder, NUMBA_CACHE_DIR=str(cache))) == "from the cache"
    assert [path for path in cache.rglob("*") if path.is_file()] == [cached]


def test_no_changed_byte_is_unpickled(tmp_path: Path) -> None:
    code = CodeCache(tmp_path, "f", "revision")
    code.save("key", {"a": 1})
    [file] = tmp_path.iterdir()
    content = file.read_bytes()
    assert code.load("key") == {"a": 1}
    for at in range(len(content)):
        file.write_bytes(content[:at] + bytes([content[at] ^ 1]) + content[at + 1 :])
        assert code.load("key") is None
        file.write_bytes(content[:at])
        assert code.load("key") is None


def test_code_of_another_source_or_key_is_not_taken(tmp_path: Path) -> None:
    CodeCache(tmp_path, "f", "revision").save("key", 1)
    [file] = tmp_path.iterdir()
    assert CodeCache(tmp_path, "f", "other").load("key") is None
    assert CodeCache(tmp_path, "f", "revision").load("other") is None
    CodeCache(tmp_path, "f", "other").save("key", 2)
    assert CodeCache(tmp_path, "f", "revision").load("key") is None
    assert CodeCache(tmp_path, "f", "other").load("key") == 2
    assert list(tmp_path.iterdir()) == [file]


def test_code_is_compiled_anew_after_a_change_of_a_module_that_it_imports(monkeypatch: pytest.MonkeyPatch) -> None:
    from mmload.render import level_kernels

    def digest() -> bytes:
        numba_compile._source.cache_clear()
        return numba_compile._imported_sources(level_kernels.__name__)

    read, before = pkgutil.get_data, digest()
    for changed in ("warp_kernels.py", "level_program.py", "numba_compile.py", "numba_internals.py", "plan_parts.py"):
        monkeypatch.setattr(pkgutil, "get_data", lambda *of, at=changed: read(*of) + b"#" * (of[1] == at))
        assert digest() != before, changed
    monkeypatch.setattr(pkgutil, "get_data", lambda *of: read(*of) + b"#" * (of[1] == "collate.py"))
    assert digest() == before
    numba_compile._source.cache_clear()


def test_machine_code_with_bounds_checks_is_cached_separately(folder: Path, tmp_path: Path) -> None:
    cache = str(tmp_path / "cache")
    checked = {"NUMBA_CACHE_DIR": cache, "NUMBA_BOUNDSCHECK": "1"}
    for variables in ({"NUMBA_CACHE_DIR": cache}, checked, checked | {"NUMBA_OPT": "1"}):
        assert hits(run(folder, **variables)) == "compiled"
        assert hits(run(folder, **variables)) == "from the cache"
    assert hits(run(folder, NUMBA_CACHE_DIR=cache)) == "from the cache"


def test_nowhere_to_keep_code_is_no_failure(folder: Path, tmp_path: Path) -> None:
    nothing = tmp_path / "file"
    nothing.write_text("")
    assert hits(run(folder, NUMBA_CACHE_DIR=str(nothing))) == "compiled"


def test_a_full_disk_is_no_failure(folder: Path, tmp_path: Path) -> None:
    pytest.importorskip("resource")
    limit = "import resource; resource.setrlimit(resource.RLIMIT_FSIZE, (100, 100))"
    program = f"{limit}\n{PROGRAM.format(folder=str(folder))}"
    done = run_program(program, place={"NUMBA_CACHE_DIR": str(tmp_path / "cache")})
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("[0.0, 2.0, 4.0, 6.0, 8.0]")


def test_a_variant_is_compiled_once_for_all_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    compiled = []

    def compile_(signature: object, nogil: bool) -> object:
        compiled.append(signature)
        return lambda function: function

    monkeypatch.setattr(numba_compile, "numba_compiled", compile_)

    def double(values: object) -> None:
        raise NotImplementedError

    with ThreadPoolExecutor(4) as pool:
        made = list(pool.map(lambda _: variant(double, "void(int16[::1])"), range(20)))
    assert made == [double] * 20
    assert compiled == ["void(int16[::1])"]
    variant(double, "void(uint16[::1])")
    assert len(compiled) == 2
