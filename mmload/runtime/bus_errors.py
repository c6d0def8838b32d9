"""Replaces pages of mapped files that cannot be read by zeros, and counts them, so that the process survives.

Touching a page of a file that was truncated while it is mapped, or of a failed disk, raises SIGBUS, which ends the
process. For guarded memory a handler maps a page of zeros and lets the thread continue; the reader checks the count
before it uses what it read. Faults of all other memory go to the previous handler.

The signal is raised by an instruction that reads guarded memory, never in the middle of Python or of ``malloc``, so the
handler may be a Python function. It needs the interpreter lock, which threads in compiled code do not hold.
"""

from __future__ import annotations

import ctypes
import mmap
import signal
import sys
import threading
import weakref
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

_FIXED_ZEROS = 0x32  # MAP_PRIVATE, MAP_FIXED and MAP_ANONYMOUS of Linux
_READ_WRITE, _SIGINFO, _NODEFER = 3, 4, 0x40000000
_ADDRESS_AT = 16  # bytes before si_addr in siginfo_t, on 64 bits

_guards: dict[int, Guard] = {}
_installing = threading.Lock()
_functions: dict[int | None, Any] = {}  # every handler by its address, as the system may still refer to all of them


class Guard:
    """Memory whose page faults are counted.

    Args:
        memory: uint8 [n], mapped.

    Attributes:
        faults: number of pages that could not be read.
        all_faults: the same over all memory of this process that is or was guarded.
    """

    all_faults: ClassVar[int] = 0

    def __init__(self, memory: NDArray[np.uint8]) -> None:
        self._start, self.faults = memory.ctypes.data, 0
        self._stop = self._start + len(memory)
        _guards[id(self)] = self
        weakref.finalize(memory, _guards.pop, id(self), None)

    def arm(self) -> None:
        """Installs the handler before the memory is read, as others may have installed theirs since.

        PyTorch does so in each worker process of a DataLoader, Ray when it connects.
        """
        if _library is not None and _handler_in_force(_library) not in _functions:
            _install(_library)

    def covers(self, address: int) -> bool:
        """Returns whether an address lies in the memory."""
        return self._start <= address < self._stop


class _Action(ctypes.Structure):
    """``struct sigaction`` of the C library."""

    _fields_ = (
        ("handler", ctypes.c_void_p),
        ("mask", ctypes.c_ubyte * 128),
        ("flags", ctypes.c_int),
        ("restorer", ctypes.c_void_p),
    )


def _c_library() -> ctypes.PyDLL | None:
    """Returns the C library; its calls keep the interpreter lock, as they are short. None where this is not Linux."""
    if sys.platform != "linux":
        return None
    library = ctypes.PyDLL(None, use_errno=True)
    library.mmap.restype = ctypes.c_void_p
    library.mmap.argtypes = (
        *(ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long),
    )
    return library


_library = _c_library()


def _handler_in_force(library: ctypes.PyDLL) -> int | None:
    """Returns the address of the process's handler."""
    action = _Action()
    library.sigaction(int(signal.SIGBUS), None, ctypes.byref(action))
    address: int | None = action.handler
    return address


def _install(library: ctypes.PyDLL) -> None:
    """Installs a handler in front of the one that is in force, which gets the faults of all other memory."""
    before, action = _Action(), _Action()

    def handle(number: int, info: int, context: int) -> None:
        address = ctypes.c_uint64.from_address(info + _ADDRESS_AT).value
        for guard in list(_guards.values()):
            if guard.covers(address):
                guard.faults += 1
                Guard.all_faults += 1
                page = address // mmap.PAGESIZE * mmap.PAGESIZE
                if library.mmap(page, mmap.PAGESIZE, _READ_WRITE, _FIXED_ZEROS, -1, 0) == page:
                    return
        library.sigaction(number, ctypes.byref(before), None)  # the instruction faults again, and is handled there

    function = ctypes.CFUNCTYPE(None, ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p)(handle)
    action.handler = ctypes.cast(function, ctypes.c_void_p).value
    action.flags = _SIGINFO | _NODEFER
    with _installing:
        _functions[action.handler] = function
        library.sigaction(int(signal.SIGBUS), ctypes.byref(action), ctypes.byref(before))
