"""Reads the files of a source: checks which names may be followed, and turns a file into a tensor.

Names are relative to the root, with forward slashes. It lists no folder.
"""

from __future__ import annotations

import hashlib
import io
import os
import posixpath
import struct
import zipfile
from array import array
from collections.abc import Hashable, Iterable
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from mmload.errors import RecipeError, SampleError, SourceError, UsageError
from mmload.records import DTYPES, dtype_name
from mmload.runtime.regular_files import open_regular
from mmload.sources.columns import Bytes
from mmload.sources.decode import Decoder
from mmload.sources.remote_files import RemoteFiles

_RANK = np.dtype([("stratum", "<i8"), ("high", ">u8"), ("low", ">u8")])
_RANKED = 2**20
"""Samples of which it is decided at a time whether they are held out; of one stratum all, if they are more."""

MAX_BYTES = 2**31
"""Bytes of one file: twice what the largest image takes with 16 bits a channel and no compression."""

EXTENSIONS = (".jpg", ".jpeg", ".png", ".ppm", ".bmp", ".pgm", ".tif", ".tiff", ".webp")
"""torchvision's IMG_EXTENSIONS, in any case."""


def inner_name(name: str) -> str | None:
    """A relative name in plain form (``a/./b//c`` is ``a/b/c``); None if it is absolute, empty or leaves its root."""
    if not name or "\0" in name or os.path.isabs(name) or os.path.splitdrive(name)[0]:
        return None
    plain = posixpath.normpath(name.replace(os.sep, "/"))
    return None if plain.startswith(("/", "../")) or plain in ("..", ".") else plain


def read_bytes(root: Path | RemoteFiles, name: str, sample: str) -> bytes:
    """The file ``root/name``.

    Raises:
        SampleError: of ``sample``, if it cannot be read.
        RemoteError: if the store that it lies in cannot be read.
    """
    if isinstance(root, RemoteFiles):
        return root.read(name, sample)
    try:
        with io.FileIO(os.path.join(root, name), opener=open_regular) as file:
            size = os.fstat(file.fileno()).st_size
            if size > MAX_BYTES:
                raise SampleError(sample, f"{name} has {size:,} bytes; over {MAX_BYTES:,} are refused")
            data: bytes = file.read(size)
            while len(data) < size and (more := file.read(size - len(data))):  # Linux reads 2 GiB at most
                data += more
            return data
    except FileNotFoundError as error:
        raise SampleError(sample, f"no such file: {name}") from error
    except (OSError, ValueError) as error:
        raise SampleError(sample, f"{name} cannot be read ({getattr(error, 'strerror', None) or error})") from error


def read_image(root: Path | RemoteFiles, name: str, decoder: Decoder, sample: str) -> Tensor:
    """The image file ``root/name`` as uint8 [C, H, W].

    Raises:
        SampleError: of ``sample``, if it cannot be read or decoded.
    """
    return read_image_and_jpeg(root, name, decoder, sample)[0]


def read_image_and_jpeg(
    root: Path | RemoteFiles, name: str, decoder: Decoder, sample: str
) -> tuple[Tensor, bytes | None]:
    """As :func:`read_image`, and the file itself if it is a JPEG that can stand for these pixels, else None."""
    data = read_bytes(root, name, sample)
    try:
        pixels, stands = decoder.with_origin(data)
    except ValueError as error:
        raise SampleError(sample, str(error)) from error
    return pixels, data if stands else None


def local_root(files: Path | RemoteFiles) -> Path:
    """The folder where files are read.

    Raises:
        UsageError: if they are in object storage.
    """
    if isinstance(files, RemoteFiles):
        raise UsageError(f"{files} is in object storage, and this needs the files on a disk; copy them")
    return files


def read_tensor(root: Path | RemoteFiles, name: str, sample: str) -> Tensor:
    """The tensor in a ``.pt`` file, loaded with ``weights_only``.

    Raises:
        SampleError: of ``sample``, if there is no plain dense tensor in it.
    """
    data = read_bytes(root, name, sample)
    if _unpacked(data) > len(data):
        raise SampleError(sample, f"{name} is compressed, which torch.save never does; save the tensor with torch.save")
    try:
        tensor = torch.load(io.BytesIO(data), map_location="cpu", weights_only=True)
    except Exception as error:  # a broken file makes it raise nearly anything
        reason = " ".join(str(error).split())[:160] or type(error).__name__
        raise SampleError(sample, f"{name} is no tensor file ({reason})") from error
    if type(tensor) is not Tensor or tensor.layout != torch.strided or tensor.is_quantized or tensor.is_nested:
        raise SampleError(sample, f"{name} holds a {type(tensor).__name__}, expected one dense tensor")
    if tensor.device.type != "cpu":
        raise SampleError(sample, f"{name} holds a tensor of the device {tensor.device}, without its numbers")
    if dtype_name(tensor.dtype) is None:
        raise SampleError(sample, f"{name} is of dtype {tensor.dtype}; a store holds {', '.join(DTYPES)}")
    if tensor.numel() * tensor.itemsize > max(len(data), tensor.untyped_storage().nbytes()):
        raise SampleError(sample, f"{name} claims {tensor.numel():,} elements and has far fewer")
    return tensor.detach()


def _unpacked(data: bytes) -> int:
    """Bytes that the entries of a zip archive unpack to, as its directory says; 0 of what is none.

    Those of ``torch.save`` are not compressed: together they are smaller than the file. 3 MB could unpack to 3 GB.
    """
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            return sum(entry.file_size for entry in archive.infolist())
    except (zipfile.BadZipFile, NotImplementedError, ValueError, struct.error, EOFError):
        return 0


def need_folder(root: Path, what: str) -> None:
    """Raises SourceError unless ``root`` is a folder; ``what`` says which one to give."""
    if not root.is_dir():
        raise SourceError(f"no such folder: {root}; give {what}")


def check_fraction(fraction: object, seed: object) -> None:
    """Raises RecipeError unless the two are what :func:`held_out` takes, or the fraction is None."""
    if fraction is not None and (not isinstance(fraction, float) or not 0 < fraction < 1):
        raise RecipeError(f"val_fraction is {fraction!r}; use a fraction between 0 and 1, for example 0.1")
    if type(seed) is not int:
        raise RecipeError(f"seed is {seed!r}; use an integer")


def held_out(samples: Iterable[tuple[str, Hashable]], fraction: float, seed: int) -> npt.NDArray[np.bool_]:
    """Which samples a validation split takes, the same share of every stratum.

    In each stratum the samples are ranked by a hash of seed and id, and the first round(fraction x size) are taken, but
    at least one and never all (of a single one: none). So it does not depend on the files' order.

    Args:
        samples: each one's id, and what it belongs to, usually its class.
        fraction: in (0, 1).
        seed: another seed draws others.

    Returns:
        bool [N].
    """
    numbers: dict[Hashable, int] = {}
    ranks, sizes = Bytes(), array("q")
    for sample, stratum in samples:
        number = numbers.setdefault(stratum, len(numbers))
        if number == len(sizes):
            sizes.append(0)
        sizes[number] += 1
        digest = hashlib.blake2b(f"{seed}\0{sample}".encode("utf-8", "surrogateescape"), digest_size=16).digest()
        ranks.append(number.to_bytes(8, "little") + digest)
    taken = np.zeros(sum(sizes), np.bool_)
    first = ranked = 0
    for after, size in enumerate(sizes, 1):  # some strata at a time
        ranked += size
        if after == len(sizes) or ranked + sizes[after] > _RANKED:
            taken[_lowest(ranks, range(first, after), fraction)] = True
            first, ranked = after, 0
    return taken


def _lowest(ranks: Bytes, strata: range, fraction: float) -> npt.NDArray[np.int64]:
    """Which samples of some strata are held out: int64 [n]."""
    places, parts = [], []
    for start in range(0, len(ranks), _RANKED * _RANK.itemsize):
        stop = min(start + _RANKED * _RANK.itemsize, len(ranks))
        part = np.frombuffer(ranks.cut(start, stop), _RANK)
        own = np.flatnonzero((part["stratum"] >= strata.start) & (part["stratum"] < strata.stop))
        places.append(own + start // _RANK.itemsize)
        parts.append(part[own])
    place, rank = np.concatenate(places), np.concatenate(parts)
    order = np.lexsort((rank["low"], rank["high"], rank["stratum"]))
    number = rank["stratum"][order] - strata.start
    sizes = np.bincount(number, minlength=len(strata))
    shares = np.array([min(max(1, round(fraction * size)), size - 1) for size in sizes.tolist()], np.int64)
    first = np.cumsum(sizes) - sizes
    held: npt.NDArray[np.int64] = place[order[np.arange(len(order)) < (first + shares)[number]]]
    return held
