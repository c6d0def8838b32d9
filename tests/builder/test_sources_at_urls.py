"""Builds of sources in object storage: the rows of a local build, whatever the store does meanwhile."""

from __future__ import annotations

import json
import os
import shutil
import tarfile
import threading
from pathlib import Path

import pytest
from conftest import complaint, contents, mmload
from meanwhile import interrupted
from s3_server import Bucket

from mmload.builder.dataset_change import save_subset
from mmload.builder.pipeline import build, update
from mmload.builder.recipe import BuildRecipe
from mmload.builder.verify import compare, repair
from mmload.errors import RemoteError, SampleError, SourceError, UsageError
from mmload.remote.object_store import Found, Objects
from mmload.remote.urls import Location, location
from mmload.sources.files import MAX_AHEAD, RemoteFiles

STEPS = ({"step": "Resize", "size": 16}, {"step": "CenterCrop", "size": 16})


@pytest.fixture
def url(bucket: Bucket, folder: Path) -> str:
    """The images of ``folder``, 18 PNGs of 3 classes, in a bucket."""
    shutil.copytree(folder, bucket.folder / "photos", dirs_exist_ok=True)
    return f"{bucket.url}/photos"


@pytest.fixture
def local(folder: Path, tmp_path: Path) -> Path:
    """The dataset of the same images on the disk."""
    return build(recipe(folder, tmp_path / "local")).out


REVISIONS = ("dataset.json", "origins.jsonl")


def recipe(root: str | Path, out: Path, kind: str = "imagefolder", **options: object) -> BuildRecipe:
    return BuildRecipe(kind=kind, root=root, out=out, transforms=STEPS, shard_bytes=6 * 800, options=options)


def rows_of(dataset: Path) -> dict[str, bytes]:
    """Every file but the manifest and the lists of origins, which name the source's revisions."""
    return {name: content for name, content in contents(dataset).items() if not name.endswith(REVISIONS)}


def test_an_image_folder_at_a_url_gives_the_rows_of_a_local_one(
    url: str, bucket: Bucket, local: Path, tmp_path: Path
) -> None:
    bucket.faults(fail_every=3)
    (bucket.folder / "photos" / "beside.txt").write_text("no class")
    build(recipe(url, tmp_path / "out"))
    assert rows_of(tmp_path / "out") == rows_of(local)
    assert build(recipe(url, tmp_path / "out")).built == 0
    assert compare(tmp_path / "out", url) == []
    secret = os.environ["AWS_SECRET_ACCESS_KEY"].encode()
    assert not any(secret in content for content in contents(tmp_path / "out").values())
    (tmp_path / "out" / "train" / "000001" / "images.memmap").write_bytes(b"lost")
    assert len(repair(tmp_path / "out", url)) == 1
    assert rows_of(tmp_path / "out") == rows_of(local)


def test_a_dataset_from_a_url_is_updated_and_has_subsets(url: str, bucket: Bucket, tmp_path: Path) -> None:
    made = recipe(url, tmp_path / "out")
    build(made)
    folder = bucket.folder / "photos" / "ant"
    (folder / "new.png").write_bytes((folder / "00.png").read_bytes())
    assert update(made).added == 1
    assert not update(made).needed
    assert len(save_subset(tmp_path / "out", "few", [0, 2], split="train")["few"]) == 2


def test_splits_and_the_order_of_folders_are_those_of_a_local_one(url: str, bucket: Bucket, tmp_path: Path) -> None:
    local, ant, bee = tmp_path / "photos", "ant/00.png", "bee/00.png"
    for name, picture in {
        "train/a b/x/1.PNG": ant,
        "train/a b/x-y/0.png": ant,
        "train/a b/2.png": ant,
        "train/c/0.png": ant,
        "val/a b/0.gif": ant,
        "val/a b/3.png": bee,
        "val/c/0.png": bee,
    }.items():
        for root in (local, bucket.folder / "split"):
            (root / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(bucket.folder / "photos" / picture, root / name)
    build(recipe(local, tmp_path / "local"))
    build(recipe(f"{bucket.url}/split/", tmp_path / "out"))
    assert rows_of(tmp_path / "out") == rows_of(tmp_path / "local")


def test_sources_at_urls_an_interrupted_build_goes_on(url: str, local: Path, tmp_path: Path) -> None:
    interrupted(build, recipe(url, tmp_path / "out"), after=12)
    assert 0 < build(recipe(url, tmp_path / "out")).built < 18
    assert rows_of(tmp_path / "out") == rows_of(local)


def test_an_object_that_is_gone_is_a_sample_that_cannot_be_read(
    url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    listed = Objects.listed
    gone = Found("bee/99.png", 1, "1 x")
    monkeypatch.setattr(Objects, "listed", lambda objects, most=None: [*listed(objects), gone])
    with pytest.raises(SampleError, match="bee/99.png: s3://.*/photos/bee/99.png does not exist"):
        build(recipe(url, tmp_path / "out"))
    assert build(recipe(url, tmp_path / "out"), on_error="skip").skipped == 1


def test_a_store_that_fails_ends_the_build_and_skips_nothing(
    url: str, bucket: Bucket, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    listed = Objects.listed

    def last(objects: Objects, most: int | None = None) -> list[Found]:
        found = listed(objects)
        bucket.faults(fail_every=1)
        return found

    monkeypatch.setattr(Objects, "listed", last)
    with pytest.raises(RemoteError, match=r"cannot read s3://.*/photos/ant/0\d.png"):
        build(recipe(url, tmp_path / "out"), on_error="skip")
    assert not (tmp_path / "out").exists()


def test_a_list_at_a_url_and_a_list_of_urls(url: str, bucket: Bucket, folder: Path, tmp_path: Path) -> None:
    names = [f"{name}/{number:02d}.png" for name in ("ant", "cat") for number in range(6)]
    lines = [json.dumps({"path": name, "label": name[:3], "id": name}) for name in names]
    (tmp_path / "list.jsonl").write_text("\n".join(lines))
    (bucket.folder / "photos" / "list.jsonl").write_text("\n".join(lines))
    (bucket.folder / "list.jsonl").write_text("\n".join(lines))
    urls = [json.dumps({"path": f"{url}/{name}", "label": name[:3], "id": name}) for name in names]
    (tmp_path / "urls.jsonl").write_text("\n".join(urls))
    shutil.copytree(folder, tmp_path, dirs_exist_ok=True)
    build(recipe(tmp_path / "list.jsonl", tmp_path / "local", "list"))
    build(recipe(f"{url}/list.jsonl", tmp_path / "beside", "list"))
    build(recipe(bucket.url, tmp_path / "named", "list", file="list.jsonl", folder="photos"))
    with pytest.raises(SourceError, match="urls.jsonl, line 1: .* is a URL, outside of .*allow_outside=true"):
        build(recipe(tmp_path / "urls.jsonl", tmp_path / "out", "list"))
    build(recipe(tmp_path / "urls.jsonl", tmp_path / "urls", "list", allow_outside=True))
    for made in ("beside", "named", "urls"):
        assert rows_of(tmp_path / made) == rows_of(tmp_path / "local"), made


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("https://example.com/a.png", "begins with https://; the URLs of object storage are"),
        ("../a.png", "leaves s3://.*/photos; name an object below it"),
        ("file:///etc/passwd", "leaves s3://.*/photos; name an object below it"),
    ],
)
def test_a_list_names_what_may_not_be_read(url: str, bucket: Bucket, tmp_path: Path, path: str, message: str) -> None:
    (bucket.folder / "photos" / "list.jsonl").write_text(json.dumps({"path": path, "label": "ant"}))
    with pytest.raises(SourceError, match=message):
        build(recipe(f"{url}/list.jsonl", tmp_path / "out", "list", allow_outside=True))


@pytest.mark.parametrize(
    ("root", "message"),
    [
        ("BUCKET/nothing", "no objects at s3://.*/nothing"),
        ("s3://no-such-bucket/x", "bucket 'no-such-bucket' does not exist"),
        ("s3://key:secret@bucket/x", "has credentials or options in it"),
        ("https://example.com/x", "the URLs of object storage are"),
    ],
)
def test_sources_at_urls_that_are_wrong_are_refused(bucket: Bucket, tmp_path: Path, root: str, message: str) -> None:
    with pytest.raises((SourceError, UsageError), match=message):
        build(recipe(root.replace("BUCKET", bucket.url), tmp_path / "out"))


def test_commands_say_what_a_source_at_a_url_cannot_be(url: str, bucket: Bucket, folder: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    assert mmload("build", "imagefolder", url, out, "--size", 16).returncode == 0
    assert f"equals {url}" in mmload("verify", out, "--source", url).stdout
    (bucket.folder / "photos" / "ant" / "zz.png").write_bytes(b"")
    for words, code, message in (
        (("build", "voc", url, tmp_path / "voc"), 2, "reads folders of this machine"),
        (("build", "imagefolder", folder, "s3://b/out"), 2, "s3://b/out is a URL"),
        (("build", "list", f"{url}/no.csv", tmp_path / "list"), 1, "no such list: s3"),
        (("build", "list", f"{url}/list.json", tmp_path / "list"), 2, "is a list of ids"),
        (("build", "imagefolder", url, tmp_path / "more"), 1, "zz.png: the file is empty"),
        *(((name, out, "--source", url), 2, "copy it to a disk first") for name in ("parity", "bench", "browse")),
    ):
        assert message in complaint(mmload(*words), code)


def test_files_are_fetched_ahead_in_order_each_once_and_not_too_many(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[str] = []
    goes_on = threading.Event()

    class Slow:
        def __init__(self, url: str) -> None:
            pass

        def get(self, name: str) -> memoryview:
            seen.append(name)
            goes_on.wait(60)
            return memoryview(name.encode())

    monkeypatch.setattr("mmload.sources.files.Objects", Slow)
    files = RemoteFiles(location("s3://bucket/photos"))
    names = [f"{number:04d}" for number in range(3 * MAX_AHEAD)]
    files.fetch_ahead(names)
    goes_on.set()
    assert files.read("0000", "") == b"0000"
    assert set(files._coming) == set(names[1 : MAX_AHEAD + 1])
    assert [files.read(name, "") for name in reversed(names[1:])] == [name.encode() for name in reversed(names[1:])]
    assert sorted(seen) == names
    assert isinstance(location("s3://bucket/photos"), Location)


def test_tars_at_a_url_give_the_rows_of_local_ones(bucket: Bucket, folder: Path, tmp_path: Path) -> None:
    bucket.faults(fail_every=5)
    pictures = sorted(folder.glob("*/*.png"))
    for place in (tmp_path / "shards", bucket.folder / "shards"):
        place.mkdir()
        for number in range(3):
            with tarfile.open(place / f"{number:02d}.tar", "w") as tar:
                for path in pictures[number::3]:
                    tar.add(path, f"{path.parent.name}-{path.name}")
    build(recipe(tmp_path / "shards", tmp_path / "local", "webdataset"))
    build(recipe(f"{bucket.url}/shards/{{00..02}}.tar", tmp_path / "out", "webdataset"))
    assert rows_of(tmp_path / "out") == rows_of(tmp_path / "local")
    assert build(recipe(f"{bucket.url}/shards/{{00..02}}.tar", tmp_path / "out", "webdataset")).built == 0
    with pytest.raises(SourceError, match=r"no such tar: .*shards/03.tar"):
        build(recipe(f"{bucket.url}/shards/{{00..03}}.tar", tmp_path / "other", "webdataset"))
