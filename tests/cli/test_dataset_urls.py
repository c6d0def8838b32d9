"""Commands that take the URL of a dataset, and those that say how to copy it to a disk first."""

from __future__ import annotations

from pathlib import Path

import pytest
from conftest import complaint, make_folder, mmload
from PIL import Image
from s3_server import Bucket

from mmload.remote.copies import push
from mmload.store.dataset import Dataset


@pytest.fixture
def url(bucket: Bucket, dataset: Dataset, fresh_caches: None) -> str:
    push(dataset.path, f"{bucket.url}/photos")
    return f"{bucket.url}/photos"


def test_info_at_a_url_shows_what_it_shows_on_a_disk(url: str, dataset: Dataset) -> None:
    local, remote = mmload("info", dataset.path), mmload("info", url)
    assert remote.returncode == 0, remote.stderr
    assert remote.stdout.startswith(f"{url}: ")
    assert remote.stdout.split("\n")[1:] == local.stdout.split("\n")[1:]


def test_info_of_a_row_and_preview_at_a_url_read_rows(url: str, dataset: Dataset, tmp_path: Path) -> None:
    split = next(iter(dataset))
    row = ("--row", 0, "--split", split)
    assert mmload("info", url, *row).stdout == mmload("info", dataset.path, *row).stdout
    assert f"row 999 does not exist: split {split!r} has " in complaint(
        mmload("info", url, "--row", 999, "--split", split), 2
    )
    assert f"{url} has no split 'zz'" in complaint(mmload("preview", url, "-o", tmp_path / "a.png", "--split", "zz"), 2)
    done = mmload("preview", url, "-o", tmp_path / "a.png", "--grid", "1x2")
    assert done.returncode == 0, done.stderr
    with Image.open(tmp_path / "a.png") as picture:
        assert picture.width > 0


def test_info_of_a_file_at_a_url_says_why_it_was_left_out(bucket: Bucket, tmp_path: Path, fresh_caches: None) -> None:
    photos = make_folder(tmp_path / "photos", 2, ("ant", "bee"))
    (photos / "bee" / "01.png").write_bytes(b"nothing")
    words = ("build", "imagefolder", photos, tmp_path / "out", "--size", 16, "--on-error", "skip")
    assert mmload(*words).returncode == 0
    push(tmp_path / "out", f"{bucket.url}/left-out")
    said = complaint(mmload("info", f"{bucket.url}/left-out", "--file", "bee/01.png"), 2)
    assert "bee/01.png was left out of split train: not an image" in said


def test_report_at_a_url_has_the_findings_of_a_disk(url: str, dataset: Dataset, tmp_path: Path) -> None:
    local, remote = tmp_path / "local.html", tmp_path / "remote.html"
    done = mmload("report", url, "-o", remote)
    assert done.returncode == 0, done.stderr
    assert mmload("report", dataset.path, "-o", local).stdout[len(str(local)) :] == done.stdout[len(str(remote)) :]
    text = remote.read_text()
    assert f"mmload.open(&#x27;{url}&#x27;, cache=&#x27;cache&#x27;)" in text
    assert "Report on photos" in text


@pytest.mark.parametrize(
    "words",
    [
        ("verify", ...),
        ("verify", ..., "--repair", "--source", "x"),
        ("update", ..., "x"),
        ("bench", ...),
        ("parity", ..., "--source", "x"),
        ("export", ..., "x"),
        ("browse", ...),
    ],
)
def test_commands_that_read_all_rows_say_how_to_copy_a_url(words: tuple[object, ...]) -> None:
    done = mmload(*("s3://bucket/photos" if word is ... else word for word in words))
    assert "s3://bucket/photos is a URL" in (line := complaint(done, 2))
    assert "mmload pull URL FOLDER" in line
