"""Manifest of a dataset, ``dataset.json``: checked records and their text. It exists if the dataset is complete.

Where there is none, the working folder of an unfinished build is recognized, with how to continue it.
Equal manifests have equal text, byte for byte. The text ends with a checksum, so no bit of it can change unnoticed.
docs/format.md has the format.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, TypeVar

import msgspec
import numpy as np
import numpy.typing as npt

from mmload.errors import DamagedError, StoreError, VersionError, one_line, shown
from mmload.records import FieldSpec, ObjectsRecord
from mmload.runtime.files import read_regular
from mmload.store.checksum import crc32

BYTES, OFFSETS, SIZES, ENCODINGS = "bytes", "offsets", "sizes", "encodings"
META_NAME = "meta.json"

Count = Annotated[int, msgspec.Meta(ge=0, lt=2**62)]
Crc32 = Annotated[str, msgspec.Meta(pattern=r"^[0-9a-f]{8}\Z")]

_MOST = 2**62


@dataclass(frozen=True, kw_only=True)
class FieldFile:
    """File of a field in a shard: an array of elements of one dtype and shape.

    Attributes:
        spec: spec of an element.
        more: number of elements in addition to one per row: 1 for offsets, the last of which is the end.
        counted: whether the rows determine the number of elements; not that of the bytes of variable-size rows.
        is_list: whether its rows are lists, which may be empty; object storage gives these files as a whole.
    """

    spec: FieldSpec
    more: int = 0
    counted: bool = True
    is_list: bool = False

    def bytes(self, rows: int) -> int | None:
        """Returns the size of the file in a shard with this number of rows; None if rows do not determine it."""
        return (rows + self.more) * self.spec.row_bytes if self.counted else None


def files_of(fields: Mapping[str, FieldSpec]) -> dict[str, FieldFile]:
    """Returns name -> file of all fields, in their order; ``NAME.memmap`` is the file's name in the shard's folder."""
    files: dict[str, FieldFile] = {}
    for name, spec in fields.items():
        if spec.encoding is not None:
            files |= {f"{name}.{part}": file for part, file in parts_of(spec).items()}
        else:
            files[file_name(name, spec)] = FieldFile(spec=spec)
    return files


def file_name(field: str, spec: FieldSpec) -> str:
    """Returns the name, without ``.memmap``, of the file with the rows of a field; of an added one with its version."""
    if spec.encoding is not None:
        return f"{field}.{BYTES}"
    return f"{field}.{spec.version}" if spec.version else field


def parts_of(spec: FieldSpec) -> dict[str, FieldFile]:
    """Returns the files of a variable-size field or a list, by the last word of their names."""
    parts = {
        BYTES: FieldFile(spec=FieldSpec(dtype="uint8", shape=()), counted=False, is_list=spec.is_list),
        OFFSETS: FieldFile(spec=FieldSpec(dtype="int64", shape=()), more=1),
    }
    if not spec.is_list:
        parts[SIZES] = FieldFile(spec=FieldSpec(dtype="int32", shape=(2,)))
    if spec.encoding == "mixed":
        parts[ENCODINGS] = FieldFile(spec=FieldSpec(dtype="uint8", shape=()))
    return parts


class FileRecord(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Size of a file in bytes, and its CRC-32 (the one of zip and PNG) as 8 hexadecimal digits."""

    bytes: Count
    crc32: Crc32


class ShardRecord(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """Description of a shard.

    Attributes:
        rows: number of rows.
        files: record of each ``NAME.memmap``, by the names of :func:`files_of`.
        folder: number of its folder; None: its own number.
    """

    rows: Count
    files: dict[str, FileRecord]
    folder: Count | None = None


def check_shards(shards: Sequence[ShardRecord], files: Mapping[str, FieldFile]) -> None:
    """Checks that shards have the files of their split's fields, of sizes that can be.

    Raises:
        ValueError: if files are missing or unknown, or numbers cannot be.
    """
    for shard in shards:
        if shard.files.keys() != files.keys():
            raise ValueError(f"a shard has the files {', '.join(shard.files)}, expected {', '.join(files)}")
        for name, file in files.items():
            size = shard.files[name].bytes
            if file.bytes(shard.rows) not in (None, size):
                raise ValueError(f"bytes of {name} are not rows x row size")
            if not file.is_list and size < shard.rows:
                raise ValueError(f"bytes of {name} are fewer than rows")
    for name in files:
        if (total := sum(shard.files[name].bytes for shard in shards)) >= _MOST:
            raise ValueError(f"bytes of {name} are {total:.3g} together, expected less than 2**62")


def tensordict_meta(fields: Mapping[str, FieldSpec], shard: ShardRecord) -> str:
    """Returns the ``meta.json`` by which ``TensorDict.load_memmap`` opens a shard.

    Added fields are not in it: the file of the build stays. ``_type`` is a constant of tensordict. The batch size is
    [rows], or [] with variable-size rows or lists, as not every file has one element per row then.
    """
    fields = {name: spec for name, spec in fields.items() if not spec.version}
    meta: dict[str, Any] = {
        name: {
            "device": "cpu",
            "shape": [shard.files[name].bytes // file.spec.row_bytes, *file.spec.shape],
            "dtype": f"torch.{file.spec.dtype}",
            "is_nested": False,
        }
        for name, file in files_of(fields).items()
    }
    shape = [] if any(spec.encoding is not None for spec in fields.values()) else [shard.rows]
    meta |= {"shape": shape, "device": "cpu", "_type": "<class 'tensordict._td.TensorDict'>"}
    return json.dumps(meta, indent=1) + "\n"


T = TypeVar("T")


def convert_json(body: Any, kind: type[T], path: str, advice: str = "") -> T:
    """Converts plain JSON values to a record; messages name the path, and may have advice.

    Raises:
        DamagedError: if a value does not fit; names the file, the place in it, and what is expected.
    """
    try:
        return msgspec.convert(body, kind, str_keys=True)
    except (ValueError, RecursionError, OverflowError) as error:  # ValueError: lone surrogates in a key
        raise DamagedError(f"{path} is damaged: {one_line(str(error))}; {advice or 'rebuild the dataset'}") from error


FORMAT = "mmload dataset"
VERSION = 2
VERSIONS = "versions"
"""Key of the manifest for earlier versions, and the folder of their manifests."""

_END_LENGTH = len(',\n "crc32": "01234567"\n}\n')


def sealed_text(body: Mapping[str, Any]) -> str:
    """Returns a manifest's text, with its checksum; equal plain data in equal order gives equal text."""
    content = {key: value for key, value in body.items() if key not in ("format", "version", "crc32")}
    full = {"format": FORMAT, "version": VERSION} | content
    return _sealed(json.dumps(full, indent=1, ensure_ascii=False, allow_nan=False).removesuffix("\n}"))


def parsed_text(text: str, path: str) -> dict[str, Any]:
    """Returns a manifest's content as plain data, if text and version are right; messages name the path of its file.

    Raises:
        DamagedError: if it is no JSON, not of this format, or not as mmload wrote it.
        VersionError: if it is of another version of the format.
    """
    try:
        body = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise DamagedError(f"{path} is not JSON ({error}); rebuild the dataset") from error
    if not isinstance(body, dict) or body.get("format") != FORMAT:
        raise DamagedError(
            f'{path} is not the manifest of a dataset that this mmload can read: it has no "format": "{FORMAT}"; '
            "build the dataset again"
        )
    version = body.get("version")
    if type(version) is not int or version != VERSION:
        raise VersionError(
            f"{path} has format version {shown(version)}, this mmload reads version {VERSION}; upgrade mmload, or "
            "build the dataset again"
        )
    if text != _sealed(text[:-_END_LENGTH]):
        raise DamagedError(
            f"{path} is damaged: it does not end with the crc32 of the text before it, as mmload writes it; "
            "rebuild the dataset"
        )
    return {key: value for key, value in body.items() if key not in ("format", "version", "crc32")}


def _sealed(start: str) -> str:
    """Returns the text of a manifest from the text before its checksum."""
    return f'{start},\n "crc32": "{crc32(start.encode("utf-8", "backslashreplace")):08x}"\n}}\n'


MOST_BYTES = 2**31
"""A larger ``dataset.json`` is not read; this is enough for ten million shards of two fields."""

FILE_NAME = "dataset.json"
SAMPLES_NAME = "samples.jsonl"
SKIPPED_NAME = "skipped.jsonl"
ORIGINS_NAME = "origins.jsonl"
ORDER_NAME = "rows.memmap"
RESERVED = ("shape", "device")
"""Keys of a shard's ``meta.json``, which are names of no split or field."""
ORDER_DTYPE = np.dtype("<i8")
"""Dtype of the numbers in the list of rows."""
SKIPPED_SHOWN = 1000
"""Number of skipped samples that a split's manifest lists; its ``skipped.jsonl`` has all of them."""

Share = Annotated[float, msgspec.Meta(ge=0, le=1)]

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}")


class RowOrder(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Order of the rows of a split, where it is not that of the rows in the shards: after an update, or of a subset.

    Attributes:
        version: number of the version that wrote the split's lists.
        rows: record of the list of rows: for each row, its number over all shards, int64.
        shards_of: name of the split whose folder holds the shards, of a subset; None: the split itself.
    """

    version: Annotated[int, msgspec.Meta(ge=1, lt=2**31)]
    rows: FileRecord
    shards_of: str | None = None


class VersionRecord(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Version of a dataset.

    Attributes:
        number: 1 for the build, and one more for each change.
        contents: :attr:`Manifest.contents` of this version.
        time: when it was written, in UTC, as in ``2026-11-25T18:48:36Z``.
        change: what wrote it, such as ``build``, ``update`` or ``subset hard``.
        added: rows of new samples.
        changed: rows of changed samples.
        removed: rows that the version before it has and this one has not.
    """

    number: Annotated[int, msgspec.Meta(ge=1, lt=2**31)]
    contents: Annotated[str, msgspec.Meta(pattern=r"^[0-9a-f]{64}\Z")]
    time: str
    change: str
    added: Count = 0
    changed: Count = 0
    removed: Count = 0


class SplitRecord(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Description of a split.

    Attributes:
        rows: number of rows; without an order, all rows of the shards.
        fields: name -> dtype and row shape.
        classes: class names by index; empty without class targets.
        class_counts: rows of each class, in the order of ``classes``; empty without them.
        mean: per-channel mean of the stored images' pixels without borders, in [0, 1]; empty without uint8 images.
        std: per-channel population standard deviation of the same pixels, in [0, 1].
        skipped_count: number of samples that were left out.
        skipped: (sample id, reason) of the first :data:`SKIPPED_SHOWN` of them.
        skipped_file: record of ``skipped.jsonl``; None if nothing was left out.
        samples: record of ``samples.jsonl``, which has one line per row.
        shard_samples: samples, skipped ones included, that each shard but the last was planned to hold.
        shards: shards in row order.
        objects: description of the objects in the images; None: there is none.
        origins: record of ``origins.jsonl``, which has the revision of each row's sample and its share of the
            statistics; None if the source cannot tell which samples have changed.
        order: order of the rows; None: that of the shards.

    Raises:
        ValueError: if they contradict each other.
    """

    rows: Count
    fields: dict[str, FieldSpec]
    classes: tuple[str, ...] = ()
    class_counts: tuple[Count, ...] = ()
    mean: tuple[Share, ...] = ()
    std: tuple[Share, ...] = ()
    skipped_count: Count = 0
    skipped: tuple[tuple[str, str], ...] = ()
    skipped_file: FileRecord | None = None
    samples: FileRecord
    origins: FileRecord | None = None
    shard_samples: Annotated[int, msgspec.Meta(ge=1, lt=2**62)]
    shards: tuple[ShardRecord, ...]
    objects: ObjectsRecord | None = None
    order: RowOrder | None = None

    def __post_init__(self) -> None:
        check_names(self.fields, "fields")
        check_shards(self.shards, files_of(self.fields))
        if len(set(self.folder_numbers)) < len(self.shards):
            raise ValueError("two shards have the same folder")
        self._check_counts()
        images = self.fields.get("images")
        channels = images.shape[0] if images is not None and len(images.shape) == 3 else 0
        for name, values in (("mean", self.mean), ("std", self.std)):
            if len(values) not in (0, channels):
                raise ValueError(f"{name} is {shown(values)}, expected {channels} numbers, one per channel")

    def _check_counts(self) -> None:
        """Checks that split, shards, classes and skipped samples count the same rows."""
        total, of = float(self.rows_of_shards.sum()), "the sum of its shards"
        if self.order is not None:
            total, of = self.order.rows.bytes / ORDER_DTYPE.itemsize, "the length of its order"
        if total != self.rows:
            raise ValueError(f"rows is {self.rows}, expected {total:g}, {of}")
        if len(self.class_counts) not in (0, len(self.classes)) or sum(self.class_counts) > self.rows:
            raise ValueError(
                f"class_counts is {shown(self.class_counts)}, expected one per class, together no more than rows"
            )
        if len(self.skipped) != min(self.skipped_count, SKIPPED_SHOWN):
            raise ValueError(f"skipped_count is {self.skipped_count}, expected the number of skipped samples")
        if (self.skipped_file is None) != (self.skipped_count == 0):
            raise ValueError(
                f"skipped_file is {shown(self.skipped_file)}, expected a file if samples were left out, else null"
            )

    @property
    def built_fields(self) -> dict[str, FieldSpec]:
        """Fields of the build: all but those that were added to the finished dataset."""
        return {name: spec for name, spec in self.fields.items() if not spec.version}

    @property
    def subset_of(self) -> str | None:
        """Name of the split whose shards hold the rows, of a subset; else None."""
        return None if self.order is None else self.order.shards_of

    @property
    def bytes(self) -> int:
        """Bytes of all shard files."""
        return sum(file.bytes for shard in self.shards for file in shard.files.values())

    @property
    def rows_of_shards(self) -> npt.NDArray[np.int64]:
        """Number of rows of each shard, int64 [S]."""
        return np.array([shard.rows for shard in self.shards], np.int64)

    @property
    def folder_numbers(self) -> list[int]:
        """Number of each shard's folder."""
        return [index if shard.folder is None else shard.folder for index, shard in enumerate(self.shards)]

    @property
    def placed_shards(self) -> tuple[ShardRecord, ...]:
        """Shards, each with the number of its folder."""
        numbered = zip(self.shards, self.folder_numbers, strict=True)
        return tuple(msgspec.structs.replace(shard, folder=number) for shard, number in numbered)

    @property
    def lists(self) -> dict[str, FileRecord]:
        """Lists of rows and samples in the split's folder, by the names of their files."""
        records = {
            SAMPLES_NAME: self.samples,
            SKIPPED_NAME: self.skipped_file,
            ORIGINS_NAME: self.origins,
            ORDER_NAME: None if self.order is None else self.order.rows,
        }
        return {self.list_name(name): record for name, record in records.items() if record is not None}

    def list_name(self, name: str) -> str:
        """Returns the name of a list's file: a version keeps the lists of the ones before it."""
        return name if self.order is None else versioned_name(name, self.order.version)

    def shard_folder(self, split: str, index: int) -> str:
        """Returns the folder, inside the dataset's, of a shard by its number and the name of this split."""
        folder = self.shards[index].folder
        return f"{self.subset_of or split}/{shard_name(index if folder is None else folder)}"


class Manifest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Description of a dataset.

    Attributes:
        recipe: resolved recipe of its build.
        fingerprint: digest of the source.
        splits: splits by name, at least one.
        card: facts for people, such as the last results of checks.
        versions: all kept versions, this one last; empty for a dataset as it was built.

    Raises:
        ValueError: if there is no split, or one has a name that is not plain.
    """

    recipe: dict[str, Any]
    fingerprint: str
    splits: dict[str, SplitRecord]
    card: dict[str, Any] = msgspec.field(default_factory=dict)
    versions: tuple[VersionRecord, ...] = ()

    def __post_init__(self) -> None:
        check_names(self.splits, "splits")
        for name, split in self.splits.items():
            owner = split.subset_of
            if owner is None:
                continue
            if owner not in self.splits or self.splits[owner].subset_of is not None:
                raise ValueError(f"split {name} has rows of {shown(owner)}, expected a split that is no subset")
            if split.fields != self.splits[owner].fields or split.placed_shards != self.splits[owner].placed_shards:
                raise ValueError(f"split {name} has other fields or shards than {owner}, which has its rows")
        numbers = [version.number for version in self.versions]
        if numbers != sorted(set(numbers)):
            raise ValueError(f"versions are {shown(numbers)}, expected ascending numbers")
        orders = [split.order.version for split in self.splits.values() if split.order is not None]
        added = [spec.version for split in self.splits.values() for spec in split.fields.values()]
        if max([*orders, *added], default=0) > self.version:
            raise ValueError(f"a split or field was written by a version after {self.version}, the last one")

    def card_lines(self, kind: str, split: str) -> list[str]:
        """Returns the "notes" or "warnings" of a build on a split; a card is for people and may contain anything."""
        return [str(line) for line in _listed(self.card.get(kind), split)]

    @property
    def version(self) -> int:
        """Number of this version; 1 for a dataset as it was built."""
        return self.versions[-1].number if self.versions else 1

    @property
    def built_splits(self) -> dict[str, SplitRecord]:
        """Splits of the source by name: all but subsets."""
        return {name: split for name, split in self.splits.items() if split.subset_of is None}

    @property
    def contents(self) -> str:
        """SHA-256 of all but the card: equal for datasets of equal bytes, whatever was recorded since."""
        body = [self.recipe, self.fingerprint, msgspec.to_builtins(self.splits)]
        return hashlib.sha256(json.dumps(body, sort_keys=True).encode()).hexdigest()

    def excluded(self, split: str) -> list[str]:
        """Returns the ids of a split's samples that the recipe excludes; none if the recipe is malformed."""
        return [name for name in _listed(self.recipe.get("exclude"), split) if isinstance(name, str)]

    def dumps(self) -> str:
        """Returns the manifest as text; equal manifests give equal text."""
        return sealed_text(
            {
                "recipe": self.recipe,
                "fingerprint": self.fingerprint,
                "splits": msgspec.to_builtins(self.splits),
                "card": self.card,
                "versions": msgspec.to_builtins(self.versions),
            }
        )


def versioned_name(name: str, version: int) -> str:
    """Returns the name of a version's file in place of one that the build wrote: ``samples.3.jsonl``."""
    stem, _, kind = name.rpartition(".")
    return f"{stem}.{version}.{kind}"


def shard_name(index: int) -> str:
    """Returns the name of a shard's folder inside its split's folder."""
    return f"{index:06d}"


def is_name(text: str) -> bool:
    """Returns whether a split or field may have this name: a plain word that cannot leave the dataset's folder."""
    return _NAME.fullmatch(text) is not None and text not in RESERVED


def check_names(table: Mapping[str, object], key: str) -> None:
    """Checks that a table of splits or fields is not empty and has plain names.

    Raises:
        ValueError: naming the first one that is not.
    """
    if not table:
        raise ValueError(f"{key} is {{}}, expected at least one entry")
    for name in table:
        if not is_name(name):
            raise ValueError(f"{key} has {shown(name)}, expected a plain name of letters, digits, _ and -")


def loads(text: str, path: str) -> Manifest:
    """Reads a manifest from its text; messages name the path of its file.

    Raises:
        VersionError: if the format has another version.
        DamagedError: if it is not a manifest, its checksum does not match, or it contradicts itself.
    """
    return convert_json(parsed_text(text, path), Manifest, path)


def read(folder: str | Path) -> Manifest:
    """Reads the manifest of the dataset in a folder.

    Raises:
        StoreError: if there is no finished dataset.
        VersionError, DamagedError: as :func:`loads`.
    """
    folder = Path(folder)
    file = folder / FILE_NAME
    try:
        return loads(read_regular(file, most=MOST_BYTES).decode("utf-8"), str(file))
    except FileNotFoundError as error:
        if (advice := how_to_go_on(folder)) is not None:
            raise StoreError(advice) from error
        if not folder.exists():
            raise StoreError(
                f"no such dataset: {folder}; build it with: mmload build imagefolder ROOT {folder}"
            ) from error
        raise StoreError(
            f"{folder} is not a finished dataset: it has no {FILE_NAME}; give a folder that mmload build made as OUT"
        ) from error
    except UnicodeDecodeError as error:
        raise DamagedError(f"{file} is not UTF-8 text; rebuild the dataset") from error
    except OSError as error:
        raise StoreError(f"cannot read {file} ({error.strerror})") from error


PLAN_NAME = "plan.json"
MARK_NAME = "lock"
COMMAND = "command"
"""Key of the plan for the command of the build: ``words`` after ``mmload``, and the working ``folder``."""

_PREFIX, _SUFFIX = ".", ".building"
_MOST_BYTES = 2**31  # names of samples that are left out are in it


def staging_folder(out: Path) -> Path:
    """Returns the working folder for a build of this destination."""
    return out.parent / f"{_PREFIX}{out.name}{_SUFFIX}"


def is_staging_folder(folder: Path) -> bool:
    """Returns whether a folder is a build's working folder, by its name and its mark."""
    name = folder.name
    return name.startswith(_PREFIX) and name.endswith(_SUFFIX) and (folder / MARK_NAME).is_file()


def unfinished_plan(out: Path) -> dict[str, Any]:
    """Returns the plan of the unfinished build of a destination; empty if there is none."""
    return _mapping(_parsed(staging_folder(out) / PLAN_NAME))


def how_to_go_on(folder: Path) -> str | None:
    """Returns the message on a folder without a dataset, if a build of it has begun and not ended; else None.

    The folder is the destination of a build, its working folder, or the unfinished dataset in that.
    """
    place = Path(os.path.abspath(folder))
    staging = next((one for one in (staging_folder(place), place, place.parent) if is_staging_folder(one)), None)
    if staging is None:
        return None
    out = staging.with_name(staging.name[len(_PREFIX) : -len(_SUFFIX)])
    return f"the build of {out} is unfinished; if it no longer runs, continue it with: {_command(staging, out)}"


def _command(staging: Path, out: Path) -> str:
    """Returns the command of the build, as far as the plan records it."""
    try:
        command = msgspec.convert(_mapping(_parsed(staging / PLAN_NAME)).get(COMMAND), _Command)
    except msgspec.ValidationError:
        return f"mmload build KIND ROOT {shlex.quote(str(out))}, with the recipe that it was begun with"
    line = shlex.join(["mmload", *command.words])
    return line if os.path.abspath("") == command.folder else f"cd {shlex.quote(command.folder)} && {line}"


class _Command(msgspec.Struct):
    words: list[str]
    folder: str


def _parsed(file: Path) -> Any:
    try:
        return json.loads(read_regular(file, most=_MOST_BYTES))
    except (OSError, ValueError, RecursionError):
        return None


def _mapping(body: Any) -> dict[str, Any]:
    return body if isinstance(body, dict) else {}


def _listed(table: Any, name: str) -> list[Any]:
    """Returns the list of a name in a table; both may be anything else, and then it is empty."""
    found = _mapping(table).get(name)
    return found if isinstance(found, list) else []
