from __future__ import annotations

from pathlib import Path

import pytest

from mmload.cloud.urls import is_url, location, refuse_url
from mmload.errors import UsageError


@pytest.mark.parametrize(
    ("url", "bucket", "prefix", "plain"),
    [
        ("s3://bucket/a/b/", "bucket", "a/b", "s3://bucket/a/b"),
        ("s3://bucket", "bucket", "", "s3://bucket"),
        ("gs://bucket//a b#1%", "bucket", "a b#1%", "gs://bucket/a b#1%"),
        ("az://container/x", "container", "x", "az://container/x"),
        ("file:///tmp/my%20data", "", "tmp/my data", "file:///tmp/my data"),
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
        ("bucket/a", "is no URL"),
        ("http://host/a", "begins with http://"),
        ("s3:///a", "names no bucket"),
        ("s3://bucket/a/../b", "has . or .."),
        ("file://host/a", "three slashes"),
        ("s3://key:hidden@bucket/a", "credentials"),
        ("az://container/a?sig=hidden", "credentials"),
    ],
)
def test_other_urls_are_refused_and_show_no_secret(url: str, said: str) -> None:
    with pytest.raises(UsageError, match=said) as caught:
        location(url)
    assert "hidden" not in str(caught.value)


def test_paths_are_no_urls() -> None:
    assert not any(map(is_url, ("photos", "/tmp/a", "C:/photos", Path("s3://bucket"), "C:\\photos")))


def test_a_url_that_went_through_a_path_is_found_out() -> None:
    with pytest.raises(UsageError, match=r"s3://bucket/x is a URL.*: do this"):
        refuse_url(Path("s3://bucket/x"), "do this")
