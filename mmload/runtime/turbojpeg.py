"""TurboJPEG's C API, which kernels call by address: in the wheel ``turbojpeg``, or the system's libturbojpeg.

simplejpeg, which the package needs anyway, has the same library inside but exports none of it, and gives the
interpreter lock away several times per image. A library whose pixels differ from simplejpeg's is not used.
"""

from __future__ import annotations

import ctypes
import ctypes.util
import sys
from collections.abc import Iterator
from contextlib import suppress
from functools import cache
from importlib.metadata import PackageNotFoundError, files
from itertools import product

import numpy as np
import numpy.typing as npt

INIT, DESTROY, HEADER, DECODE, HANDLE = range(5)
"""Elements of :attr:`TurboDecoder.state`: the addresses of four functions, and a decoder that they have made or 0."""

RGB, GRAY = 0, 6
"""Pixel formats, ``TJPF_``."""

MOST_COLORS = 3
"""Number of color spaces that are converted to RGB and gray: ``TJCS_RGB``, ``YCbCr`` and ``GRAY``, not CMYK."""

_FUNCTIONS = "tjInitDecompress", "tjDestroy", "tjDecompressHeader3", "tjDecompress2"  # of TurboJPEG 1.4 to 3


class TurboDecoder:
    """TurboJPEG's decoder of one thread, with the functions that use it.

    Attributes:
        state: uintp [5].
    """

    def __init__(self, library: ctypes.CDLL) -> None:
        addresses = [ctypes.cast(getattr(library, name), ctypes.c_void_p).value or 0 for name in _FUNCTIONS]
        self.state: npt.NDArray[np.uintp] = np.array([*addresses, 0], np.uintp)
        self._destroy = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.c_void_p)(addresses[DESTROY])

    def __del__(self) -> None:
        if self.state[HANDLE]:
            self._destroy(int(self.state[HANDLE]))


@cache
def turbojpeg_library() -> ctypes.CDLL | None:
    """Returns the library of the wheel, else of the system; None if there is none, or its pixels are others."""
    for name in _names():
        try:
            library = ctypes.CDLL(name)
            if all(hasattr(library, function) for function in _FUNCTIONS) and _agrees(library):
                return library
        except OSError:
            continue
    return None


def _names() -> Iterator[str]:
    """Yields where the library may be."""
    with suppress(PackageNotFoundError):
        yield from (str(file.locate()) for file in files("turbojpeg") or () if file.name.startswith("libturbojpeg"))
    if sys.platform == "linux":
        yield "libturbojpeg.so.0"
    elif (found := ctypes.util.find_library("turbojpeg")) is not None:
        yield found


def _agrees(library: ctypes.CDLL) -> bool:
    """Returns whether a library makes the same pixels of small pictures as simplejpeg, whole and smaller."""
    from simplejpeg import decode_jpeg, encode_jpeg  # type: ignore[import-untyped]

    side = 37
    noise = np.random.default_rng(0).integers(0, 256, (side, side, 3), np.uint8)
    picture = np.sort(noise, 0)
    for sampling, shrink in product(("444", "422", "420", "440", "Gray"), (1, 2, 4)):
        color, channels = ("GRAY", 1) if sampling == "Gray" else ("RGB", 3)
        data = np.frombuffer(encode_jpeg(picture[..., :channels].copy(), 90, color, sampling), np.uint8)
        sides = -(-side // shrink)
        expected = decode_jpeg(data, color, min_height=sides, min_width=sides, min_factor=shrink)
        if not np.array_equal(expected, _decoded(library, data, sides, channels)):
            return False
    return True


def _decoded(library: ctypes.CDLL, data: npt.NDArray[np.uint8], sides: int, channels: int) -> npt.NDArray[np.uint8]:
    """Decodes a square JPEG by a library."""
    out = np.zeros((sides, sides, channels), np.uint8)
    library.tjInitDecompress.restype = ctypes.c_void_p
    handle = ctypes.c_void_p(library.tjInitDecompress())
    source = ctypes.c_void_p(data.ctypes.data), ctypes.c_ulong(len(data))
    color = RGB if channels == 3 else GRAY
    library.tjDecompress2(handle, *source, ctypes.c_void_p(out.ctypes.data), sides, 0, sides, color, 0)
    library.tjDestroy(handle)
    return out
