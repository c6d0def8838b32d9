"""Machine code of kernels: object files that come with the package, or that this machine has compiled and cached.

A file has one function for one signature and one kind of processor. It needs the C library and Python's stable
interface only, so neither numba's nor Python's version matters. Its name has the digest of all that it was made from,
so that a file of another source is never found, and it begins with the digest of its content: damaged code is compiled
again and never run.

The package's files are in ``machine_code``, a folder for each kind of processor; ``scripts/machine_code`` makes them.
The cache is beside the source, or in the user's cache folder if that is not writable (``NUMBA_CACHE_DIR`` overrides
both); if neither is writable, each process compiles for itself. A cache that other users can write to is not used, as
whoever writes there has code run.
"""

from __future__ import annotations

import ctypes
import errno
import hashlib
import mmap
import os
import pkgutil
import re
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from mmload.errors import UsageError, choices
from mmload.runtime.resources import processor_name

_V3 = "avx avx2 bmi bmi2 f16c fma lzcnt movbe popcnt sse4.2"

LEVELS = {"x86-64-v4": f"{_V3} avx512f avx512bw avx512cd avx512dq avx512vl", "x86-64-v3": _V3, "aarch64": ""}
"""Kinds of processors that the package may have machine code for, the best first, and the features that each needs."""

TRIPLES = {level: f"{'aarch64' if level == 'aarch64' else 'x86_64'}-unknown-linux-gnu" for level in LEVELS}
"""Kind of processor -> the system that its files are for, as LLVM names it."""

ENTRY, NATIVE = "mmload_entry", "mmload_native"
"""Symbols of an object file: the function that Python calls, and the one that other kernels call."""

PACKAGE = Path(__file__).parents[1]

_IMPORTS = re.compile(rb"^from (mmload(?:\.\w+)+) import", re.MULTILINE)
_SETTINGS = ("NUMBA_BOUNDSCHECK", "NUMBA_OPT", "NUMBA_CPU_NAME", "NUMBA_CPU_FEATURES")
_DIGEST = hashlib.sha256().digest_size
_FASTCALL = 0x80  # METH_FASTCALL of Python's stable interface
_PATIENCE_S, _POLL_S = 60.0, 0.01  # the largest kernel compiles in some seconds


class MachineCode(NamedTuple):
    """Function in memory.

    Attributes:
        call: calls it with Python's objects.
        address: address at which other kernels call it, with their own values.
    """

    call: Callable[..., Any]
    address: int


def load(function: Callable[..., Any], signature: str, nogil: bool, compile_: Callable[[], bytes]) -> MachineCode:
    """Returns the machine code of a function; compiles it if neither the package nor the cache has it.

    Several processes that need the same code compile it once.
    """
    if "<locals>" in function.__qualname__:  # what it is made from cannot be told
        return _link(compile_(), function)
    name = file_name(function, signature, nogil)
    shipped = shipped_code(name)
    if shipped is not None:
        return _link(shipped, function)
    folder, name = cache_folder(), f"{name}.{_processor()}"
    if folder is None:
        _announce()
        return _link(compile_(), function)
    found = read_code(folder / name)
    if found is None:
        with _locked(folder, name):
            found = read_code(folder / name)
            if found is None:
                _announce()
                found = compile_()
                with suppress(OSError):  # a full disk: later processes compile again
                    _remove_unfinished(folder / name)
                    write_code(folder / name, found)
    return _link(found, function)


def file_name(function: Callable[..., Any], signature: str, nogil: bool) -> str:
    """Returns the name of a function's file: its own, and a digest of sources, signature and settings."""
    module = function.__module__
    settings = [os.environ.get(name, "") for name in _SETTINGS[:2]]
    origin = repr((_sources(module), function.__qualname__, signature, nogil, settings, _layout()))
    return f"{module}.{function.__qualname__}.{hashlib.sha256(origin.encode()).hexdigest()[:24]}.o"


def shipped_code(name: str) -> bytes | None:
    """Returns a file of the package for this processor; None if there is none."""
    for level in levels():
        found = read_code(PACKAGE / "machine_code" / level / name)
        if found is not None:
            return found
    return None


@cache
def levels() -> tuple[str, ...]:
    """Returns the kinds of processors of which this is one, the best first.

    ``MMLOAD_MACHINE_CODE`` names the only one that is taken; "own" takes none and compiles for this processor.
    """
    wanted = os.environ.get("MMLOAD_MACHINE_CODE")
    if wanted not in (None, "", "own", *LEVELS):
        raise UsageError(f"MMLOAD_MACHINE_CODE is {wanted!r:.60}; use one of {choices((*LEVELS, 'own'))}")
    if any(os.environ.get(name) for name in _SETTINGS):
        return ()
    has = _llvm().get_host_cpu_features()
    made_for = [name for name in LEVELS if _system(TRIPLES[name]) == _system(_llvm().get_process_triple())]
    fits = [name for name in made_for if all(map(has.get, LEVELS[name].split()))]
    if wanted in LEVELS and wanted not in fits:
        raise UsageError(f"MMLOAD_MACHINE_CODE is {wanted}, which this processor is not; use {choices((*fits, 'own'))}")
    return tuple(name for name in fits if wanted in (None, "", name))


def _system(triple: str) -> tuple[str, bool]:
    """Returns the architecture of a triple, and whether its system is Linux; vendors name themselves in others."""
    return triple.partition("-")[0], "-linux" in triple


def shipped_counts() -> dict[str, int]:
    """Returns the number of files that the package has for each kind of processor."""
    return {level: sum(1 for _ in (PACKAGE / "machine_code" / level).glob("*.o")) for level in LEVELS}


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
    if sys.platform == "win32":
        return True
    status = os.stat(folder)
    return status.st_uid in (os.geteuid(), 0) and not status.st_mode & 0o022


def read_code(path: Path) -> bytes | None:
    """Returns the machine code in a file; None if there is no such file, or it is damaged."""
    try:
        content = path.read_bytes()
    except OSError:
        return None
    digest, code = content[:_DIGEST], content[_DIGEST:]
    return code if digest == hashlib.sha256(code).digest() else None


def write_code(path: Path, code: bytes) -> None:
    """Writes a file atomically, as seen by concurrent readers."""
    temporary = path.with_name(f"{path.name}.{uuid.uuid4().hex[:16]}")
    try:
        temporary.write_bytes(hashlib.sha256(code).digest() + code)
        os.replace(temporary, path)
    except BaseException:
        with suppress(OSError):
            os.unlink(temporary)
        raise


def _remove_unfinished(path: Path) -> None:
    """Removes what killed processes left while they wrote a file; the caller holds its lock."""
    for left in path.parent.glob(f"{path.name}.*"):
        left.unlink(missing_ok=True)


def _user_caches() -> list[Path]:
    """Returns the user's cache folder; nothing for a user without a home."""
    local = os.environ.get("LOCALAPPDATA" if sys.platform == "win32" else "XDG_CACHE_HOME")
    usual = os.path.expanduser("~/Library/Caches" if sys.platform == "darwin" else "~/.cache")
    chosen = usual if sys.platform == "darwin" or not local else local
    return [] if chosen.startswith("~") else [Path(chosen)]


@cache
def _processor() -> str:
    """Returns the digest of the processor that numba compiles for."""
    name, features = (os.environ.get(name) for name in _SETTINGS[2:])
    own = name or _llvm().get_host_cpu_name(), features or _llvm().get_host_cpu_features().flatten()
    return hashlib.sha256(repr((own, _llvm().get_process_triple())).encode()).hexdigest()[:8]


def _layout() -> tuple[int, ...]:
    """Returns the sizes of objects that entries read fields of, and of pages, which aarch64 has in several sizes."""
    return object.__basicsize__, ctypes.sizeof(ctypes.c_void_p), mmap.PAGESIZE


@cache
def _sources(module: str) -> str:
    """Returns the digest of a module and all of mmload that it imports: their functions and constants are inlined."""
    sources = {__name__: b"", "mmload.runtime.numba_compile": b""}  # these decide on no code
    waiting = ["mmload.runtime.numba_intrinsics", "mmload.runtime.numba_internals", module]
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
def _locked(folder: Path, name: str) -> Iterator[None]:
    """Keeps other processes from compiling the same: a byte of one file is locked for each name.

    A process that was stopped while it compiles keeps them for :data:`_PATIENCE_S`.
    """
    try:
        import fcntl

        file = open(folder / "mmload.lock", "ab")  # noqa: SIM115  # closed below
    except (ImportError, OSError):
        yield
        return
    byte, until = int(hashlib.sha256(name.encode()).hexdigest()[:7], 16), time.monotonic() + _PATIENCE_S
    with file:
        while time.monotonic() < until:
            try:
                fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, byte)
            except OSError as error:
                if error.errno not in (errno.EAGAIN, errno.EACCES):  # a file system without locks
                    break
                time.sleep(_POLL_S)
            else:
                break
        yield


@cache
def _announce() -> None:
    """Says once per process why it takes time."""
    own = next((name for name in ("MMLOAD_MACHINE_CODE", *_SETTINGS) if os.environ.get(name)), None)
    if any(map(shipped_counts().get, levels())):
        why = "a kernel has changed"
    elif own is not None and not levels():
        why = f"{own} is {os.environ[own]:.40}"
    else:
        why = "the wheel of a release brings it"
    sys.stderr.write(
        f"mmload: compiling machine code for this processor ({processor_name()}), once: about 6 s for a crop, 20 s for "
        f"a resized crop, a minute for color operations ({why})\n"
    )


@cache
def _llvm() -> Any:
    from llvmlite import binding

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


class _Method(ctypes.Structure):
    """``PyMethodDef`` of Python's stable interface."""

    _fields_ = [("name", ctypes.c_char_p), ("call", ctypes.c_void_p), ("flags", ctypes.c_int), ("doc", ctypes.c_char_p)]


_linked: list[Any] = []  # all that must live as long as the process


def _link(code: bytes, function: Callable[..., Any]) -> MachineCode:
    """Brings an object file into memory and returns its function."""
    builder = _llvm().JITLibraryBuilder().add_object_img(code).add_current_process()
    for symbol in (ENTRY, NATIVE):
        builder.export_symbol(symbol)
    library = builder.link(_linker(), f"{function.__module__}.{function.__qualname__}.{len(_linked)}")
    method = _Method(function.__name__.encode(), library[ENTRY], _FASTCALL, None)
    make = ctypes.pythonapi.PyCFunction_NewEx
    make.argtypes, make.restype = (ctypes.POINTER(_Method), ctypes.py_object, ctypes.c_void_p), ctypes.py_object
    call = make(ctypes.byref(method), np.ndarray, None)  # the entry's first argument is the class of arrays
    _linked.append((library, method))
    return MachineCode(call, library[NATIVE])
