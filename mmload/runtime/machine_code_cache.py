"""Caches numba's machine code on disk with a checksum, so that damaged code is recompiled and never run.

numba itself unpickles and runs its cache unchecked: a crash, a full disk or a flipped bit there led to errors of
any kind, or to a signal. One file holds one signature of one function, written to a temporary file and renamed.
"""

from __future__ import annotations

import hashlib
import os
import pickle
import pkgutil
import re
import sys
import uuid
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

import llvmlite
import numba
import numpy as np
from numba.core import caching, config, serialize

_caching: Any = caching  # numba is only partially typed
_config: Any = config
_serialize: Any = serialize

_IMPORTS = re.compile(rb"^from (mmload(?:\.\w+)+) import", re.MULTILINE)

_DIGEST = hashlib.sha256().digest_size


def cache_of(function: Any) -> Any:
    """Numba's cache of one function, stored in files with checksums.

    Raises:
        RuntimeError: if there is no writable cache folder.
    """
    made = _caching.FunctionCache(function)
    stamp = made._impl.locator.get_source_stamp(), _imported_sources(function.__module__)
    made._cache_file = KeptCode(Path(made.cache_path), made._impl.filename_base, stamp)
    return made


class KeptCode:
    """The files of one function; replaces numba's ``IndexDataCacheFile``.

    A file consists of the digest of the code's origin, the digest of the content, and the content.

    Args:
        folder: the cache folder.
        base: the prefix of the file names.
        stamp: of the function's source.
    """

    def __init__(self, folder: Path, base: str, stamp: object) -> None:
        self._folder, self._base, self._stamp = folder, base, stamp

    def load(self, key: object) -> Any:
        """The object saved with this key; None if there is none, its source differs, or it is damaged."""
        try:
            kept = self._path(key).read_bytes()
        except OSError:
            return None
        origin, digest, payload = kept[:_DIGEST], kept[_DIGEST : 2 * _DIGEST], kept[2 * _DIGEST :]
        if origin != self._origin(key) or digest != hashlib.sha256(payload).digest():
            return None
        return pickle.loads(payload)

    def save(self, key: object, data: object) -> None:
        """Saves the code; if the disk is full, later processes compile again."""
        payload: bytes = _serialize.dumps(data)
        with suppress(OSError):
            _write(self._path(key), self._origin(key) + hashlib.sha256(payload).digest() + payload)

    def flush(self) -> None:
        """Does nothing: code is looked up by its origin."""

    def _path(self, key: object) -> Path:
        settings = _config.BOUNDSCHECK, _config.OPT
        name = hashlib.sha256(repr((key, settings)).encode()).hexdigest()[:16]
        return self._folder / f"{self._base}.{name}.nbc"

    def _origin(self, key: object) -> bytes:
        """The digest of sources, versions and signature."""
        versions = sys.version, numba.__version__, llvmlite.__version__, np.__version__
        return hashlib.sha256(repr((versions, self._stamp, key)).encode()).digest()


def _imported_sources(module: str) -> bytes:
    """The digest of the modules of mmload that a module imports, whose functions and constants it may inline."""
    seen: dict[str, bytes] = {}
    waiting = ["mmload.runtime.numba_compile", *([module] if module.startswith("mmload.") else [])]
    while waiting:
        name = waiting.pop()
        if name not in seen:
            seen[name] = _source(name)
            waiting += [found.decode() for found in _IMPORTS.findall(seen[name])]
    return hashlib.sha256(b"".join(seen[name] for name in sorted(seen))).digest()


@cache
def _source(module: str) -> bytes:
    package, _, name = module.rpartition(".")
    try:
        return pkgutil.get_data(package, f"{name}.py") or b""
    except FileNotFoundError:  # a package
        return pkgutil.get_data(module, "__init__.py") or b""


def _write(path: Path, content: bytes) -> None:
    """Writes a file atomically, as seen by concurrent readers."""
    aside = path.with_name(f"{path.name}.{uuid.uuid4().hex[:16]}")
    try:
        aside.write_bytes(content)
        os.replace(aside, path)
    except BaseException:
        with suppress(OSError):
            os.unlink(aside)
        raise
