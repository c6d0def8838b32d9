"""CIFAR's python batches: as torchvision and the standard library's pickle read them, but nothing in them runs."""

from __future__ import annotations

import builtins
import contextlib
import copyreg
import hashlib
import os
import pickle
import resource
import tarfile
from pathlib import Path

import numpy as np
import pytest
import torch
import torchvision
from cifar_files import batch, write_cifar10, write_cifar100
from hypothesis import given, settings
from hypothesis import strategies as st
from web_folder import serving

from mmload.errors import RecipeError, SourceError
from mmload.sources import ReadsBlocks, find_splits, make_source
from mmload.sources.cifar import CIFAR10, CIFAR100, read_plain_pickle
from mmload.sources.decode import Decoder


def splits(root: Path, kind: str = "cifar10", **options):
    return find_splits(kind, root, Decoder(), options)


def known_md5(monkeypatch: pytest.MonkeyPatch, folder: Path, edition, plain: type) -> None:
    """Make the test's files the published ones, for mmload and for torchvision."""

    def md5(name: str) -> str:
        return hashlib.md5((folder / name).read_bytes()).hexdigest()

    monkeypatch.setattr(plain, "train_list", [[name, md5(name)] for name in edition.batches["train"]])
    monkeypatch.setattr(plain, "test_list", [[name, md5(name)] for name in edition.batches["test"]])
    monkeypatch.setattr(plain, "meta", {**plain.meta, "md5": md5(edition.meta)})
    for name in edition.md5:
        monkeypatch.setitem(edition.md5, name, md5(name))


def assert_same(split, plain) -> None:
    assert list(split.classes) == plain.classes
    rows = split.read_rows(0, len(split))
    assert (rows["images"].numpy() == plain.data.transpose(0, 3, 1, 2)).all()
    assert rows["targets"].tolist() == plain.targets
    for index in range(len(split)):
        sample = split.read(index)
        assert torch.equal(sample.fields["images"], rows["images"][index])
        assert torch.equal(sample.fields["targets"], rows["targets"][index])


@pytest.mark.filterwarnings("ignore::numpy.exceptions.VisibleDeprecationWarning")
def test_cifar10_is_torchvisions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = write_cifar10(tmp_path)
    known_md5(monkeypatch, root / CIFAR10.folder, CIFAR10, torchvision.datasets.CIFAR10)
    found = splits(root)
    assert list(found) == ["train", "test"]
    assert_same(found["train"], torchvision.datasets.CIFAR10(root, train=True))
    assert_same(found["test"], torchvision.datasets.CIFAR10(root, train=False))
    assert found["train"].notes() == ()
    assert isinstance(found["train"], ReadsBlocks)


def test_cifar100_is_torchvisions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = write_cifar100(tmp_path)
    known_md5(monkeypatch, root / CIFAR100.folder, CIFAR100, torchvision.datasets.CIFAR100)
    assert_same(splits(root, "cifar100")["train"], torchvision.datasets.CIFAR100(root, train=True))
    coarse = splits(root / CIFAR100.folder, "cifar100", labels="coarse")["test"]
    assert coarse.classes[3] == "c3"
    assert coarse.read_rows(2, 6)["targets"].tolist() == [2, 3, 0, 1]


def test_batches_with_keys_of_python_2_are_what_pickle_reads(tmp_path: Path) -> None:
    """The published batches are such: their keys are read as bytes."""
    root = write_cifar10(tmp_path)
    for name in (*CIFAR10.batches["train"], *CIFAR10.batches["test"]):
        file = root / CIFAR10.folder / name
        body = file.read_bytes()
        for key in (b"data", b"labels"):
            body = body.replace(b"X" + len(key).to_bytes(4, "little") + key, b"U" + bytes([len(key)]) + key)
        file.write_bytes(body)
    found = splits(root)
    for split, names in CIFAR10.batches.items():
        bodies = [pickle.loads((root / CIFAR10.folder / n).read_bytes(), encoding="bytes") for n in names]
        rows = found[split].read_rows(0, len(found[split]))
        assert (rows["images"].reshape(-1, 3072).numpy() == np.concatenate([b[b"data"] for b in bodies])).all()
        assert rows["targets"].tolist() == [label for b in bodies for label in b[b"labels"]]
    assert found["train"].classes[:2] == ("class 0", "class 1")
    assert found["train"].notes()[0].startswith("not the original CIFAR10: the MD5 of")
    assert found["train"].id(8) == "data_batch_2/1"


@pytest.mark.parametrize("protocol", range(6))
def test_any_protocol_and_python_3(tmp_path: Path, protocol: int) -> None:
    found = splits(write_cifar10(tmp_path, protocol=protocol))
    expected = np.concatenate([batch(7 + seed, seed)["data"] for seed in range(5)])
    assert (found["train"].images.reshape(-1, 3072).numpy() == expected).all()
    assert found["train"].revision(0) != found["train"].revision(7) == found["train"].revision(14)


def test_a_batch_as_python_2_wrote_it() -> None:
    """The originals' own instructions: byte strings, ``numpy.core``, ``dtype`` with a state, rows in C order."""
    data = bytes(range(12))
    text = (
        b"\x80\x02}q\x01(U\x04dataq\x02cnumpy.core.multiarray\n_reconstruct\nq\x03cnumpy\nndarray\nq\x04K\x00\x85U\x01b\x87Rq\x05"
        b"(K\x01K\x03K\x04\x86cnumpy\ndtype\nq\x06U\x02u1K\x00K\x01\x87Rq\x07(K\x03U\x01|NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tb"
        b"\x89U\x0c" + data + b"tbU\x06labelsq\x08]q\t(K\x01K\x02K\x03eu."
    )
    assert pickle.loads(text, encoding="bytes")[b"data"].tolist() == np.arange(12).reshape(3, 4).tolist()
    body = read_plain_pickle(text)
    assert body[b"data"].tolist() == np.arange(12).reshape(3, 4).tolist()
    assert body[b"labels"] == [1, 2, 3]
    fortran = pickle.dumps({"data": np.asfortranarray(np.arange(12, dtype=np.uint8).reshape(3, 4))}, protocol=2)
    assert read_plain_pickle(fortran)["data"].tolist() == body[b"data"].tolist()


class Boom:
    """Pickles to a call of any function."""

    def __init__(self, function: object, *arguments: object) -> None:
        self.function, self.arguments = function, arguments

    def __reduce__(self):
        return self.function, self.arguments


def test_a_malicious_pickle_does_not_run(tmp_path: Path) -> None:
    write_cifar10(tmp_path)
    mark = tmp_path / "ran"
    attacks = {
        "system": pickle.dumps({"data": Boom(os.system, f"touch {mark}")}),
        "eval": pickle.dumps({"labels": [Boom(builtins.eval, f"open({str(mark)!r}, 'w')")]}),
        "exec in a key": pickle.dumps(Boom(builtins.exec, f"open({str(mark)!r}, 'w')"), protocol=0),
        "in protocol 5": pickle.dumps({"data": Boom(os.system, f"touch {mark}")}, protocol=5),
        "INST": b"(S'touch " + str(mark).encode() + b"'\nios\nsystem\n.",
        "OBJ": b"(cos\nsystem\nS'touch " + str(mark).encode() + b"'\no.",
        "NEWOBJ": b"\x80\x02cos\nsystem\nX\x04\x00\x00\x00true\x85\x81.",
        "EXT1": b"\x80\x02\x82\x01.",
        "BUILD of a name": b"\x80\x02cos\nsystem\n}U\x01aK\x01sb.",
        "PERSID": b"Pos\n.",
    }
    for name in ("data_batch_3", "batches.meta"):
        path = tmp_path / CIFAR10.folder / name
        good = path.read_bytes()
        for what, attack in attacks.items():
            path.write_bytes(attack)
            with pytest.raises(SourceError, match=rf"{name} is not a CIFAR batch: .*not run"):
                splits(tmp_path)
            assert not mark.exists(), what
        path.write_bytes(good)
    with open(tmp_path / "check", "wb") as file:  # the first attack is a real one
        file.write(attacks["system"])
    pickle.loads(attacks["system"])
    assert mark.exists()


DOUBLED = b"K\x01\x85" + b"q\x00h\x00\x86" * 60
"""A tuple of two of one tuple, sixty times over: its hash, its text and its array take 2^60 steps."""

DEEP = b"K\x01" + b"\x85" * 200_000
"""Tuples so deep that their hash overflows the C stack."""

DTYPE = b"cnumpy\ndtype\n"
ARRAY = b"cnumpy.core.numeric\n_frombuffer\n"

ENCODED = (
    b"\x80\x02]c_codecs\nencode\nq\x00aX\x40\x42\x0f\x00"
    + b"x" * 1_000_000
    + b"q\x01a"
    + b"h\x00h\x01N\x86Ra" * 2000
    + b"."
)

SAME_HASH = [number * (2**61 - 1) for number in range(1, 200_000)]
"""Integers that all have the hash 0: a table of them takes ten minutes."""

REFUSED = {
    "a memo place of 2^31": (b"\x80\x02r\xff\xff\xff\x7f.", "."),
    "bytes of 2^63": (b"\x80\x04\x8e\xff\xff\xff\xff\xff\xff\xff\x7fabc.", "."),
    "a byte array of 1 GiB": (b"\x80\x05\x96\x00\x00\x00\x40\x00\x00\x00\x00abc.", "."),
    "a frame of 1 TiB": (b"\x80\x05\x95\x00\x00\x00\x00\x00\x01\x00\x00}", "."),
    "an integer of 2^31 bytes": (b"\x8b\xff\xff\xff\x7f1.", "."),
    "many marks": (b"]" + b"(" * 100_000 + b".", "."),
    "a tuple a million deep": (b"}" + b"\x85" * 1_000_000 + b".", "not a dict"),
    "many digits": (b"I" + b"9" * 10_000 + b"\n.", "."),
    "a doubled tuple as a key": (b"}" + DOUBLED + b"K\x01s.", r"instruction b's'"),
    "a doubled tuple among keys": (b"}(K\x01K\x01" + DOUBLED + b"K\x01u.", r"instruction b'u'"),
    "a doubled tuple as a key of an old dict": (b"(" + DOUBLED + b"K\x01d.", r"instruction b'd'"),
    "a deep tuple as a key": (b"}" + DEEP + b"K\x01s.", r"instruction b's'"),
    "a doubled tuple in a set": (b"\x80\x04\x8f(" + DOUBLED + b"\x90.", r"instruction b'\\x8f'"),
    "a doubled tuple as a dtype": (b"}U\x01a" + ARRAY + b"(U\x00" + DTYPE + DOUBLED + b"\x85R)U\x01CtRs.", "'unknown'"),
    "a doubled tuple as an order": (
        b"}U\x01a" + ARRAY + b"(U\x00" + DTYPE + b"U\x02u1\x85R)" + DOUBLED + b"tRs.",
        "size 0",
    ),
    "the state of a function": (b"\x80\x02c_codecs\nencode\n}U\x01aK\x01sb.", r"instruction b'b'"),
    "the slots of a function": (b"\x80\x02c_codecs\nencode\nN}U\x01aK\x01s\x86b.", r"instruction b'b'"),
    "the state of a class": (b"\x80\x02cnumpy\ndtype\n}U\x01aK\x01sb.", r"instruction b'b'"),
    "more parts than an array has": (b"\x80\x02cnumpy\ndtype\n(" + b"N" * 100 + b"tR.", "positional"),
    "a text of 1 MB that is encoded 2,000 times": (ENCODED, "holds a list"),
    "keys of one hash": (
        b"}(" + b"".join(b"\x8a\x0c" + n.to_bytes(12, "little") + b"N" for n in SAME_HASH) + b"u.",
        "b'u'",
    ),
    "places of one hash": (b"N" + b"".join(b"p%d\n" % n for n in SAME_HASH) + b".", "holds a NoneType"),
    "an extension": (b"\x80\x02\x82\x01.", r"instruction b'\\x82'"),
    "an extension that is cached": (b"\x80\x02\x82\xf0X\x04\x00\x00\x00true\x85R.", r"instruction b'\\x82'"),
}


@pytest.mark.parametrize(("data", "message"), REFUSED.values(), ids=REFUSED)
def test_what_would_kill_or_hang_the_process_is_refused(
    data: bytes, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(copyreg._extension_cache, 0xF0, os.system)  # type: ignore[attr-defined]  # as after one pickle
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(ValueError, match=message):
        read_plain_pickle(data)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 500_000  # KB


def test_many_bytes_of_python_3_in_an_old_protocol() -> None:
    """Each is a call with a tuple of its own."""
    body = {b"filenames": [b"%d \xe9.png" % number for number in range(3000)]}
    assert read_plain_pickle(pickle.dumps(body, protocol=2)) == body


@settings(max_examples=300)
@given(st.binary(max_size=200))
def test_any_bytes_are_data_or_a_clean_error(data: bytes) -> None:
    for text in (data, b"\x80\x02}" + data + b".", data + b"."):
        with contextlib.suppress(ValueError):
            assert isinstance(read_plain_pickle(text), dict)


@pytest.mark.filterwarnings("ignore:invalid escape sequence:DeprecationWarning")  # pickle of a byte that was changed
@settings(max_examples=300)
@given(st.integers(0, 5), st.lists(st.tuples(st.integers(0, 10_000), st.integers(0, 255)), min_size=1, max_size=4))
def test_a_batch_with_changed_bytes_is_data_or_a_clean_error(protocol: int, changes: list[tuple[int, int]]) -> None:
    data = bytearray(pickle.dumps(batch(2, 0), protocol=protocol))
    for at, value in changes:
        data[at % len(data)] = value
    with contextlib.suppress(ValueError):
        read_plain_pickle(bytes(data))


SMALL = st.integers(1 - 2**60, 2**60 - 1)

plain = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text() | st.binary(),
    lambda inner: (
        st.lists(inner, max_size=4) | st.tuples(inner) | st.dictionaries(st.text() | SMALL, inner, max_size=4)
    ),
    max_leaves=12,
)


@given(st.dictionaries(st.text() | st.binary() | SMALL, plain, max_size=5), st.integers(1, 5))
def test_plain_data_reads_as_pickle_reads_it(body: dict, protocol: int) -> None:
    assert read_plain_pickle(pickle.dumps(body, protocol=protocol)) == body


def doubled(inner: list) -> list:
    """Return a list of two of one list, thirty times over."""
    for _ in range(30):
        inner = [inner, inner]
    return inner


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"data": np.zeros((7, 3071), np.uint8)}, "3072"),
        ({"data": np.zeros((7, 3072), np.float32)}, "dtype 'f4'"),
        ({"data": [1]}, "3072"),
        ({"labels": [0] * 6}, "7 integers"),
        ({"labels": [0] * 6 + [10]}, "labels from 0 to 10"),
        ({"labels": [0.5] * 7}, "integers"),
        ({"labels": [True] * 7}, "integers"),
        ({"labels": None}, "integers"),
        ({"labels": doubled([0])}, "integers"),
        ({10**5000: 0}, "instruction b'u'"),
    ],
)
def test_wrong_batches_are_named(tmp_path: Path, change: dict[str, object], message: str) -> None:
    write_cifar10(tmp_path)
    (tmp_path / CIFAR10.folder / "data_batch_1").write_bytes(pickle.dumps({**batch(7, 0), **change}))
    with pytest.raises(SourceError, match=message) as caught:
        splits(tmp_path)
    assert "data_batch_1" in str(caught.value)


def test_missing_files_and_wrong_options(tmp_path: Path) -> None:
    write_cifar10(tmp_path)
    (tmp_path / CIFAR10.folder / "data_batch_4").unlink()
    with pytest.raises(SourceError, match=r"lacks data_batch_4; .*download"):
        splits(tmp_path)
    with pytest.raises(RecipeError, match="labels"):
        splits(tmp_path, "cifar100", labels="rough")
    with pytest.raises(RecipeError, match=r"labels.*download"):
        splits(tmp_path, labels="fine")
    with pytest.raises(RecipeError, match="decode"):
        make_source("cifar10", tmp_path, Decoder(mode="L"), {})


def test_split_survives_pickling(tmp_path: Path) -> None:
    split = splits(write_cifar10(tmp_path))["train"]
    copy = pickle.loads(pickle.dumps(split))
    assert torch.equal(copy.read(3).fields["images"], split.read(3).fields["images"])


def test_sources_cifar_download(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_cifar10(tmp_path / "made")
    archive = tmp_path / "cifar-10-python.tar.gz"
    with tarfile.open(archive, "w:gz") as tar:
        tar.add(tmp_path / "made" / CIFAR10.folder, CIFAR10.folder)
    plain, root = torchvision.datasets.CIFAR10, tmp_path / "here"
    with serving(tmp_path) as url:
        monkeypatch.setattr(plain, "url", f"{url}/{archive.name}")
        with pytest.raises(SourceError, match="cannot download CIFAR10"):  # another checksum
            splits(root, download=True)
        monkeypatch.setattr(plain, "tgz_md5", hashlib.md5(archive.read_bytes()).hexdigest())
        assert len(splits(root, download=True)["train"]) == 45
        archive.unlink()
        assert len(splits(root, download=True)["train"]) == 45, "it is there, so nothing is fetched"
        with pytest.raises(SourceError, match="cannot download CIFAR10"):
            splits(tmp_path / "other", download=True)
