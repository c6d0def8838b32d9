"""Reads the files of a source, on a disk or in object storage, and decides which names and links may be followed.

Names are relative to the root, with forward slashes. It lists no class folders.
"""

from __future__ import annotations

import errno
import io
import os
import posixpath
import stat
import struct
import threading
import unicodedata
import zipfile
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from itertools import chain, product
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from mmload.errors import RecipeError, RemoteMissingError, SampleError, SourceError, UsageError
from mmload.records import DARK_DEPTH, DTYPES, dtype_name
from mmload.remote.object_store import Found, Objects
from mmload.remote.urls import PARALLEL, Location, is_url, location
from mmload.runtime.lazy_property import lazy_property
from mmload.runtime.regular_files import open_regular, read_regular
from mmload.sources import TIME_MARK
from mmload.sources.annotation_values import Findings
from mmload.sources.decode import Decoder, is_dark_depth
from mmload.sources.file_kinds import describe_content
from mmload.store.checksum import crc32

if TYPE_CHECKING:
    from torch import Tensor

MAX_AHEAD = 2 * PARALLEL
"""Upper bound on files that are being fetched, or were fetched and not read yet."""


class RemoteFiles:
    """The objects under a URL as files. Thread-safe; picklable: a copy connects again.

    A name is relative to the URL, or a whole URL of an object anywhere.

    Raises:
        UsageError: if obstore is not installed.
    """

    def __init__(self, place: Location) -> None:
        self.place = place
        self._objects = Objects(place.url)
        self._elsewhere: dict[str, Objects] = {}
        self._lock = threading.Lock()
        self._wanted: dict[str, None] = {}  # in order, and each once
        self._coming: dict[str, Future[bytes]] = {}
        self._pool: ThreadPoolExecutor | None = None

    def __reduce__(self) -> tuple[Any, ...]:
        return RemoteFiles, (self.place,)

    def __str__(self) -> str:
        return self.place.url

    def listed(self) -> list[Found]:
        """Lists all objects.

        Raises:
            SourceError: if there is none; RemoteError: if they cannot be listed.
        """
        try:
            found = self._objects.listed()
        except RemoteMissingError as error:
            raise SourceError(str(error)) from error
        if not found:
            raise SourceError(f"no objects at {self}; check the bucket and the prefix")
        return found

    def read(self, name: str, sample: str) -> bytes:
        """Reads a whole file.

        Raises:
            SampleError: of ``sample``, if there is no such file.
            RemoteError: if the store cannot be read.
        """
        with self._lock:
            self._wanted.pop(name, None)
            coming = self._coming.pop(name, None)
            self._ask()
        try:
            return self._get(name) if coming is None else coming.result()
        except RemoteMissingError as error:
            raise SampleError(sample, str(error)) from error

    def fetch_ahead(self, names: Iterable[str]) -> None:
        """Fetches files that are read soon, in this order, as many at once as :data:`MAX_AHEAD` allows."""
        with self._lock:
            self._wanted.update(dict.fromkeys(names))
            self._ask()

    def _ask(self) -> None:
        """Starts requests for wanted files; the caller holds the lock."""
        while self._wanted and len(self._coming) < MAX_AHEAD:
            name = next(iter(self._wanted))
            del self._wanted[name]
            if name not in self._coming:
                self._pool = self._pool or ThreadPoolExecutor(PARALLEL, thread_name_prefix="mmload-source")
                self._coming[name] = self._pool.submit(self._get, name)

    def _get(self, name: str) -> bytes:
        if not is_url(name):
            return bytes(self._objects.get(name))
        found = location(name)
        bucket = replace(found, prefix="").url
        objects = self._elsewhere.get(bucket) or self._elsewhere.setdefault(bucket, Objects(bucket))
        return bytes(objects.get(found.prefix))


_FOLLOWED = 40
"""The longest chain of links, as on Linux."""

_CACHED = 4096
"""Folders whose real path is cached."""

_ABSENT = (errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.ENAMETOOLONG)


def is_absent(error: OSError) -> bool:
    """Returns whether an error means that no such file exists; False for permissions or a stale NFS handle."""
    return error.errno in _ABSENT


MAX_DEPTH = 100
"""Folders inside one another in a class."""


class Links:
    """Rules on which symbolic links below a root, which may be one, may be followed: with ``allow_outside`` every one.

    It accesses a file only when that file is checked.

    Raises:
        RecipeError: if ``allow_outside`` is not a bool.
    """

    def __init__(self, root: str | Path, allow_outside: bool) -> None:
        if not isinstance(allow_outside, bool):
            raise RecipeError(f"allow_outside is {allow_outside!r}; use true or false")
        self.root, self.allow_outside = Path(root), allow_outside
        self._real_paths: dict[str, str] = {}
        self._findings = Findings()

    def find(self, folder: str | Path, name: str) -> tuple[str, str]:
        """Finds a listed file, and returns its name relative to the folder and its :meth:`revision`.

        If there is none of exactly this name, it is the only one whose name differs in nothing but the Unicode form, as
        macOS writes names in another one, or the case of the ending. The caller has checked the folder of the name.

        Raises:
            SourceError: if the file is, or lies behind, a link out of the root.
        """
        revision, found = self.revision(os.path.join(folder, name)), dict[str, str]()
        if revision == "missing":
            revisions = ((each, self.revision(os.path.join(folder, each))) for each in _spellings(name))
            found = {each: revision for each, revision in revisions if revision != "missing"}
        if len(found) != 1:
            return name, revision
        ((spelling, revision),) = found.items()
        self.check(os.path.join(folder, spelling))
        kind = "files found by a name that differs in its Unicode form or the case of its ending"
        self._findings.add(kind, f"{name!a:.80} is {spelling!a:.80}")
        return spelling, revision

    def find_first(self, folder: str | Path, names: Sequence[str]) -> tuple[str, str]:
        """Finds the first of some names that is a file as :meth:`find` does; names as they are before other spellings.

        Where there is none, it returns the first name, and "missing".
        """
        exact = ((name, self.revision(os.path.join(folder, name))) for name in names)
        found = chain(exact, (self.find(folder, name) for name in names))
        return next((each for each in found if each[1] != "missing"), (names[0], "missing"))

    def notes(self) -> tuple[str, ...]:
        """Returns a note on the files that :meth:`find` found under another name since the last call."""
        notes, self._findings = self._findings.notes(), Findings()
        return notes

    def revision(self, path: str | Path) -> str:
        """Returns a file's size and modification time, or ``missing``; the caller has checked its folder.

        Raises:
            SourceError: if the file is a link out of the root.
            OSError: if the system cannot tell whether the file exists, which must not pass as ``missing``.
        """
        try:
            status = os.lstat(path)
            if stat.S_ISLNK(status.st_mode):
                self.check(path)
                status = os.stat(path)
        except ValueError:  # a name that the file system cannot represent
            return "missing"
        except OSError as error:
            if not is_absent(error):
                raise
            return "missing"
        return f"{status.st_size} {TIME_MARK}{status.st_mtime_ns}"

    def check(self, path: str | Path) -> None:
        """Raises SourceError if a path leads out of the root, itself or by one of the folders that it names."""
        if not self.allow_outside:
            self._check(path, self._real_path(os.fspath(path)))

    def check_folder(self, path: str | Path) -> None:
        """Raises SourceError if a folder leads out of the root; caches real paths."""
        if not self.allow_outside:
            self._check(path, self._folder(os.fspath(path)))

    def _check(self, path: str | Path, real: str) -> None:
        if real != self._real and not real.startswith(os.path.join(self._real, "")):
            raise SourceError(
                f"{path} leads out of {self.root} by a link, to {real:.200}; to follow such links, add "
                "--set allow_outside=true"
            )

    @lazy_property
    def _real(self) -> str:
        return os.path.realpath(self.root)

    def _real_path(self, path: str) -> str:
        """Returns ``os.path.realpath`` with cached folders: two system calls per file instead of one per level."""
        for _ in range(_FOLLOWED):
            folder, name = os.path.split(path)
            if name in ("", ".", ".."):
                return os.path.realpath(path)
            folder = self._folder(folder)
            path = os.path.join(folder, name)
            try:
                path = os.path.join(folder, os.readlink(path))
            except OSError as error:  # not a link; other errors must not pass as that
                if error.errno != errno.EINVAL and not is_absent(error):
                    raise
                return path
        return path

    def _folder(self, path: str) -> str:
        real = self._real_paths.get(path)
        if real is None:
            if len(self._real_paths) >= _CACHED:
                self._real_paths.clear()
            real = self._real_paths[path] = os.path.realpath(path)
        return real


def _spellings(name: str) -> list[str]:
    """Returns the other spellings of a name: the Unicode forms of its folder and its stem, each case of the ending."""
    folder, file = posixpath.split(name)
    stem, ending = posixpath.splitext(file)
    endings = (ending, ending.lower(), ending.upper(), ending.title())
    parts = product(_unicode_forms(folder), _unicode_forms(stem), endings)
    return sorted({posixpath.join(folder, stem + ending) for folder, stem, ending in parts} - {name})


def _unicode_forms(text: str) -> set[str]:
    return {text, unicodedata.normalize("NFC", text), unicodedata.normalize("NFD", text)}


def is_folder(entry: os.DirEntry[str]) -> bool:
    """Returns whether an entry is a folder or a link to one; a link that leads back to itself counts as a file.

    Raises:
        OSError: if the system cannot tell: a class must not be left out because of that.
    """
    try:
        return entry.is_dir()
    except OSError as error:
        if not is_absent(error):
            raise
        return False


def walk(folder: str, above: tuple[tuple[int, int], ...], links: Links) -> Iterator[tuple[str, list[str]]]:
    """Walks like ``os.walk`` with links followed, but never into a folder that is being walked already (``above``)."""
    links.check_folder(folder)
    status = os.stat(folder)
    here = (status.st_dev, status.st_ino)
    if here in above:
        return
    if len(above) > MAX_DEPTH:
        raise SourceError(f"{folder[:200]} ... is over {MAX_DEPTH} folders deep; no class is")
    with os.scandir(folder) as found:
        entries = list(found)
    yield folder, [entry.name for entry in entries if not is_folder(entry)]
    for entry in entries:
        if is_folder(entry):
            yield from walk(entry.path, (*above, here), links)


@contextmanager
def reading(root: object) -> Iterator[None]:
    """Turns system errors while a source is scanned (a folder that disappears, no permission) into one line.

    Raises:
        SourceError: naming the path.
    """
    try:
        yield
    except OSError as error:
        raise SourceError(
            f"cannot read {error.filename or root} ({error.strerror or error}); fix it, or remove it"
        ) from error


MAX_BYTES = 2**31
"""Bytes of one file: twice what the largest image takes with 16 bits a channel and no compression."""

EXTENSIONS = (".jpg", ".jpeg", ".png", ".ppm", ".bmp", ".pgm", ".tif", ".tiff", ".webp")
"""torchvision's IMG_EXTENSIONS, in any case."""


def inner_name(name: str) -> str | None:
    """Normalizes a relative name (``a/./b//c``: ``a/b/c``); None if it is absolute, empty or leaves its root."""
    if not name or "\0" in name or os.path.isabs(name) or os.path.splitdrive(name)[0]:
        return None
    plain = posixpath.normpath(name.replace(os.sep, "/"))
    return None if plain.startswith(("/", "../")) or plain in ("..", ".") else plain


def read_bytes(root: Path | RemoteFiles, name: str, sample: str, most: int = MAX_BYTES) -> bytes:
    """Reads the file ``root/name``, of at most ``most`` bytes on a disk.

    Raises:
        SampleError: of ``sample``, if it cannot be read.
        RemoteError: if the store that it lies in cannot be read.
    """
    if isinstance(root, RemoteFiles):
        return root.read(name, sample)
    try:
        with io.FileIO(os.path.join(root, name), opener=open_regular) as file:
            size = os.fstat(file.fileno()).st_size
            if size > most:
                raise SampleError(sample, f"{name} has {size:,} bytes, more than the limit of {most:,}")
            data: bytes = file.read(size)
            while len(data) < size and (more := file.read(size - len(data))):  # Linux reads 2 GiB at most
                data += more
            return data
    except FileNotFoundError as error:
        raise SampleError(sample, f"no such file: {name}") from error
    except (OSError, ValueError) as error:
        raise SampleError(sample, f"{name} cannot be read ({getattr(error, 'strerror', None) or error})") from error


def read_text(path: Path, most: int = MAX_BYTES) -> str:
    """Reads a text file of at most ``most`` bytes in UTF-8, with or without a byte order mark.

    Raises:
        SourceError: if it cannot be read, or is something else; the message says what.
    """
    try:
        content = read_regular(path, most=most)
        if what := describe_content(content):
            raise SourceError(f"{path} is {what}")
        return content.decode("utf-8-sig")
    except OSError as error:
        raise SourceError(f"cannot read {path} ({error.strerror or error})") from error
    except UnicodeDecodeError as error:
        raise SourceError(f"{path} is not UTF-8 text ({error})") from error


def checksum_of(root: Path | RemoteFiles, names: Iterable[str], sample: str) -> str:
    """Returns the CRC-32 of some files, one after another; "" in object storage, whose revisions are of the content.

    Raises:
        SampleError: of ``sample``, if one cannot be read.
    """
    if isinstance(root, RemoteFiles):
        return ""
    total = 0
    for name in names:
        total = crc32(read_bytes(root, name, sample), total)
    return f"{total:08x}"


class ReadImage(NamedTuple):
    """Decoded image: uint8 [C, H, W], the file itself if it is a JPEG of these pixels, else None, and losses."""

    pixels: Tensor
    jpeg: bytes | None
    losses: dict[str, int]


def read_image_and_jpeg(root: Path | RemoteFiles, name: str, decoder: Decoder, sample: str) -> ReadImage:
    """Reads and decodes an image.

    Raises:
        SampleError: of ``sample``, if it cannot be read or decoded.
    """
    data = read_bytes(root, name, sample)
    try:
        pixels, stands = decoder.with_origin(data)
    except ValueError as error:
        raise SampleError(sample, str(error)) from error
    return ReadImage(pixels, data if stands else None, {DARK_DEPTH: 1} if is_dark_depth(data, pixels) else {})


def local_root(files: Path | RemoteFiles) -> Path:
    """Returns the folder where files are read.

    Raises:
        UsageError: if they are in object storage.
    """
    if isinstance(files, RemoteFiles):
        raise UsageError(f"{files} is in object storage, and this needs the files on a disk; copy them")
    return files


def read_tensor(root: Path | RemoteFiles, name: str, sample: str) -> Tensor:
    """Reads the tensor in a ``.pt`` file, with ``weights_only``.

    Raises:
        SampleError: of ``sample``, if there is no plain dense tensor in it.
    """
    import torch

    data = read_bytes(root, name, sample)
    if _unpacked(data) > len(data):
        raise SampleError(sample, f"{name} is compressed, which torch.save never does; save the tensor with torch.save")
    try:
        tensor = torch.load(io.BytesIO(data), map_location="cpu", weights_only=True)
    except Exception as error:  # a broken file makes it raise nearly anything
        reason = " ".join(str(error).split())[:160] or type(error).__name__
        raise SampleError(sample, f"{name} is not a tensor file ({reason})") from error
    if type(tensor) is not torch.Tensor or tensor.layout != torch.strided or tensor.is_quantized or tensor.is_nested:
        raise SampleError(sample, f"{name} holds a {type(tensor).__name__}, expected one dense tensor")
    if tensor.device.type != "cpu":
        raise SampleError(sample, f"{name} holds a tensor of the device {tensor.device}, without its numbers")
    if dtype_name(tensor.dtype) is None:
        raise SampleError(sample, f"{name} is of dtype {tensor.dtype}; a dataset stores {', '.join(DTYPES)}")
    if tensor.numel() * tensor.itemsize > max(len(data), tensor.untyped_storage().nbytes()):
        raise SampleError(sample, f"{name} claims {tensor.numel():,} elements and has far fewer")
    return tensor.detach()


def _unpacked(data: bytes) -> int:
    """Returns the number of bytes that a zip archive says it unpacks to; 0 if the data is no archive.

    Those of ``torch.save`` are not compressed: together they are smaller than the file. 3 MB could unpack to 3 GB.
    """
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            return sum(entry.file_size for entry in archive.infolist())
    except (zipfile.BadZipFile, NotImplementedError, ValueError, struct.error, EOFError):  # an unknown kind of archive
        return 0


def check_is_folder(root: Path, what: str) -> None:
    """Raises SourceError unless ``root`` is a folder; ``what`` says which one to give."""
    if not root.is_dir():
        raise SourceError(f"no such folder: {root}; give {what}")
