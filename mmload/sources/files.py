"""Files of a source below its root, on a disk or in object storage: which there are, which may be read, their bytes.

Names are relative to the root, with forward slashes; "" is the root itself. A link out of the root is followed only
where that is allowed, and folders are walked once each however links lead.
"""

from __future__ import annotations

import errno
import io
import os
import posixpath
import stat
import threading
import unicodedata
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager
from functools import partial
from itertools import chain, product
from pathlib import Path, PurePath
from typing import TYPE_CHECKING, Any, BinaryIO, Protocol

from mmload.errors import RemoteMissingError, SampleError, SourceError, UsageError, naming
from mmload.lazy import lazy_property
from mmload.records import DARK_DEPTH, DTYPES, TURNED, dtype_name
from mmload.remote.object_store import Found, Objects
from mmload.remote.urls import PARALLEL, Location, is_url
from mmload.runtime.files import open_regular, read_regular
from mmload.sources import TIME_MARK, Findings
from mmload.sources.decode import Decoder, describe_content, is_dark_depth, is_turned
from mmload.store.checksum import crc32

if TYPE_CHECKING:
    from torch import Tensor

    from mmload.records import FieldValue

EXTENSIONS = (".jpg", ".jpeg", ".png", ".ppm", ".bmp", ".pgm", ".tif", ".tiff", ".webp")
"""torchvision's IMG_EXTENSIONS, in any case."""

MOST_BYTES = 2**31
"""Bytes of one file: twice what the largest image takes with 16 bits a channel and no compression."""

MOST_DEPTH = 100
"""Upper bound on folders inside one another."""

MAX_AHEAD = 2 * PARALLEL
"""Upper bound on files that are being fetched, or were fetched and not read yet."""

MISSING = "missing"
"""Revision of a file that does not exist."""

OBJECT = "object"
"""Revision of a file in object storage, whose own revision is unknown before it is read."""

_RANGE_BYTES = 2**20  # of a request for what is read of an opened object
_ABSENT = (errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.ENAMETOOLONG)  # others, as of a stale handle, are errors
_NO_IMAGES = frozenset(["", ".txt", ".xml", ".json", ".csv", ".md", ".db", ".ini", ".yaml", ".npy", ".pt", ".cache"])


def inner_name(name: str) -> str | None:
    """Normalizes a relative name (``a/./b//c``: ``a/b/c``); None if it is absolute, empty or leaves its root."""
    plain = posixpath.normpath(name)
    return None if plain.startswith(("/", "../")) or plain in ("..", ".") or "\0" in name else plain


def is_image_name(name: str) -> bool:
    """Returns whether a name ends as those of images do."""
    return name.lower().endswith(EXTENSIONS)


def images_among(names: Iterable[str], findings: Findings) -> Iterator[str]:
    """Yields the names that end as images do, and counts the others, unless their ending says that they are none."""
    for name in names:
        if is_image_name(name):
            yield name
        elif (ending := posixpath.splitext(name)[1].lower()) not in _NO_IMAGES:
            findings.add(f"files that end in {ending} are not read, convert images among them to .jpg or .png", name)


def part_of_file(name: str, start: int, size: int) -> str:
    """Returns the name of a part of a file, such as a member of a tar, which is read as a file of its own."""
    return f"{name}\0{start}\0{size}"


def _parts(name: str) -> tuple[str, int | None, int]:
    """Returns the name of a file, and begin and size of the part of it that a name stands for; None: all of it."""
    name, _, span = name.partition("\0")
    start, _, size = span.partition("\0")
    return (name, int(start), int(size)) if start.isdecimal() and size.isdecimal() else (name, None, 0)


def check_is_folder(root: Path, what: str) -> None:
    """Raises SourceError unless ``root`` is a folder; ``what`` says which one to give."""
    if not root.is_dir():
        raise SourceError(f"no such folder: {root}; give {what}")


class LocalTree:
    """Files below a folder of a disk; with ``allow_outside`` any link is followed, else those inside of ``root``.

    Attributes:
        place: the folder.
        root: the folder that links may not lead out of, which may be a link itself.
    """

    def __init__(self, place: str | Path, allow_outside: bool, root: str | Path | None = None) -> None:
        self.place, self.root, self._allow_outside = Path(place), Path(place if root is None else root), allow_outside
        self._prefix, self._real = os.path.join(self.place, ""), os.path.realpath(self.root)
        self._checked: set[str] = set()
        self._findings = Findings()

    def names(self, folder: str, *, of_files: bool = False) -> list[str]:
        """Returns the names of the folders and links to folders in a folder, or of the files in it, sorted."""
        with os.scandir(self.place / folder) as entries:
            return sorted(entry.name for entry in entries if _is_folder(entry) != of_files)

    def files(self, folder: str) -> Iterator[str]:
        """Yields the names of all files below a folder in the order of sorted(os.walk), sorted in each.

        A link to a folder above it is not followed; torchvision follows it until the path is too long.
        """
        # A link to the root leads to other classes.
        above = tuple(_identity(self.place / parent) for parent in PurePath(folder).parents)
        for parent, names in sorted(self._walk(os.path.join(self.place, folder), above)):
            below = os.path.join(parent, "").removeprefix(self._prefix)
            yield from map(below.__add__, sorted(names))

    def _walk(self, folder: str, above: tuple[tuple[int, int], ...]) -> Iterator[tuple[str, list[str]]]:
        """Walks like ``os.walk`` with links followed, but never into a folder that is being walked (``above``)."""
        self._check_once(folder)
        here = _identity(folder)
        if here in above:
            return
        if len(above) > MOST_DEPTH:
            raise SourceError(f"{folder[:200]} ... is over {MOST_DEPTH} folders deep; no class is")
        with os.scandir(folder) as found:
            entries = {entry.name: _is_folder(entry) for entry in found}
        yield folder, [name for name, is_folder in entries.items() if not is_folder]
        for name in filter(entries.__getitem__, entries):
            yield from self._walk(os.path.join(folder, name), (*above, here))

    def inner(self, name: str) -> str:
        """Returns a name in its plain form, or one that leads out of the folder as it is.

        Raises:
            ValueError: if it leads out of the folder, and that is not allowed.
        """
        plain = name if self._allow_outside else inner_name(name)
        if plain is None or "\0" in plain:
            raise ValueError(f"the path {name!r:.80} leaves {self.place}; set allow_outside to follow it")
        return plain

    def read(self, name: str) -> bytes:
        """Reads a file that describes others."""
        self.check(self.place / name)
        return read_source(self.place / name)

    def open(self, name: str) -> BinaryIO:
        """Opens a file."""
        self.check(self.place / name)
        return open(self.place / name, "rb", opener=open_regular)

    def display_name(self, folder: str) -> str:
        """Returns the path of a folder."""
        return str(self.place / folder)

    def revision(self, name: str) -> str:
        """Returns a file's size and modification time, or :data:`MISSING`.

        Raises:
            SourceError: if the file is, or lies behind, a link out of the root.
            OSError: if the system cannot tell whether the file exists, which must not pass as missing.
        """
        # os.path.join and os.path.dirname would take half as long as the system does for the file.
        path = name if name.startswith("/") else self._prefix + name
        self._check_once(path.rpartition("/")[0])
        try:
            status = os.lstat(path)
            if stat.S_ISLNK(status.st_mode):
                self.check(path)
                status = os.stat(path)
        except ValueError:  # a name that the file system cannot represent
            return MISSING
        except OSError as error:
            if error.errno not in _ABSENT:
                raise
            return MISSING
        return f"{status.st_size} {TIME_MARK}{status.st_mtime_ns}"

    def find(self, *names: str) -> tuple[str, str]:
        """Returns the first of some names that is a file, and its :meth:`revision`; if none is, the first name.

        Before it gives up, it looks for files whose names differ from these in nothing but the Unicode form, as macOS
        writes names in another one, or the case of the ending; it takes one that is the only such file of its name.
        """
        exact = ((name, self.revision(name)) for name in names)
        found = chain(exact, (spelled for name in names for spelled in self._respelled(name)))
        return next((each for each in found if each[1] != MISSING), (names[0], MISSING))

    def _respelled(self, name: str) -> list[tuple[str, str]]:
        """Returns the only file whose name is another spelling of this one, and its revision."""
        revisions = ((each, self.revision(each)) for each in _spellings(name))
        found = [each for each in revisions if each[1] != MISSING]
        if len(found) != 1:
            return []
        self._findings.add(
            "files found by a name that differs in its Unicode form or the case of its ending",
            f"{name!a:.80} is {found[0][0]!a:.80}",
        )
        return found

    def notes(self) -> tuple[str, ...]:
        """Returns a note on the files that :meth:`find` found under another name."""
        return self._findings.notes()

    def check(self, path: str | Path) -> None:
        """Raises SourceError if a path leads out of the root, itself or by one of the folders that it names."""
        if self._allow_outside:
            return
        real = os.path.realpath(path)
        if real != self._real and not real.startswith(os.path.join(self._real, "")):
            raise SourceError(
                f"{path} leads out of {self.root}, to {real:.200}; to follow it, add --set allow_outside=true"
            )

    def _check_once(self, folder: str) -> None:
        if folder not in self._checked:
            self.check(folder)
            self._checked.add(folder)


def _identity(path: str | Path) -> tuple[int, int]:
    """Returns what tells one folder from another, whatever names lead to it."""
    status = os.stat(path)
    return status.st_dev, status.st_ino


def _is_folder(entry: os.DirEntry[str]) -> bool:
    """Returns whether an entry is a folder or a link to one; a link that leads back to itself counts as a file.

    Raises:
        OSError: if the system cannot tell: a class must not be left out because of that.
    """
    try:
        return entry.is_dir()
    except OSError as error:
        if error.errno not in _ABSENT:
            raise
        return False


def _spellings(name: str) -> list[str]:
    """Returns the other spellings of a name: the Unicode forms of its folder and its stem, each case of the ending."""
    folder, file = posixpath.split(name)
    stem, ending = posixpath.splitext(file)
    forms = ({text, *(unicodedata.normalize(form, text) for form in ("NFC", "NFD"))} for text in (folder, stem))
    parts = product(*forms, (ending, ending.lower(), ending.upper(), ending.title()))
    return sorted({posixpath.join(folder, stem + ending) for folder, stem, ending in parts} - {name})


class RemoteFiles:
    """The objects under a URL as files, prefixes as folders; all are listed once, when it is asked which there are.

    Thread-safe; picklable: a copy connects again. A name is relative to the URL, or a whole URL of an object anywhere.

    Raises:
        UsageError: if obstore is not installed.
    """

    def __init__(self, base: Location) -> None:
        self.base = base
        self._objects = Objects(base.url)
        self._lock = threading.Lock()
        self._wanted: dict[str, None] = {}  # in order, and each once
        self._coming: dict[str, Future[bytes]] = {}

    def __reduce__(self) -> tuple[Any, ...]:
        return RemoteFiles, (self.base,)

    def __str__(self) -> str:
        return self.base.url

    @property
    def place(self) -> RemoteFiles:
        """Where samples are read, as in :class:`LocalTree`."""
        return self

    def names(self, folder: str, *, of_files: bool = False) -> list[str]:
        """Returns the first parts of the names below a prefix that have several, or the names of one part, sorted."""
        skip = len(posixpath.join(folder, ""))
        inner = (found.name[skip:].partition("/") for found in self._below(folder))
        return sorted({name for name, slash, _ in inner if bool(slash) != of_files})

    def files(self, folder: str) -> Iterator[str]:
        """Yields the names of all objects below a prefix, in the order of :meth:`LocalTree.files`."""
        yield from sorted((found.name for found in self._below(folder)), key=posixpath.split)

    def inner(self, name: str) -> str:
        """Returns a name in its plain form; raises ValueError if it leads out of the URL."""
        plain = inner_name(name)
        if plain is None:
            raise ValueError(f"the path {name!r:.80} leaves {self}; name an object below it")
        return plain

    def find(self, *names: str) -> tuple[str, str]:
        """Returns the first of some names, and a revision that is the same for all objects: none is looked for."""
        return names[0], OBJECT

    def notes(self) -> tuple[str, ...]:
        """Returns no notes, as no object is found under another name."""
        return ()

    def open(self, name: str) -> BinaryIO:
        """Opens an object, whose bytes are fetched as they are read."""
        return io.BufferedReader(_Ranges(self._objects, name), _RANGE_BYTES)

    def display_name(self, folder: str) -> str:
        """Returns the URL of a folder."""
        return f"{self}/{folder}" if folder else str(self)

    def revision(self, name: str) -> str:
        """Returns size, and entity tag or time of the last change, or :data:`MISSING`."""
        place = self._place(name)
        found = self._found[place : place + 1]
        return found[0].revision if found and found[0].name == name else MISSING

    def _below(self, folder: str) -> list[Found]:
        """Returns the objects below a folder."""
        if not folder:
            return self._found
        return self._found[self._place(f"{folder}/") : self._place(f"{folder}0")]  # the character that follows a slash

    def _place(self, name: str) -> int:
        return bisect_left(self._found, name, key=lambda found: found.name)

    @lazy_property
    def _found(self) -> list[Found]:
        """All objects, by name."""
        with naming("", RemoteMissingError, to=SourceError):
            found = self._objects.listed()
        if not found:
            raise SourceError(f"no objects at {self}; check the bucket and the prefix")
        for name, _, _ in found:
            if inner_name(name) != name:
                raise SourceError(f"{self} has an object whose name is not a plain path: {name!r:.200}; rename it")
        return sorted(found)

    def read(self, name: str, sample: str = "") -> bytes:
        """Reads a whole file.

        Raises:
            SampleError: of ``sample``, by default the name, if there is no such file.
            RemoteError: if the store cannot be read.
        """
        with self._lock:
            self._wanted.pop(name, None)
            coming = self._coming.pop(name, None)
            self._ask()
        with naming("", RemoteMissingError, to=partial(SampleError, sample or name)):
            return self._get(name) if coming is None else coming.result()

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
                self._coming[name] = self._pool.submit(self._get, name)

    @lazy_property
    def _pool(self) -> ThreadPoolExecutor:
        return ThreadPoolExecutor(PARALLEL, thread_name_prefix="mmload-source")

    def _get(self, name: str) -> bytes:
        name, start, size = _parts(name)
        if start is not None:
            return bytes(self._objects.get_range(name, start, size))
        return bytes(Objects(name).get("") if is_url(name) else self._objects.get(name))


Tree = LocalTree | RemoteFiles


def tree_of(root: str | Path | Location, allow_outside: bool) -> Tree:
    """Returns the files below a root.

    Raises:
        UsageError: if it lies in object storage, and obstore is not installed.
    """
    return RemoteFiles(root) if isinstance(root, Location) else LocalTree(root, allow_outside)


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

    def readinto(self, out: Any) -> int:
        count = max(0, min(len(out), self._size - self._place))
        out[:count] = self._objects.get_range(self._name, self._place, count)
        self._place += count
        return count


def read_source(path: Path, most: int = MOST_BYTES) -> bytes:
    """Reads a file that describes samples, of at most ``most`` bytes.

    Raises:
        SourceError: if it is something else than its name says, such as a web page; the message says what.
        OSError: if it cannot be read.
    """
    content = read_regular(path, most=most)
    if what := describe_content(content):
        raise SourceError(f"{path} is {what}")
    return content


def read_text(path: Path, most: int = MOST_BYTES) -> str:
    """Reads a text file as :func:`read_source` does, in UTF-8 with or without a byte order mark."""
    with naming(f"{path} is not UTF-8 text: ", to=SourceError):
        return read_source(path, most).decode("utf-8-sig")


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

    def read(self, name: str, most: int = MOST_BYTES) -> bytes:
        """Reads a file, on a disk of at most ``most`` bytes."""
        place = self.place
        data = self._read_in(place, name, most) if isinstance(place, Path) else place.read(name, self.sample)
        self._crc = crc32(data, self._crc)
        return data

    def _read_in(self, folder: Path, name: str, most: int) -> bytes:
        name, start, size = _parts(name)
        try:
            if start is None:
                return read_regular(os.path.join(folder, name), most=most)
            with open(os.path.join(folder, name), "rb", buffering=0, opener=open_regular) as file:
                file.seek(start)
                data = file.read(size)
            if data is None or len(data) < size:
                raise ValueError(f"it was cut off within {size:,} bytes from {start:,} on")
            return data
        except FileNotFoundError as error:
            raise SampleError(self.sample, f"no such file: {name}") from error
        except (OSError, ValueError) as error:
            reason = getattr(error, "strerror", None) or error
            raise SampleError(self.sample, f"{name} cannot be read ({reason})") from error

    def image(
        self, name: str, decoder: Decoder, *, boxes: bool = False
    ) -> tuple[FieldValue, bytes | None, Mapping[str, int]]:
        """Reads and decodes an image; one with ``boxes`` should have no orientation that is not applied.

        Of a ``.pt`` file it reads the tensor, with ``weights_only``: a plain dense one.

        Returns:
            Pixels, an array uint8 [C, H, W]; the file itself if it is a JPEG of these pixels, else None; and losses.
        """
        data = self.read(name)
        if is_tensor(name):
            with self.naming(f"{name} "):
                return _tensor_in(data), None, {}
        with self.naming():
            pixels, stands = decoder.with_origin(data)
        found = {
            DARK_DEPTH: is_dark_depth(data, pixels),
            TURNED: boxes and not decoder.exif_orient and is_turned(data),
        }
        return pixels, data if stands else None, {loss: 1 for loss, is_there in found.items() if is_there}

    def size(self, name: str, decoder: Decoder) -> tuple[int, int] | None:
        """Reads (height, width) of an image by its header; None of a ``.pt`` file."""
        with self.naming():
            return None if is_tensor(name) else decoder.size(self.read(name))

    def naming(self, before: str = "") -> AbstractContextManager[None]:
        """Makes a ValueError one of the sample."""
        return naming(before, to=partial(SampleError, self.sample))


def is_tensor(name: str) -> bool:
    """Returns whether a file holds a tensor, by its name."""
    return name.lower().endswith(".pt")


def local_root(files: Place) -> Path:
    """Returns the folder where files are read.

    Raises:
        UsageError: if they are in object storage.
    """
    if isinstance(files, Path):
        return files
    raise UsageError(f"{files} is in object storage, and this needs the files on a disk; copy them")


def _tensor_in(data: bytes) -> Tensor:
    """Returns the tensor in the bytes of a ``.pt`` file; raises ValueError, to follow its name."""
    import torch

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
