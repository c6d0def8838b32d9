from __future__ import annotations

from pathlib import Path

import pytest
from conftest import mmload

from mmload.errors import UsageError
from mmload.remote.urls import check_no_url, is_url, location


@pytest.mark.parametrize(
    ("url", "bucket", "prefix", "plain"),
    [
        ("s3://bucket/a/b/", "bucket", "a/b", "s3://bucket/a/b"),
        ("s3://bucket", "bucket", "", "s3://bucket"),
        ("gs://bucket//a b#1%", "bucket", "a b#1%", "gs://bucket/a b#1%"),
        ("az://container/x", "container", "x", "az://container/x"),
        ("file:///srv/my%20data", "", "srv/my data", "file:///srv/my data"),
        ("memory://one/two", "one", "two", "memory://one/two"),
    ],
)
def test_urls_name_a_bucket_and_a_prefix(url: str, bucket: str, prefix: str, plain: str) -> None:
    place = location(url)
    assert (place.bucket, place.prefix, place.url) == (bucket, prefix, plain)
    assert place.key("train/x") == (f"{prefix}/train/x" if prefix else "train/x")


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("bucket/a", "is not a URL"),
        ("http://host/a", "begins with http://"),
        ("s3:///a", "names no bucket"),
        ("s3://bucket/a/../b", "has . or .."),
        ("file://host/a", "three slashes"),
        ("s3://key:hidden@bucket/a", "credentials"),
        ("s3://key:hid/hidden@bucket/a", "credentials"),
        ("s3://key:hidden", "credentials"),
        ("s3:///key:hidden@bucket/a", "names no bucket"),
        ("s3:/key:hidden@bucket/a", "is not a URL"),
        ("az://container/a?sig=hidden", "credentials"),
    ],
)
def test_other_urls_are_refused_and_show_no_secret(url: str, said: str) -> None:
    with pytest.raises(UsageError, match=said) as caught:
        location(url)
    assert "hidden" not in str(caught.value)


def test_paths_are_no_urls() -> None:
    assert not any(map(is_url, ("photos", "/srv/a", "C:/photos", Path("s3://bucket"), "C:\\photos")))


def test_a_url_that_went_through_a_path_is_found_out() -> None:
    with pytest.raises(UsageError, match=r"s3://bucket/x is a URL.*: do this"):
        check_no_url(Path("s3://bucket/x"), "do this")


@pytest.mark.parametrize(
    "place",
    ["s3:/key:hidden@bucket/x", "S3://key:hid/hidden@bucket", "s3:///key:hidden@bucket", "https:/key:hidden@host"]
    + ["s3:/key:hidden", "az:/container/x?sig=hidden", "gs:/hidden@bucket", "s3:/key:hidden%40bucket"],
)
@pytest.mark.parametrize(
    "words",
    [("info", ...), ("verify", ...), ("pull", ..., "out"), ("push", "none", ...), ("build", "--config", ...)]
    + [("build", kind, ..., "out", "--size", 8) for kind in ("imagefolder", "list", "voc")]
    + [("build", "imagefolder", ".", ..., "--size", 8), ("browse", ..., "--no-open")],
)
def test_no_command_shows_credentials(
    words: tuple[object, ...], place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    done = mmload(*(place if word is ... else word for word in words))
    assert done.returncode in (1, 2)
    assert done.stderr.startswith("mmload: ")
    assert "hid" not in done.stdout + done.stderr


@pytest.mark.parametrize(
    "text",
    [
        "cannot read s3://bucket/a@b/user:1@x.png: it ends",
        "cannot use s3://bucket: no answer from 7@host",
        "error at http://127.0.0.1:8000/bucket/a@b.png?c.png",
        "no such folder: /data/mail@host:/x; give s3://BUCKET/PREFIX",
    ],
)
def test_a_message_without_credentials_stays(text: str) -> None:
    assert str(UsageError(text)) == text
