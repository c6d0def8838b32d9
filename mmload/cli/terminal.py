"""What a command shows, what it is doing, and how it ends, in three parts.

Results and errors: lines of results, one line for each error, files of results.

What the program is doing stands on stderr: after a second, then at once on a terminal, and every ten seconds in a log.
A text stays until :func:`shown` takes it back, as the user sees a result, a note or an error then. On a terminal it is
one line that is drawn over, and erased at last; elsewhere it is a line of its own each time. The environment variable
``MMLOAD_QUIET`` switches these lines off, as for a job whose log should hold results only. tqdm formats counts. It
would draw when a count changes; these lines also come while nothing counts: during imports, and between two steps of
which each takes minutes.

Ctrl-C ends the program with one line and exit code 130 at any time; SIGTERM with exit code 143. After
:func:`exit_on_interrupt` the program exits at once: there is nothing to clean up yet, and a KeyboardInterrupt during
the import of torch can become a RecursionError or be lost. Inside :func:`interruptible` Ctrl-C raises
KeyboardInterrupt, so that everything cleans up.
"""

from __future__ import annotations

import errno
import io
import os
import re
import resource
import shutil
import signal
import sys
import threading
import time
import traceback
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, NoReturn, TextIO

from mmload.errors import MmloadError, UsageError, bytes_text, one_line

if TYPE_CHECKING:
    from mmload.records import Progress

_CLOSED_PIPE = 141  # a shell's exit code for SIGPIPE

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


def replace_closed_outputs() -> None:
    """Opens the null device for each output that is closed, so that nothing else asks whether there is one."""
    sys.stdout = sys.stdout or open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115  # open until the program ends
    sys.stderr = sys.stderr or open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115


@contextmanager
def last_resort(debug: bool) -> Iterator[None]:
    """Ends the program with an exit code and one line on any exception inside, after a traceback if ``debug``."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")
    try:
        try:
            yield
        finally:
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
        _settle(sys.stdout)
        _settle(sys.stderr)


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
    limit = resource.getrlimit(resource.RLIMIT_AS)[0]
    if limit != resource.RLIM_INFINITY and (isinstance(error, MemoryError | ImportError) or _LIBRARY in str(error)):
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


def check_target(name: str, path: Path | None, *inputs: str | Path | None, endings: Collection[str] = ()) -> None:
    """Checks, before minutes of work, that a result file can be written and does not overwrite the inputs.

    Raises:
        UsageError: if there is no such folder, the file cannot be written, it lies in one of the inputs, or its name
            has none of the endings.
    """
    from mmload.runtime.files import is_within

    if path is None:
        return
    if endings and path.suffix.lower() not in endings:
        raise UsageError(f"{name} is {path}; give a name that ends in {', '.join(endings)}")
    for folder in filter(None, inputs):
        if is_within(_real(path), _real(Path(str(folder)))):
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
    from mmload.runtime.files import write_atomically

    try:
        write_atomically(_real(path), content)  # where a link leads, not over the link
    except OSError as error:
        raise MmloadError(f"cannot write {path} ({error.strerror or error})") from error


def record_result(dataset: Path, check: str, result: Mapping[str, object], contents: str) -> str:
    """Records the result of a check with its date in the card of a dataset; returns the line that says so.

    Raises:
        StoreError: if the dataset has other ``contents`` now than those that were checked, or cannot be written.
    """
    from mmload.builder.dataset_change import write_card

    write_card(dataset, check, {"date": datetime.now(UTC).isoformat(timespec="seconds"), **result}, contents)
    return f"recorded in the card of {dataset}"


def warn(warnings: list[str]) -> None:
    """Shows warnings on stderr, a line each."""
    for text in warnings:
        note(f"warning: {text}")


def note(text: str) -> None:
    """Shows a line on stderr about what a command does in addition to the request."""
    shown()
    sys.stderr.write(f"mmload: {one_line(text)}\n")


# What the program is doing.


_FIRST_S = 1.0
_AGAIN_S = 10.0
_REDRAWN_S = 0.1

_lock = threading.RLock()
_text = ""
_taken_back: threading.Event | None = None  # of the thread that shows the text; None: there is none
_is_drawn = False  # whether there is a line to draw over


def doing(text: str) -> None:
    """Sets what the program is doing from now on."""
    global _text, _taken_back
    with _lock:
        _text = text
        if _taken_back is None:
            _taken_back = threading.Event()
            threading.Thread(target=_show, args=(_taken_back,), daemon=True).start()


def shown() -> None:
    """Takes the text back, as the user sees something else now."""
    global _taken_back, _is_drawn
    with _lock:
        if _taken_back is not None:
            _taken_back.set()
            _taken_back = None
        if _is_drawn:
            _is_drawn = False
            _write("\r\033[K")


def progress(work: str, unit: str = "row") -> Progress:
    """Returns a callback that takes (done, total), of rows or bytes ("B"), and says how much of some work that is."""
    from tqdm import tqdm

    began: tuple[float, int] | None = None

    def update(done: int, total: int) -> None:
        nonlocal began
        began = began or (time.monotonic(), done)  # what is done at first may be of an earlier run
        doing(
            tqdm.format_meter(
                done,
                total,
                elapsed=time.monotonic() - began[0],
                initial=began[1],
                prefix=work,
                unit=unit,
                unit_scale=unit == "B",
                ascii=sys.stderr.encoding != "utf-8",
            )
        )

    doing(f"{work}: reading what there is")
    return update


def _show(taken_back: threading.Event) -> None:
    """Shows the text, whatever it is at the time, again and again until it is taken back."""
    global _is_drawn
    pause = _FIRST_S
    while not taken_back.wait(pause):
        with _lock:
            if taken_back.is_set():
                return
            _is_drawn = sys.stderr.isatty()
            pause = _REDRAWN_S if _is_drawn else _AGAIN_S
            if _is_drawn:
                _write(f"\r\033[K{one_line(_text)[: shutil.get_terminal_size().columns - 1]}")
            else:
                _write(f"mmload: {one_line(_text)} ...\n")


def _write(text: str) -> None:
    if not os.environ.get("MMLOAD_QUIET"):
        with suppress(OSError):  # stderr is full
            sys.stderr.write(text)
            sys.stderr.flush()


# Ctrl-C.


INTERRUPTED = 130  # a shell's exit code for SIGINT
_ENDED = 143  # that for SIGTERM
_RESENT_S = 0.01  # so that the deletion in which a signal was lost is over


def fail(message: str, code: int) -> NoReturn:
    """Ends the program with one line and an exit code; control characters in it are escaped."""
    shown()
    with suppress(OSError):  # stderr is full
        sys.stderr.write(f"mmload: {one_line(message)}\n")
    sys.exit(code)


def exit_on_interrupt() -> None:
    """Makes Ctrl-C end the program at once, unless SIGINT was ignored at the start."""
    if signal.getsignal(signal.SIGINT) != signal.SIG_IGN:  # as nohup and a shell's & have it
        signal.signal(signal.SIGINT, _end_at_once)


def ignore_interrupts() -> None:
    """Ignores Ctrl-C from now on, so that it cannot change the exit code of a program that is ending.

    Python restores the default handlers before it exits, so a late Ctrl-C would kill it. It also kills itself after a
    KeyboardInterrupt in an ``exec`` of a string (dataclasses use that) until another ``exec`` has run.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    exec("")


def _end_at_once(number: int, frame: FrameType | None) -> None:
    with suppress(OSError, AttributeError, ValueError):
        os.write(sys.stderr.fileno(), b"mmload: interrupted\n")  # the stream itself may be in mid-write
    os._exit(INTERRUPTED)


@contextmanager
def interruptible(advice: str) -> Iterator[None]:
    """Ends the program with one line on Ctrl-C or SIGTERM inside, after everything inside has cleaned up."""
    signals: list[int] = []
    with _ended_once(signals):
        try:
            yield
        except (KeyboardInterrupt, Exception) as error:
            if not signals and isinstance(error, Exception):
                raise
            ended = signals[:1] == [signal.SIGTERM]  # whatever a library made of the KeyboardInterrupt
            fail(f"{'ended' if ended else 'interrupted'}; {advice}", _ENDED if ended else INTERRUPTED)


@contextmanager
def _ended_once(signals: list[int]) -> Iterator[None]:
    """Raises KeyboardInterrupt on the first Ctrl-C or SIGTERM inside; later ones do not interrupt the clean-up."""
    owner = os.getpid()

    def end(number: int, frame: FrameType | None) -> None:
        if os.getpid() != owner:  # a forked worker: Ctrl-C reaches it too, and its parent ends it
            if number == signal.SIGTERM:
                os._exit(128 + number)
            return
        signals.append(number)
        if len(signals) == 1:
            raise KeyboardInterrupt

    report = sys.unraisablehook

    def again(lost: sys.UnraisableHookArgs) -> None:
        """Sends a signal once more that came while an object was deleted: Python ignores what is raised there."""
        if signals and issubclass(lost.exc_type, KeyboardInterrupt):
            threading.Timer(_RESENT_S, os.kill, [owner, signals.pop()]).start()  # which also ends a wait of this thread
        else:
            report(lost)

    handlers = {each: signal.getsignal(each) for each in (signal.SIGINT, signal.SIGTERM)}
    ours = [each for each in handlers if handlers[each] != signal.SIG_IGN]  # as nohup and a shell's & have it
    try:
        for each in ours:
            signal.signal(each, end)
        sys.unraisablehook = again
        yield
    finally:
        sys.unraisablehook = report
        for each in ours:
            signal.signal(each, signal.SIG_IGN if signals else handlers[each])  # the program is on its way out
