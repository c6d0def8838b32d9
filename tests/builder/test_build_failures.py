"""What ends a build or is left out of it: unreadable samples, dead workers, disks and folders that cannot take it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from building import recipe
from conftest import contents

import mmload
from mmload.builder.pipeline import build
from mmload.errors import BuildError, SampleError


def break_files(source, *names):
    for name in names:
        (source / name).write_bytes(b"broken")


def test_shards_whose_samples_were_all_skipped_have_no_rows_and_open(source, tmp_path):
    from tensordict import TensorDict

    break_files(source, *source.glob("class0/*"))
    report = build(recipe(source, tmp_path / "out", shard_bytes=2 * (3 * 16 * 20 + 8)), on_error="skip")
    shards = report.manifest.splits["train"].shards
    assert [shard.rows for shard in shards] == [0, 0, 1, 2, 2, 2, 2, 1]
    for index, shard in enumerate(shards):
        read_back = TensorDict.load_memmap(tmp_path / "out" / "train" / f"{index:06d}")
        assert read_back.batch_size == torch.Size([shard.rows])
        assert read_back["images"].shape == (shard.rows, 3, 16, 20)
    split = mmload.open(tmp_path / "out")["train"]
    assert len(split[:]) == 10


def test_fail_names_the_sample_and_skip_lists_it(source, tmp_path):
    (source / "class1" / "1.png").write_bytes(b"not a png")
    (source / "class0" / "0.jpg").write_bytes(b"")
    with pytest.raises(SampleError, match=r"class0/0.jpg: the file is empty; repair .* --on-error skip"):
        build(recipe(source, tmp_path / "out"))
    report = build(recipe(source, tmp_path / "out"), on_error="skip")
    record = report.manifest.splits["train"]
    assert record.rows == 13
    assert record.skipped_count == 2
    assert [name for name, _ in record.skipped] == ["class0/0.jpg", "class1/1.png"]
    lines = [json.loads(line) for line in (tmp_path / "out/train/skipped.jsonl").read_text().splitlines()]
    assert lines[0] == {"id": "class0/0.jpg", "reason": "the file is empty"}
    assert record.skipped_file.bytes == (tmp_path / "out/train/skipped.jsonl").stat().st_size
    assert record.class_counts == (4, 4, 5)
    assert len(mmload.open(tmp_path / "out")["train"][:].images) == 13
    with pytest.raises(BuildError, match="left out 2 samples"):
        build(recipe(source, tmp_path / "out"))
    build(recipe(source, tmp_path / "two"), on_error="skip", processes=2, threads=1)
    assert contents(tmp_path / "two") == contents(tmp_path / "out")


@pytest.mark.parametrize("most", [2, "14%"])
def test_as_many_errors_as_are_allowed_are_skipped(source, tmp_path, most):
    break_files(source, "class1/1.png", "class2/4.jpg")
    assert build(recipe(source, tmp_path / "out"), on_error="skip", max_errors=most).skipped == 2


@pytest.mark.parametrize(
    ("pattern", "most", "message"),
    [
        ("class[12]/4.jpg", 1, "more than --max-errors"),
        ("class[12]/4.jpg", "10%", "more than --max-errors"),
        ("*/*.*", None, "not one sample of split train can be read"),
    ],
)
def test_more_errors_than_are_allowed_end_a_build(source, tmp_path, pattern, most, message):
    break_files(source, *source.glob(pattern))
    with pytest.raises(BuildError, match=message):
        build(recipe(source, tmp_path / "out"), on_error="skip", max_errors=most)


def test_free_space_is_checked_before_the_work(source, tmp_path, monkeypatch):
    usage = type("Usage", (), {"free": 1000})
    monkeypatch.setattr("mmload.builder.planned_build.shutil.disk_usage", lambda path: usage)
    with pytest.raises(BuildError, match=r"needs .* more bytes at .*, 1,000 are free"):
        build(recipe(source, tmp_path / "out"))


def test_a_destination_that_cannot_be_written(source, tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(BuildError, match="cannot write beside"):
        build(recipe(source, Path(tmp_path / "file" / "out")))
