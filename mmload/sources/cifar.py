"""CIFAR-10 and CIFAR-100 from their python batches: ``cifar-10-batches-py/`` or ``cifar-100-python/``.

The splits ``train`` and ``test`` are tensors in memory (180 MB) that are rows already, so a build without transforms
takes them in bulk. Nothing that the batches name is imported or called: the standard
library's ``Unpickler`` reads them with a ``find_class`` that knows only stand-ins for the functions that make up an
array, after ``pickletools.genops`` has listed the instructions: those of other data are refused by name, and those that
would exhaust memory, time or the C stack.
"""

from __future__ import annotations

import hashlib
import io
import pickle
import pickletools
from collections.abc import Callable, Mapping
from dataclasses import KW_ONLY, dataclass, field
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

import numpy as np
import torch
from msgspec import Meta
from torch import Tensor

from mmload.errors import RecipeError, SourceError, naming
from mmload.records import Sample
from mmload.sources.decode import Decoder
from mmload.sources.files import LocalTree, read_source


@dataclass(frozen=True, kw_only=True)
class Edition:
    """One of the two sets.

    Attributes:
        name: torchvision's class of it.
        folder: folder that its archive unpacks to.
        batches: split -> its files in order.
        meta: the file with the class names.
        keys: labels option -> (labels in a batch, names in the meta file).
        md5: each file -> MD5 of the original, as published with the archive and listed by torchvision.
    """

    name: str
    folder: str
    batches: Mapping[str, tuple[str, ...]]
    meta: str
    keys: Mapping[str, tuple[str, str]]
    md5: Mapping[str, str]


CIFAR10 = Edition(
    name="CIFAR10",
    folder="cifar-10-batches-py",
    batches={"train": tuple(f"data_batch_{number}" for number in range(1, 6)), "test": ("test_batch",)},
    meta="batches.meta",
    keys={"fine": ("labels", "label_names")},
    md5={
        "data_batch_1": "c99cafc152244af753f735de768cd75f",
        "data_batch_2": "d4bba439e000b95fd0a9bffe97cbabec",
        "data_batch_3": "54ebc095f3ab1f0389bbae665268c751",
        "data_batch_4": "634d18415352ddfa80567beed471001a",
        "data_batch_5": "482c414d41f54cd18b22e5b47cb7c3cb",
        "test_batch": "40351d587109b95175f43aff81a1287e",
        "batches.meta": "5ff9c542aee3614f3951f8cda6e48888",
    },
)
CIFAR100 = Edition(
    name="CIFAR100",
    folder="cifar-100-python",
    batches={"train": ("train",), "test": ("test",)},
    meta="meta",
    keys={"fine": ("fine_labels", "fine_label_names"), "coarse": ("coarse_labels", "coarse_label_names")},
    md5={
        "train": "16019d7e3df5f24257cddd939b257f8d",
        "test": "f0ef6b0ae62326f3e7ffdfab6717acfc",
        "meta": "7973b15100ade9c7d40fb424638fde48",
    },
)


@dataclass
class Cifar10Source:
    """CIFAR-10.

    Attributes:
        root: ``cifar-10-batches-py`` or the folder around it.
        decoder: must be the default one.
        download: fetch the set into ``root`` with torchvision's downloader where it is missing.
        allow_outside: follow links that lead out of the root.

    Raises:
        RecipeError: if an option is invalid.
    """

    edition: ClassVar[Edition] = CIFAR10

    root: str | Path
    decoder: Decoder
    _: KW_ONLY
    download: bool = False
    allow_outside: bool = False

    def __post_init__(self) -> None:
        self._level = getattr(self, "labels", "fine")  # CIFAR-10 has no such option
        if self.decoder != Decoder():
            raise RecipeError("CIFAR's pixels are not decoded; leave [decode] out")
        self._root = Path(self.root)

    def splits(self) -> Mapping[str, CifarSplit]:
        """Reads the splits ``train`` and ``test``.

        Raises:
            SourceError: if a file is missing, is not a batch, or is a link out of the root; nothing in it is ever run.
        """
        tree = LocalTree(self.root, self.allow_outside)
        folder = self._folder()
        for name in self.edition.md5:
            tree.check(folder / name)
        _, names_key = self.edition.keys[self._level]
        meta, meta_md5 = _read(folder / self.edition.meta)
        classes = _class_names(meta.get(names_key), folder / self.edition.meta)
        odd = () if meta_md5 == self.edition.md5[self.edition.meta] else (self.edition.meta,)
        return {split: self._split(folder, names, classes, odd) for split, names in self.edition.batches.items()}

    def _folder(self) -> Path:
        """Returns the folder of the batches; downloads them first if the recipe says so and one is missing."""
        inner = self._root / self.edition.folder
        for folder in (self._root, inner):
            if all((folder / name).is_file() for name in self.edition.md5):
                return folder
        if self.download:
            from mmload.sources.download import download_cifar

            download_cifar(self.edition.name, self._root)
        missing = [name for name in self.edition.md5 if not (inner / name).is_file()]
        if missing:
            raise SourceError(
                f"{inner} lacks {', '.join(missing)}; give the folder that holds {self.edition.folder}, "
                "or set download to fetch it"
            )
        return inner

    def _split(
        self, folder: Path, names: tuple[str, ...], classes: tuple[str, ...], odd: tuple[str, ...]
    ) -> CifarSplit:
        labels_key, _ = self.edition.keys[self._level]
        images, targets, rows = list[Tensor](), list[Tensor](), list[tuple[str, str]]()
        for name in names:
            batch, md5 = _read(folder / name)
            pixels, labels = _rows_of(batch, labels_key, len(classes), folder / name)
            images.append(pixels)
            targets.append(labels)
            rows += ((f"{name}/{row}", md5) for row in range(len(labels)))
            odd += () if md5 == self.edition.md5[name] else (name,)
        note = f"not the original {self.edition.name}: the MD5 of {', '.join(odd)} is not the published one"
        return CifarSplit(classes, torch.cat(images), torch.cat(targets), rows, note if odd else "")


@dataclass
class Cifar100Source(Cifar10Source):
    """CIFAR-100.

    Attributes:
        labels: "fine" (100 classes) or "coarse" (20).
    """

    edition: ClassVar[Edition] = CIFAR100

    labels: Annotated[Literal["fine", "coarse"], Meta(description="fine or coarse")] = field(
        default="fine", kw_only=True
    )


@dataclass(eq=False)
class CifarSplit:
    """One split in memory: the rows of its files in order.

    Attributes:
        classes: class names by index.
        images: uint8 [N, 3, 32, 32].
        targets: int64 [N].
        rows: name of each row, that of its file and its number there, and the file's MD5.
        note: which files are not the originals, or "".
    """

    classes: tuple[str, ...]
    images: Tensor
    targets: Tensor
    rows: list[tuple[str, str]]
    note: str

    def __len__(self) -> int:
        return len(self.rows)

    def notes(self) -> tuple[str, ...]:
        """Returns a note that names the files that are not the originals."""
        return (self.note,) if self.note else ()

    def id(self, index: int) -> str:
        """Returns the name of the row's file and the row in it."""
        return self.rows[index][0]

    def revision(self, index: int) -> str:
        """Returns the MD5 of the row's file."""
        return self.rows[index][1]

    def read(self, index: int) -> Sample:
        """Returns one row: ``images`` uint8 [3, 32, 32] and ``targets`` int64 []."""
        return Sample(self.id(index), {"images": self.images[index], "targets": self.targets[index]}, (32, 32))

    def read_rows(self, start: int, stop: int) -> dict[str, Tensor]:
        """Returns rows [start, stop): ``images`` uint8 [n, 3, 32, 32] and ``targets`` int64 [n]."""
        return {"images": self.images[start:stop], "targets": self.targets[start:stop]}


def _read(path: Path) -> tuple[dict[Any, Any], str]:
    """Returns the dict in a file, its keys as text, and the file's MD5."""
    data = read_source(path)
    with naming(f"{path} is not a CIFAR batch: ", to=SourceError):
        body = read_plain_pickle(data)
    return {_text(key): value for key, value in body.items()}, hashlib.md5(data, usedforsecurity=False).hexdigest()


def _text(value: object) -> str:
    return value.decode("latin1") if isinstance(value, bytes) else str(value)


def _class_names(names: object, path: Path) -> tuple[str, ...]:
    if not isinstance(names, list) or not names or not all(isinstance(name, str | bytes) for name in names):
        raise SourceError(f"{path} has no list of class names")
    return tuple(_text(name) for name in names)


def _rows_of(batch: Mapping[str, Any], labels_key: str, classes: int, path: Path) -> tuple[Tensor, Tensor]:
    data, labels = batch.get("data"), batch.get(labels_key)
    if not isinstance(data, np.ndarray) or data.dtype != np.uint8 or data.ndim != 2 or data.shape[1] != 3072:
        raise SourceError(f'{path} has no "data" of uint8 [rows, 3072]')
    if isinstance(labels, np.ndarray) and labels.ndim == 1:
        labels = labels.tolist()
    if not isinstance(labels, list) or set(map(type, labels)) - {int} or len(labels) != len(data):
        raise SourceError(f"{path} has no list {labels_key!r} of {len(data)} integers, one for each row")
    if labels and not 0 <= min(labels) <= max(labels) < classes:
        raise SourceError(f"{path} has labels from {min(labels)} to {max(labels)}, expected 0 to {classes - 1}")
    rows = np.array(data).reshape(-1, 3, 32, 32)  # a copy: what was read is read-only, which torch warns about
    return torch.from_numpy(rows), torch.tensor(labels, dtype=torch.int64, device="cpu")


# Pickles.

MAX_OPS = 20_000_000
"""More instructions than this are refused; a batch of 50,000 rows has about 250,000."""

MAX_TUPLES = 1000
"""More tuples than this are refused, not counting the arguments of calls: nested ones as a key overflow the C stack."""


def read_plain_pickle(data: bytes) -> dict[Any, Any]:
    """Returns the dict in a pickle of plain data. Keys and texts may be ``bytes`` or ``str``, as they were written.

    Raises:
        ValueError: if it is broken, holds anything but plain data and integer arrays, or is no dict; the message says
            what, and for a call what it would have called.
    """
    with naming("it cannot be read: ", Exception):  # ``load`` may raise any for what is broken
        _check_instructions(data)
        body = _Unpickler(io.BytesIO(data), encoding="bytes").load()
        if not isinstance(body, dict):
            raise ValueError(f"it holds a {type(body).__name__}, not a dict")
        for key, value in body.items():
            if not isinstance(key, str | bytes | int) or isinstance(value, _StandIn | _Dtype):
                raise ValueError(f"it has a key of type {type(key).__name__}, or a name where data should be")
        return {key: value.array() if isinstance(value, _Array) else value for key, value in body.items()}


def _check_instructions(data: bytes) -> None:
    """Raises ValueError for instructions that plain data does not need, or that ask for more than the file holds."""
    tuples, last = 0, ""
    memo: dict[Any, bool] = {}  # place -> whether what is there is surely no tuple
    for count, (op, argument, _) in enumerate(pickletools.genops(data)):  # it checks the lengths of texts and bytes
        kind = _KINDS.get(op.name)
        if kind is None:
            raise ValueError(f"it has the instruction {op.name}, which plain data does not need; it was not run")
        tuples += (kind == "tuple") - (op.name == "REDUCE")
        if count > MAX_OPS or tuples > MAX_TUPLES:
            raise ValueError(f"it has over {MAX_OPS:,} instructions or {MAX_TUPLES:,} tuples")
        if kind == "put":
            place: Any = len(memo) if op.name == "MEMOIZE" else argument
            if place > count:  # the memo is an array: nine bytes would make it 16 GB
                raise ValueError(f"it puts into place {place:,} of the memo, with {count:,} instructions so far")
            memo[place] = last == "value"
        elif kind == "get" and not memo.get(argument):  # tuples of one tuple, many times over, take forever as a key
            raise ValueError(f"it gets a tuple or nothing from place {argument:,} of the memo")
        if op.name != "FRAME":  # may stand between a value and its PUT
            last = kind


_KINDS = {
    **dict.fromkeys(
        (
            *("NONE", "NEWTRUE", "NEWFALSE", "INT", "BININT", "BININT1", "BININT2", "LONG", "LONG1", "LONG4", "FLOAT"),
            *("BINFLOAT", "STRING", "BINSTRING", "SHORT_BINSTRING", "UNICODE", "BINUNICODE", "SHORT_BINUNICODE"),
            *("BINUNICODE8", "BINBYTES", "SHORT_BINBYTES", "BINBYTES8", "BYTEARRAY8", "EMPTY_LIST", "LIST"),
            *("EMPTY_DICT", "DICT", "GLOBAL", "STACK_GLOBAL", "REDUCE"),
        ),
        "value",
    ),
    **dict.fromkeys(("EMPTY_TUPLE", "TUPLE", "TUPLE1", "TUPLE2", "TUPLE3"), "tuple"),
    **dict.fromkeys(("PUT", "BINPUT", "LONG_BINPUT", "MEMOIZE"), "put"),
    **dict.fromkeys(("GET", "BINGET", "LONG_BINGET"), "get"),
    **dict.fromkeys(("MARK", "APPEND", "APPENDS", "SETITEM", "SETITEMS", "BUILD", "PROTO", "FRAME", "STOP"), "change"),
}
"""Instruction -> what it leaves on top of the stack: a value that is no tuple, or else what it does."""


class _Unpickler(pickle.Unpickler):
    """The standard one, which finds stand-ins only."""

    def find_class(self, module: str, name: str) -> Any:
        known = f"{module}.{name}"
        if known not in _STAND_INS:
            raise ValueError(f"it asks to call {known[:80]}, which a CIFAR batch never does; it was not run")
        return _STAND_INS[known]


class _StandIn:
    """A function in place of one that a pickle names. No pickle can change it."""

    __slots__ = ("_function",)

    def __init__(self, function: Callable[..., Any]) -> None:
        self._function = function

    def __call__(self, *arguments: object) -> Any:
        return self._function(*arguments)

    def __setstate__(self, state: object) -> None:
        raise ValueError("it sets the state of a function; it was not run")


class _Dtype:
    """A numpy dtype of integers, by its code. Its state is that of all of them."""

    def __init__(self, code: object, *_: object) -> None:
        self.code = code.decode("latin1") if isinstance(code, bytes) else code
        if self.code not in ("u1", "i1", "i2", "i4", "i8"):
            raise ValueError(f"it has an array of dtype {str(self.code)[:20]!r}, not of integers")

    def __setstate__(self, state: object) -> None:
        pass


class _Array:
    """Parts of an array; :meth:`array` is called when all is read, as nothing can change it then."""

    def __init__(self, data: object = None, dtype: object = None, shape: object = None, order: object = None) -> None:
        self._parts = data, dtype, shape, order

    def __setstate__(self, state: Any) -> None:
        _, shape, dtype, fortran, data = state
        self._parts = data, dtype, shape, "F" if fortran is True else "C"

    def array(self) -> np.ndarray:
        """Returns an array over the bytes, without a copy."""
        data, dtype, shape, order = self._parts
        if not isinstance(data, bytes | bytearray) or not isinstance(dtype, _Dtype) or not isinstance(shape, tuple):
            raise ValueError("it has an array without bytes, dtype or shape")
        if any(type(size) is not int or size < 0 for size in shape) or order not in ("C", "F", b"C", b"F"):
            raise ValueError("it has an array of a shape that cannot be")
        flat: np.ndarray = np.frombuffer(data, dtype=f"<{dtype.code}")
        return flat.reshape(shape[::-1]).transpose() if order in ("F", b"F") else flat.reshape(shape)


def _encode(text: object, encoding: object = "") -> bytes:
    """Returns the bytes that Python 3 writes into protocols below 3 as text, a character each."""
    if not isinstance(text, str) or encoding not in ("latin1", b"latin1"):
        raise ValueError("it encodes something that is not latin1 text")
    return text.encode("latin1")


_STAND_INS = {
    "_codecs.encode": _StandIn(_encode),
    "__builtin__.bytes": _StandIn(lambda: b""),
    "numpy.dtype": _StandIn(_Dtype),
    "numpy.ndarray": _StandIn(_Array),  # an argument of _reconstruct
    **{f"numpy.{core}.multiarray._reconstruct": _StandIn(lambda *_: _Array()) for core in ("core", "_core")},
    **{f"numpy.{core}.numeric._frombuffer": _StandIn(_Array) for core in ("core", "_core")},
}
