"""Where samples come from. A source finds its splits once and then reads any sample of them, in any order.

Sources meet the build only through the contracts below, and :data:`SOURCES` is the one list of them by name. Others add
theirs with :func:`register`, or with an entry point of the group ``mmload.sources`` in their own package.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any, Protocol, TypeVar, cast, runtime_checkable

from torch import Tensor

from mmload.decode import Decoder
from mmload.errors import RecipeError, choices
from mmload.records import Sample

ENTRY_POINTS = "mmload.sources"
"""The entry point group that other packages name their sources in: ``mykind = "my_package.my_module:MySource"``."""


class SourceSplit(Protocol):
    """One split of a source.

    Duties: deterministic (the same folder gives the same samples in the same order), ``read`` is thread-safe, and the
    whole is picklable, since worker processes read it too.
    """

    @property
    def classes(self) -> tuple[str, ...]:
        """Class names by index; empty where targets are not classes."""

    def __len__(self) -> int:
        """How many samples."""

    def id(self, index: int) -> str:
        """What sample ``index`` is called, the same wherever the source's root is; cheap."""

    def stamp(self, index: int) -> str:
        """Text that changes when the sample does (sizes, times, labels), for the source's fingerprint; cheap."""

    def read(self, index: int) -> Sample:
        """Sample ``index``, decoded and not yet transformed.

        Raises:
            SampleError: if it cannot be read.
        """


@runtime_checkable
class Noted(Protocol):
    """A split that has something to say about itself. Any split may add this."""

    def notes(self) -> tuple[str, ...]:
        """Plain sentences for the build's summary: what was left out and why, what is not as it should be."""


@runtime_checkable
class Divisible(Protocol):
    """A split that can be sent to a worker process in parts. Any split may add this; of others each gets the whole."""

    def part(self, samples: Sequence[int]) -> SourceSplit:
        """A split of only these samples, in this order; picklable and no larger than they are."""


@runtime_checkable
class InBulk(Protocol):
    """A split whose samples are finished rows already. Any split may add this; a build without transforms uses it."""

    def read_rows(self, start: int, stop: int) -> dict[str, Tensor]:
        """Rows [start, stop) at once: each field of :meth:`SourceSplit.read` as a tensor [stop - start, ...]."""


class Source(Protocol):
    """A data set as people have it.

    Duties: as :class:`SourceSplit`; everything that can be wrong with the layout is found by ``splits``.
    """

    def splits(self) -> Mapping[str, SourceSplit]:
        """The splits by name, in the order to build them.

        Raises:
            SourceError: if the source is missing, empty, or not laid out as its kind says.
            RecipeError: if an option does not go with what is there.
        """


Maker = Callable[..., Source]
"""Called as ``maker(root, decoder, **options)``; options are the recipe's further ``[source]`` keys. It checks their
values and raises RecipeError, but looks at no file."""

SOURCES: dict[str, str | Maker] = {
    "imagefolder": "mmload.sources.imagefolder:ImageFolderSource",
    "voc": "mmload.sources.voc:VocSource",
    "cifar10": "mmload.sources.cifar:Cifar10Source",
    "cifar100": "mmload.sources.cifar:Cifar100Source",
    "manifest": "mmload.sources.manifest:ManifestSource",
    "python": "mmload.sources.python:PythonSource",
}
"""Kind -> maker, or ``module:attribute`` where it is imported from on first use."""

_M = TypeVar("_M", bound=Maker)


def register(kind: str) -> Callable[[_M], _M]:
    """Add a source of one's own: ``@register("mykind")`` over a class or function that is a :data:`Maker`.

    Raises:
        ValueError: if the kind is taken.
    """

    def add(maker: _M) -> _M:
        if kind in SOURCES:
            raise ValueError(f"there is a source kind {kind!r} already; choose another name")
        SOURCES[kind] = maker
        return maker

    return add


def make_source(kind: str, root: Path, decoder: Decoder, options: Mapping[str, Any]) -> Source:
    """The source of this kind over ``root``.

    Args:
        kind: a key of :data:`SOURCES`, or an entry point's name.
        root: the source's folder.
        decoder: how its images become pixels.
        options: the recipe's further ``[source]`` keys.

    Raises:
        RecipeError: if the kind is unknown or an option is not one of its own.
    """
    maker = _maker(kind)
    takes = [name for name in inspect.signature(maker).parameters if name not in ("root", "decoder")]
    try:
        inspect.signature(maker).bind(root, decoder, **options)
    except TypeError as error:
        known = f"its options are {choices(takes)}" if takes else "it has no options"
        raise RecipeError(f"source {kind}: {error}; {known}") from error
    return maker(root, decoder, **options)


def _maker(kind: str) -> Maker:
    found = SOURCES.get(kind)
    if callable(found):
        return found
    if found is not None:
        module, _, name = found.partition(":")
        return cast(Maker, getattr(import_module(module), name))
    others = entry_points(group=ENTRY_POINTS)
    if kind not in others.names:
        raise RecipeError(f"unknown source kind {kind!r}; use one of {choices({*SOURCES, *others.names})}")
    try:
        return cast(Maker, others[kind].load())
    except Exception as error:  # whatever another package's import raises
        raise RecipeError(f"source {kind} of {others[kind].value} cannot be loaded ({error!r})") from error
