"""Any map-style dataset in Python, by name: ``package.module:callable``.

Comes in: the name of a function or class, and what to call it with. Goes out: its samples as rows. This is the one
source that runs code: the code that the person who builds names.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from contextlib import nullcontext
from importlib import import_module
from pathlib import Path
from threading import Lock
from typing import Any

import torch
from torch import Tensor

from mmload.checksum import crc32
from mmload.decode import Decoder
from mmload.errors import RecipeError, SampleError, SourceError
from mmload.manifest import is_name
from mmload.records import Sample
from mmload.sources.files import need_folder
from mmload.sources.schema import Key, Schema


class PythonSource:
    """Datasets that a callable makes.

    Args:
        root: a folder to import from, beside the installed packages; it stays on ``sys.path``.
        decoder: its mode is what PIL images are converted to.
        dataset: ``package.module:callable``, which gives a dataset, or a dict of datasets by split; or a table
            split -> ``package.module:callable``.
        arguments: keyword arguments for the callable.
        fields: field -> position or name of a value in a sample; None: guessed from the first sample.
        concurrent: read several samples at once. Only for datasets whose ``__getitem__`` may run in several threads.

    Raises:
        RecipeError: if an option cannot be meant.
    """

    def __init__(
        self,
        root: Path,
        decoder: Decoder,
        *,
        dataset: str | Mapping[str, str],
        arguments: Mapping[str, Any] | None = None,
        fields: Mapping[str, Key] | None = None,
        concurrent: bool = False,
    ) -> None:
        names = {"train": dataset} if isinstance(dataset, str) else dataset
        if not isinstance(names, Mapping) or not names or not all(_is_spec(spec) for spec in names.values()):
            raise RecipeError(f"dataset is {dataset!r}; write package.module:callable, or a table of them by split")
        if not isinstance(arguments, Mapping | None) or not isinstance(fields, Mapping | None):
            raise RecipeError("arguments and fields have to be tables")
        self.root, self.decoder, self.names = root, decoder, names
        self.arguments, self.fields, self.concurrent = arguments or {}, fields, concurrent

    def splits(self) -> Mapping[str, PythonSplit]:
        """The datasets by split, each with the schema of its first sample.

        Raises:
            SourceError: if the callable fails, gives no map-style dataset, or an empty one.
            RecipeError: if there is no such callable.
        """
        need_folder(self.root, "a folder to import the dataset from; . will do")
        place = str(self.root.resolve())
        if place not in sys.path:
            sys.path.insert(0, place)
        made = {name: self._make(spec) for name, spec in self.names.items()}
        if len(made) == 1:
            only = next(iter(made.values()))
            made = dict(only) if _is_splits(only) else made
        for name in made:
            if not isinstance(name, str) or not is_name(name):
                raise SourceError(f"split {name!r} is no plain name of letters, digits, _ and -")
        return {name: self._split(name, dataset) for name, dataset in made.items()}

    def _make(self, spec: str) -> Any:
        module, _, name = spec.partition(":")
        try:
            made = import_module(module)
            for part in name.split("."):
                made = getattr(made, part)
        except (ImportError, AttributeError) as error:
            raise RecipeError(f"there is no {spec} to import ({error})") from error
        except Exception as error:  # whatever the person's own module raises
            raise SourceError(f"{module} cannot be imported ({type(error).__name__}: {error})") from error
        try:
            return made(**self.arguments) if callable(made) else made
        except Exception as error:  # whatever the person's own callable raises
            raise SourceError(f"{spec} failed ({type(error).__name__}: {error})") from error

    def _split(self, name: str, dataset: Any) -> PythonSplit:
        if not hasattr(dataset, "__len__") or not hasattr(dataset, "__getitem__") or isinstance(dataset, Mapping):
            raise SourceError(
                f"split {name} is a {type(dataset).__name__}, expected a map-style dataset, with a length and an index"
            )
        try:
            size = len(dataset)
            first = dataset[0] if size else None
        except Exception as error:  # whatever the person's own dataset raises
            raise SourceError(f"split {name}: sample 0 failed ({type(error).__name__}: {error})") from error
        if not size:
            raise SourceError(f"split {name} has no samples")
        try:
            schema = Schema(first, self.decoder, self.fields)
        except ValueError as error:
            raise SourceError(f"split {name}: sample 0: {error}") from error
        return PythonSplit(dataset, size, schema, self.concurrent)


class PythonSplit:
    """One dataset.

    Args:
        dataset: map-style; picklable if worker processes are to read it.
        size: its length.
        schema: what its samples become.
        concurrent: whether several threads may read it at once.
    """

    def __init__(self, dataset: Any, size: int, schema: Schema, concurrent: bool) -> None:
        self.dataset, self.size, self.schema, self.concurrent = dataset, size, schema, concurrent
        self.classes = class_names(dataset) if "targets" in schema.keys else ()
        self._guard = nullcontext() if concurrent else Lock()
        first = self.read(0).fields
        self._first = checksum(first)
        self._steady = self._first == checksum(self.read(0).fields)

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if name != "_guard"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state, _guard=nullcontext() if state["concurrent"] else Lock())

    def __len__(self) -> int:
        return self.size

    def notes(self) -> tuple[str, ...]:
        """The schema; and what looks wrong: random samples, images that are floats."""
        notes = [f"each sample: {self.schema}"]
        if not self._steady:
            notes.append(
                "sample 0 is another one each time; random transforms belong to load time: leave them out here"
            )
        features = self.schema.like.get("features")
        if features is not None and len(features[1]) == 3 and features[1][0] in (1, 3):
            notes.append(
                f"{features[1][0]} x {features[1][1]} x {features[1][2]} features look like images; "
                "uint8 images (PIL, or PILToTensor) take a quarter of the space and can be augmented"
            )
        return tuple(notes)

    def id(self, index: int) -> str:
        """The sample's index."""
        return str(index)

    def stamp(self, index: int) -> str:
        """The schema and the first sample's checksum; a change in later samples is not seen."""
        return f"{self.schema} {self._first}" if index == 0 else ""

    def read(self, index: int) -> Sample:
        """The sample's fields, as the schema says.

        Raises:
            SampleError: if the dataset fails on it, or it is not as the first.
        """
        try:
            with self._guard:
                fields = self.schema(self.dataset[index])
        except ValueError as error:
            raise SampleError(self.id(index), str(error)) from error
        except Exception as error:  # whatever the person's own dataset raises
            raise SampleError(self.id(index), f"{type(error).__name__}: {error}") from error
        images = fields.get("images")
        size = (images.shape[-2], images.shape[-1]) if images is not None and images.ndim == 3 else None
        return Sample(self.id(index), fields, size)


def checksum(fields: Mapping[str, Tensor]) -> int:
    """CRC-32 over the bytes of all fields."""
    crc = 0
    for tensor in fields.values():
        crc = crc32(tensor.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes(), crc)
    return crc


def class_names(dataset: Any) -> tuple[str, ...]:
    """The ``classes`` of a dataset, or of the one that a Subset or ConcatDataset is over; empty if it has none."""
    for _ in range(16):
        classes = getattr(dataset, "classes", None)
        if isinstance(classes, list | tuple) and classes:
            return tuple(", ".join(map(str, name)) if isinstance(name, tuple) else str(name) for name in classes)
        inner = getattr(dataset, "datasets", None) or [getattr(dataset, "dataset", None)]
        dataset = inner[0]
    return ()


def _is_spec(spec: object) -> bool:
    module, colon, name = spec.partition(":") if isinstance(spec, str) else ("", "", "")
    return bool(colon) and all(part.isidentifier() for part in [*module.split("."), *name.split(".")])


def _is_splits(made: object) -> bool:
    return isinstance(made, Mapping) and bool(made) and all(isinstance(name, str) for name in made)
