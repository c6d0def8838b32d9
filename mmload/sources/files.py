"""Reads the files of a source, on a disk or in object storage, and decides which names and links may be followed.

Names are relative to the root, with forward slashes. It lists no class folders.
"""

from __future__ import annotations

import io
import os
import posixpath
import struct
import threading
import zipfile
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, NamedTuple, Protocol

from mmload.errors import RemoteMissingError, SampleError, SourceError, UsageError
from mmload.records import DARK_DEPTH, DTYPES, TURNED, dtype_name
from mmload.remote.object_store import Found, Objects
from mmload.remote.urls import PARALLEL, Location, is_url, location
from mmload.runtime.regular_files import open_regular, read_regular
from mmload.sources.annotation_values import Findings
from mmload.sources.decode import Decoder, is_dark_depth, is_turned
from mmload.sources.file_kinds import describe_content
from mmload.store.checksum import crc32

if TYPE_CHECKING:
    from torch import Tensor

_RANGE_BYTES = 2**20  # of a request for what is read of an opened object
MAX_AHEAD = 2 * PARALLEL
"""Upper bound on files that are being fetched, or were fetched and not read yet."""


_NO_IMAGES = frozenset(["", ".txt", ".xml", ".json", ".csv", ".md", ".db", ".ini", ".yaml", ".npy", ".pt", ".cache"])


def images_among(names: Iterable[str], findings: Findings) -> Iterator[str]:
    """Yields the names that end as images do, and counts the others, unless their ending says that they are none."""
    for name in names:
        if name.lower().endswith(EXTENSIONS):
            yield name
        elif (ending := posixpath.splitext(name)[1].lower()) not in _NO_IMAGES:
            findings.add(f"files that end in {ending} are not read, convert images among them to .jpg or .png", name)


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

    def open(self, name: str) -> BinaryIO:
        """Opens a file, whose bytes are fetched as they are read."""
        return io.BufferedReader(_Ranges(self._objects, name), _RANGE_BYTES)

    def _get(self, name: str) -> bytes:
        name, start, size = _parts(name)
        if start is not None:
            return bytes(self._objects.get_range(name, start, size))
        if not is_url(name):
            return bytes(self._objects.get(name))
        found = location(name)
        bucket = replace(found, prefix="").url
        objects = self._elsewhere.get(bucket) or self._elsewhere.setdefault(bucket, Objects(bucket))
        return bytes(objects.get(found.prefix))


class _Ranges(io.RawIOBase):
    """Object in object storage as a file, a request per read."""

    def __init__(self, objects: Objects, name: str) -> None:
        self._objects, self._name, self._size, self._place = objects, name, objects.size(name), 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        self._place = offset + {io.SEEK_SET: 0, io.SEEK_CUR: self._place, io.SEEK_END: self._size}[whence]
        return self._place

    def tell(self) -> int:
        return self._place

    def readinto(self, out: Any) -> int:
        count = max(0, min(len(out), self._size - self._place))
        out[:count] = self._objects.get_range(self._name, self._place, count)
        self._place += count
        return count


def part_of_file(name: str, start: int, size: int) -> str:
    """Returns the name of a part of a file, such as a member of a tar, which is read as a file of its own."""
    return f"{name}\0{start}\0{size}"


def _parts(name: str) -> tuple[str, int | None, int]:
    """Returns the name of a file, and begin and size of the part of it that a name stands for; None: all of it."""
    name, _, span = name.partition("\0")
    start, _, size = span.partition("\0")
    return (name, int(start), int(size)) if start.isdecimal() and size.isdecimal() else (name, None, 0)


MAX_BYTES = 2**31
"""Bytes of one file: twice what the largest image takes with 16 bits a channel and no compression."""

EXTENSIONS = (".jpg", ".jpeg", ".png", ".ppm", ".bmp", ".pgm", ".tif", ".tiff", ".webp")
"""torchvision's IMG_EXTENSIONS, in any case."""


def inner_name(name: str) -> str | None:
    """Normalizes a relative name (``a/./b//c``: ``a/b/c``); None if it is absolute, empty or leaves its root."""
    plain = posixpath.normpath(name)
    return None if plain.startswith(("/", "../")) or plain in ("..", ".") or "\0" in name else plain


def read_bytes(root: Place, name: str, sample: str, most: int = MAX_BYTES) -> bytes:
    """Reads the file ``root/name``, of at most ``most`` bytes on a disk.

    Raises:
        SampleError: of ``sample``, if it cannot be read.
        RemoteError: if the store that it lies in cannot be read.
    """
    if not isinstance(root, Path):
        return root.read(name, sample)
    name, start, size = _parts(name)
    try:
        if start is None:
            return read_regular(os.path.join(root, name), most=most)
        with open(os.path.join(root, name), "rb", buffering=0, opener=open_regular) as file:
            file.seek(start)
            data = file.read(size)
        if data is None or len(data) < size:
            raise ValueError(f"it was cut off within {size:,} bytes from {start:,} on")
        return data
    except FileNotFoundError as error:
        raise SampleError(sample, f"no such file: {name}") from error
    except (OSError, ValueError) as error:
        raise SampleError(sample, f"{name} cannot be read ({getattr(error, 'strerror', None) or error})") from error


def read_source(path: Path, most: int = MAX_BYTES) -> bytes:
    """Reads a file that describes samples, of at most ``most`` bytes.

    Raises:
        SourceError: if it is something else than its name says, such as a web page; the message says what.
        OSError: if it cannot be read.
    """
    content = read_regular(path, most=most)
    if what := describe_content(content):
        raise SourceError(f"{path} is {what}")
    return content


def read_text(path: Path, most: int = MAX_BYTES) -> str:
    """Reads a text file as :func:`read_source` does, in UTF-8 with or without a byte order mark."""
    try:
        return read_source(path, most).decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise SourceError(f"{path} is not UTF-8 text ({error})") from error


class HasFiles(Protocol):
    """Place of files that are not in a folder."""

    def read(self, name: str, sample: str) -> bytes:
        """Reads a file; raises SampleError of ``sample`` if it cannot."""


Place = Path | HasFiles


class SampleFiles:
    """Reader of the files of one sample, which counts the checksum of what it has read.

    Its methods raise SampleError of ``sample`` if a file cannot be read or decoded, and RemoteError if the object
    storage cannot be read.
    """

    def __init__(self, place: Place, sample: str) -> None:
        self.place, self.sample, self._crc = place, sample, 0

    @property
    def checksum(self) -> str:
        """CRC-32 of all files that were read, one after another; "" of objects, whose revisions are of the content."""
        return "" if isinstance(self.place, RemoteFiles) else f"{self._crc:08x}"

    def read(self, name: str, most: int = MAX_BYTES) -> bytes:
        """Reads a file of at most ``most`` bytes."""
        data = read_bytes(self.place, name, self.sample, most)
        self._crc = crc32(data, self._crc)
        return data

    def image(self, name: str, decoder: Decoder, *, boxes: bool = False) -> ReadImage:
        """Reads and decodes an image; one with ``boxes`` should have no orientation that is not applied."""
        data = self.read(name)
        with self._named():
            pixels, stands = decoder.with_origin(data)
        found = {
            DARK_DEPTH: is_dark_depth(data, pixels),
            TURNED: boxes and not decoder.exif_orient and is_turned(data),
        }
        return ReadImage(pixels, data if stands else None, {loss: 1 for loss, is_there in found.items() if is_there})

    def size(self, name: str, decoder: Decoder) -> tuple[int, int] | None:
        """Reads (height, width) of an image by its header; None of a ``.pt`` file."""
        with self._named():
            return None if is_tensor(name) else decoder.size(self.read(name))

    def tensor(self, name: str) -> Tensor:
        """Reads the tensor in a ``.pt`` file, with ``weights_only``: a plain dense one."""
        with self._named(f"{name} "):
            return _tensor_in(self.read(name))

    @contextmanager
    def _named(self, before: str = "") -> Iterator[None]:
        """Names the sample in a ValueError."""
        try:
            yield
        except ValueError as error:
            raise SampleError(self.sample, f"{before}{error}") from error


def is_tensor(name: str) -> bool:
    """Returns whether a file holds a tensor, by its name."""
    return name.lower().endswith(".pt")


class ReadImage(NamedTuple):
    """Decoded image: uint8 [C, H, W], the file itself if it is a JPEG of these pixels, else None, and losses."""

    pixels: Tensor
    jpeg: bytes | None = None
    losses: Mapping[str, int] = {}


def local_root(files: Path | RemoteFiles) -> Path:
    """Returns the folder where files are read.

    Raises:
        UsageError: if they are in object storage.
    """
    if isinstance(files, RemoteFiles):
        raise UsageError(f"{files} is in object storage, and this needs the files on a disk; copy them")
    return files


def _tensor_in(data: bytes) -> Tensor:
    """Returns the tensor in the bytes of a ``.pt`` file; raises ValueError, to follow its name."""
    import torch

    if _unpacked(data) > len(data):
        raise ValueError("is compressed, which torch.save never does; save the tensor with torch.save")
    try:
        tensor: Tensor = torch.load(io.BytesIO(data), map_location="cpu", weights_only=True)
    except Exception as error:  # a broken file makes it raise nearly anything
        reason = " ".join(str(error).split())[:160] or type(error).__name__
        raise ValueError(f"is not a tensor file ({reason})") from error
    is_plain = type(tensor) is torch.Tensor and tensor.layout == torch.strided and tensor.device.type == "cpu"
    if not is_plain or tensor.is_quantized or tensor.is_nested or dtype_name(tensor.dtype) is None:
        what = " ".join(str(getattr(tensor, name, "")) for name in ("layout", "dtype", "device"))
        raise ValueError(
            f"holds a {type(tensor).__name__} {what}; a dataset stores dense tensors of {', '.join(DTYPES)}"
        )
    if tensor.numel() * tensor.itemsize > max(len(data), tensor.untyped_storage().nbytes()):
        raise ValueError(f"claims {tensor.numel():,} elements and has far fewer")
    return tensor.detach()


def _unpacked(data: bytes) -> int:
    """Returns the number of bytes that a zip archive says it unpacks to; 0 if the data is no archive.

    Those of ``torch.save`` are not compressed: together they are smaller than the file. 3 MB could unpack to 3 GB.
    """
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            return sum(entry.file_size for entry in archive.infolist())
    except (zipfile.BadZipFile, NotImplementedError, ValueError, struct.error, EOFError):  # the second: unknown kinds
        return 0


def check_is_folder(root: Path, what: str) -> None:
    """Raises SourceError unless ``root`` is a folder; ``what`` says which one to give."""
    if not root.is_dir():
        raise SourceError(f"no such folder: {root}; give {what}")
