"""The manifest as text and back, the document that describes it, and everything that can be wrong with it."""

from __future__ import annotations

import hashlib
import json
import operator
import re
import subprocess
import sys
from functools import reduce
from pathlib import Path

import pytest
from building import changed_manifest, resealed
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import mmload
from mmload.builder.verify import verify
from mmload.errors import DamagedError, MmloadError, VersionError
from mmload.records import DTYPES, FieldSpec
from mmload.store.dataset import Dataset
from mmload.store.manifest import FileRecord, Manifest, ShardRecord, SplitRecord, is_name, loads

DOCUMENT = Path(__file__).parents[2] / "docs" / "format.md"

NAMES = st.from_regex(r"[A-Za-z0-9][A-Za-z0-9_-]{0,20}", fullmatch=True).filter(is_name)
TEXTS = st.text(st.characters(exclude_categories=["Cs"]) | st.characters(min_codepoint=0xDC80, max_codepoint=0xDCFF))
PARTS = st.floats(0, 1)
CRCS = st.integers(0, 2**32 - 1).map(lambda value: f"{value:08x}")
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=6,
)
ODD = st.sampled_from(
    [
        *("../x", "/etc/passwd", "a\0b", "", ".", "x" * 5000, "\ud800", 2**63, 2**64, -1, 10**400, 1e308, float("nan")),
        *(float("inf"), True, [], {}, [[]], None, "00000000", [2**61] * 300, [0], [-1], [[[[[[]]]]]]),
    ]
)


@st.composite
def splits(draw: st.DrawFn) -> SplitRecord:
    spec = st.builds(
        FieldSpec, dtype=st.sampled_from(list(DTYPES)), shape=st.lists(st.integers(1, 99), max_size=4).map(tuple)
    )
    fields = draw(st.dictionaries(NAMES, spec, min_size=1, max_size=4))
    shards = tuple(
        ShardRecord(
            rows=rows,
            files={name: FileRecord(bytes=rows * f.row_bytes, crc32=draw(CRCS)) for name, f in fields.items()},
        )
        for rows in draw(st.lists(st.integers(0, 10**6), max_size=4))
    )
    classes = tuple(draw(st.lists(TEXTS, max_size=4)))
    skipped = tuple(draw(st.lists(st.tuples(TEXTS, TEXTS), max_size=3)))
    return SplitRecord(
        rows=sum(shard.rows for shard in shards),
        fields=fields,
        classes=classes,
        class_counts=(0,) * len(classes),
        skipped_count=len(skipped),
        skipped=skipped,
        skipped_file=FileRecord(bytes=1, crc32=draw(CRCS)) if skipped else None,
        samples=FileRecord(bytes=draw(st.integers(0, 2**40)), crc32=draw(CRCS)),
        shard_samples=draw(st.integers(1, 10**6)),
        shards=shards,
    )


MANIFESTS = st.builds(
    Manifest,
    recipe=st.dictionaries(TEXTS, TEXTS | st.integers(), max_size=3),
    fingerprint=TEXTS,
    splits=st.dictionaries(NAMES, splits(), min_size=1, max_size=3),
    card=st.dictionaries(TEXTS, TEXTS, max_size=2),
)


@settings(max_examples=50, suppress_health_check=[HealthCheck.too_slow])
@given(manifest=MANIFESTS)
def test_a_manifest_comes_back_and_its_text_is_stable(manifest: Manifest) -> None:
    text = manifest.dumps()
    stored = text.encode("utf-8", "backslashreplace").decode("utf-8")
    again = loads(stored, "here")
    assert again == manifest
    assert again.dumps() == text


def test_the_readers_in_the_document_work_without_mmload(dataset: Dataset) -> None:
    numpy_reader, tensordict_reader, *_ = re.findall(
        r"```python\n(.*?)```", DOCUMENT.read_text(encoding="utf-8").replace("photos-256", str(dataset.path)), re.DOTALL
    )
    code = f"""
import sys
class Refuse:
    def find_spec(self, name, *rest):
        if name.split(".")[0] == "mmload":
            raise ImportError("mmload is not here")
sys.meta_path.insert(0, Refuse())
folder = {str(dataset.path)!r}
{numpy_reader}
images = np.stack(list(rows_of(folder, "train", "images")))
targets = [int(target) for target in rows_of(folder, "train", "targets")]
{tensordict_reader}
assert (shard["images"].numpy() == images[:5]).all() and shard["targets"].tolist() == targets[:5]
import hashlib
print(json.dumps([list(images.shape), str(images.dtype), hashlib.sha256(images.tobytes()).hexdigest(), targets]))
print("mmload" in sys.modules)
"""
    done = subprocess.run([sys.executable, "-I", "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    rows = dataset["train"][:]
    digest = hashlib.sha256(rows.images.numpy().tobytes()).hexdigest()
    said, imported = done.stdout.splitlines()
    assert json.loads(said) == [[18, 3, 32, 32], "uint8", digest, rows.targets.tolist()]
    assert imported == "False"


def test_the_document_names_every_key(dataset: Dataset) -> None:
    body = json.loads((dataset.path / "dataset.json").read_text(encoding="utf-8"))
    text = DOCUMENT.read_text(encoding="utf-8")
    for key in [*body, *body["splits"]["train"], *body["splits"]["train"]["samples"], *DTYPES]:
        assert f"`{key}`" in text or f'"{key}"' in text, key


def only_our_errors(folder: Path) -> None:
    """Opens and verifies it; anything but our own errors comes through."""
    for look in (mmload.open, verify):
        try:
            look(folder)
        except MmloadError as error:
            assert len(str(error)) < 2000  # noqa: PT017  # the other way is right too


def places(body: object, path: tuple[object, ...] = ()) -> list[tuple[object, ...]]:
    """Every place in a JSON value."""
    inner = body.items() if isinstance(body, dict) else enumerate(body) if isinstance(body, list) else ()
    return [path] * bool(path) + [place for key, value in inner for place in places(value, (*path, key))]


FUZZ = settings(max_examples=100, suppress_health_check=[HealthCheck.function_scoped_fixture])


def test_a_long_value_is_cut_in_the_message(copy: Path) -> None:
    changed_manifest(copy, lambda body: body["splits"]["train"]["fields"]["targets"].update(dtype="x" * 5000))
    with pytest.raises(DamagedError, match="dtype is 'xxx.*expected one of uint8") as caught:
        mmload.open(copy)
    assert len(str(caught.value)) < 500


@FUZZ
@given(data=st.data(), value=ODD | VALUES, rename=st.booleans())
def test_any_value_in_any_place(copy: Path, dataset: Dataset, data: st.DataObject, value: object, rename: bool) -> None:
    body = json.loads((dataset.path / "dataset.json").read_text(encoding="utf-8"))
    place = data.draw(st.sampled_from(places(body)))
    inner = reduce(operator.getitem, place[:-1], body)
    if rename and isinstance(inner, dict) and isinstance(value, str):
        inner[value] = inner.pop(place[-1])
    else:
        inner[place[-1]] = value
    (copy / "dataset.json").write_text(resealed(body), encoding="utf-8")
    only_our_errors(copy)


@FUZZ
@given(cut=st.integers(0, 10_000), junk=st.binary(max_size=12), place=st.integers(0, 10_000))
def test_bytes_cut_and_overwritten(copy: Path, dataset: Dataset, cut: int, junk: bytes, place: int) -> None:
    whole = (dataset.path / "dataset.json").read_bytes()
    at = place % len(whole)
    (copy / "dataset.json").write_bytes((whole[:at] + junk + whole[at + len(junk) :])[: cut or None])
    only_our_errors(copy)


@settings(FUZZ, max_examples=25)
@given(name=st.sampled_from(["000000/meta.json", "samples.jsonl"]), text=st.binary(max_size=300), flip=st.booleans())
def test_damaged_meta_and_samples_are_found(copy: Path, dataset: Dataset, name: str, text: bytes, flip: bool) -> None:
    whole = (dataset.path / "train" / name).read_bytes()
    damaged = bytes([*whole[:40], whole[40] ^ 1, *whole[41:]]) if flip else text
    (copy / "train" / name).write_bytes(damaged)
    assert [fault.file for fault in verify(copy)] == [f"train/{name}"]
    (copy / "train" / name).write_bytes(whole)
    assert verify(copy) == []


@pytest.mark.parametrize(
    ("text", "error", "message"),
    [
        ("", DamagedError, "is not JSON"),
        ("{", DamagedError, "is not JSON"),
        ("[" * 100_000, DamagedError, "is not JSON"),
        ('{"a":' * 100_000, DamagedError, "is not JSON"),
        ("NaN", DamagedError, "is not the manifest"),
        ("1" * 5000, DamagedError, "is not JSON"),
        ("null", DamagedError, "is not the manifest"),
        ('{"format": "other"}', DamagedError, "is not the manifest"),
        ('{"format": "mmload", "version": 4}', DamagedError, r"is not the manifest.*; build the dataset again"),
        ('{"format": "mmload dataset"}', VersionError, "format version None"),
        ('{"format": "mmload dataset", "version": true}', VersionError, "format version True"),
        ('{"format": "mmload dataset", "version": 1.0}', VersionError, r"format version 1\.0"),
        (
            '{"format": "mmload dataset", "version": 1}',
            VersionError,
            "format version 1, .* reads version 2; .*build the",
        ),
        ('{"format": "mmload dataset", "version": 2}', DamagedError, "does not end with the crc32"),
    ],
)
def test_what_is_no_manifest(text: str, error: type[MmloadError], message: str) -> None:
    with pytest.raises(error, match=message):
        loads(text, "dataset.json")


@pytest.mark.parametrize("depth", [400, 700, 900, 950, 980])
def test_a_value_nested_to_the_limit_is_still_a_message(depth: int) -> None:
    with pytest.raises(MmloadError):
        loads('{"format": "mmload dataset", "version": ' + "[" * depth + "]" * depth + "}", "x")


@pytest.mark.parametrize(
    "name", ["../train", "/tmp", "a/b", "a\0b", "", ".", "..", "_x", "a b", "é", "shape", "device"]
)
def test_names_that_could_leave_the_folder_or_mean_something_else(copy: Path, name: str) -> None:
    assert not is_name(name)
    text = (copy / "dataset.json").read_text(encoding="utf-8")
    for old in ("train", "targets"):
        renamed = json.loads(text.replace(f'"{old}":', f"{json.dumps(name)}:"))
        (copy / "dataset.json").write_text(resealed(renamed), encoding="utf-8")
        with pytest.raises(DamagedError, match="expected a plain name"):
            mmload.open(copy)


def test_a_shape_too_large_to_be_is_refused_even_without_rows(dataset: Dataset) -> None:
    body = json.loads(dataset.manifest.dumps())
    split = body["splits"]["train"]
    split |= {"rows": 0, "shards": [], "class_counts": []}
    for shape in ([2**61] * 300, [2**40, 2**40], [1] * 33):
        split["fields"]["images"]["shape"] = shape
        with pytest.raises(DamagedError, match="shape is .*expected at most 32 sizes"):
            loads(resealed(body), "x")
