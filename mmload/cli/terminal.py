"""Terminal output of all commands: results, one-line errors, warnings, files of results."""

from __future__ import annotations

import errno
import io
import os
import re
import sys
import traceback
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TextIO

from mmload.cli.interrupt import fail
from mmload.cli.status import shown
from mmload.errors import MmloadError, UsageError, bytes_text, one_line
from mmload.runtime.regular_files import is_within
from mmload.runtime.resources import address_limit

_CLOSED_PIPE = 141  # a shell's exit code for SIGPIPE


@contextmanager
def last_resort(debug: bool) -> Iterator[None]:
    """Ends the program with an exit code and one line on any exception inside, after a traceback if ``debug``."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")
    try:
        try:
            yield
        finally:
            if sys.stdout is not None:
                sys.stdout.flush()
    except BrokenPipeError:
        sys.exit(_CLOSED_PIPE)
    except SystemExit as ended:
        if isinstance(ended.__context__, BrokenPipeError):  # for which typer exits with 1
            sys.exit(_CLOSED_PIPE)
        raise
    except Exception as error:
        if debug:
            sys.stderr.write("\n".join(map(one_line, traceback.format_exc().split("\n"))))
        fail(_message(error), error.exit_code if isinstance(error, MmloadError) else 1)
    finally:
        for stream in (sys.stdout, sys.stderr):
            if stream is not None:
                _settle(stream)


def _settle(stream: TextIO) -> None:
    """Flushes; discards what cannot be written, as Python's own flush at exit would report it again."""
    try:
        stream.flush()
    except OSError:
        with open(os.devnull, "wb") as nowhere:
            os.dup2(nowhere.fileno(), stream.fileno())


def show(*lines: str) -> None:
    """Prints lines on stdout. Control characters inside a line are escaped."""
    shown()
    for line in lines:
        print(one_line(line))


def _message(error: Exception) -> str:
    """Formats an error as the line that ends the program."""
    if isinstance(error, MmloadError):
        return str(error)
    limit = address_limit()
    if limit is not None and (isinstance(error, MemoryError | ImportError) or _LIBRARY in str(error)):
        text = one_line(f"{type(error).__name__}: {error}".split(". ")[0])
        return f"{text}; the limit of address space is {bytes_text(limit)}: raise it (ulimit -v)"
    if isinstance(error, MemoryError):
        return f"out of memory ({str(error) or 'no more could be had'}); ask for less, or free some"
    if isinstance(error, OSError) and error.errno in _SYSTEM:
        place = f": {error.filename}" if error.filename else ""
        return f"{error.strerror}{place}; {_SYSTEM[error.errno]}"
    number = re.search(r"\((\d+)\)$", str(error)) if isinstance(error, RuntimeError) else None
    if number and int(number[1]) in _SYSTEM:  # torch reports system errors so
        return f"{error}; {_SYSTEM[int(number[1])]}"
    return f"{type(error).__name__}: {error} (this is a bug in mmload; add --debug to see where)"


_LIBRARY = "shared object"
"""Words of errors of Python's and llvmlite's loading of a library."""

_SYSTEM = {
    errno.ENOMEM: "free some memory, or raise the limit of address space (ulimit -v)",
    errno.ENOSPC: "free some space; for temporary files, set TMPDIR to a place with more",
    errno.EDQUOT: "free some space of your quota; for temporary files, set TMPDIR to another place",
    errno.EFBIG: "raise the limit of file sizes (ulimit -f); for temporary files, set TMPDIR to another place",
    errno.EROFS: "choose a place that can be written; for temporary files, set TMPDIR to one",
    errno.EIO: "the disk or its connection fails; look at the system's log",
    errno.EMFILE: "raise the limit of open files (ulimit -n)",
    errno.EACCES: "change its permissions, or name another place",
    errno.EPERM: "change its permissions, or name another place",
    errno.ENAMETOOLONG: "give a shorter name",
    errno.ELOOP: "its links form a loop; correct them",
}
"""Error numbers of the system -> what to do."""


def check_target(name: str, path: Path | None, *inputs: str | Path | None, endings: Collection[str] = ()) -> None:
    """Checks, before minutes of work, that a result file can be written and does not overwrite the inputs.

    Raises:
        UsageError: if there is no such folder, the file cannot be written, it lies in one of the inputs, or its name
            has none of the endings.
    """
    if path is None:
        return
    if endings and path.suffix.lower() not in endings:
        raise UsageError(f"{name} is {path}; give a name that ends in {', '.join(endings)}")
    for folder in inputs:
        if folder is not None and is_within(_real(path), _real(Path(folder))):
            raise UsageError(f"{name} is {path}, which lies in {folder}, the data itself; write the result elsewhere")
    if not path.parent.is_dir():
        raise UsageError(f"{name} is {path}, but the folder {path.parent} does not exist; make it first")
    if path.is_dir():
        raise UsageError(f"{name} is {path}, which is a folder; give a file's name")
    if not os.access(path if path.exists() else path.parent, os.W_OK):
        raise UsageError(f"{name} is {path}, which may not be written; give another file, or change its permissions")


def _real(path: Path) -> Path:
    """Returns where links lead; a loop of links stays, for which ``Path.resolve`` of Python up to 3.12 has an error."""
    return Path(os.path.realpath(path))


def write_result(path: Path, content: str | bytes) -> None:
    """Writes a result file whole or not at all.

    Raises:
        MmloadError: if it cannot be written.
    """
    from mmload.runtime.durable_files import write_atomically

    try:
        write_atomically(_real(path), content)  # where a link leads, not over the link
    except OSError as error:
        raise MmloadError(f"cannot write {path} ({error.strerror or error})") from error


def warn(warnings: list[str]) -> None:
    """Shows warnings on stderr, a line each."""
    for text in warnings:
        note(f"warning: {text}")


def note(text: str) -> None:
    """Shows a line on stderr about what a command does in addition to the request."""
    shown()
    if sys.stderr is not None:
        sys.stderr.write(f"mmload: {one_line(text)}\n")
