"""Push and pull: what arrives, what is skipped, what is refused, and what a failure leaves."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest
from conftest import complaint, contents, mmload
from forked_program import Program
from s3_server import Bucket
from waiting import until

from mmload.builder.verify import verify
from mmload.errors import DamagedError, MmloadError, RemoteError, StoreError, UsageError
from mmload.remote import copies, object_store
from mmload.remote.copies import MARK, pull, push
from mmload.runtime.files import lock, open_lock
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
    assert contents(dataset.path).items() <= contents(bucket.folder / "photos").items()
    assert not (tmp_path / ".back.pulling").exists()


def test_copies_the_commands(dataset: Dataset, bucket: Bucket, tmp_path: Path) -> None:
    back = tmp_path / "back"
    for words, said in (
        (("push", dataset.path, bucket.url), "14 files copied,"),
        (("push", dataset.path, bucket.url, "--parallel", 2), "0 files copied"),
        (("pull", bucket.url, back), "14 files copied"),
        (("pull", bucket.url, back), "14 files were there already"),
    ):
        assert said in mmload(*words).stdout
    for words, said in (
        (("push", "s3://x", bucket.url), "s3://x is a URL"),
        (("pull", bucket.url, "s3://x"), "s3://x is a URL"),
        (("pull", bucket.url, back, "--parallel", 0), "use 1 to 512"),
    ):
        assert said in complaint(mmload(*words), 2)


def test_only_what_is_missing_is_pushed(dataset: Dataset, pushed: str, bucket: Bucket) -> None:
    lost = bucket.folder / "photos" / "train" / "000001" / "images.memmap"
    lost.unlink()
    (bucket.folder / "photos" / "train" / "000002" / "targets.memmap.crc32").unlink()
    meta = bucket.folder / "photos" / "train" / "000000" / "meta.json"
    meta.write_bytes(bytes(meta.stat().st_size))
    assert push(dataset.path, pushed).files == 3
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
    (copy / "train" / "000001" / "images.memmap").write_bytes(bytes(15_360))
    with pytest.raises(DamagedError, match=r"000001/images.memmap does not have the .* checksum"):
        push(copy, bucket.url)
    assert not (bucket.folder / "dataset.json").exists()


def test_a_busy_store_delays_and_changes_nothing(
    dataset: Dataset, bucket: Bucket, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(object_store, "RETRIES", object_store.RETRIES | {"max_retries": 20})
    bucket.faults(fail_every=3)
    push(dataset.path, bucket.url, parallel=3)
    pull(bucket.url, tmp_path / "back", parallel=3)
    assert contents(tmp_path / "back") == contents(dataset.path)


def test_a_corrupt_or_missing_object_is_named_and_does_not_arrive(pushed: str, bucket: Bucket, tmp_path: Path) -> None:
    bucket.faults(corrupt="000001/images.memmap")
    with pytest.raises(DamagedError, match=rf"{pushed}/train/000001/images.memmap has the checksum .* remove that"):
        pull(pushed, tmp_path / "back")
    bucket.faults()
    lost = bucket.folder / "photos" / "train" / "000001" / "targets.memmap"
    lost.rename(bucket.folder / "away")
    with pytest.raises(RemoteError, match="train/000001/targets.memmap does not exist"):
        pull(pushed, tmp_path / "other")
    assert not any((tmp_path / name).exists() for name in ("back", "other"))
    (bucket.folder / "away").rename(lost)
    pull(pushed, tmp_path / "back")
    assert verify(tmp_path / "back") == []


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
    file = tmp_path / ".back.pulling" / ("0" * 32) / "train" / "000000" / "images.memmap"
    file.parent.mkdir(parents=True)
    file.write_bytes(bytes(15_360))  # as many as there are
    pull(pushed, tmp_path / "back")
    assert contents(tmp_path / "back") == contents(dataset.path)


def test_a_killed_pull_goes_on(dataset: Dataset, pushed: str, bucket: Bucket, tmp_path: Path) -> None:
    bucket.faults(stall="000002/images.memmap")  # which is asked for again and again
    code = f"from mmload.remote.copies import pull; pull({pushed!r}, {str(tmp_path / 'back')!r}, parallel=1)"
    process = Program(code, [])
    work = tmp_path / ".back.pulling" / dataset.folder.identity[:32]
    arrived = work / "train" / "000001" / "images.memmap"
    until(arrived.exists)
    process.send_signal(signal.SIGKILL)
    process.ended()
    assert not (tmp_path / "back").exists()
    bucket.faults()
    assert pull(pushed, tmp_path / "back").present >= 2
    assert contents(tmp_path / "back") == contents(dataset.path)


def test_a_folder_lacks_files(dataset: Dataset, copy: Path, pushed: str) -> None:
    (copy / "train" / "000001" / "images.memmap").unlink()
    assert pull(pushed, copy).files == 1
    assert contents(copy) == contents(dataset.path)


def test_other_folders_and_one_of_another_pull_are_refused(out: Path, pushed: str, tmp_path: Path) -> None:
    for folder in ("mine", ".new.pulling", ".back.pulling"):
        (tmp_path / folder).mkdir()
    for folder in ("mine", ".new.pulling"):
        (tmp_path / folder / "x").touch()
    refused = "exists and is not this dataset"
    with open_lock(tmp_path / ".back.pulling" / "lock") as held:
        assert lock(held)
        for place, error, message in (
            (out, UsageError, refused),
            (tmp_path / "mine", UsageError, refused),
            (tmp_path / "mine" / "x", UsageError, refused),
            (tmp_path / "new", UsageError, "was not made by a pull"),
            (tmp_path / "back", MmloadError, "another pull is writing"),
        ):
            with pytest.raises(error, match=message):
                pull(pushed, place)


def test_nothing_at_the_url(bucket: Bucket, tmp_path: Path) -> None:
    with pytest.raises(StoreError, match=r"there is no dataset at .*/nothing: it has no dataset.json"):
        pull(f"{bucket.url}/nothing", tmp_path / "back")
    assert list(tmp_path.iterdir()) == []
