"""The manifest: ``dataset.json`` as checked, immutable objects. Its presence means the dataset is complete.

Equal manifests have equal JSON text, byte for byte. The shards themselves belong to :mod:`mmload.store.shard_writer`.
The format is in docs/format.md.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from mmload.errors import DamagedError, StoreError
from mmload.records import DTYPES, OWN, FieldSpec
from mmload.runtime.regular_files import read_regular
from mmload.store.field_files import FieldFile, files_of
from mmload.store.json_values import JsonValues
from mmload.store.manifest_text import (
    FIRST_VERSION,
    MOST_BYTES,
    TABLE_VERSION,
    VERSION,
    WHOLE_VERSION,
    parse,
    text_of,
)
from mmload.store.shard_table import MOST_LISTED, FileRecord, ShardRecord, ShardTable, table_of
from mmload.store.unfinished import how_to_go_on

FILE_NAME = "dataset.json"
SAMPLES_NAME = "samples.jsonl"
SKIPPED_NAME = "skipped.jsonl"
SKIPPED_SHOWN = 1000
"""A split's manifest lists this many skipped samples; all of them are in its ``skipped.jsonl``."""

_DIMENSIONS = 32
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}")
_CRC32 = re.compile(r"[0-9a-f]{8}")


@dataclass(frozen=True, kw_only=True)
class SplitRecord:
    """One split.

    Attributes:
        rows: rows over all shards.
        fields: name -> dtype and row shape.
        classes: class names by index; empty where the split has no class targets.
        class_counts: rows of each class, in the order of ``classes``; empty without them.
        mean: per-channel mean of the stored images' pixels, borders left out, in [0, 1]; empty without uint8 images.
        std: per-channel population standard deviation of the same, in [0, 1].
        skipped_count: how many samples were left out.
        skipped: (sample id, reason) of the first :data:`SKIPPED_SHOWN` of them.
        skipped_file: the record of ``skipped.jsonl``; None where nothing was left out.
        samples: the record of ``samples.jsonl``, one line a row.
        shard_samples: samples, skipped ones included, that each shard but the last was planned to hold; None: as many
            as fit into the recipe's shard size, as datasets of version 1 have it.
        shards: in row order.
    """

    rows: int
    fields: dict[str, FieldSpec]
    classes: tuple[str, ...] = ()
    class_counts: tuple[int, ...] = ()
    mean: tuple[float, ...] = ()
    std: tuple[float, ...] = ()
    skipped_count: int = 0
    skipped: tuple[tuple[str, str], ...] = ()
    skipped_file: FileRecord | None = None
    samples: FileRecord
    shard_samples: int | None = None
    shards: ShardTable

    @property
    def bytes(self) -> int:
        """Bytes of all shard files."""
        return sum(int(sizes.sum()) for sizes in self.shards.bytes.values())


@dataclass(frozen=True, kw_only=True)
class Manifest:
    """A whole dataset: what was asked for (``recipe``), of what (``fingerprint``), and what is there (``splits``)."""

    recipe: dict[str, Any]
    fingerprint: str
    splits: dict[str, SplitRecord]
    card: dict[str, Any] = field(default_factory=dict)

    @property
    def contents(self) -> str:
        """A SHA-256 of all but the card: equal for a dataset of equal bytes, whatever was recorded of it since."""
        body = [self.recipe, self.fingerprint, {name: _split_to_json(split) for name, split in self.splits.items()}]
        return hashlib.sha256(json.dumps(body, sort_keys=True).encode()).hexdigest()

    @property
    def own_sizes(self) -> bool:
        """Whether a field of a split has rows of their own sizes."""
        return any(spec.own_sizes for split in self.splits.values() for spec in split.fields.values())

    @property
    def tables(self) -> bool:
        """Whether a split has so many shards that they are a table of columns."""
        return any(len(split.shards) > MOST_LISTED for split in self.splits.values())

    def excluded(self, split: str) -> list[str]:
        """The samples of a split that the recipe leaves out, by id; none if the recipe is malformed."""
        table = self.recipe.get("exclude")
        names = table.get(split) if isinstance(table, dict) else None
        return [name for name in names if isinstance(name, str)] if isinstance(names, list) else []

    def dumps(self) -> str:
        """The manifest as JSON text; equal manifests give equal text."""
        body = {
            "recipe": self.recipe,
            "fingerprint": self.fingerprint,
            "splits": {name: _split_to_json(split) for name, split in self.splits.items()},
            "card": self.card,
        }
        return text_of(body, TABLE_VERSION if self.tables else WHOLE_VERSION if self.own_sizes else VERSION)


def shard_name(index: int) -> str:
    """The folder of shard ``index`` inside its split's folder."""
    return f"{index:06d}"


def is_name(text: str) -> bool:
    """Whether a split or field may be called this: a plain word that cannot leave the dataset's folder.

    ``shape`` and ``device`` are keys of a shard's ``meta.json`` with another meaning, so nothing is called that.
    """
    return _NAME.fullmatch(text) is not None and text not in ("shape", "device")


def loads(text: str, path: str) -> Manifest:
    """Read a manifest.

    Args:
        text: the JSON text.
        path: where it came from, for messages.

    Raises:
        VersionError: if it is of a format version that this mmload does not know.
        DamagedError: if it is not a manifest, or contradicts itself.
    """
    body = parse(text, path)
    version = body["version"]
    return _Reader(path, version).manifest(body)


def read(folder: str | Path, dir_fd: int | None = None) -> Manifest:
    """The manifest of the dataset in a folder.

    Args:
        folder: its path, for messages where there is a descriptor.
        dir_fd: the folder's descriptor; None: it is found by its path.

    Raises:
        StoreError: if there is no finished dataset; VersionError, DamagedError: as :func:`loads`.
    """
    folder = Path(folder)
    file = folder / FILE_NAME
    try:
        name = file if dir_fd is None else FILE_NAME
        return loads(read_regular(name, dir_fd=dir_fd, most=MOST_BYTES).decode("utf-8"), str(file))
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


def _split_to_json(split: SplitRecord) -> dict[str, Any]:
    return {
        "rows": split.rows,
        "fields": {name: _field_to_json(spec) for name, spec in split.fields.items()},
        "classes": list(split.classes),
        "class_counts": list(split.class_counts),
        "mean": list(split.mean),
        "std": list(split.std),
        "skipped_count": split.skipped_count,
        "skipped": [{"id": sample, "reason": reason} for sample, reason in split.skipped],
        "skipped_file": None if split.skipped_file is None else vars(split.skipped_file),
        "samples": vars(split.samples),
        "shard_samples": split.shard_samples,
        "shards": (
            split.shards.columns(files_of(split.fields))
            if len(split.shards) > MOST_LISTED
            else [shard_to_json(shard) for shard in split.shards]
        ),
    }


def _field_to_json(spec: FieldSpec) -> dict[str, Any]:
    shape = [None if size == OWN else size for size in spec.shape]
    return {"dtype": spec.dtype, "shape": shape} | ({"encoding": spec.encoding} if spec.own_sizes else {})


def shard_to_json(shard: ShardRecord) -> dict[str, Any]:
    """A shard's record as the manifest and the shard's summary write it."""
    return {"rows": shard.rows, "files": {name: vars(file) for name, file in shard.files.items()}}


def shard_from_json(body: object, path: str) -> ShardRecord:
    """The reverse of :func:`shard_to_json`.

    Raises:
        DamagedError: if ``body`` is no such record.
    """
    return _Reader(path).shard(body, "shard")


_FILE_KEYS = {field.name for field in fields(FileRecord)}
_SHARD_KEYS = {field.name for field in fields(ShardRecord)}
_SPLIT_KEYS = {field.name for field in fields(SplitRecord)}
_OWN_FIELD_KEYS = {field.name for field in fields(FieldSpec)}
_FIELD_KEYS = _OWN_FIELD_KEYS - {"encoding"}
_SKIPPED_KEYS = {"id", "reason"}


class _Reader(JsonValues):
    """Checks JSON values and turns them into records; every error names the file and the key.

    Args:
        path: the file, for messages.
        version: of the format. All but the first refuse keys that they do not have; from version 3 on fields may have
            rows of their own sizes, from version 4 on shards may be a table.
    """

    def __init__(self, path: str, version: int = VERSION) -> None:
        super().__init__(path, strict=version != FIRST_VERSION)
        self.version = version

    def name(self, body: str, where: str) -> str:
        if not is_name(body):
            raise self.fail(where, "a plain name of letters, digits, _ and -", body)
        return body

    def file(self, body: object, where: str) -> FileRecord:
        record = self.keys(body, where, _FILE_KEYS)
        digest = record.get("crc32")
        if not isinstance(digest, str) or not _CRC32.fullmatch(digest):
            raise self.fail(f"{where}.crc32", "8 hexadecimal digits", digest)
        return FileRecord(bytes=self.count(record.get("bytes"), f"{where}.bytes"), crc32=digest)

    def field(self, body: object, where: str) -> FieldSpec:
        own_sizes = self.version >= WHOLE_VERSION and "encoding" in self.mapping(body, where)
        record = self.keys(body, where, _OWN_FIELD_KEYS if own_sizes else _FIELD_KEYS)
        shape = self.items(record.get("shape"), f"{where}.shape")
        sizes = tuple(OWN if own_sizes and size is None else self.count(size, f"{where}.shape") for size in shape)
        if math.prod(sizes[:_DIMENSIONS]) >= 2**56 or len(sizes) > _DIMENSIONS:
            raise self.fail(f"{where}.shape", f"at most {_DIMENSIONS} sizes, less than 2**56 elements", shape)
        dtype = self.text(record.get("dtype"), f"{where}.dtype")
        if dtype not in DTYPES:
            raise self.fail(f"{where}.dtype", f"one of {', '.join(DTYPES)}", dtype)
        try:
            encoding = self.text(record.get("encoding"), f"{where}.encoding") if own_sizes else None
            return FieldSpec(dtype=dtype, shape=sizes, encoding=encoding)
        except ValueError as error:
            raise DamagedError(f"{self.path} is damaged: {where}: {error}; rebuild the dataset") from error

    def shard(self, body: object, where: str) -> ShardRecord:
        record = self.keys(body, where, _SHARD_KEYS)
        files = self.mapping(record.get("files"), f"{where}.files")
        return ShardRecord(
            rows=self.count(record.get("rows"), f"{where}.rows"),
            files={name: self.file(file, f"{where}.files.{name}") for name, file in files.items()},
        )

    def shards(self, body: object, fields: Mapping[str, FieldSpec], where: str) -> ShardTable:
        """A list of shards, or from version 4 on a table of more than can be listed."""
        files = files_of(fields)
        if self.version < TABLE_VERSION or isinstance(body, list):
            records = [self.shard(item, f"{where}[{i}]") for i, item in enumerate(self.items(body, where))]
            for index, record in enumerate(records):
                self.agree_shard(record, files, f"{where}[{index}].files")
            return self.table(lambda: ShardTable.of(records), where)
        table = self.keys(body, where, {"rows", "files"})
        columns = self.keys(table["files"], f"{where}.files", files.keys())
        for name, file in files.items():
            own = self.keys(columns[name], f"{where}.files.{name}", {"crc32"} if file.counted else {"bytes", "crc32"})
            for key, column in own.items():
                self.text(column, f"{where}.files.{name}.{key}")
        rows = self.text(table["rows"], f"{where}.rows")
        return self.table(lambda: table_of(rows, columns, files), where)

    def table(self, made: Callable[[], ShardTable], where: str) -> ShardTable:
        """The table that ``made`` returns."""
        try:
            return made()
        except ValueError as error:
            raise DamagedError(f"{self.path} is damaged: {where}: {error}; rebuild the dataset") from error

    def skipped(self, body: object, where: str) -> tuple[str, str]:
        record = self.keys(body, where, _SKIPPED_KEYS)
        return self.text(record.get("id"), f"{where}.id"), self.text(record.get("reason"), f"{where}.reason")

    def split(self, body: object, where: str) -> SplitRecord:
        record = self.keys(body, where, _SPLIT_KEYS)

        def each(key: str, read: Any) -> tuple[Any, ...]:
            return tuple(
                read(item, f"{where}.{key}[{i}]")
                for i, item in enumerate(self.items(record.get(key), f"{where}.{key}"))
            )

        named = self.mapping(record.get("fields"), f"{where}.fields")
        fields = {self.name(n, f"{where}.fields"): self.field(f, f"{where}.fields.{n}") for n, f in named.items()}
        skipped_file, planned = record.get("skipped_file"), record.get("shard_samples")
        split = SplitRecord(
            rows=self.count(record.get("rows"), f"{where}.rows"),
            fields=fields,
            classes=each("classes", self.text),
            class_counts=each("class_counts", self.count),
            mean=each("mean", self.number),
            std=each("std", self.number),
            skipped_count=self.count(record.get("skipped_count"), f"{where}.skipped_count"),
            skipped=each("skipped", self.skipped),
            skipped_file=None if skipped_file is None else self.file(skipped_file, f"{where}.skipped_file"),
            samples=self.file(record.get("samples"), f"{where}.samples"),
            shard_samples=None if planned is None else self.count(planned, f"{where}.shard_samples"),
            shards=self.shards(record.get("shards"), fields, f"{where}.shards"),
        )
        self.agree(split, where)
        return split

    def agree(self, split: SplitRecord, where: str) -> None:
        """The parts of a split agree."""
        if split.shard_samples == 0:
            raise self.fail(f"{where}.shard_samples", "at least 1, or null", 0)
        if not split.fields:
            raise self.fail(f"{where}.fields", "at least one field", {})
        self.agree_counts(split, where)
        self.agree_statistics(split, where)

    def agree_counts(self, split: SplitRecord, where: str) -> None:
        """Rows are counted alike by split, shards, classes and skipped samples."""
        total = int(split.shards.rows.sum())
        if total != split.rows:
            raise self.fail(f"{where}.rows", f"{total}, the sum of its shards", split.rows)
        if len(split.class_counts) not in (0, len(split.classes)) or sum(split.class_counts) > split.rows:
            raise self.fail(f"{where}.class_counts", "one a class, together no more than rows", split.class_counts)
        if len(split.skipped) != min(split.skipped_count, SKIPPED_SHOWN):
            raise self.fail(f"{where}.skipped_count", "the number of skipped samples", split.skipped_count)
        if (split.skipped_file is None) != (split.skipped_count == 0):
            expected = "a file where samples were left out, else null"
            raise self.fail(f"{where}.skipped_file", expected, split.skipped_file)

    def agree_statistics(self, split: SplitRecord, where: str) -> None:
        """Mean and deviation have one number for each channel, or none."""
        images = split.fields.get("images")
        channels = images.shape[0] if images is not None and len(images.shape) == 3 else 0
        for name, values in (("mean", split.mean), ("std", split.std)):
            if len(values) not in (0, channels):
                raise self.fail(f"{where}.{name}", f"{channels} numbers, one a channel", list(values))

    def agree_shard(self, shard: ShardRecord, files: Mapping[str, FieldFile], where: str) -> None:
        """A shard has the files of each field, of rows x row size bytes where all rows have one size."""
        if shard.files.keys() != files.keys():
            raise self.fail(where, f"one for each of {list(files)}", list(shard.files))
        for name, file in shard.files.items():
            size = files[name].bytes(shard.rows)
            if file.bytes < shard.rows or size not in (None, file.bytes):
                expected = f"{size} (rows x row size)" if size is not None else f"at least {shard.rows}"
                raise self.fail(f"{where}.{name}.bytes", expected, file.bytes)

    def manifest(self, body: Mapping[str, Any]) -> Manifest:
        splits = self.mapping(body.get("splits"), "splits")
        if not splits:
            raise self.fail("splits", "at least one split", {})
        manifest = Manifest(
            recipe=dict(self.mapping(body.get("recipe"), "recipe")),
            fingerprint=self.text(body.get("fingerprint"), "fingerprint"),
            splits={self.name(name, "splits"): self.split(split, f"splits.{name}") for name, split in splits.items()},
            card=dict(self.mapping(body.get("card", {}), "card")),
        )
        if self.version == WHOLE_VERSION and not manifest.own_sizes:
            raise self.fail("version", f"{VERSION}, as no field has rows of their own sizes", WHOLE_VERSION)
        if self.version == TABLE_VERSION and not manifest.tables:
            expected = f"{VERSION} or {WHOLE_VERSION}, as no split has more than {MOST_LISTED} shards"
            raise self.fail("version", expected, TABLE_VERSION)
        return manifest
