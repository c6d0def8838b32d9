"""Keeps libtiff's lines off stderr while mmload decodes: one damaged TIFF prints hundreds, and Pillow raises as well.

libtiff has one handler of warnings and one of errors for the whole process, so blocks of several threads share them.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from PIL import _imaging

from mmload.runtime.warning_filters import Shared


@contextmanager
def _no_lines() -> Iterator[None]:
    setters = _setters()
    before = [(setter, setter(None)) for setter in setters]
    try:
        yield
    finally:
        for setter, handler in before:
            setter(handler)


def _setters() -> list[Any]:
    """The functions of libtiff that set a handler and return the one before, of the library that Pillow is linked to.

    Looked up through Pillow's own module, whose libraries the system searches too. Where they are not to be found (on
    Windows Pillow has libtiff inside and shows nothing of it) the lines stay.
    """
    try:
        library = ctypes.CDLL(_imaging.__file__)
        found = [library.TIFFSetWarningHandler, library.TIFFSetErrorHandler]
    except (OSError, AttributeError):
        return []
    for setter in found:
        setter.restype, setter.argtypes = ctypes.c_void_p, [ctypes.c_void_p]
    return found


hushed = Shared(_no_lines)
"""``with hushed:`` libtiff says nothing, in any thread."""
