"""Random damage to a dataset: never a traceback, and repair gives every byte back or says why it cannot."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from building import resealed
from conftest import contents, make_folder
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from mmload.builder.pipeline import build
from mmload.builder.recipe import BuildRecipe, square
from mmload.builder.verify import compare, repair, verify
from mmload.errors import MmloadError

FUZZ = settings(max_examples=15, suppress_health_check=[HealthCheck.function_scoped_fixture])
Damage = Callable[[Path, int], object]


@dataclass(frozen=True)
class Built:
    """A dataset, what is in it, and what it was built from."""

    source: Path
    out: Path
    whole: dict[str, bytes]


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Built:
    """12 rows in four shards, of which one has none, as four samples were left out."""
    root = tmp_path_factory.mktemp("fuzz")
    source = make_folder(root / "photos", per_class=5)
    for number in range(3):
        (source / "ant" / f"{number:02d}.png").write_bytes(b"broken")
    options = {"transforms": square(16), "shard_bytes": 3 * (3 * 16 * 16 + 8)}
    build(BuildRecipe(kind="imagefolder", root=source, out=root / "out", **options), on_error="skip", threads=1)
    return Built(source, root / "out", contents(root / "out"))


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Path]:
    """Where an example has its copy."""
    yield tmp_path / "copy"
    assert [path.name for path in tmp_path.iterdir() if path.name != "copy"] == []


def flip(path: Path, number: int) -> None:
    body = bytearray(path.read_bytes() or b"\0")
    body[number // 8 % len(body)] ^= 1 << number % 8
    path.write_bytes(body)


def lead_nowhere(path: Path, number: int) -> None:
    path.unlink()
    path.symlink_to(f"nowhere{number}")


DAMAGES: dict[str, Damage] = {
    "flip": flip,
    "cut": lambda path, number: os.truncate(path, number % (path.stat().st_size + 1)),
    "lengthen": lambda path, number: os.truncate(path, path.stat().st_size + 1 + number % 5000),
    "delete": lambda path, _: path.unlink(),
    "lead nowhere": lead_nowhere,
    "lose its folder": lambda path, _: shutil.rmtree(path.parent),
    "have company": lambda path, number: (path.parent / f"extra{number}").write_bytes(b"more"),
    "have a folder beside it": lambda path, number: (path.parent / f"{number % 10**6:06d}").mkdir(exist_ok=True),
}


def copied(built: Built, place: Path) -> Path:
    shutil.rmtree(place, ignore_errors=True)
    return Path(shutil.copytree(built.out, place))


@pytest.mark.slow
@FUZZ
@given(
    hits=st.lists(
        st.tuples(st.integers(0, 10**6), st.sampled_from(sorted(DAMAGES)), st.integers(0, 10**6)), max_size=4
    ),
)
def test_repair_gives_back_every_byte(built: Built, place: Path, hits: list[tuple[int, str, int]]) -> None:
    copy = copied(built, place)
    names = sorted(set(built.whole) - {"dataset.json"})
    for which, damage, number in hits:
        path = copy / names[which % len(names)]
        if path.is_file() and not path.is_symlink():  # an earlier hit may have taken it away
            DAMAGES[damage](path, number)
    bad = {name for name in names if contents(copy).get(name) != built.whole[name]}
    assert {fault.file for fault in verify(copy)} == bad
    try:
        compare(copy, built.source, threads=1)
    except MmloadError as error:
        assert str(copy) in str(error)  # noqa: PT017  # the other way is right too
    assert {fault.file for fault in repair(copy, built.source, threads=1)} == bad
    found = contents(copy)
    assert {name: found.get(name) for name in built.whole} == built.whole
    assert verify(copy) == []
    assert compare(copy, built.source, threads=1) == []


def only_our_errors(copy: Path, source: Path) -> None:
    for check in (lambda: verify(copy), lambda: compare(copy, source), lambda: repair(copy, source, threads=1)):
        try:
            check()
        except MmloadError as error:
            assert 0 < len(str(error)) < 2000  # noqa: PT017  # the other way is right too


def places(body: object, path: tuple[object, ...] = ()) -> list[tuple[object, ...]]:
    """Every place in a JSON value that is no list or object."""
    if isinstance(body, dict | list):
        inner = body.items() if isinstance(body, dict) else enumerate(body)
        return [found for key, value in inner for found in places(value, (*path, key))]
    return [path]


VALUES = st.sampled_from(
    [0, 1, 2, 3, 17, 2**40, -1, 0.5, True, None, "", "x", "Resize", "cifar10", "train", "L", [], {}]
)


@FUZZ
@given(data=st.data(), value=VALUES, crippled=st.booleans())
def test_a_manifest_that_says_something_else(
    built: Built, place: Path, data: st.DataObject, value: object, crippled: bool
) -> None:
    """Its recipe, fields, rows and checksums are wrong, and perhaps a shard as well: no byte is ever made worse."""
    copy = copied(built, place)
    body = inner = json.loads(built.whole["dataset.json"])
    for key in (path := data.draw(st.sampled_from(places(body))))[:-1]:
        inner = inner[key]
    inner[path[-1]] = value
    (copy / "dataset.json").write_text(resealed(body), encoding="utf-8")
    if crippled:
        flip(copy / "train/000002/images.memmap", 1000)
    before = contents(copy)
    only_our_errors(copy, built.source)
    after = contents(copy)
    assert all(after[name] in (before[name], built.whole[name]) for name in before)


@FUZZ
@given(
    version=st.integers() | st.text(max_size=5) | st.none(),
    kind=st.sampled_from(["mmload dataset", "mmload", "other", None]),
)
def test_a_manifest_of_another_version(built: Built, place: Path, version: object, kind: object) -> None:
    copy = copied(built, place)
    body = json.loads(built.whole["dataset.json"]) | {"version": version, "format": kind}
    (copy / "dataset.json").write_text(json.dumps(body), encoding="utf-8")
    flip(copy / "train/000001/images.memmap", 1000)
    before = contents(copy)
    only_our_errors(copy, built.source)
    if (version, kind) != (1, "mmload dataset"):
        assert contents(copy) == before


@FUZZ
@given(junk=st.binary(max_size=40), at=st.integers(0, 10**4), keep=st.booleans())
def test_a_manifest_that_is_overwritten(built: Built, place: Path, junk: bytes, at: int, keep: bool) -> None:
    copy = copied(built, place)
    whole = built.whole["dataset.json"]
    at %= len(whole)
    (copy / "dataset.json").write_bytes(whole[:at] + junk + (whole[at + len(junk) :] if keep else b""))
    (copy / "train/000002/targets.memmap").unlink()
    only_our_errors(copy, built.source)
