"""WebDataset's tars give the rows of the same files as a folder; what is wrong with a tar or a member is named."""

from __future__ import annotations

import io
import json
import tarfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from coco_sets import noise
from PIL import Image

import mmload
from mmload.builder.pipeline import update
from mmload.builder.recipe import BuildRecipe, square
from mmload.errors import RecipeError, SampleError, SourceError
from mmload.sources import find_splits
from mmload.sources.decode import Decoder


def photo(seed: int, kind: str = "JPEG", size: tuple[int, int] = (30, 40)) -> bytes:
    file = io.BytesIO()
    Image.fromarray(noise(*size, seed)).save(file, kind)
    return file.getvalue()


def write_tar(path: Path, members: Mapping[str, bytes | str]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(path, "w") as tar:
        for name, content in members.items():
            data = content.encode() if isinstance(content, str) else content
            info = tarfile.TarInfo(name)
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))
    return path


def splits(root: Path | str, **options: Any) -> Any:
    return find_splits("webdataset", Path(root), Decoder(), options)


def two_forms(root: Path, count: int = 10) -> tuple[Path, Path]:
    """Writes the same photographs as a folder of two classes and as tars of three samples, in the same order."""
    samples = [(number * 2 // count, photo(number)) for number in range(count)]
    for number, (label, data) in enumerate(samples):
        (root / "folder" / f"class{label}").mkdir(parents=True, exist_ok=True)
        (root / "folder" / f"class{label}" / f"{number:03d}.jpg").write_bytes(data)
    for tar in range(0, count, 3):
        members: dict[str, bytes | str] = {}
        for number in range(tar, min(tar + 3, count)):
            members |= {f"{number:03d}.jpg": samples[number][1], f"{number:03d}.cls": str(samples[number][0])}
        write_tar(root / "shards" / f"{tar // 3:03d}.tar", members)
    return root / "folder", root / "shards"


@pytest.mark.parametrize("encode", [None, "source"])
def test_tars_give_the_rows_and_statistics_of_the_folder(tmp_path: Path, encode: str | None) -> None:
    folder, shards = two_forms(tmp_path)
    layout = {} if encode is None else {"layout": "variable", "encode": encode, "size": "original"}
    options: dict[str, Any] = {"size": 16, "processes": 1, **layout}
    mmload.build(folder, tmp_path / "a", **options)
    setting = {"classes": ["class0", "class1"]}
    mmload.build(f"{shards}/{{000..003}}.tar", tmp_path / "b", kind="webdataset", setting=setting, **options)
    a, b = (mmload.open(tmp_path / name)["train"] for name in "ab")
    assert (b.classes, b.mean, b.std, b.record.class_counts) == (a.classes, a.mean, a.std, a.record.class_counts)
    for file in sorted((tmp_path / "a" / "train" / "000000").iterdir()):
        assert file.read_bytes() == (tmp_path / "b" / "train" / "000000" / file.name).read_bytes(), file.name
    assert b.source(3).id == "001.tar/003.jpg"


@pytest.mark.parametrize("root", ["shards", "shards/*.tar", "shards/00{0,1,2,3}.tar", "shards/{000..003}.tar"])
def test_tars_are_named_as_in_a_shell(tmp_path: Path, root: str) -> None:
    two_forms(tmp_path)
    assert len(splits(tmp_path / root)["train"]) == 10


def test_tars_are_splits_by_their_names_or_as_they_are_told(tmp_path: Path) -> None:
    for name in ("imagenet-train-00", "imagenet-train-01", "imagenet-val-00"):
        write_tar(tmp_path / f"{name}.tar", {"a.jpg": photo(1), "a.cls": "3"})
    assert {name: len(split) for name, split in splits(tmp_path).items()} == {"train": 2, "val": 1}
    own = splits(tmp_path, shards={"train": "imagenet-train-{00..01}.tar", "holdout": "imagenet-val-00.tar"})
    assert list(own) == ["train", "holdout"]
    with pytest.raises(SourceError, match=r"no such tar: .*imagenet-train-02.tar"):
        splits(tmp_path / "imagenet-train-{00..02}.tar")


def test_samples_have_their_texts_arrays_and_values_of_json(tmp_path: Path) -> None:
    array = io.BytesIO()
    np.save(array, np.arange(3, dtype=np.float32))
    members: dict[str, bytes | str] = {}
    for number, text in enumerate(("a cat", "zwölf Bären")):
        body = {"boxes": [[1, 2, 9, 8]] * number, "labels": [7] * number, "more": {"score": number / 2}}
        members |= {
            f"x/{number}.png": photo(number, "PNG"),
            f"x/{number}.txt": text,
            f"x/{number}.npy": array.getvalue(),
            f"x/{number}.json": json.dumps(body),
        }
    path = write_tar(tmp_path / "a.tar", members)
    plain = splits(path)["train"]
    sample = plain.read(1)
    assert list(sample.fields) == ["images", "text", "text_count", "features"]
    assert bytes(sample.fields["text"].tolist()).decode() == "zwölf Bären"
    assert sample.fields["features"].tolist() == [0, 1, 2]
    assert plain.notes() == ("files that are not stored: json; name those to store in fields",)
    fields = {"boxes": "json.boxes", "labels": "json.labels", "score": "json.more.score"}
    own = splits(path, fields=fields)["train"]
    assert own.has_boxes()
    assert [own.read(index).fields["boxes"].tolist() for index in range(2)] == [[], [[1, 2, 9, 8]]]
    assert own.read(1).fields["score"].item() == 0.5
    assert own.read(1).checksum == own.checksum(1) != own.checksum(0)
    part = own.part([1])
    assert (part.id(0), part.read(0).fields["labels"].tolist()) == (own.id(1), [7])


def test_masks_and_one_of_several_images_are_named(tmp_path: Path) -> None:
    mask = io.BytesIO()
    Image.fromarray(np.full((30, 40), 3, np.uint8)).save(mask, "PNG")
    members = {"0.left.jpg": photo(1), "0.right.jpg": photo(2), "0.seg.png": mask.getvalue()}
    path = write_tar(tmp_path / "a.tar", members)
    with pytest.raises(SourceError, match=r"has no images among its members left.jpg, right.jpg, seg.png; name the"):
        splits(path)
    split = splits(path, image="right.jpg", fields={"masks": "seg.png"})["train"]
    assert split.read(0).fields["masks"].unique().tolist() == [3]
    assert split.part([0]).id(0) == split.id(0)  # the row that was read last is as it was


@pytest.mark.parametrize("whole", [1, 2, 5])
def test_truncated_tar_is_an_error_of_its_last_sample(tmp_path: Path, whole: int) -> None:
    members: dict[str, bytes | str] = {}
    for number in range(6):
        members |= {f"{number}.cls": "0", f"{number}.jpg": photo(number)}
    path = write_tar(tmp_path / "a.tar", members)
    with tarfile.open(path) as tar:
        last = tar.getmembers()[2 * whole + 1]
    path.write_bytes(path.read_bytes()[: last.offset_data + last.size // 2])
    split = splits(path)["train"]
    assert len(split) == whole + 2
    for index in range(whole):
        split.read(index)
    for index, message in ((whole, "a.tar was cut off within it"), (whole + 1, "was cut off at byte")):
        with pytest.raises(SampleError, match=message):
            split.read(index)
    with pytest.raises(SampleError, match="--on-error skip"):
        mmload.build(path, tmp_path / "out", kind="webdataset", size=8)
    assert mmload.build(path, tmp_path / "out", kind="webdataset", size=8, on_error="skip").skipped == 2


def test_damaged_header_is_an_error_and_loses_nothing_in_silence(tmp_path: Path) -> None:
    path = write_tar(tmp_path / "a.tar", {f"{number}.jpg": photo(number) for number in range(4)})
    with tarfile.open(path) as tar:
        start = tar.getmembers()[2].offset
    content = bytearray(path.read_bytes())
    content[start : start + 100] = b"\xff" * 100
    path.write_bytes(content)
    split = splits(path)["train"]
    assert len(split) == 3
    with pytest.raises(SampleError, match=f"is damaged at byte {start:,}"):
        split.read(2)


def test_tar_without_its_end_is_noted(tmp_path: Path) -> None:
    path = write_tar(tmp_path / "a.tar", {"0.jpg": photo(0), "1.jpg": photo(1)})
    with tarfile.open(path) as tar:
        last = tar.getmembers()[1]
    path.write_bytes(path.read_bytes()[: last.offset])
    (split,) = splits(path).values()
    assert split.notes() == ("tars end without a mark and may have been cut off: 1 (a.tar)",)


def odd_member(kind: str) -> tarfile.TarInfo:
    info = tarfile.TarInfo({"outside": "../0.jpg", "absolute": "/0.jpg"}.get(kind, "1.jpg"))
    types = {"link": tarfile.SYMTYPE, "hard link": tarfile.LNKTYPE, "pipe": tarfile.FIFOTYPE}
    info.type = {**types, "sparse": tarfile.GNUTYPE_SPARSE}.get(kind, tarfile.REGTYPE)
    info.linkname = "0.jpg" if "link" in kind else ""
    return info


@pytest.mark.parametrize("kind", ["link", "hard link", "pipe", "sparse", "outside", "absolute"])
def test_members_that_are_no_files_of_the_tar_are_refused_by_name(tmp_path: Path, kind: str) -> None:
    path = write_tar(tmp_path / "a.tar", {"0.jpg": photo(0)})
    with tarfile.open(path, "a") as tar:
        tar.addfile(odd_member(kind))
    with pytest.raises(SourceError, match=f"a.tar has the member {odd_member(kind).name!r}"):
        splits(path)


@pytest.mark.parametrize("names", [("0.jpg", "0.jpg"), ("0.jpg", "1.jpg", "0.cls")])
def test_samples_in_two_places_are_refused(tmp_path: Path, names: tuple[str, ...]) -> None:
    path = write_tar(tmp_path / "a.tar", {names[0]: photo(0)})
    for name in names[1:]:
        with tarfile.open(path, "a") as tar:
            tar.addfile(tarfile.TarInfo(name))
    with pytest.raises(SourceError, match="has files of the sample '0' twice or in two places"):
        splits(path)


@pytest.mark.parametrize(
    ("content", "message"),
    [(b"", "is no tar"), (b"hello" * 300, "is no tar"), (b"\x1f\x8b" + bytes(600), "is a gzip archive: unpack it")],
)
def test_files_that_are_no_tars_are_named(tmp_path: Path, content: bytes, message: str) -> None:
    (tmp_path / "a.tar").write_bytes(content)
    with pytest.raises(SourceError, match=message):
        splits(tmp_path)


@pytest.mark.parametrize(
    ("member", "message"),
    [
        ({"1.cls": "1"}, "has no images among its members cls"),
        ({"1.jpg": b"no image", "1.cls": "1"}, "not an image"),
        ({"1.jpg": photo(1)}, "has no label"),
        ({"1.jpg": photo(1), "1.cls": ""}, "has no label"),
    ],
)
def test_broken_sample_is_an_error_of_its_own(tmp_path: Path, member: dict[str, bytes | str], message: str) -> None:
    split = splits(write_tar(tmp_path / "a.tar", {"0.jpg": photo(0), "0.cls": "1", **member}))["train"]
    assert int(split.read(0).fields["targets"]) == 1
    with pytest.raises(SampleError, match=message):
        split.read(1)


def test_nothing_is_unpickled(tmp_path: Path) -> None:
    path = write_tar(tmp_path / "a.tar", {"0.jpg": photo(0), "0.pyd": b"cos\nsystem\n(S'false'\ntR."})
    with pytest.raises(SampleError, match="pyd is of a kind that is not read"):
        splits(path, fields={"targets": "pyd"})["train"].read(0)


def test_files_that_webdataset_leaves_out_are_left_out(tmp_path: Path) -> None:
    members = {"__meta__.json": "{}", "README": "x", "./0.jpg": photo(0), "0.CLS": "4", "d/.1.jpg": b""}
    split = splits(write_tar(tmp_path / "a.tar", members))["train"]
    assert (len(split), split.id(0), int(split.read(0).fields["targets"])) == (1, "a.tar/0.jpg", 4)


def test_update_builds_what_is_new_in_the_tars(tmp_path: Path) -> None:
    _, shards = two_forms(tmp_path)
    recipe = BuildRecipe(kind="webdataset", root=shards, out=tmp_path / "out", transforms=square(8))
    mmload.build(recipe, processes=1)
    write_tar(shards / "004.tar", {"new.jpg": photo(99), "new.cls": "1"})
    report = update(recipe)
    assert (report.added, report.changed, report.removed) == (1, 0, 0)
    members = {"000.jpg": photo(0), "000.cls": "0", "001.jpg": photo(77), "001.cls": "0"}
    write_tar(shards / "000.tar", members)
    report = update(recipe)
    assert (report.added, report.changed, report.removed) == (0, 1, 1)


@pytest.mark.parametrize(
    "options", [{"shards": "a.tar"}, {"fields": ["json"]}, {"classes": ["a", "a"]}, {"val_fraction": 2.0}]
)
def test_webdataset_options_that_are_wrong_are_named(tmp_path: Path, options: dict[str, Any]) -> None:
    with pytest.raises(RecipeError, match=next(iter(options))):
        splits(tmp_path, **options)


def test_tars_outside_of_the_folder_are_refused(tmp_path: Path) -> None:
    write_tar(tmp_path / "a.tar", {"0.jpg": photo(0)})
    (tmp_path / "root").mkdir()
    with pytest.raises(SourceError, match=r"leads out of .*root"):
        splits(tmp_path / "root", shards={"train": "../a.tar"})
    (tmp_path / "root" / "inner").symlink_to(tmp_path)
    with pytest.raises(SourceError, match=r"leads out of .*allow_outside"):
        splits(tmp_path / "root", shards={"train": "inner/a.tar"})
    assert len(splits(tmp_path / "root", shards={"train": "inner/a.tar"}, allow_outside=True)["train"]) == 1


def test_braces_in_braces_name_each_tar_once(tmp_path: Path) -> None:
    for name in "abc":
        write_tar(tmp_path / f"{name}.tar", {"0.jpg": photo(0)})
    assert len(splits(tmp_path / "{a,{b,c}}.tar")["train"]) == 3
