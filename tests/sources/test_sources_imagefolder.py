"""ImageFolder against torchvision's own class, and what is wrong with folders."""

from __future__ import annotations

import io
import os
import pickle
import shutil
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from parity_stores import make_photos
from picture_folders import folder_of
from PIL import Image
from source_cases import check, picture
from torchvision.datasets import ImageFolder

from mmload.builder.pipeline import build
from mmload.builder.recipe import BuildRecipe
from mmload.errors import SampleError, SourceError
from mmload.remote.opening import open as open_dataset
from mmload.sources import find_splits
from mmload.sources.decode import Decoder
from mmload.sources.files import SampleFiles, inner_name
from mmload.sources.listed_split import held_out


def splits(root: Path, **options):
    return find_splits("imagefolder", root, Decoder(), options)


def assert_same(split, root: Path, **options) -> None:
    """Classes, order, targets and pixels are torchvision's."""
    plain = ImageFolder(root, **options)
    base = split.root.resolve()
    assert list(split.classes) == plain.classes
    found = [(str(base / split.id(i)), int(split.read(i).fields["targets"])) for i in range(len(split))]
    assert found == [(str(Path(os.path.abspath(path))), target) for path, target in plain.samples]
    for index in range(0, len(split), max(1, len(split) // 10)):
        expected = np.asarray(plain[index][0]).transpose(2, 0, 1)
        assert (split.read(index).fields["images"] == expected).all()


PHOTO = picture(5, 7)


def named(sign: str, *names: str) -> dict[str, Any]:
    """Returns a case of class folders n01, n02, ... and a file of their names."""
    folders = [f"n{number:02d}" for number in range(1, 1 + len(names))]
    lines = [f"{folder}{sign}{name}\n" for folder, name in zip(folders, names, strict=True)]
    return {
        "tree": {f"{folder}/0.png": PHOTO for folder in folders} | {"names.txt": "\ufeffheader\n" + "".join(lines)},
        "options": {"class_names": "names.txt"},
        "rows": {"train": [{"targets": target} for target in range(len(names))]},
        "classes": names,
    }


def photos(*names: str) -> dict[str, Any]:
    return dict.fromkeys(names, PHOTO)


READ: dict[str, dict[str, Any]] = {
    "splits": {
        "tree": photos("train/a/1.png", "test/a/2.png", "valid/a/3.png", "raw/x/4.png"),
        "rows": {"train": [{}], "valid": [{"id": "valid/a/3.png"}], "test": [{"id": "test/a/2.png"}]},
        "notes": ["folders that are not splits are not read: 1 (raw)"],
    },
    "pictures of other endings": {
        "tree": photos("train/a/1.png", "train/a/2.png", "val/a/3.png")
        | dict.fromkeys((f"train/a/{n}" for n in ("1.gif", "2.GIF", "3.Heic", "4.jpg_large", "gif", "Thumbs.db")), b"")
        | {"train/loose.png": b""},
        "rows": {"train": [{}, {}], "val": [{}]},
        "notes": [
            "in .gif are not read, convert images among them to .jpg or .png: 2 (train/a/1.gif, train/a/2.GIF)",
            "in .heic",
            "in .jpg_large",
            "images beside the class folders are left out: 1 (loose.png)",
        ],
    },
    "a class called train": {
        "tree": photos("bus/1.png", "train/2.png"),
        "rows": {"train": [{}, {}]},
        "classes": ["bus", "train"],
    },
    "chosen splits": {
        "tree": photos("train/a/1.png", "fold2/a/2.png"),
        "options": {"split_folders": ["fold2", "train"]},
        "rows": {"fold2": [{}], "train": [{}]},
    },
    "no splits": {
        "tree": photos("train/a/1.png", "fold2/a/2.png"),
        "options": {"split_folders": []},
        "rows": {"train": [{}, {}]},
        "classes": ["fold2", "train"],
    },
    "a split that is not there": {"options": {"split_folders": ["fold3"]}, "rows": "no such folder or file"},
    "a split outside": {"options": {"split_folders": ["../a"]}, "rows": "split_folders"},
    "nothing": {"rows": "no class folders"},
    "no folder": {"below": "x", "rows": "no such folder or file"},
    "splits of other classes": {
        "tree": photos("train/a/1.png", "val/b/1.png"),
        "rows": r"different classes \(a, b\)",
    },
    "val_fraction beside test": {
        "tree": photos(*(f"{split}/a/{number}.png" for split in ("train", "test") for number in range(4))),
        "options": {"val_fraction": 0.25},
        "rows": {"train": [{}] * 3, "val": [{}], "test": [{}] * 4},
    },
    "val_fraction beside val": {
        "tree": photos("train/a/1.png", "val/a/2.png"),
        "options": {"val_fraction": 0.5},
        "rows": "val_fraction",
    },
    "val_fraction of one sample": {
        "tree": photos("a/1.png"),
        "options": {"val_fraction": 0.5},
        "rows": "two samples",
    },
    **{
        f"val_fraction {value}": {"options": {"val_fraction": value}, "rows": "val_fraction"}
        for value in (0.0, 1.0, -1.0, "x", float("nan"))
    },
    **{f"names of classes after {sign!r}": named(sign, "crane, bird", "crane", "dog") for sign in " ,\t"},
    "names that classes share": named(" ", "crane", "dog", "crane")
    | {"classes": ["crane (n01)", "dog", "crane (n03)"]},
    "names of another class": {
        **named(" ", "crane"),
        "rows": "no name for the class folder 'n02'",
        "tree": photos("n01/0.png", "n02/0.png") | {"names.txt": "n01 crane\n"},
    },
    "no names": {**named(" ", "crane"), "options": {"class_names": "none.txt"}, "rows": "none.txt"},
    "names outside": {**named(" ", "crane"), "options": {"class_names": "../names.txt"}, "rows": "leads out of"},
    **{
        f"another kind: {name}": {"tree": {f"my data/{name}": b""}, "below": "my data", "rows": command}
        for name, command in (
            ("shards/000.tar", "mmload build webdataset '.*my data' OUT"),
            ("data/train-00000-of-00001.parquet", "mmload build huggingface '.*my data' OUT"),
            ("train/data-00000-of-00001.arrow", "mmload build huggingface"),
            ("dataset_dict.json", "mmload build huggingface"),
        )
    },
    "Cat and cat": {
        "tree": photos("Cat/1.png", "cat/1.png", "dog/1.png"),
        "rows": {"train": [{}] * 3},
        "notes": ["'Cat' and 'cat' are classes of their own"],
    },
    "one name in two Unicode forms": {
        "tree": photos("b\u00e4r/1.png", "ba\u0308r/1.png"),
        "rows": {"train": [{}] * 2},
        "notes": ["differ only in case, quotes, spaces or their Unicode form"],
    },
    "plain classes": {"tree": photos("ant/1.png", "bee/1.png"), "rows": {"train": [{}] * 2}, "notes": []},
    "folders that programs make": {
        "tree": photos(".ipynb_checkpoints/a.png", "__MACOSX/a.png", "ant/a.png"),
        "rows": {"train": [{}] * 3},
        "notes": [
            "classes that have names of folders that programs make; check that they are classes: 2 "
            "(.ipynb_checkpoints, __MACOSX)"
        ],
    },
}


@pytest.mark.parametrize("case", READ)
def test_image_folders_are_read(tmp_path: Path, case: str) -> None:
    check("imagefolder", tmp_path, **READ[case])


def test_order_is_the_same_from_a_relative_root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    check(
        "imagefolder", Path("."), {"train": [{"id": "a/1.png"}, {"id": "b/2.png"}]}, tree=photos("a/1.png", "b/2.png")
    )


def test_photographs_are_torchvisions(tmp_path: Path) -> None:
    for name in ("train", "val"):
        make_photos(tmp_path / name)
    found = splits(tmp_path)
    assert list(found) == ["train", "val"]
    for name, split in found.items():
        assert_same(split, tmp_path / name)


def test_nested_folders_extensions_and_hidden_files(tmp_path: Path) -> None:
    names = [
        "b/x.png",
        "b/deep/er/y.PNG",
        "b/deep.2/z.jpeg",
        "B/1.webp",
        "a a/ü.TIF",
        "b/.hidden.png",
        "B/10.bmp",
        "B/9.bmp",
    ]
    root = folder_of(tmp_path, *names)
    (root / "b" / "notes.txt").write_text("not an image")
    (root / "b" / "folder.png").mkdir()
    assert_same(splits(root)["train"], root)


def test_linked_folders_and_files_are_followed(tmp_path: Path) -> None:
    folder_of(tmp_path / "elsewhere", "more/1.png", "2.png")
    root = folder_of(tmp_path / "root", "a/0.png", "b/0.png")
    (root / "a" / "linked").symlink_to(tmp_path / "elsewhere" / "more")
    (root / "a" / "linked.png").symlink_to(tmp_path / "elsewhere" / "2.png")
    (root / "c").symlink_to(tmp_path / "elsewhere")
    assert_same(splits(root, allow_outside=True)["train"], root)


@pytest.mark.parametrize("split", ["", "train/"])
def test_a_link_to_a_folder_above_is_not_followed(tmp_path: Path, split: str) -> None:
    root = folder_of(tmp_path, f"{split}a/0.png", f"{split}b/0.png", f"{split}b/c/1.png")
    (root / f"{split}a" / "up").symlink_to(root)
    (root / f"{split}b" / "c" / "up").symlink_to(root / split)
    train = splits(root)["train"]
    assert [train.id(i) for i in range(len(train))] == [
        f"{split}{name}" for name in ("a/0.png", "b/0.png", "b/c/1.png")
    ]


def test_a_dangling_link_fails_alone(tmp_path: Path) -> None:
    root = folder_of(tmp_path, "a/0.png")
    (root / "a" / "gone.png").symlink_to(root / "nowhere.png")
    split = splits(root)["train"]
    split.read(0)
    with pytest.raises(SampleError, match=r"a/gone.png: no such file"):
        split.read(1)


def test_a_file_that_goes_or_breaks_fails_alone(tmp_path: Path) -> None:
    root = folder_of(tmp_path, "a/0.png", "a/1.png", "a/2.png")
    split = splits(root)["train"]
    before = split.revision(1)
    (root / "a/0.png").unlink()
    (root / "a/1.png").write_bytes(b"")
    for index in (0, 1):
        with pytest.raises(SampleError, match=f"a/{index}.png"):
            split.read(index)
    assert splits(root)["train"].revision(0) != before


def test_empty_classes_are_named_or_allowed(tmp_path: Path) -> None:
    root = folder_of(tmp_path, "a/1.png", "c/1.png")
    (root / "b").mkdir()
    with pytest.raises(SourceError, match=r"no images in 1 of 3 class folders .*\(b\)"):
        splits(root)
    split = splits(root, allow_empty=True)["train"]
    assert_same(split, root, allow_empty=True)
    assert split.notes() == ("classes without images: 1 (b)",)
    shutil.rmtree(root / "a")
    shutil.rmtree(root / "c")
    with pytest.raises(SourceError, match="split train of .* has no samples"):
        splits(root, allow_empty=True)


def test_val_fraction_is_stratified_seeded_and_stable(tmp_path: Path) -> None:
    names = [f"{name}/{i}.png" for name, count in (("a", 20), ("b", 10), ("c", 1)) for i in range(count)]
    root = folder_of(tmp_path, *names)
    found = splits(root, val_fraction=0.2)
    held = [found["val"].id(i) for i in range(len(found["val"]))]
    rest = [found["train"].id(i) for i in range(len(found["train"]))]
    assert sorted(held + rest) == sorted(names)
    assert Counter(name[0] for name in held) == {"a": 4, "b": 2}
    again = splits(root, val_fraction=0.2)["val"]
    assert [again.id(i) for i in range(len(again))] == held
    other = splits(root, val_fraction=0.2, seed=1)["val"]
    assert [other.id(i) for i in range(len(other))] != held
    assert found["val"].classes == found["train"].classes == ("a", "b", "c")


@given(
    st.lists(st.tuples(st.text(min_size=1), st.integers(0, 3)), unique_by=lambda pair: pair[0]), st.floats(0.01, 0.99)
)
def test_held_out_does_not_depend_on_order(pairs: list[tuple[str, int]], fraction: float) -> None:
    def taken(pairs: list[tuple[str, int]]) -> set[str]:
        return {pairs[i][0] for i in np.flatnonzero(held_out(pairs, fraction, 7))}

    held = taken(pairs)
    assert held == taken(pairs[::-1])
    for stratum, count in Counter(p[1] for p in pairs).items():
        share = sum(1 for name, own in pairs if own == stratum and name in held)
        assert share == (min(max(1, round(fraction * count)), count - 1))


@given(st.text(alphabet="ab/.\\\0:", max_size=12))
def test_inner_names_stay_inside(name: str) -> None:
    plain = inner_name(name)
    if plain is not None:
        inside = os.path.abspath(os.path.join("/photos/of/it", plain))
        assert inside.startswith("/photos/of/it/")
        assert plain == os.path.normpath(name)


@pytest.mark.parametrize("samples", [range(1, 4), [4, 0, 0], range(0)])
def test_sources_imagefolder_a_part_is_the_samples_asked_for(tmp_path: Path, samples: list[int]) -> None:
    names = (f"{name}/{number}.png" for name in "ab" for number in range(3))
    split = splits(folder_of(tmp_path, *names))["train"]
    part = pickle.loads(pickle.dumps(split.part(samples)))
    assert len(part) == len(samples)
    assert part.classes == split.classes
    for place, index in enumerate(samples):
        assert (part.id(place), part.revision(place)) == (split.id(index), split.revision(index))
        mine, whole = part.read(place), split.read(index)
        assert all(np.array_equal(mine.fields[name], whole.fields[name]) for name in ("images", "targets"))


class Slow(io.FileIO):
    """Gives less than it is asked for, as Linux does beyond 2 GiB."""

    def read(self, size: int | None = -1, /) -> bytes:
        return super().read(min(size or 0, 1000))


def test_read_bytes_returns_all_bytes_and_rejects_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "empty").touch()
    (tmp_path / "long").write_bytes(bytes(range(256)) * 5000)
    assert SampleFiles(tmp_path, "it").read("empty") == b""
    assert SampleFiles(tmp_path, "it").read("long") == bytes(range(256)) * 5000
    with pytest.raises(SampleError, match=r"it: . cannot be read \(Is a directory\)"):
        SampleFiles(tmp_path, "it").read(".")
    monkeypatch.setattr("mmload.sources.files.io.FileIO", Slow)
    assert SampleFiles(tmp_path, "it").read("long") == bytes(range(256)) * 5000


@pytest.mark.parametrize(("white", "noted"), [(4095, True), (1023, True), (4500, False), (0, False)])
def test_imagefolder_pngs_of_12_bits_in_16_are_counted_in_a_note(tmp_path: Path, white: int, noted: bool) -> None:
    (tmp_path / "scans" / "cell").mkdir(parents=True)
    for number in range(3):
        gray = np.linspace(0, white if number else 65535, 64).astype(np.uint16).reshape(8, 8)
        Image.fromarray(gray).save(tmp_path / "scans" / "cell" / f"{number}.png")
    build(BuildRecipe(kind="imagefolder", root=tmp_path / "scans", out=tmp_path / "out"))
    notes = open_dataset(tmp_path / "out").manifest.card_lines("notes", "train")
    found = [note for note in notes if "16-bit PNGs" in note]
    assert [note.endswith(": 2") for note in found] == [True] * noted


def test_tars_given_as_a_folder_of_images_are_answered_with_their_command() -> None:
    with pytest.raises(SourceError, match="mmload build webdataset 'shards/{000..147}.tar' OUT"):
        splits(Path("shards/{000..147}.tar"))
