"""CIFAR-10 and CIFAR-100 from their python batches: ``cifar-10-batches-py/`` or ``cifar-100-python/``.

The splits ``train`` and ``test`` are tensors in memory (180 MB) that are rows already, so a build without transforms
takes them in bulk. Nothing that the batches name is imported or called: the standard library's unpickler reads them
with a ``find_class`` that knows only what makes up an array, and no function of it is the real one.
"""

from __future__ import annotations

import hashlib
import io
import pickle
from collections.abc import Callable, Mapping
from dataclasses import KW_ONLY, dataclass, field
from functools import partial
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
        if missing := [name for name in self.edition.md5 if not (inner / name).is_file()]:
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
            with naming(f"{folder / name}: ", to=SourceError):
                pixels, labels = _rows_of(batch, labels_key, len(classes))
            images.append(pixels)
            targets.append(labels)
            rows += ((f"{name}/{row}", md5) for row in range(len(labels)))
            odd += () if md5 == self.edition.md5[name] else (name,)
        note = f"not the original {self.edition.name}: the MD5 of {', '.join(odd)} is not the published one"
        return CifarSplit(classes, torch.cat(images), torch.cat(targets), rows, (note,) if odd else ())


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
        own_notes: a note that names the files that are not the originals, if there are any.
    """

    classes: tuple[str, ...]
    images: Tensor
    targets: Tensor
    rows: list[tuple[str, str]]
    own_notes: tuple[str, ...]

    def __len__(self) -> int:
        return len(self.rows)

    def notes(self) -> tuple[str, ...]:
        """Returns a note that names the files that are not the originals."""
        return self.own_notes

    def known_targets(self) -> Tensor:
        return self.targets

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
        body = {_text(key): value for key, value in read_plain_pickle(data).items()}
    return body, hashlib.md5(data, usedforsecurity=False).hexdigest()


def _text(value: object) -> str:
    return value.decode("latin1") if isinstance(value, bytes) else str(value)


def _class_names(names: Any, path: Path) -> tuple[str, ...]:
    if not _are_all(names, str, bytes) or not names:
        raise SourceError(f"{path} has no list of class names")
    return tuple(map(_text, names))


def _rows_of(batch: Mapping[str, Any], labels_key: str, classes: int) -> tuple[Tensor, Tensor]:
    """Returns the images and labels of a batch; raises ValueError if they are no such."""
    data, found = batch.get("data"), batch.get(labels_key)
    labels = np.asarray(found if isinstance(found, np.ndarray) or _are_all(found, int) else None)
    if not isinstance(data, np.ndarray) or data.dtype != np.uint8 or data.ndim != 2 or data.shape[1] != 3072:
        raise ValueError('it has no "data" of uint8 [rows, 3072]')
    if labels.dtype.kind not in "iu" or labels.shape != (len(data),):
        raise ValueError(f"it has no list {labels_key!r} of {len(data)} integers, one for each row")
    if len(labels) and not 0 <= labels.min() <= labels.max() < classes:
        raise ValueError(f"it has labels from {labels.min()} to {labels.max()}, expected 0 to {classes - 1}")
    rows = np.array(data).reshape(-1, 3, 32, 32)  # a copy: what was read is read-only, which torch warns about
    return torch.from_numpy(rows), torch.from_numpy(labels.astype(np.int64))


def _are_all(values: Any, *types: type) -> bool:
    """Returns whether values are a list of these types, so none nests; integers of 2^60 or more may share a hash."""
    return isinstance(values, list) and all(type(v) in types and (type(v) is not int or abs(v) < 2**60) for v in values)


# Pickles.


def read_plain_pickle(data: bytes) -> dict[Any, Any]:
    """Returns the dict in a pickle of plain data. Keys and texts may be ``bytes`` or ``str``, as they were written.

    Raises:
        ValueError: if it is broken, holds anything but plain data and integer arrays, or is no dict; the message says
            what, and for a call what it would have called.
    """
    with naming("it cannot be read: ", Exception):  # ``load`` may raise any for what is broken
        body = _Unpickler(io.BytesIO(data), encoding="bytes").load()
        if not isinstance(body, dict):
            raise ValueError(f"it holds a {type(body).__name__}, not a dict")
        return {key: _array_of(value) if isinstance(value, _Made) else value for key, value in body.items()}


class _Made:
    """Parts of an array: its bytes, dtype, shape and order; or of a dtype, of which the first is its code."""

    def __init__(self, first: Any = None, second: Any = None, third: Any = None, order: Any = "C") -> None:
        self.parts = first, second, third, order

    def __setstate__(self, state: Any) -> None:
        if len(state) == 5:  # of an array; that of a dtype says nothing more
            _, shape, dtype, is_fortran, data = state
            self.parts = data, dtype, shape, "F" if is_fortran else "C"


_KNOWN: dict[str, Any] = {
    "_codecs.encode": lambda made, text, _: made.setdefault(text, str.encode(text, "latin1")),
    "__builtin__.bytes": lambda: b"",
    **dict.fromkeys(("numpy.dtype", "numpy.ndarray"), _Made),
    **{f"numpy.{core}.multiarray._reconstruct": _Made for core in ("core", "_core")},
    **{f"numpy.{core}.numeric._frombuffer": _Made for core in ("core", "_core")},
}
"""Name of a function -> what is called in its place. Protocols below 3 have bytes as text, a character each."""

_STANDARD = pickle._Unpickler.dispatch
"""Instruction -> the standard function for it, which takes the unpickler."""

_NEEDED = (
    *("NONE", "NEWTRUE", "NEWFALSE", "INT", "BININT", "BININT1", "BININT2", "LONG", "LONG1", "LONG4", "FLOAT"),
    *("BINFLOAT", "STRING", "BINSTRING", "SHORT_BINSTRING", "UNICODE", "BINUNICODE", "SHORT_BINUNICODE"),
    *("BINUNICODE8", "BINBYTES", "SHORT_BINBYTES", "BINBYTES8", "EMPTY_LIST", "LIST", "EMPTY_DICT", "GLOBAL"),
    *("STACK_GLOBAL", "REDUCE", "EMPTY_TUPLE", "TUPLE", "TUPLE1", "TUPLE2", "TUPLE3", "BINPUT", "LONG_BINPUT"),
    *("MEMOIZE", "GET", "BINGET", "LONG_BINGET", "MARK", "APPEND", "APPENDS", "PROTO", "FRAME", "STOP"),
)
"""Instructions of plain data that do no harm; the lengths in them take no more than what is left of the file."""


def _checked(code: bytes, is_plain: Callable[[list[Any]], bool]) -> Callable[[Any], None]:
    """Returns the standard function for an instruction, run only if the stack is as plain data has it."""

    def run(unpickler: Any) -> None:
        if not is_plain(unpickler.stack):
            raise ValueError(f"its instruction {code!r} is not as plain data has it; it was not run")
        _STANDARD[code[0]](unpickler)

    return run


class _Unpickler(pickle._Unpickler):
    """The standard one in Python, which calls nothing real and runs only the instructions of plain data.

    Keys are texts and integers: the hash of tuples in tuples exhausts time or the C stack.
    Its memo is a table. That of the one in C is an array, of which nine bytes of a file can ask for 16 GB.
    """

    dispatch: ClassVar[dict[int, Callable[[Any], None]]] = {
        **{code: _checked(bytes([code]), lambda _: False) for code in _STANDARD},
        **{code: _STANDARD[code] for code in (getattr(pickle, name)[0] for name in _NEEDED)},
        pickle.BYTEARRAY8[0]: _STANDARD[pickle.BINBYTES8[0]],  # its own takes memory before it reads
        # Places of the memo of more digits could all share one hash.
        pickle.PUT[0]: lambda each: each.memo.__setitem__(int(each.readline()[:12]), each.stack[-1]),
        pickle.BUILD[0]: _checked(pickle.BUILD, lambda stack: _are_all(stack[-2:-1], _Made)),
        pickle.SETITEM[0]: _checked(pickle.SETITEM, lambda stack: _are_all(stack[-2:-1], str, bytes, int)),
        pickle.SETITEMS[0]: _checked(pickle.SETITEMS, lambda stack: _are_all(stack[::2], str, bytes, int)),
        pickle.DICT[0]: _checked(pickle.DICT, lambda stack: _are_all(stack[::2], str, bytes, int)),
    }

    def find_class(self, module: str, name: str) -> Any:
        known = f"{module}.{name}"
        if known not in _KNOWN:
            raise ValueError(f"it asks to call {known[:80]}, which a CIFAR batch never does; it was not run")
        # One text that is encoded a million times is one object; the memo's own keys are integers.
        return partial(_KNOWN[known], vars(self)["memo"]) if known == "_codecs.encode" else _KNOWN[known]


def _array_of(made: _Made) -> np.ndarray:
    """Returns the array over its bytes, without a copy."""
    data, dtype, shape, order = made.parts
    code = _text(dtype.parts[0]) if isinstance(dtype.parts[0], str | bytes) else "unknown"
    if code not in ("u1", "i1", "i2", "i4", "i8"):
        raise ValueError(f"it has an array of dtype {code[:20]!r}, not of integers")
    flat: np.ndarray = np.frombuffer(data, f"<{code}")
    return flat.reshape(tuple(shape), order="F" if order in ("F", b"F") else "C")
