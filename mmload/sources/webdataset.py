"""WebDataset's tars: ``shards/train-{000..147}.tar``, whose members ``KEY.jpg``, ``KEY.cls`` and so on are a sample.

The members of a sample follow one another; their key is what stands before the first dot of the name of a file, and the
rest is the extension. Tars are indexed by their headers once, and images are read at their offsets, in order. Nothing
is unpickled, and no member is extracted.
"""

from __future__ import annotations

import fnmatch
import io
import json
import posixpath
import re
import tarfile
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import KW_ONLY, dataclass, replace
from functools import partial
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, ClassVar, NamedTuple

import numpy as np

from mmload.errors import RecipeError, SampleError, SourceError
from mmload.remote.urls import PARALLEL, Location
from mmload.sources import Fraction, Names, Seed, Table, Text
from mmload.sources.annotation_values import Findings, naming
from mmload.sources.decode import Decoder, describe_content
from mmload.sources.files import (
    EXTENSIONS,
    MISSING,
    LocalTree,
    RemoteFiles,
    SampleFiles,
    Tree,
    inner_name,
    part_of_file,
    reading,
    tree_of,
)
from mmload.sources.list_rows import ListRow, Target, Targets, targets_of
from mmload.sources.listing import Beside, Listing, are_different_names, value_at, with_held_out
from mmload.sources.objects import read_mask
from mmload.sources.schema import ValuesSplit

if TYPE_CHECKING:
    from torch import Tensor

_KEY = re.compile(r"((?:.*/)?[^./]+)\.([^/]*)")
_BRACES = re.compile(r"\{([^{}]*)\}")
_RANGE = re.compile(r"([0-9]{1,9})\.\.([0-9]{1,9})")
_WORDS = ("train", "val", "valid", "validation", "test")
_WORD = re.compile(rf"(?:^|[^a-z])({'|'.join(_WORDS)})(?=[^a-z]|$)")
_MOST_TARS = 1_000_000
_END = bytes(512)  # of a tar, twice
_LABEL = "cls"
_MOST_LABEL_BYTES = 2**16
_DEFAULTS = {"txt": "text", "npy": "features"}
"""Extensions that are stored if nothing else is said, and their fields."""


Member = tuple[str, int, int]
"""File in a tar: its extension, and where its bytes begin and how many they are."""


class TarItem(NamedTuple):
    """One sample: its tar, key, members (the image first), label, revision of the tar, and what is wrong with it.

    The label is the content of its ``.cls``, or None, until the meaning of all labels is known.
    """

    tar: str
    key: str
    members: Sequence[Member]
    label: Target | str
    revision: str
    fault: str


@dataclass
class WebDatasetSource:
    """Tars of samples.

    Attributes:
        root: a tar, several as ``shards/{000..147}.tar`` or ``shards/*.tar``, or the folder of all; they may lie in
            object storage.
        decoder: decodes images to pixels.
        shards: split -> its tars below the root, as above; None: train, or the split whose name a tar has in its own.
        image: extension of the image; None: the only one that is an image's.
        fields: further field -> extension, such as ``masks = "seg.png"`` or ``caption = "json.text"``, a value in JSON.
            None: ``text`` of txt and ``features`` of npy.
        classes: class names by index; None: the numbers or names in ``.cls`` themselves.
        val_fraction: the share of ``train`` to hold out as ``val``, the same of every class; None for none.
        seed: selects the samples that are held out.
        allow_outside: follow links that lead out of the folder of the tars.

    Raises:
        RecipeError: if an option is invalid.
    """

    reads_urls: ClassVar[bool] = True

    root: str | Path | Location
    decoder: Decoder
    _: KW_ONLY
    shards: Table = None
    image: Text = None
    fields: Table = None
    classes: Names = None
    val_fraction: Fraction = None
    seed: Seed = 0
    allow_outside: bool = False

    def __post_init__(self) -> None:
        if self.classes is not None and not are_different_names(self.classes):
            raise RecipeError(f"classes is {self.classes!r:.80}; write a list of different names")

    def splits(self) -> Mapping[str, TarSplit]:
        """Indexes the tars.

        Raises:
            SourceError: if one is missing or no tar, or has a member that is not read, such as a link.
        """
        with reading(self.root):
            tree, tars = self._tars()
            findings, samples = Findings(), dict[str, list[TarItem]]()
            with ThreadPoolExecutor(PARALLEL, thread_name_prefix="mmload-source") as pool:
                for split, names in tars.items():
                    samples[split] = []
                    for tar, (found, is_open) in zip(names, pool.map(partial(self._indexed, tree), names), strict=True):
                        samples[split] += found
                        if is_open:
                            findings.add("tars end without a mark and may have been cut off", tar)
            targets = self._targets(samples)
            splits = {}
            for split, own in samples.items():
                items = Listing(TarItem, (_with_target(each, targets) for each in own))
                splits[split] = TarSplit(self, tree.place, items, targets.classes, targets.notes + findings.notes())
            if self.val_fraction is None:
                return splits
            return with_held_out(splits, lambda item: str(item.label), self.val_fraction, self.seed)

    def _tars(self) -> tuple[Tree, dict[str, list[str]]]:
        """Returns the folder of the tars, and their names by split, in order."""
        path = self.root.prefix if isinstance(self.root, Location) else str(self.root)
        is_folder = self.shards is not None or not re.search(r"\.tar$|[{*?\[]", path)
        folder = path if is_folder else posixpath.dirname(re.split(r"[{*?\[]", path)[0])
        tree = tree_of(
            replace(self.root, prefix=folder) if isinstance(self.root, Location) else folder, self.allow_outside
        )
        if isinstance(tree, LocalTree):
            tree.check_folder("", "the folder of the tars")
        if self.shards is not None:
            return tree, {split: list(_matching(tree, pattern)) for split, pattern in self.shards.items()}
        names = list(_matching(tree, "*.tar" if is_folder else path[len(folder) :].lstrip("/")))
        found: dict[str, list[str]] = {word: [] for word in _WORDS}
        for name in names:
            word = _WORD.search(name.lower())
            found[word[1] if word else "train"].append(name)
        return tree, {split: own for split, own in found.items() if own}

    def _indexed(self, tree: Tree, tar: str) -> tuple[list[TarItem], bool]:
        """Returns the samples of a tar, and whether it ends without a mark."""
        samples: list[TarItem] = []
        keys, revision = set[str](), tree.revision(tar)
        with tree.open(tar) as file:
            index = TarIndex(file, tar)
            for key, group in groupby(index, key=itemgetter(0)):
                members = [(extension, start, size) for _, extension, start, size in group]
                if key in keys or len({extension for extension, _, _ in members}) < len(members):
                    raise SourceError(
                        f"{tar} has files of the sample {key!r:.80} twice or in two places; write each once, and those "
                        "of a sample one after another, as tar --sort=name does"
                    )
                keys.add(key)
                samples.append(self._item(file, TarItem(tar, key, members, None, revision, ""), index.bytes))
        if index.fault:
            samples.append(TarItem(tar, f"byte {index.end}", [], None, revision, f"{tar} {index.fault}"))
        return samples, index.is_open

    def _item(self, file: BinaryIO, item: TarItem, most: int) -> TarItem:
        """Returns a sample of a tar of so many bytes with its image first, and its label."""
        wanted = [self.image] if self.image else [ending[1:] for ending in EXTENSIONS]
        images, label, fault = [each for each in item.members if each[0] in wanted], None, ""
        if len(images) != 1:
            there = ", ".join(extension for extension, _, _ in item.members)
            fault = f"has {len(images) or 'no'} images among its members {there}; name the extension of one in image"
        for extension, start, size in item.members:
            if start + size > most:
                fault = f"{item.tar} was cut off within it"
            elif extension == _LABEL and size <= _MOST_LABEL_BYTES:
                file.seek(start)
                label = file.read(size).decode("utf-8", "replace").strip()
        others = [each for each in item.members if each not in images]
        return item._replace(members=[*images, *others], label=label, fault=fault)

    def _targets(self, samples: Mapping[str, list[TarItem]]) -> Targets:
        """Returns the meaning of all labels; a sample without one, where others of its split have one, gets a fault."""
        is_used, classes = "targets" not in (self.fields or {}), tuple(self.classes or ())
        for own in samples.values():
            labeled = is_used and any(each.label for each in own)
            for place, each in enumerate(own):
                fault = each.fault or (
                    "has no label, a file .cls, as others have" if labeled and not each.label else ""
                )
                own[place] = each._replace(fault=fault, label=each.label if labeled else None)
        every = [(split, each) for split, own in samples.items() for each in own]
        if all(each.fault for _, each in every):
            first = next((f"; the first, {each.tar}/{each.key}, {each.fault}" for _, each in every), "")
            raise SourceError(f"{self.root} has no sample that can be read{first}")
        labeled_rows = (
            ListRow(each.key, each.label, split, each.key, None, each.tar)
            for split, each in every
            if not each.fault and isinstance(each.label, str)
        )
        rows = Listing(ListRow, labeled_rows)
        return targets_of(rows, classes or None) if rows else Targets(lambda label: label, classes)


class TarIndex:
    """Iterator over the files of a tar, read by their headers: key and extension of each, and where its bytes are.

    Attributes:
        bytes: size of the tar.
        end: where the last header was expected.
        fault: why the tar cannot be read beyond there; "" if it can.
        is_open: whether the mark at its end is missing.

    Raises:
        SourceError: if it is no tar, or has a member that is not read.
    """

    def __init__(self, file: BinaryIO, tar: str) -> None:
        self._file, self._tar = file, tar
        self.bytes, self.end, self.fault, self.is_open = file.seek(0, io.SEEK_END), 0, "", False

    def __iter__(self) -> Iterator[tuple[str, str, int, int]]:
        self._file.seek(0)
        try:
            with tarfile.open(fileobj=self._file, mode="r:") as archive:
                while True:
                    self.end = archive.offset
                    member = archive.next()
                    if member is None:
                        break
                    yield from self._parts(member)
        except tarfile.TarError as error:
            if not self.end:
                self._file.seek(0)
                what = describe_content(self._file.read(512)) or f"no tar ({error})"
                raise SourceError(f"{self._tar} is {what}") from error
            self.fault = f"is damaged or was cut off at byte {self.end:,} ({error})"
        self._file.seek(self.end)
        after = self._file.read(len(_END))
        self.is_open = not after and not self.fault
        if after != _END and after and not self.fault:
            self.fault = f"is damaged at byte {self.end:,}: what follows is no header of a file"

    def _parts(self, member: tarfile.TarInfo) -> Iterator[tuple[str, str, int, int]]:
        """Yields a file as it is indexed; nothing for folders and for files that WebDataset leaves out."""
        name = member.name.removeprefix("./")
        if member.isdir():
            return
        is_outside = name.startswith("/") or ".." in name.split("/")
        if is_outside or not member.isreg() or member.issparse():
            kind = "a name that leaves the tar" if is_outside else "a link, a sparse file or a device"
            raise SourceError(f"{self._tar} has the member {member.name!r:.80}, {kind}, which is not read; remove it")
        parts = _KEY.fullmatch(name)
        if parts and not name.rpartition("/")[2].startswith("__"):
            yield parts[1], parts[2].lower(), member.offset_data, member.size


def _with_target(item: TarItem, targets: Targets) -> TarItem:
    return item._replace(label=None if item.fault or item.label is None else targets.read(item.label))


def _matching(tree: Tree, pattern: str) -> Iterator[str]:
    """Yields the tars that a pattern names, in its order: ``{000..147}``, ``{a,b}``, and wildcards.

    Raises:
        SourceError: if one does not exist or leaves the folder, or wildcards match none.
    """
    for name in dict.fromkeys(_expanded(pattern)):
        if inner_name(name) is None:
            raise SourceError(f"{name!r:.80} leaves {tree.display_name('')}; give the folder of the tars as ROOT")
        if re.search(r"[*?\[]", name):
            found = fnmatch.filter(tree.files(""), name)
        else:
            found = [name] if tree.revision(name) != MISSING else []
        if not found:
            raise SourceError(f"no such tar: {tree.display_name(name)}; name them as in shards/{{000..147}}.tar")
        yield from found


def _expanded(pattern: str) -> Iterator[str]:
    """Yields what a pattern with braces stands for, as in a shell."""
    braces = _BRACES.search(pattern)
    if braces is None:
        yield pattern
        return
    span = _RANGE.fullmatch(braces[1])
    words = braces[1].split(",")
    if span:
        first, last = int(span[1]), int(span[2])
        if last - first >= _MOST_TARS:
            raise RecipeError(f"{pattern} names {last - first + 1:,} tars; correct it")
        words = [f"{number:0{len(span[1])}d}" for number in range(first, last + 1)]
    for word in words:
        yield from _expanded(pattern[: braces.start()] + word + pattern[braces.end() :])


class TarSplit(ValuesSplit[TarItem]):
    """One split: samples in the order of the tars and of their members."""

    def __init__(
        self,
        source: WebDatasetSource,
        place: Path | RemoteFiles,
        items: Listing[TarItem],
        classes: tuple[str, ...],
        notes: tuple[str, ...],
    ) -> None:
        first = next((item for item in items if not item.fault), items[0])
        there = {extension for extension, _, _ in first.members}
        default = {field: extension for extension, field in _DEFAULTS.items() if extension in there}
        self.fields = default if source.fields is None else dict(source.fields)
        stored = {*self.fields.values(), _LABEL, first.members[0][0] if first.members else ""}
        if rest := sorted(there - {key.split(".")[0] for key in stored} - stored):
            notes += (f"files that are not stored: {', '.join(rest)}; name those to store in fields",)
        super().__init__(place, source.decoder, items, classes, notes, boxes="boxes" in self.fields)

    def id(self, index: int) -> str:
        """Returns the tar, the key and the extension of the image."""
        tar, key, members, *_ = self.items[index]
        return f"{tar}/{key}.{members[0][0]}" if members else f"{tar}/{key}"

    def revision(self, index: int) -> str:
        """Returns the target, the sizes of the files, and the time of the tar; of an object its revision."""
        item = self.items[index]
        words = item.revision.split()
        of_tar = words[-1:] if isinstance(self.place, Path) else words
        return " ".join([str(item.label), *(str(size) for _, _, size in item.members), *of_tar])

    def check(self, index: int) -> None:
        if fault := self.items[index].fault:
            raise SampleError(self.id(index), fault)

    def files(self, index: int) -> Sequence[str]:
        item = self.items[index]
        return [
            part_of_file(item.tar, start, size) for _, start, size in [*item.members[:1], *self._used(item).values()]
        ]

    def _used(self, item: TarItem) -> dict[str, Member]:
        """Returns the files of a sample whose values are stored, by extension, in a fixed order."""
        files = (_file_of(key, item.members) for key in self.fields.values())
        return {file[0]: file for file in files if file is not None}

    def beside(self, index: int, files: SampleFiles, image: Tensor) -> Beside:
        """Returns the label as ``targets``, and the values of the other files."""
        import torch

        label, beside = self.items[index].label, super().beside(index, files, image)
        dtype = torch.int64 if self.classes else torch.float32
        target = {} if label is None else {"targets": torch.tensor(label, dtype=dtype, device="cpu")}
        return beside._replace(fields={**target, **beside.fields})

    def values(self, index: int, files: SampleFiles) -> dict[str, Any]:
        """Returns the values of a sample by field."""
        item = self.items[index]
        contents = {}
        for extension, start, size in self._used(item).values():
            name = part_of_file(item.tar, start, size)
            is_mask = self.fields.get("masks") == extension
            contents[extension] = read_mask(files, name) if is_mask else _decoded(extension, files.read(name))
        values = {}
        for field, key in self.fields.items():
            file = _file_of(key, item.members)
            if file is None:
                raise ValueError(f"has no file .{key}")
            with naming(f"its {file[0]} "):
                values[field] = value_at(contents[file[0]], key[len(file[0]) :])
        return values


def _file_of(key: str, members: Sequence[Member]) -> Member | None:
    """Returns the file that a key such as ``json.text`` names, by the longest extension that it begins with."""
    found = (each for each in members if key == each[0] or key.startswith(f"{each[0]}."))
    return max(found, key=lambda each: len(each[0]), default=None)


def _decoded(extension: str, data: bytes) -> Any:
    """Returns the value in a file of a sample; raises ValueError if it is broken, or of a kind that is not read."""
    kind = extension.rpartition(".")[2]
    with naming(f"its {extension} cannot be read: ", ValueError, EOFError, RecursionError):
        if kind == "json":
            return json.loads(data)
        if kind in ("txt", "text", "caption"):
            return data.decode("utf-8")
        if kind in (_LABEL, "id", "index"):
            return int(data)
        if kind == "npy":
            return np.load(io.BytesIO(data), allow_pickle=False)
    raise ValueError(f"its {extension} is of a kind that is not read; name others in fields: json, txt, cls, npy")
