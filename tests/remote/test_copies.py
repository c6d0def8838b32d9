"""Push and pull: what arrives, what is skipped, what is refused, and what a failure leaves."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import pytest
from conftest import complaint, contents, mmload
from forked_program import Program
from s3_server import Bucket

from mmload.builder.verify import verify
from mmload.errors import DamagedError, MmloadError, RemoteError, StoreError, UsageError
from mmload.remote import copies, object_store
from mmload.remote.copies import MARK, pull, push
from mmload.runtime.durable_files import lock, open_lock
from mmload.store.dataset import Dataset


@pytest.fixture
def pushed(bucket: Bucket, dataset: Dataset) -> str:
    """``dataset`` in a bucket."""
    push(dataset.path, f"{bucket.url}/photos")
    bucket.faults()
    return f"{bucket.url}/photos"


def test_what_is_pushed_and_pulled_is_equal(dataset: Dataset, pushed: str, bucket: Bucket, tmp_path: Path) -> None:
    assert pull(pushed, tmp_path / "back").present == 0
    assert contents(tmp_path / "back") == contents(dataset.path)
    there = contents(bucket.folder / "photos")
    assert {name: there[name] for name in contents(dataset.path)} == contents(dataset.path)
    assert not (tmp_path / ".back.pulling").exists()


def test_copies_the_commands(dataset: Dataset, bucket: Bucket, tmp_path: Path) -> None:
    done = mmload("push", dataset.path, bucket.url)
    assert (done.returncode, done.stdout.split(": ")[1][:16]) == (0, "14 files copied,"), done.stderr
    assert "0 files copied" in mmload("push", dataset.path, bucket.url, "--parallel", 2).stdout
    assert "14 files copied" in mmload("pull", bucket.url, tmp_path / "back").stdout
    assert "14 files were there already" in mmload("pull", bucket.url, tmp_path / "back").stdout
    assert "s3://x is a URL" in complaint(mmload("push", "s3://x", bucket.url), 2)
    assert "s3://x is a URL" in complaint(mmload("pull", bucket.url, "s3://x"), 2)
    assert "use 1 to 512" in complaint(mmload("pull", bucket.url, tmp_path / "back", "--parallel", 0), 2)


def test_only_what_is_missing_is_pushed(dataset: Dataset, pushed: str, bucket: Bucket) -> None:
    lost = bucket.folder / "photos" / "train" / "000001" / "images.memmap"
    lost.unlink()
    (bucket.folder / "photos" / "train" / "000002" / "targets.memmap.crc32").unlink()
    assert push(dataset.path, pushed).files == 2
    assert lost.exists()
    bucket.faults()
    assert push(dataset.path, pushed).files == 0
    assert "PUT" not in bucket.counts


def test_the_manifest_is_pushed_last(dataset: Dataset, bucket: Bucket, monkeypatch: pytest.MonkeyPatch) -> None:
    """A push that is interrupted leaves no dataset, says so, and is gone on with."""

    real = copies._push_file
    left = iter(range(8))
    monkeypatch.setattr(copies, "_push_file", lambda *given: real(*given) if next(left, None) is not None else 1 / 0)
    with pytest.raises(ZeroDivisionError):
        push(dataset.path, bucket.url, parallel=1)
    assert not (bucket.folder / "dataset.json").exists()
    assert (bucket.folder / MARK).exists()
    with pytest.raises(StoreError, match=r"there is no dataset at .* mmload push DATASET"):
        pull(bucket.url, bucket.folder.parent / "never")
    monkeypatch.setattr(copies, "_push_file", real)
    assert push(dataset.path, bucket.url).present == 8
    assert not (bucket.folder / MARK).exists()


@pytest.mark.parametrize("strange", ["notes.txt", "train/000000/other.memmap", "train/000000/images.memmap"])
def test_a_prefix_that_holds_something_else_is_refused(dataset: Dataset, bucket: Bucket, strange: str) -> None:
    path = bucket.folder / strange
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"mine")
    with pytest.raises(UsageError, match=rf"{bucket.url} holds {strange}"):
        push(dataset.path, bucket.url)
    assert contents(bucket.folder) == {strange: b"mine"}


def test_another_dataset_is_not_overwritten(dataset: Dataset, out: Path, pushed: str, bucket: Bucket) -> None:
    before = contents(bucket.folder)
    with pytest.raises(UsageError, match="holds"):
        push(out, pushed)
    for name in ("dataset.json", "train/000002/images.memmap"):
        (bucket.folder / "photos" / name).unlink()
    (bucket.folder / "photos" / MARK).write_text("of another")  # as a push of another dataset leaves it
    with pytest.raises(UsageError, match="holds another dataset"):
        push(dataset.path, pushed)
    assert len(contents(bucket.folder)) == len(before) - 1


def test_a_damaged_dataset_is_not_pushed(copy: Path, bucket: Bucket) -> None:
    with open(copy / "train" / "000001" / "images.memmap", "r+b") as file:
        file.write(b"x")
    with pytest.raises(DamagedError, match=r"000001/images.memmap does not have the .* checksum"):
        push(copy, bucket.url)
    assert not (bucket.folder / "dataset.json").exists()


def test_a_busy_store_delays_and_changes_nothing(
    dataset: Dataset, bucket: Bucket, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        object_store, "RETRIES", object_store.Retries(most=20, first_s=0.001, longest_s=0.002, within_s=30)
    )
    bucket.faults(fail_every=3)
    push(dataset.path, bucket.url, parallel=3)
    pull(bucket.url, tmp_path / "back", parallel=3)
    assert contents(tmp_path / "back") == contents(dataset.path)


def test_a_corrupt_object_is_named_and_does_not_arrive(pushed: str, bucket: Bucket, tmp_path: Path) -> None:
    bucket.faults(corrupt="000001/images.memmap")
    with pytest.raises(DamagedError, match=rf"{pushed}/train/000001/images.memmap has the checksum .* remove that"):
        pull(pushed, tmp_path / "back")
    assert not (tmp_path / "back").exists()
    bucket.faults()
    pull(pushed, tmp_path / "back")
    assert verify(tmp_path / "back") == []


def test_a_missing_object_is_named(pushed: str, bucket: Bucket, tmp_path: Path) -> None:
    (bucket.folder / "photos" / "train" / "000001" / "targets.memmap").unlink()
    with pytest.raises(RemoteError, match="train/000001/targets.memmap does not exist"):
        pull(pushed, tmp_path / "back")


def test_a_pull_goes_on_with_the_next_file_in_parts(
    dataset: Dataset, pushed: str, bucket: Bucket, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(copies, "PART_BYTES", 4096)
    bucket.faults(stall="000002/images.memmap")
    with pytest.raises(RemoteError, match="000002/images"):
        pull(pushed, tmp_path / "back", parallel=1)
    bucket.faults()
    assert pull(pushed, tmp_path / "back", parallel=1).present >= 4
    assert contents(tmp_path / "back") == contents(dataset.path)


def test_what_came_of_another_dataset_is_not_taken(
    dataset: Dataset, pushed: str, bucket: Bucket, tmp_path: Path
) -> None:
    staging = tmp_path / ".back.pulling"
    (staging / "dataset" / "train" / "000000").mkdir(parents=True)
    (staging / "contents").write_text("of another")
    size = (dataset.path / "train" / "000000" / "images.memmap").stat().st_size
    (staging / "dataset" / "train" / "000000" / "images.memmap").write_bytes(bytes(size))
    pull(pushed, tmp_path / "back")
    assert contents(tmp_path / "back") == contents(dataset.path)


def test_a_killed_pull_goes_on(dataset: Dataset, pushed: str, bucket: Bucket, tmp_path: Path) -> None:
    bucket.faults(delay_s=0.05)
    code = f"from mmload.remote.copies import pull; pull({pushed!r}, {str(tmp_path / 'back')!r}, parallel=1)"
    process = Program(code, [])
    arrived = tmp_path / ".back.pulling" / "dataset" / "train" / "000001" / "images.memmap"
    deadline = time.monotonic() + 300
    while not arrived.exists() and time.monotonic() < deadline:
        time.sleep(0.005)
    process.send_signal(signal.SIGKILL)
    process.ended()
    assert arrived.exists()
    assert not (tmp_path / "back").exists()
    bucket.faults()
    assert pull(pushed, tmp_path / "back").present >= 2
    assert contents(tmp_path / "back") == contents(dataset.path)


def test_a_folder_lacks_files(dataset: Dataset, copy: Path, pushed: str) -> None:
    (copy / "train" / "000001" / "images.memmap").unlink()
    assert pull(pushed, copy).files == 1
    assert contents(copy) == contents(dataset.path)


def test_other_folders_are_refused(out: Path, pushed: str, tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "x").touch()
    for place in (out, tmp_path / "mine", tmp_path / "mine" / "x"):
        with pytest.raises(UsageError, match="exists and is not this dataset"):
            pull(pushed, place)
    (tmp_path / ".new.pulling").mkdir()
    (tmp_path / ".new.pulling" / "x").touch()
    with pytest.raises(UsageError, match="was not made by a pull"):
        pull(pushed, tmp_path / "new")


def test_two_pulls_of_one_folder(pushed: str, tmp_path: Path) -> None:
    (tmp_path / ".back.pulling").mkdir()
    with open_lock(tmp_path / ".back.pulling" / "lock") as held:
        assert lock(held)
        with pytest.raises(MmloadError, match="another pull is writing"):
            pull(pushed, tmp_path / "back")


def test_nothing_at_the_url(bucket: Bucket, tmp_path: Path) -> None:
    with pytest.raises(StoreError, match=r"there is no dataset at .*/nothing: it has no dataset.json"):
        pull(f"{bucket.url}/nothing", tmp_path / "back")
    assert os.listdir(tmp_path) == []
