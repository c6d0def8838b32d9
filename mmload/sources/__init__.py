"""Sources of samples: a source finds its splits once, then reads any of their samples in any order.

The build knows sources only by the contracts below. :data:`SOURCES` lists them by name; other packages add theirs with
:func:`register`, or with an entry point of the group ``mmload.sources``.

A split must be a :class:`SourceSplit`. What else it may be, and what a build does without:

===================== ============================================================================
:class:`HasNotes`     the build has no notes of the source
:class:`HasObjects`   the manifest says nothing of keypoints, and of numbers of categories
:class:`KnowsBoxes`   a sample is read to know whether there are boxes
:class:`KnowsSizes`   some images are decoded to know their sizes
:class:`KnowsTargets` ``mmload parity`` compares labels of an ImageFolder only
:class:`Splittable`   each worker process gets the whole split
:class:`ReadsBlocks`  samples are read one by one
:class:`FetchesAhead` samples are fetched when they are read
:class:`HasChecksums` the dataset cannot be updated
===================== ============================================================================
"""

from __future__ import annotations

import inspect
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Protocol, TypeVar, cast, get_type_hints, runtime_checkable

from msgspec import Meta

from mmload.errors import RecipeError, SourceError, choices, did_you_mean
from mmload.records import ObjectsRecord, Sample, checked
from mmload.remote.urls import Location

if TYPE_CHECKING:
    from importlib.metadata import EntryPoints

    from torch import Tensor

    from mmload.sources.decode import Decoder

ENTRY_POINTS = "mmload.sources"
"""The entry point group that other packages name their sources in: ``mykind = "my_package.my_module:MySource"``."""

TIME_MARK = "@"
"""First character of a word of a revision that is a time of modification in nanoseconds."""


class SourceSplit(Protocol):
    """One split of a source.

    Duties: deterministic (the same folder gives the same samples in the same order), ``read`` is thread-safe, and the
    whole is picklable, since worker processes read it too.
    """

    @property
    def classes(self) -> tuple[str, ...]:
        """Class names by index; empty where targets are not classes."""

    def __len__(self) -> int:
        """Returns the number of samples."""

    def id(self, index: int) -> str:
        """Returns the name of a sample, independent of where the source's root is; cheap."""

    def revision(self, index: int) -> str:
        """Returns text that changes when what :meth:`read` gives does, such as sizes, times and labels of files; cheap.

        Times of files are words that begin with :data:`TIME_MARK`: if nothing else differs, an update compares the
        checksums of the files. What all samples share, classes and :meth:`HasObjects.objects`, may be left out.
        """

    def read(self, index: int) -> Sample:
        """Reads and decodes a sample; does not transform it.

        Raises:
            SampleError: if it cannot be read.
        """


@runtime_checkable
class HasNotes(Protocol):
    """A split with notes for the user."""

    def notes(self) -> tuple[str, ...]:
        """Returns sentences for the build's summary: what was left out and why, and what looks wrong."""


_SHOWN = 3
"""Examples of each kind of finding that a note names."""


def notes_of(split: SourceSplit) -> tuple[str, ...]:
    """Returns the notes of a split; none if it is not :class:`HasNotes`."""
    return split.notes() if isinstance(split, HasNotes) else ()


class Findings:
    """Counts of what a reader left out, merged or guessed, by kind, with the first examples of each."""

    def __init__(self) -> None:
        self._counts = Counter[str]()
        self._first: dict[str, list[str]] = defaultdict(list)

    def add(self, kind: str, *examples: str) -> None:
        """Counts findings of a kind, such as "annotations without a box are left out", each by an example."""
        first = self._first[kind]
        first += examples[: _SHOWN - len(first)]
        self._counts[kind] += len(examples)

    def notes(self) -> tuple[str, ...]:
        """Returns a sentence for each kind of finding."""
        return tuple(
            f"{kind}: {count:,} ({', '.join(self._first[kind])}{', ...' if count > _SHOWN else ''})"
            for kind, count in self._counts.items()
            if count
        )


@runtime_checkable
class HasObjects(Protocol):
    """A split that describes the objects in its images, such as their keypoints."""

    def objects(self) -> ObjectsRecord:
        """Returns what the manifest says of them beside the names of their classes."""


@runtime_checkable
class KnowsBoxes(Protocol):
    """A split that knows whether its samples have boxes."""

    def has_boxes(self) -> bool:
        """Returns whether :meth:`SourceSplit.read` gives ``boxes``; cheap."""


@runtime_checkable
class KnowsSizes(Protocol):
    """A split that knows the sizes of its images without decoding them."""

    def image_size(self, index: int) -> tuple[int, int] | None:
        """Returns (height, width) of an image as :meth:`SourceSplit.read` gives it; None of a sample without one.

        Raises:
            SampleError: if it cannot be read.
        """


@runtime_checkable
class KnowsTargets(Protocol):
    """A split that knows the targets of its samples without reading them."""

    def known_targets(self) -> Tensor | None:
        """Returns the ``targets`` of all samples, [N, ...]; None if they have none."""


@runtime_checkable
class Splittable(Protocol):
    """A split that can be sent to a worker process in parts."""

    def part(self, samples: Sequence[int]) -> SourceSplit:
        """Returns a split of only these samples, in this order; picklable and no larger than they are."""


@runtime_checkable
class ReadsBlocks(Protocol):
    """A split whose samples are rows already, for a build without transforms."""

    def read_rows(self, start: int, stop: int) -> dict[str, Tensor]:
        """Returns rows [start, stop): each field of :meth:`SourceSplit.read` as a tensor [stop - start, ...]."""


@runtime_checkable
class FetchesAhead(Protocol):
    """A split whose samples take long to come: a build says what it reads next."""

    def fetch_ahead(self, samples: Sequence[int]) -> None:
        """Starts to fetch samples that are read soon and in this order."""


@runtime_checkable
class HasChecksums(Protocol):
    """A split of files."""

    def checksum(self, index: int) -> str:
        """Returns text that changes when the bytes of a sample's files do, which it reads; "" if that is unknown.

        Raises:
            SampleError: if they cannot be read.
        """


class Source(Protocol):
    """A dataset in its original form.

    Duties: as :class:`SourceSplit`; everything that can be wrong with the layout is found by ``splits``.
    """

    def splits(self) -> Mapping[str, SourceSplit]:
        """Returns the splits by name, in the order to build them.

        Raises:
            SourceError: if the source is missing, empty, or not laid out as its kind says.
            RecipeError: if an option does not go with what is there.
        """


SourceFactory = Callable[..., Source]
"""Called as ``factory(root, decoder, **options)``; options are the recipe's further ``[source]`` keys. It checks their
values and raises RecipeError, but reads no file; :func:`make_source` compares them with its annotations. The root is
a Path; one with an attribute ``reads_urls`` that is true also takes a :class:`~mmload.remote.urls.Location`."""

# Types of options; their descriptions say what to use.

_Text = Annotated[str, Meta(min_length=1)]

Fraction = Annotated[
    Annotated[float, Meta(gt=0, lt=1)] | None, Meta(description="a fraction between 0 and 1, for example 0.1")
]
Seed = Annotated[int, Meta(description="an integer")]
Text = Annotated[_Text | None, Meta(description="a text")]
FilePath = Annotated[_Text | None, Meta(description="a path")]
PathOrTable = Annotated[_Text | dict[str, _Text] | None, Meta(description="a path, or a table of paths by split")]
Names = Annotated[list[str] | None, Meta(description="a list of different names")]
Table = Annotated[dict[str, str] | None, Meta(description="a table of texts")]
Values = Annotated[dict[str, Any] | None, Meta(description="a table")]

_T = TypeVar("_T")


def one_or_more(option: _T | list[_T] | None) -> list[_T]:
    """Returns the values of an option that takes one or a list of them; none if it is not given."""
    if option is None:
        return []
    return option if isinstance(option, list) else [option]


SOURCES: dict[str, str | SourceFactory] = {
    "imagefolder": "mmload.sources.imagefolder:ImageFolderSource",
    "voc": "mmload.sources.voc:VocSource",
    "coco": "mmload.sources.coco:CocoSource",
    "yolo": "mmload.sources.yolo:YoloSource",
    "cifar10": "mmload.sources.cifar:Cifar10Source",
    "cifar100": "mmload.sources.cifar:Cifar100Source",
    "list": "mmload.sources.sample_list:ListSource",
    "webdataset": "mmload.sources.webdataset:WebDatasetSource",
    "huggingface": "mmload.sources.huggingface:HuggingFaceSource",
    "python": "mmload.sources.python:PythonSource",
}
"""Kind -> factory, or ``module:attribute`` where it is imported from on first use."""

_M = TypeVar("_M", bound=SourceFactory)


def register(kind: str) -> Callable[[_M], _M]:
    """Registers a source: ``@register("mykind")`` decorates a class or function that is a :data:`SourceFactory`.

    Raises:
        ValueError: if the kind is taken.
    """

    def add(factory: _M) -> _M:
        if kind in SOURCES:
            raise ValueError(f"source kind {kind!r} exists already; choose another name")
        SOURCES[kind] = factory
        return factory

    return add


def make_source(kind: str, root: Path | Location, decoder: Decoder, options: Mapping[str, Any]) -> Source:
    """Returns a source of the given kind over ``root``.

    Args:
        kind: a key of :data:`SOURCES`, or an entry point's name.
        root: the source's folder, or where it lies in object storage.
        decoder: decodes its images to pixels.
        options: the recipe's further ``[source]`` keys.

    Raises:
        RecipeError: if the kind or an option is unknown, or this kind does not read object storage.
    """
    factory = _factory_of(kind)
    if isinstance(root, Location) and not getattr(factory, "reads_urls", False):
        raise RecipeError(
            f"a source of kind {kind} reads folders of this machine, and {root} is in object storage; copy it to a disk"
        )
    signature = inspect.signature(factory)
    takes = [name for name in signature.parameters if name not in ("root", "decoder")]
    try:
        signature.bind(root, decoder, **options)
    except TypeError as error:
        raise RecipeError(f"source {kind}: {error}; its options are {choices(takes) or 'none'}") from error
    kinds = get_type_hints(factory, include_extras=True)
    checked_options = {name: checked(value, kinds.get(name, Any), name) for name, value in options.items()}
    try:
        return factory(root, decoder, **checked_options)
    except (TypeError, ValueError, AttributeError) as error:  # it reads no file yet, so a value has the wrong type
        raise RecipeError(f"source {kind} cannot take one of its options ({error}): {dict(options)!r:.200}") from error


def find_splits(
    kind: str, root: Path | Location, decoder: Decoder, options: Mapping[str, Any]
) -> Mapping[str, SourceSplit]:
    """Returns the splits of a source, of which the arguments of :func:`make_source` are given.

    Raises:
        RecipeError: as for :func:`make_source`, and if an option does not go with what is there.
        SourceError: if the source cannot be read, is not laid out as its kind says, or a split is empty or has no plain
            name.
    """
    from mmload.store.manifest import is_name

    source = make_source(kind, root, decoder, options)
    try:
        splits = source.splits()
    except OSError as error:
        where = error.filename or root
        is_absent = isinstance(error, FileNotFoundError)
        what = f"no such folder or file: {where}" if is_absent else f"cannot read {where} ({error.strerror or error})"
        raise SourceError(f"{what}; correct the path, or what is there") from error
    for name, split in splits.items():
        if not is_name(name):
            raise SourceError(f"{name!r:.60} is no name of a split; use letters, digits, _ and -")
        if not len(split):
            raise SourceError("; ".join((f"split {name} of {root} has no samples", *notes_of(split))))
    return splits


def without_defaults(kind: str, options: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the options that differ from the source's defaults; all of them if the kind is unknown."""
    try:
        takes = inspect.signature(_factory_of(kind)).parameters
    except RecipeError:
        return dict(options)
    defaults = {name: parameter.default for name, parameter in takes.items()}
    return {
        key: value
        for key, value in options.items()
        if key not in defaults or type(value) is not type(defaults[key]) or value != defaults[key]  # 0 == False
    }


def check_kind(kind: str) -> None:
    """Checks that a kind of source is known; imports none.

    Raises:
        RecipeError: if it is not.
    """
    if kind not in SOURCES and kind not in (others := _others().names):
        known = {*SOURCES, *others}
        raise RecipeError(f"unknown source kind {kind!r}; use one of {choices(known)}{did_you_mean(kind, known)}")


def _others() -> EntryPoints:
    """Returns the kinds of other packages."""
    from importlib.metadata import entry_points  # takes as long to import as all the rest

    return entry_points(group=ENTRY_POINTS)


def _factory_of(kind: str) -> SourceFactory:
    found = SOURCES.get(kind)
    if callable(found):
        return found
    if found is not None:
        module, _, name = found.partition(":")
        return cast(SourceFactory, getattr(import_module(module), name))
    check_kind(kind)
    others = _others()
    try:
        return cast(SourceFactory, others[kind].load())
    except Exception as error:  # whatever another package's import raises
        raise RecipeError(f"source {kind} of {others[kind].value} cannot be loaded ({error!r})") from error
