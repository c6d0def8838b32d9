"""Any map-style dataset in Python, by name: ``package.module:callable``.

This is the only source that runs code: the callable that the user names.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import KW_ONLY, dataclass
from importlib import import_module
from pathlib import Path
from threading import Lock
from typing import Annotated, Any

import numpy as np
import torch
from msgspec import Meta
from torch import Tensor

from mmload.errors import RecipeError, SampleError, SourceError, naming
from mmload.records import Sample
from mmload.sources import Values
from mmload.sources.decode import Decoder
from mmload.sources.files import check_is_folder
from mmload.sources.huggingface import class_names_of, leaves_of
from mmload.sources.listed_split import check_same_classes, spread_indices
from mmload.sources.schema import OF_CLASSES, Key, Schema, check_classes
from mmload.store.checksum import crc32

_INSTEAD = (
    "a build stores each image once: leave random transforms out here and give them to mmload.Collate at load time"
)


@dataclass
class PythonSource:
    """Datasets that a callable returns.

    Attributes:
        root: a folder to import from, beside the installed packages; it stays on ``sys.path``.
        decoder: converts PIL images.
        dataset: ``package.module:callable``, which gives a dataset, or a dict of datasets by split; or a table
            split -> ``package.module:callable``.
        arguments: keyword arguments for the callable.
        fields: field -> position or name of a value in a sample; None: guessed from the first sample.
        concurrent: read several samples at once. Only for datasets whose ``__getitem__`` may run in several threads.

    Raises:
        RecipeError: if an option is invalid.
    """

    root: str | Path
    decoder: Decoder
    _: KW_ONLY
    dataset: Annotated[str | dict[str, str], Meta(description="package.module:callable, or a table of them by split")]
    arguments: Values = None
    fields: Annotated[dict[str, Key] | None, Meta(description="a table of positions or names of values")] = None
    concurrent: bool = False

    def __post_init__(self) -> None:
        names = {"train": self.dataset} if isinstance(self.dataset, str) else self.dataset
        if not names or not all(map(_is_spec, names.values())):
            raise RecipeError(f"dataset is {self.dataset!r}; use package.module:callable, or a table of them by split")
        self._root, self._names = Path(self.root), names

    def splits(self) -> Mapping[str, PythonSplit]:
        """Returns the datasets by split, each with the schema of its first sample.

        Raises:
            SourceError: if the callable fails, gives no map-style dataset, or an empty one.
            RecipeError: if there is no such callable.
        """
        check_is_folder(self._root, "a folder to import the dataset from; . will do")
        folder = str(self._root.resolve())
        if folder not in sys.path:
            sys.path.insert(0, folder)
        datasets = {name: self._make(spec) for name, spec in self._names.items()}
        first, *others = datasets.values()
        if not others and isinstance(first, Mapping) and first and all(isinstance(name, str) for name in first):
            datasets = dict(first)
        splits = {name: self._split(name, dataset) for name, dataset in datasets.items()}
        _same_classes({f"split {name}": split.classes for name, split in splits.items()})
        return splits

    def _make(self, spec: str) -> Any:
        module, _, name = spec.partition(":")
        try:
            found = import_module(module)
            for part in name.split("."):
                found = getattr(found, part)
        except (ImportError, AttributeError) as error:
            raise RecipeError(f"cannot import {spec} ({error})") from error
        except Exception as error:  # whatever the user's module raises
            raise SourceError(f"{module} cannot be imported ({type(error).__name__}: {error})") from error
        try:
            return found(**(self.arguments or {})) if callable(found) else found
        except Exception as error:  # whatever the user's callable raises
            raise SourceError(f"{spec} failed ({type(error).__name__}: {error})") from error

    def _split(self, name: str, dataset: Any) -> PythonSplit:
        size, first = _first_sample(name, dataset)
        samples = [first]
        with seeded(0):
            for index in spread_indices(size)[1:]:
                with suppress(Exception):  # whatever the user's dataset raises; the build reports it
                    samples.append(dataset[index])
        with naming(f"split {name}: sample 0: ", to=SourceError):
            schema = Schema(samples, self.decoder, self.fields)
        split = PythonSplit(dataset, size, schema, self.concurrent)
        if (found := find_random(lambda index: checksum(split.read(index).fields), size)) is not None:
            raise SourceError(
                f"split {name}: sample {found} is random, it changes each time it is read or draws numbers; {_INSTEAD}"
            )
        return split


def _first_sample(name: str, dataset: Any) -> tuple[int, Any]:
    """Returns the number of samples of a dataset, which must be map-style, and the first one."""
    if not hasattr(dataset, "__len__") or not hasattr(dataset, "__getitem__") or isinstance(dataset, Mapping):
        raise SourceError(
            f"split {name} is a {type(dataset).__name__}, expected a map-style dataset, with a length and an index"
        )
    try:
        size = len(dataset)
        first = dataset[0] if size else None
    except Exception as error:  # whatever the user's dataset raises
        raise SourceError(f"split {name}: sample 0 failed ({type(error).__name__}: {error})") from error
    if not size:
        raise SourceError(f"split {name} has no samples")
    return size, first


class PythonSplit:
    """One dataset; picklable if the dataset is, and read by several threads at once if it is ``concurrent``."""

    def __init__(self, dataset: Any, size: int, schema: Schema, concurrent: bool) -> None:
        self.dataset, self.size, self.schema, self.concurrent = dataset, size, schema, concurrent
        key = next((schema.keys[name] for name in OF_CLASSES if name in schema.keys), None)
        self.classes = () if key is None else class_names(dataset, str(key))
        self._guard = nullcontext() if concurrent else Lock()
        self._first = checksum(self.read(0).fields)

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if name != "_guard"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state, _guard=nullcontext() if state["concurrent"] else Lock())

    def __len__(self) -> int:
        return self.size

    def notes(self) -> tuple[str, ...]:
        """Returns the schema, and a note on images that are floats."""
        notes = [f"each sample: {self.schema}"]
        features = self.schema.like.get("features")
        if features is not None and len(features[1]) == 3 and features[1][0] in (1, 3):
            notes.append(
                f"{features[1][0]} x {features[1][1]} x {features[1][2]} features look like images; "
                "uint8 images (PIL, or PILToTensor) take a quarter of the space and can be augmented"
            )
        return tuple(notes)

    def id(self, index: int) -> str:
        """Returns the sample's index as text."""
        return str(index)

    def revision(self, index: int) -> str:
        """Returns the schema and the first sample's checksum; a change in later samples stays unnoticed."""
        return f"{self.schema} {self._first}" if index == 0 else ""

    def read(self, index: int) -> Sample:
        """Reads the sample's fields, as the schema says.

        Raises:
            SampleError: if the dataset fails on it, or it is not as the first.
        """
        try:
            with self._guard:
                fields = self.schema(self.dataset[index])
                check_classes(fields, self.classes)
        except ValueError as error:
            raise SampleError(self.id(index), str(error)) from error
        except Exception as error:  # whatever the user's dataset raises
            raise SampleError(self.id(index), f"{type(error).__name__}: {error}") from error
        images = fields.get("images")
        size = (images.shape[-2], images.shape[-1]) if images is not None and images.ndim == 3 else None
        return Sample(self.id(index), fields, size, lists=frozenset(self.schema.lists))


def checksum(fields: Mapping[str, Tensor]) -> int:
    """Returns the CRC-32 over the bytes of all fields."""
    crc = 0
    for tensor in fields.values():
        crc = crc32(tensor.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes(), crc)
    return crc


def class_names(dataset: Any, key: str) -> tuple[str, ...]:
    """Returns the class names of a dataset, or of those that a Subset or ConcatDataset is over; empty if it has none.

    They are its ``classes``, ``class_to_idx``, or of ``features`` as of Hugging Face's datasets those of a key of
    :attr:`Schema.keys`.

    Raises:
        SourceError: if several datasets in one have other classes, or two lists of one dataset differ.
    """
    for _ in range(16):
        own = _own_classes(dataset) or _feature_names(dataset, key)
        if own:
            return own
        inner = getattr(dataset, "datasets", None)
        if isinstance(inner, list | tuple) and inner:
            return _same_classes({f"dataset {number}": class_names(each, key) for number, each in enumerate(inner)})
        dataset = getattr(dataset, "dataset", None)
    return ()


def _own_classes(dataset: Any) -> tuple[str, ...]:
    """Reads ``classes`` or ``class_to_idx``, which torchvision's datasets have; a class may have several names."""
    listed, numbers = getattr(dataset, "classes", None), getattr(dataset, "class_to_idx", None)
    numbers = numbers if isinstance(numbers, Mapping) else {}
    if not isinstance(listed, list | tuple) or not listed:
        is_complete = sorted(numbers.values()) == list(range(len(numbers)))
        return tuple(map(str, sorted(numbers, key=numbers.__getitem__))) if is_complete else ()
    names = tuple(", ".join(map(str, name)) if isinstance(name, tuple) else str(name) for name in listed)
    if any(numbers.get(name, index) != index for index, name in enumerate(names)):
        raise SourceError("the dataset's classes and class_to_idx are in different orders; fix one of them")
    return names


def _feature_names(dataset: Any, key: str) -> tuple[str, ...]:
    """Reads the names of the feature of a column, which Hugging Face's datasets have."""
    features = getattr(dataset, "features", None)
    return class_names_of(dict(leaves_of(features)).get(key)) if isinstance(features, Mapping) else ()


def _same_classes(named: Mapping[str, tuple[str, ...]]) -> tuple[str, ...]:
    """Returns the classes of several datasets, some of which may have none; raises SourceError if they differ."""
    check_same_classes({name: classes for name, classes in named.items() if classes}, "give all the same")
    return next(iter(named.values()))


def _is_spec(spec: str) -> bool:
    return all(part.isidentifier() for side in spec.partition(":")[::2] for part in side.split("."))


_TIMES = 3
"""Number of times that a sample is read, each with another seed."""


def find_random(read: Callable[[int], int], size: int) -> int | None:
    """Returns the first of some samples that is random; None if there is none.

    Such a sample has another checksum when it is read again, or draws from a global generator of torch, NumPy or
    Python, even if it has drawn that it stays as it is. A sample that cannot be read is skipped.
    """
    return next(
        (index for index in spread_indices(size) if len({_reading(read, index, seed) for seed in range(_TIMES)}) > 1),
        None,
    )


def _reading(read: Callable[[int], int], index: int, seed: int) -> tuple[int | float, ...] | None:
    """Returns the checksum of a sample, and the next numbers of the generators that do not go on from the seed.

    A dataset that seeds a generator itself leaves it with the same number each time.
    """
    with seeded(7919 * index + seed):
        untouched = _next_numbers()
    with seeded(7919 * index + seed):
        try:
            found = read(index)
        except Exception:  # whatever the user's dataset raises; the build reports it
            return None
        numbers = _next_numbers()
    return found, *(number for number, own in zip(numbers, untouched, strict=True) if number != own)


def _next_numbers() -> tuple[float, ...]:
    return random.random(), np.random.random(), torch.rand((), dtype=torch.float64, device="cpu").item()


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Seeds the global generators inside a block, and restores them after it."""
    states = random.getstate(), np.random.get_state(), torch.get_rng_state()
    random.seed(seed)
    np.random.seed(seed % 2**32)
    torch.manual_seed(seed)
    try:
        yield
    finally:
        random.setstate(states[0])
        np.random.set_state(states[1])
        torch.set_rng_state(states[2])
