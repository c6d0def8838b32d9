"""Keeps libtiff's messages off stderr while mmload decodes: a damaged TIFF prints hundreds, and Pillow raises as well.

libtiff has one warning handler and one error handler per process, which the blocks of several threads share.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from PIL import _imaging

from mmload.runtime.warning_filters import Shared


@contextmanager
def _no_messages() -> Iterator[None]:
    setters = _setters()
    before = [(setter, setter(None)) for setter in setters]
    try:
        yield
    finally:
        for setter, handler in before:
            setter(handler)


def _setters() -> list[Any]:
    """The functions with which the libtiff of Pillow sets a handler and returns the previous one.

    They are looked up through Pillow's extension module. Where they are not exported (on Windows, Pillow links libtiff
    statically) the messages stay.
    """
    try:
        library = ctypes.CDLL(_imaging.__file__)
        found = [library.TIFFSetWarningHandler, library.TIFFSetErrorHandler]
    except (OSError, AttributeError):
        return []
    for setter in found:
        setter.restype, setter.argtypes = ctypes.c_void_p, [ctypes.c_void_p]
    return found


libtiff_silenced = Shared(_no_messages)
"""``with libtiff_silenced:`` libtiff prints nothing, in any thread."""
