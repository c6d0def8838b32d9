"""Machine code of kernels: a library that comes with the package, or what this machine has compiled and cached.

The package's libraries are in ``machine_code``, one for each kind of processor; ``scripts/machine_code`` makes them of
object files, one per kernel. A kernel is found by a symbol that has a digest of all that it was made from, so that no
code of another source is run. What a library does not have is compiled, and its object file is cached, with a digest
behind it, by which a damaged file is known. llvmlite links it in memory, where no other linker is needed.

The cache is beside the source, or in the user's cache folder if that is not writable (``NUMBA_CACHE_DIR`` overrides
both); if neither is writable, each process compiles for itself. A cache that other users can write to is not used, as
whoever writes there has code run.
"""

from __future__ import annotations

import ctypes
import hashlib
import mmap
import os
import platform
import re
import sys
from collections.abc import Callable
from contextlib import ExitStack, suppress
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from mmload.errors import UsageError, choices
from mmload.runtime.files import file_lock, remove_partials, write_atomically
from mmload.runtime.resources import cpu_fact, processor_name

_V3 = "avx avx2 bmi bmi2 f16c fma lzcnt movbe popcnt sse4.2"

LEVELS = {"x86-64-v4": f"{_V3} avx512f avx512bw avx512cd avx512dq avx512vl", "x86-64-v3": _V3, "aarch64": ""}
"""Kinds of processors that the package may have a library for, the best first, and the features that each needs."""

PACKAGE = Path(__file__).parents[1]

_FLAGS = {"abm": "lzcnt", "bmi1": "bmi", "sse4_2": "sse4.2"}
"""Features that /proc/cpuinfo names otherwise than LLVM."""

_COMPILER = "kernel_compiler", "numba_intrinsics"
_IMPORTS = re.compile(rb"^from (mmload(?:\.\w+)+) import", re.MULTILINE)
_DIGEST_BYTES = hashlib.sha256().digest_size
_SETTINGS = "NUMBA_OPT", "NUMBA_CPU_NAME", "NUMBA_CPU_FEATURES"


def load(symbol: str, compile_: Callable[[], bytes]) -> int:
    """Returns the address of a kernel's C function; compiles it if neither the package nor the cache has it.

    Several processes that need the same code compile it once.
    """
    for library in map(_shipped_library, levels()):
        if library is not None and hasattr(library, symbol):
            return ctypes.cast(library[symbol], ctypes.c_void_p).value or 0
    return _link(_object_file(symbol, compile_), symbol)


def _object_file(symbol: str, compile_: Callable[[], bytes]) -> bytes:
    """Returns the object file of a kernel from the cache; where it is missing or damaged, compiles it."""
    folder = cache_folder()
    if folder is None or "<locals>" in symbol:  # what it is made from cannot be told
        return _compiled(compile_)
    path = folder / f"{symbol}.{_processor_digest()}.o"
    if (code := _cached(path)) is None:
        with ExitStack() as stack:
            with suppress(OSError):  # another user's, without locks, or of a process that was stopped meanwhile
                stack.enter_context(file_lock(path))
                remove_partials(path)  # of processes that were killed
            if (code := _cached(path)) is None:
                code = _compiled(compile_)
                with suppress(OSError):  # on a full disk: later processes compile again
                    write_atomically(path, code + hashlib.sha256(code).digest())
    return code


def _cached(path: Path) -> bytes | None:
    """Returns the object file before the digest in a file; None if they do not agree, as of one that is written."""
    data = path.read_bytes() if path.exists() else b""
    code, digest = data[:-_DIGEST_BYTES], data[-_DIGEST_BYTES:]
    return code if hashlib.sha256(code).digest() == digest else None


def _compiled(compile_: Callable[[], bytes]) -> bytes:
    _announce()
    return compile_()


def symbol_of(function: Callable[..., Any], signature: str) -> str:
    """Returns the name of a kernel's C function: its own, and a digest of sources, signature and the size of pages.

    The fields of named tuples are not in the signature, but in the sources.
    """
    module = function.__module__
    origin = repr((_sources(module), function.__qualname__, signature, mmap.PAGESIZE))
    return f"{module}.{function.__qualname__}.{hashlib.sha256(origin.encode()).hexdigest()[:24]}"


def library_path(level: str) -> Path:
    """Returns the path of the package's library for a kind of processor."""
    return PACKAGE / "machine_code" / f"{level}.so"


@cache
def _shipped_library(level: str) -> ctypes.CDLL | None:
    return ctypes.CDLL(str(library_path(level))) if library_path(level).exists() else None


@cache
def levels() -> tuple[str, ...]:
    """Returns the kinds of processors of which this is one, the best first.

    ``MMLOAD_MACHINE_CODE`` names the only one that is taken; "own" takes none and compiles for this processor.
    """
    wanted, machine = os.environ.get("MMLOAD_MACHINE_CODE") or None, platform.machine().replace("_", "-")
    found = {_FLAGS.get(name, name) for name in cpu_fact("flags").split()}
    fits = [name for name in LEVELS if name.startswith(machine) and found >= set(LEVELS[name].split())]
    if wanted not in (None, "own", *fits):
        raise UsageError(f"MMLOAD_MACHINE_CODE is {wanted!r:.60}; use {choices((*fits, 'own'))} on this processor")
    return () if any(map(os.environ.get, _SETTINGS)) else tuple(name for name in fits if wanted in (None, name))


@cache
def cache_folder() -> Path | None:
    """Returns the folder of the machine code that this machine compiles; None if none is writable for this user alone.

    The folder beside the source is as safe as the source.
    """
    usual = "~/Library/Caches" if sys.platform == "darwin" else os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    own, beside, home = os.environ.get("NUMBA_CACHE_DIR"), PACKAGE / "__pycache__", Path(os.path.expanduser(usual))
    places = [Path(own) / "mmload"] if own else [beside, *([home / "mmload"] if home.is_absolute() else [])]
    for folder in places:
        with suppress(OSError):
            folder.mkdir(0o777 if folder == beside else 0o700, parents=True, exist_ok=True)
            if os.access(folder, os.W_OK) and (folder == beside or _is_private(folder)):
                return folder
    return None


def _is_private(folder: Path) -> bool:
    """Returns whether only this user and root can write into a folder."""
    status = os.stat(folder)
    return status.st_uid in (os.geteuid(), 0) and not status.st_mode & 0o022


@cache
def processor() -> tuple[str, str]:
    """Returns the name and the features, such as "+avx2,-sse4a", of the processor that numba compiles for."""
    name, features = (os.environ.get(f"NUMBA_CPU_{what}") for what in ("NAME", "FEATURES"))
    return name or _llvm().get_host_cpu_name(), features or _llvm().get_host_cpu_features().flatten()


@cache
def _processor_digest() -> str:
    """Returns the digest of the processor that numba compiles for, and of its level of optimization."""
    known = processor(), os.environ.get("NUMBA_OPT"), _llvm().get_process_triple()
    return hashlib.sha256(repr(known).encode()).hexdigest()[:8]


@cache
def _sources(module: str) -> str:
    """Returns the digest of a module and all of mmload that it imports: their functions and constants are inlined."""
    sources = {__name__: b""}  # which decides on no code
    waiting = [*(f"mmload.runtime.{name}" for name in _COMPILER), module]
    while waiting:
        name = waiting.pop()
        if name not in sources:
            sources[name] = _source(name)
            waiting += [found.decode() for found in _IMPORTS.findall(sources[name])]
    return hashlib.sha256(b"".join(sources[name] for name in sorted(sources))).hexdigest()


@cache
def _source(module: str) -> bytes:
    found = find_spec(module)
    return Path(found.origin).read_bytes() if found is not None and found.origin else b""


@cache
def _announce() -> None:
    """Says once per process why it takes time."""
    sys.stderr.write(
        f"mmload: compiling machine code for this processor ({processor_name()}), once: about 6 s for a crop, 20 s for "
        "a resized crop, a minute for color operations (an installed package brings it)\n"
    )


@cache
def _llvm() -> Any:
    try:
        from llvmlite import binding
    except ImportError as error:
        raise UsageError(
            "mmload has no machine code for this processor, and numba, which compiles it, is not installed; "
            "pip install 'mmload[compile]'"
        ) from error
    with suppress(RuntimeError):  # newer releases initialize by themselves
        binding.initialize()
    binding.initialize_native_target()
    binding.initialize_native_asmprinter()
    return binding


@cache
def _linker() -> Any:
    # The other linker puts sections anywhere, where code that reaches 2 GiB finds its constants only by chance.
    return _llvm().create_lljit_compiler(use_jit_link=True)


_linked: list[Any] = []  # all that must live as long as the process


def _link(code: bytes, symbol: str) -> int:
    """Brings an object file into memory and returns the address of its function."""
    builder = _llvm().JITLibraryBuilder().add_object_img(code).add_current_process()
    library = builder.export_symbol(symbol).link(_linker(), f"{symbol}.{len(_linked)}")
    _linked.append(library)
    address: int = library[symbol]
    return address
