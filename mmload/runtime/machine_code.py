"""Machine code of kernels: a library that comes with the package, or what this machine has compiled and cached.

The package's libraries are in ``machine_code``, one for each kind of processor; ``scripts/machine_code`` makes them of
object files, one per kernel. A kernel is found by a symbol that has a digest of all that it was made from, so that no
code of another source is run. What a library does not have is compiled, and its object file is cached. llvmlite links
it in memory, where no other linker is needed.

The cache is beside the source, or in the user's cache folder if that is not writable (``NUMBA_CACHE_DIR`` overrides
both); if neither is writable, each process compiles for itself. A cache that other users can write to is not used, as
whoever writes there has code run.
"""

from __future__ import annotations

import ctypes
import fcntl
import hashlib
import mmap
import os
import pkgutil
import platform
import re
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import Any

from mmload.errors import UsageError, choices
from mmload.runtime.durable_files import remove_partials, write_atomically
from mmload.runtime.resources import processor_name

_V3 = "avx avx2 bmi bmi2 f16c fma lzcnt movbe popcnt sse4.2"

LEVELS = {"x86-64-v4": f"{_V3} avx512f avx512bw avx512cd avx512dq avx512vl", "x86-64-v3": _V3, "aarch64": ""}
"""Kinds of processors that the package may have a library for, the best first, and the features that each needs."""

BOUNDS_CHECK = os.environ.get("NUMBA_BOUNDSCHECK", "0") not in ("", "0")
"""Whether kernels are compiled with checks of their indices, for tests."""

PACKAGE = Path(__file__).parents[1]

_FLAGS = {"abm": "lzcnt", "bmi1": "bmi", "sse4_2": "sse4.2"}
"""Features that /proc/cpuinfo names otherwise than LLVM."""

_COMPILER = "kernel_compiler", "numba_intrinsics"
_IMPORTS = re.compile(rb"^from (mmload(?:\.\w+)+) import", re.MULTILINE)
_PATIENCE_S, _POLL_S = 60.0, 0.01  # the largest kernel compiles in some seconds
_SETTINGS = "NUMBA_BOUNDSCHECK", "NUMBA_OPT", "NUMBA_CPU_NAME", "NUMBA_CPU_FEATURES"


def load(symbol: str, compile_: Callable[[], bytes]) -> int:
    """Returns the address of a kernel's C function; compiles it if neither the package nor the cache has it.

    Several processes that need the same code compile it once.
    """
    for library in map(_shipped_library, levels()):
        if library is not None and hasattr(library, symbol):
            return ctypes.cast(library[symbol], ctypes.c_void_p).value or 0
    folder = cache_folder()
    if folder is None or "<locals>" in symbol:  # what it is made from cannot be told
        _announce()
        return _link(compile_(), symbol)
    path = folder / f"{symbol}.{_processor()}.o"
    if not path.exists():
        with _locked(path):
            if not path.exists():
                _announce()
                remove_partials(path)
                code = compile_()
                try:
                    write_atomically(path, code)
                except OSError:  # a full disk: later processes compile again
                    return _link(code, symbol)
    return _link(path.read_bytes(), symbol)


def symbol_of(function: Callable[..., Any], signature: str) -> str:
    """Returns the name of a kernel's C function: its own, and a digest of sources, signature and the size of pages."""
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
    wanted = os.environ.get("MMLOAD_MACHINE_CODE") or None
    if wanted not in (None, "own", *LEVELS):
        raise UsageError(f"MMLOAD_MACHINE_CODE is {wanted!r:.60}; use one of {choices((*LEVELS, 'own'))}")
    if any(os.environ.get(name) for name in _SETTINGS):
        return ()
    fits = [name for name in LEVELS if name.startswith(platform.machine().replace("_", "-"))]
    fits = [name for name in fits if set(LEVELS[name].split()) <= _features()]
    if wanted in LEVELS and wanted not in fits:
        raise UsageError(f"MMLOAD_MACHINE_CODE is {wanted}, which this processor is not; use {choices((*fits, 'own'))}")
    return tuple(name for name in fits if wanted in (None, name))


def _features() -> set[str]:
    """Returns the features of this processor as LLVM names them; none if the system is not Linux."""
    try:
        text = Path("/proc/cpuinfo").read_text()
    except OSError:
        return set()
    found = re.search(r"^flags\s*: (.*)$", text, re.MULTILINE)
    return {_FLAGS.get(name, name) for name in found[1].split()} if found else set()


@cache
def cache_folder() -> Path | None:
    """Returns the folder of the machine code that this machine compiles; None if none is writable for this user alone.

    The folder beside the source is as safe as the source.
    """
    own, beside = os.environ.get("NUMBA_CACHE_DIR"), PACKAGE / "__pycache__"
    for folder in [Path(own) / "mmload"] if own else [beside, *(each / "mmload" for each in _user_caches())]:
        with suppress(OSError):
            folder.mkdir(0o777 if folder == beside else 0o700, parents=True, exist_ok=True)
            if os.access(folder, os.W_OK) and (folder == beside or _is_private(folder)):
                return folder
    return None


def _is_private(folder: Path) -> bool:
    """Returns whether only this user and root can write into a folder."""
    status = os.stat(folder)
    return status.st_uid in (os.geteuid(), 0) and not status.st_mode & 0o022


def _user_caches() -> list[Path]:
    """Returns the user's cache folder; nothing for a user without a home."""
    usual = "~/Library/Caches" if sys.platform == "darwin" else os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    chosen = os.path.expanduser(usual)
    return [] if chosen.startswith("~") else [Path(chosen)]


@cache
def _processor() -> str:
    """Returns the digest of the processor that numba compiles for, and of its level of optimization."""
    level, name, features = (os.environ.get(name) for name in _SETTINGS[1:])
    own = name or _llvm().get_host_cpu_name(), features or _llvm().get_host_cpu_features().flatten()
    return hashlib.sha256(repr((own, level, _llvm().get_process_triple())).encode()).hexdigest()[:8]


@cache
def _sources(module: str) -> str:
    """Returns the digest of a module and all of mmload that it imports: their functions and constants are inlined."""
    sources = {__name__: b"", "mmload.runtime.numba_compile": b""}  # these decide on no code
    waiting = [*(f"mmload.runtime.{name}" for name in _COMPILER), module]
    while waiting:
        name = waiting.pop()
        if name not in sources:
            sources[name] = _source(name)
            waiting += [found.decode() for found in _IMPORTS.findall(sources[name])]
    return hashlib.sha256(b"".join(sources[name] for name in sorted(sources))).hexdigest()


@cache
def _source(module: str) -> bytes:
    package, _, name = module.rpartition(".")
    try:
        return pkgutil.get_data(package or name, f"{name}.py") or b""
    except FileNotFoundError:  # a package
        return pkgutil.get_data(module, "__init__.py") or b""


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Keeps other processes from compiling the same: a byte of one file of the folder is locked for each name.

    A process that was stopped while it compiles keeps them for :data:`_PATIENCE_S`.
    """
    byte, until = int(hashlib.sha256(path.name.encode()).hexdigest()[:7], 16), time.monotonic() + _PATIENCE_S
    with ExitStack() as stack:
        with suppress(OSError):  # of another user, or a file system without locks
            file = stack.enter_context(open(path.with_name("mmload.lock"), "ab"))
            while time.monotonic() < until:
                with suppress(BlockingIOError, PermissionError):
                    fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, byte)
                    break
                time.sleep(_POLL_S)
        yield


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
    return binding


@cache
def _linker() -> Any:
    llvm = _llvm()
    with suppress(RuntimeError):  # newer releases initialize by themselves
        llvm.initialize()
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    # The other linker puts sections anywhere, where code that reaches 2 GiB finds its constants only by chance.
    return llvm.create_lljit_compiler(use_jit_link=True)


_linked: list[Any] = []  # all that must live as long as the process


def _link(code: bytes, symbol: str) -> int:
    """Brings an object file into memory and returns the address of its function."""
    builder = _llvm().JITLibraryBuilder().add_object_img(code).add_current_process()
    library = builder.export_symbol(symbol).link(_linker(), f"{symbol}.{len(_linked)}")
    _linked.append(library)
    address: int = library[symbol]
    return address
