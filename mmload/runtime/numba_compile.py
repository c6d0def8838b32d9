"""Functions that numba compiles, and whose machine code is cached on disk for later processes.

The cache is beside the source, or in the user's cache folder if that is not writable (``NUMBA_CACHE_DIR`` overrides
both); if neither is writable, each process compiles for itself, which takes some seconds. numba itself unpickles and
runs its cache unchecked: a crash, a full disk or a flipped bit there led to errors of any kind, or to a signal. So the
files have checksums here: damaged code is recompiled and never run.
"""

from __future__ import annotations

import hashlib
import os
import pickle
import pkgutil
import re
import sys
import threading
import uuid
from collections.abc import Callable
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

import llvmlite
import numba
import numpy as np
from numba import njit

from mmload.runtime.numba_internals import code_settings, compile_signatures, dump_code, has_signature

F = TypeVar("F", bound=Callable[..., Any])

_IMPORTS = re.compile(rb"^from (mmload(?:\.\w+)+) import", re.MULTILINE)

_DIGEST = hashlib.sha256().digest_size


def numba_compiled(*signatures: Any, nogil: bool = True) -> Callable[[F], F]:
    """Compiles a function for the given signatures.

    Args:
        signatures: in numba's notation, such as ``"void(uint8[::1], float32)"``, or its signature objects.
        nogil: whether it releases the interpreter lock; functions that take microseconds should keep it, as another
            thread may acquire it before this one gets it back.
    """

    def compile_(function: F) -> F:
        dispatcher: Any = njit(nogil=nogil)(function)
        sources = _imported_sources(function.__module__)
        compile_signatures(
            dispatcher, signatures, lambda folder, prefix, stamp: CodeCache(Path(folder), prefix, (stamp, sources))
        )
        compiled: F = dispatcher
        return compiled

    return compile_


_variants: dict[tuple[Callable[..., Any], Any], Any] = {}
_compiling = threading.Lock()


def variant(function: F, signature: Any, *, nogil: bool = True) -> F:
    """Returns a function compiled for a signature; the first call compiles, once for all threads.

    Args:
        function: a plain function, or one that is compiled for other signatures.
        signature: as :func:`numba_compiled` takes it.
        nogil: as :func:`numba_compiled` takes it.
    """
    compiled: Any = _variants.get((function, signature))
    if compiled is None:
        with _compiling:
            compiled = _variants.get((function, signature), function)
            if not has_signature(compiled, signature):
                plain: Any = getattr(function, "py_func", function)
                compiled = numba_compiled(signature, nogil=nogil)(plain)
            _variants[function, signature] = compiled
    found: F = compiled
    return found


def inlined(function: F) -> F:
    """Marks a function that is inlined into compiled ones."""
    dispatcher: Any = njit(nogil=True, inline="always")(function)
    part: F = dispatcher
    return part


def called(function: F) -> F:
    """Marks a function that compiled ones call: compiled once for all of them, which saves time for long functions."""
    dispatcher: Any = njit(nogil=True)(function)
    part: F = dispatcher
    return part


def fused(function: F) -> F:
    """Acts as :func:`called`, but lets a product and a sum be rounded once: for floats that are exact integers."""
    dispatcher: Any = njit(nogil=True, fastmath={"contract"})(function)
    part: F = dispatcher
    return part


def divides(function: F) -> F:
    """Acts as :func:`called`, but does not check divisors for 0, as the check prevents vectorization."""
    dispatcher: Any = njit(nogil=True, error_model="numpy")(function)
    part: F = dispatcher
    return part


class CodeCache:
    """Files of the machine code of one function, one per signature.

    A file consists of the digest of the code's origin, the digest of the content, and the content.

    Args:
        folder: the cache folder.
        prefix: prefix of the file names.
        stamp: identifies the sources of the function.
    """

    def __init__(self, folder: Path, prefix: str, stamp: object) -> None:
        self._folder, self._prefix, self._stamp = folder, prefix, stamp

    def load(self, key: object) -> Any:
        """Returns the code saved with this key; None if there is none, its origin differs, or it is damaged."""
        try:
            content = self._path(key).read_bytes()
        except OSError:
            return None
        origin, digest, payload = content[:_DIGEST], content[_DIGEST : 2 * _DIGEST], content[2 * _DIGEST :]
        if origin != self._origin(key) or digest != hashlib.sha256(payload).digest():
            return None
        return pickle.loads(payload)

    def save(self, key: object, data: object) -> None:
        """Saves the code; if the disk is full, later processes compile again."""
        payload = dump_code(data)
        with suppress(OSError):
            _write(self._path(key), self._origin(key) + hashlib.sha256(payload).digest() + payload)

    def flush(self) -> None:
        """Does nothing: code is looked up by its origin."""

    def _path(self, key: object) -> Path:
        name = hashlib.sha256(repr((key, code_settings())).encode()).hexdigest()[:16]
        return self._folder / f"{self._prefix}.{name}.nbc"

    def _origin(self, key: object) -> bytes:
        """Returns the digest of sources, versions and signature."""
        versions = sys.version, numba.__version__, llvmlite.__version__, np.__version__
        return hashlib.sha256(repr((versions, self._stamp, key)).encode()).digest()


def _imported_sources(module: str) -> bytes:
    """Returns the digest of all modules of mmload that a module imports: their functions and constants are inlined."""
    sources: dict[str, bytes] = {}
    waiting = [__name__, *([module] if module.startswith("mmload.") else [])]
    while waiting:
        name = waiting.pop()
        if name not in sources:
            sources[name] = _source(name)
            waiting += [found.decode() for found in _IMPORTS.findall(sources[name])]
    return hashlib.sha256(b"".join(sources[name] for name in sorted(sources))).digest()


@cache
def _source(module: str) -> bytes:
    package, _, name = module.rpartition(".")
    try:
        return pkgutil.get_data(package, f"{name}.py") or b""
    except FileNotFoundError:  # a package
        return pkgutil.get_data(module, "__init__.py") or b""


def _write(path: Path, content: bytes) -> None:
    """Writes a file atomically, as seen by concurrent readers."""
    temporary = path.with_name(f"{path.name}.{uuid.uuid4().hex[:16]}")
    try:
        temporary.write_bytes(content)
        os.replace(temporary, path)
    except BaseException:
        with suppress(OSError):
            os.unlink(temporary)
        raise
