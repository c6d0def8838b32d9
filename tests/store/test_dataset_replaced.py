"""Datasets that are replaced, moved or damaged while they are open: rows of one dataset, or an error."""

from __future__ import annotations

import itertools
import os
import pickle
import re
import shutil
import threading
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path

import psutil
import pytest
from building import changed_manifest
from loaded import begun
from torch.utils.data import DataLoader
from written_datasets import ROWS, of_one_value

import mmload
from mmload.batch import Batch
from mmload.errors import StoreError
from mmload.store.manifest import shard_name


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """Where a dataset is that others replace: at first the one of 0."""
    return of_one_value(tmp_path / "place", 0)


def by_rename_kept(place: Path, new: Path) -> None:
    """The folder itself is another, and the old one stays somewhere."""
    place.rename(f"{new}-old")
    new.rename(place)


def by_rename(place: Path, new: Path) -> None:
    """The folder itself is another, and the old one goes."""
    by_rename_kept(place, new)
    shutil.rmtree(f"{new}-old")


def in_place(place: Path, new: Path) -> None:
    """Files are removed and written anew in the same folder, the manifest last."""
    (place / "dataset.json").unlink()
    shutil.rmtree(place / "train")
    for name in ("train", "dataset.json"):
        (new / name).rename(place / name)


def overwrite(source: str, path: str) -> None:
    """As ``cp`` does it, but without emptying the file first: that could end a process that has it mapped."""
    with open(path, "r+b") as file:
        file.write(Path(source).read_bytes())
        file.truncate()


def overwrite_first_byte(path: Path) -> None:
    with path.open("r+b") as file:
        file.write(b"\1")


def by_copy(place: Path, new: Path) -> None:
    """Files are overwritten where they are, as ``cp -r new/. old/`` does: readers have them open."""
    shutil.copytree(new, place, copy_function=overwrite, dirs_exist_ok=True)


def by_copy_manifest_last(place: Path, new: Path) -> None:
    """As ``rsync --inplace`` does it: file by file in the order of their names."""
    for path in sorted(new.rglob("*.memmap")):
        overwrite(str(path), str(place / path.relative_to(new)))
    shutil.copy(new / "dataset.json", place / "dataset.json")


def without_its_manifest(place: Path, new: Path) -> None:
    """A copy that is under way: files of the other dataset, and the manifest of the first."""
    (new / "dataset.json").unlink()
    by_copy(place, new)


def by_rsync(place: Path, new: Path) -> None:
    """Each file is replaced by a new one of its name."""
    for path in sorted(new.rglob("*.*")):
        path.replace(place / path.relative_to(new))


OVERWRITTEN = [by_copy, by_copy_manifest_last, without_its_manifest]
KEPT = [by_rename, by_rename_kept, in_place, by_rsync]
"""Ways that leave the old files to those who have them open."""
WAYS = [*KEPT, *OVERWRITTEN]
Way = Callable[[Path, Path], None]


def replace(place: Path, way: Way, value: int) -> None:
    """Another dataset takes the place in that way."""
    way(place, of_one_value(place.parent / f"new{value}", value))


NOTICED, ERROR = "while (it|the dataset) was open", -1


def values(batch: Batch) -> set[int]:
    """What a batch's pixels and labels are."""
    return {int(value) for value in (*batch.images.unique(), *batch.targets.unique())}


def until_replaced(batches: Iterable[Batch]) -> set[int]:
    """All values that come before the dataset is said to have been replaced, if it is."""
    seen: set[int] = set()
    try:
        for batch in batches:
            seen |= values(batch)
    except StoreError as error:
        assert re.search(NOTICED, str(error))  # noqa: PT017  # it need not come
        seen.add(ERROR)
    return seen


def unless_replaced(batches: Iterable[Batch]) -> set[int]:
    """All values of an epoch, if it ends without an error: before one, batches may be of overwritten files."""
    seen = until_replaced(batches)
    return set() if ERROR in seen else seen


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("tier", ["disk", "memory"])
def test_a_loader_never_ends_an_epoch_of_what_it_opened_and_what_replaced_it(place: Path, way: Way, tier: str) -> None:
    with mmload.Loader(place, batch_size=4, shuffle=True, tier=tier, threads=2, prefetch=0) as loader:
        for epoch in range(4):
            batches = itertools.chain.from_iterable([loader])  # which begins with its first batch
            if epoch < 3:
                assert unless_replaced(itertools.islice(batches, 2)) <= {0}
                replace(place, way, epoch + 1)
            assert unless_replaced(batches) <= {0}
    if way is not without_its_manifest:
        assert until_replaced(mmload.Loader(place)) == {3}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("tier", ["disk", "memory"])
def test_readers_that_have_all_files_open_notice_what_is_written_over_them_and_keep_what_is_replaced(
    place: Path, way: Way, tier: str
) -> None:
    split = mmload.open(place)["train"]
    assert values(split[:]) == {0}
    loader = mmload.Loader(split, batch_size=8, shuffle=True, tier=tier, threads=2)
    epochs = [iter(loader) for _ in range(2)]
    assert all(values(next(epoch)) == {0} for epoch in epochs)
    replace(place, way, 1)
    if way in KEPT:
        assert until_replaced(itertools.chain(*epochs, loader)) == values(split[:]) == {0}
        return
    for use in (*(partial(list, epoch) for epoch in epochs), loader.__iter__, lambda: split[0]):
        with pytest.raises(StoreError, match=NOTICED):
            use()


@pytest.mark.parametrize("name", ["images", "targets"])
@pytest.mark.parametrize("tier", ["disk", "memory"])
def test_a_file_overwritten_during_an_epoch_is_an_error_at_its_end_and_not_before(
    place: Path, tier: str, name: str
) -> None:
    loader = mmload.Loader(place, batch_size=4, tier=tier, threads=1)
    epoch = begun(loader)
    file = next((place / "train").glob(f"*/{name}.memmap"))
    overwrite_first_byte(file)
    assert len(list(itertools.islice(epoch, len(loader) - 1))) == len(loader) - 1
    for rest in (epoch, loader):
        with pytest.raises(StoreError, match=rf"{re.escape(str(file))} was written to or replaced while the dataset"):
            next(iter(rest))
    assert loader.state_dict()["samples"] == ROWS


@pytest.mark.parametrize("index", [0, 5], ids=["open", "not open"])
def test_a_file_that_was_damaged_under_a_reader_is_an_error(place: Path, index: int) -> None:
    split = mmload.open(place)["train"]
    assert values(split[:4]) == {0}
    overwrite_first_byte(place / "train" / shard_name(index) / "images.memmap")
    with pytest.raises(StoreError, match=r"images\.memmap was written to or replaced while the dataset was open"):
        split[:]


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("way", WAYS)
def test_an_ordinary_dataloader_never_mixes(place: Path, way: Way, workers: int) -> None:
    loader = DataLoader(mmload.open(place)["train"], batch_size=2, num_workers=workers, collate_fn=lambda batch: batch)
    batches = iter(loader)
    seen = until_replaced(itertools.islice(batches, 2))
    replace(place, way, 1)
    assert seen | until_replaced(batches) | until_replaced(loader) <= {0, ERROR}


@pytest.mark.parametrize("way", [way for way in WAYS if way is not without_its_manifest])
def test_a_pickled_split_is_the_one_that_was_pickled(place: Path, way: Way) -> None:
    state = pickle.dumps(mmload.open(place)["train"])
    assert values(pickle.loads(state)[:]) == {0}
    replace(place, way, 1)
    with pytest.raises(StoreError, match=NOTICED):
        pickle.loads(state)[:]
    assert values(mmload.open(place)["train"][:]) == {1}


def test_a_pickled_split_reads_a_copy_of_the_same_content(place: Path) -> None:
    state = pickle.dumps(mmload.open(place)["train"])
    shutil.copytree(place, place.parent / "copy")
    replace(place, by_rename, 1)
    replace(place, by_rename_kept, 2)
    shutil.rmtree(place)
    (place.parent / "copy").rename(place)
    assert values(pickle.loads(state)[:]) == {0}


@pytest.mark.slow
@pytest.mark.skipif(os.name != "posix", reason="replaces links")
@pytest.mark.parametrize("late", [True, False])
def test_hundreds_of_opens_while_it_is_replaced_are_each_of_one_dataset(tmp_path: Path, late: bool) -> None:
    """A link to the current dataset is set to another all the time, or all its files are."""
    place = tmp_path / "place"
    kept = [of_one_value(tmp_path / f"kept{value}", value) for value in range(2)]
    place.symlink_to(kept[0])
    stop = threading.Event()

    def replace() -> None:
        for number in itertools.count(1):
            if stop.wait(0.001):  # without a pause it would hold the interpreter, and few opens meet a change
                return
            current = kept[number % 2] if late else shutil.copytree(kept[number % 2], tmp_path / f"copy{number}")
            (tmp_path / "link").symlink_to(current)
            (tmp_path / "link").replace(place)
            shutil.rmtree(tmp_path / f"copy{number - 1}", ignore_errors=True)

    thread = threading.Thread(target=replace, daemon=True)
    thread.start()
    seen: set[int] = set()
    for number in range(100_000):
        if number > 100 and seen == {0, 1}:
            break
        try:
            dataset = mmload.open(place)
            found = values(dataset["train"][:])
        except StoreError as error:
            assert re.search("replaced|no such dataset", str(error))  # noqa: PT017  # it need not come
            continue
        assert found == {int(dataset.manifest.fingerprint)}
        seen |= found
    stop.set()
    thread.join()
    assert seen == {0, 1}


def test_a_new_card_is_no_other_dataset(place: Path) -> None:
    split = mmload.open(place)["train"]
    assert split[0].targets == 0
    new = shutil.copytree(place, place.parent / "new")
    changed_manifest(new, lambda body: body.update(card={"parity": 1}))
    (new / "dataset.json").replace(place / "dataset.json")
    assert values(split[:]) == {0}


def test_a_relative_path_stays_where_it_was(place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    split = mmload.open("place")["train"]
    loader = mmload.Loader("place", batch_size=4)
    state = pickle.dumps(split)
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    assert values(split[:]) == values(pickle.loads(state)[:]) == {0}
    assert until_replaced(loader) == {0}
    assert split.path == place


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="this system has no FIFOs")
@pytest.mark.parametrize("file", ["dataset.json", "train/000003/images.memmap", "train/000003/targets.memmap"])
@pytest.mark.parametrize("make", [os.mkfifo, os.mkdir])
def test_a_fifo_or_a_folder_in_place_of_a_file_is_an_error_and_no_wait(
    place: Path, file: str, make: Callable[[Path], None]
) -> None:
    split = mmload.open(place)["train"]
    (place / file).unlink()
    make(place / file)
    for read in (lambda: mmload.open(place), *([] if file == "dataset.json" else [lambda: split[:]])):
        with pytest.raises(StoreError, match="FIFO|is not a file|Is a directory"):
            read()


def test_descriptors_go_with_the_last_user(place: Path) -> None:
    def open_files() -> list[str]:
        """The open files of this process below the place, and no files of other tests."""
        return [file.path for file in psutil.Process().open_files() if file.path.startswith(f"{place}/")]

    for _ in range(3):
        split = mmload.open(place)["train"]
        copied = pickle.loads(pickle.dumps(split))
        assert values(split[:]) == values(copied[:]) == {0}
        assert open_files()
        del split, copied
    assert not open_files()
