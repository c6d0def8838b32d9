"""Every call of a scan that asks the system about a file, refused in turn: one clear error, or nothing is left out."""

from __future__ import annotations

import errno
import io
import json
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from cifar_files import write_cifar10
from devkit import Devkit, thing
from picture_folders import folder_of
from PIL import Image

from mmload.errors import MmloadError, SampleError
from mmload.sources import find_splits
from mmload.sources.decode import Decoder

CALLS = ("stat", "lstat", "open", "scandir", "listdir", "readlink")
REFUSALS = (errno.EACCES, errno.ESTALE, errno.ENAMETOOLONG, errno.ENOENT)
ABSENT = (errno.ENAMETOOLONG, errno.ENOENT)
PICTURES = ("ant/1.png", "ant/deep/2.png", "bee/3.png")
KINDS = ("imagefolder", "voc", "cifar10", "list", "ids")

Source = tuple[str, Path, dict[str, Any]]


class Refusing:
    """Stands for os.stat and the like: raises at one of the calls that name something below a folder."""

    def __init__(self, below: Path, at: int | None, code: int) -> None:
        self.below, self.at, self.code = str(below), at, code
        self.seen = 0
        self.path = ""

    def refuse(self, path: object) -> None:
        if not isinstance(path, str | os.PathLike) or not os.fspath(path).startswith(self.below):
            return
        self.seen += 1
        if self.seen == self.at:
            self.path = os.fspath(path)
            raise OSError(self.code, os.strerror(self.code), self.path)

    def of(self, call: Callable[..., Any]) -> Callable[..., Any]:
        def asked(path: object = ".", *more: Any, **options: Any) -> Any:
            self.refuse(path)
            return call(path, *more, **options)

        return asked

    def scandir(self, call: Callable[..., Any]) -> Callable[..., Any]:
        """Entries ask the system too, on file systems that do not give the kind of an entry with its name."""

        @contextmanager
        def listed(path: Any) -> Iterator[Iterator[Entry]]:
            with call(path) as entries:
                yield (Entry(entry, self) for entry in entries)

        class Listed:
            def __init__(self, path: Any) -> None:
                self.context = listed(path)

            def __enter__(self) -> Iterator[Entry]:
                return self.context.__enter__()

            def __exit__(self, *error: Any) -> None:
                self.context.__exit__(*error)

            def __iter__(self) -> Iterator[Entry]:
                with self as entries:
                    yield from entries

        return self.of(Listed)


class Entry:
    """An os.DirEntry that is refused too."""

    def __init__(self, entry: os.DirEntry[str], refusing: Refusing) -> None:
        self.entry, self.refusing = entry, refusing
        self.name, self.path = entry.name, entry.path

    def is_dir(self) -> bool:
        self.refusing.refuse(self.path)
        return self.entry.is_dir()


def a_source(kind: str, root: Path) -> Source:
    if kind == "imagefolder":
        return kind, folder_of(root, *PICTURES), {}
    if kind == "voc":
        devkit = Devkit(root)
        for number in range(3):
            devkit.add(f"image{number}", thing("dog"))
            other = devkit.home / "JPEGImages" / f"image{number}.png"
            Image.new("RGB", (8, 6), (number, 0, 0)).save(other)  # what a refused .jpg must not be replaced by
        devkit.list("train", "image0", "image1")
        devkit.list("val", "image2")
        return kind, devkit.root, {}
    if kind == "cifar10":
        return kind, write_cifar10(root), {}
    folder_of(root, *PICTURES)
    for name in PICTURES:
        Image.new("RGB", (8, 6)).save((root / name).with_suffix(".bmp"))
    if kind == "list":
        (root / "list.csv").write_text("path,label\n" + "".join(f"{name},1\n" for name in PICTURES))
        return "list", root, {"file": "list.csv"}
    ids = [name.rpartition(".")[0] for name in PICTURES]
    (root / "list.json").write_text(json.dumps({"partition": {"train": ids}, "labels": dict.fromkeys(ids, 1)}))
    return "list", root, {"file": "list.json"}


def seen(source: Source) -> tuple[dict[str, list[tuple[str, int]]], list[str]]:
    """The samples of each split, with a sum over their pixels (-1 where they cannot be read), and the errors."""
    kind, root, options = source
    samples: dict[str, list[tuple[str, int]]] = {}
    errors = []
    for name, split in find_splits(kind, root, Decoder(), options).items():
        samples[name] = []
        for index in range(len(split)):
            try:
                total = int(split.read(index).fields["images"].sum())
            except SampleError as error:
                errors.append(str(error))
                total = -1
            samples[name].append((split.id(index), total))
    return samples, errors


@pytest.mark.parametrize("code", REFUSALS, ids=errno.errorcode.get)
@pytest.mark.parametrize("kind", KINDS)
def test_every_refused_call_of_a_scan(kind: str, code: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = a_source(kind, tmp_path / "root")
    whole, errors = seen(source)
    assert not errors

    def tried(at: int | None) -> Refusing:
        refusing = Refusing(tmp_path, at, code)
        with monkeypatch.context() as patched:
            for call in CALLS:
                patched.setattr(os, call, (refusing.scandir if call == "scandir" else refusing.of)(getattr(os, call)))
            patched.setattr(io, "open", refusing.of(io.open))
            try:
                samples, errors = seen(source)
            except MmloadError as error:
                refused.append(str(error))
            else:
                assert len(errors) <= 1
                for split in whole if code not in ABSENT else ():  # what is not there is no part of the source
                    lost = [pair for pair in zip(whole[split], samples[split], strict=True) if pair[0] != pair[1]]
                    assert [pair[1] for pair in lost] == [(name, -1) for (name, _), _ in lost], refusing.path
                    assert len(lost) <= len(errors)
        return refusing

    refused: list[str] = []
    calls = tried(None).seen
    assert calls > 5
    for at in range(1, calls + 1):
        tried(at)
    assert refused
    assert not [message for message in refused if "\n" in message or str(tmp_path) not in message]
