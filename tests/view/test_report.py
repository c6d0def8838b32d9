"""``mmload report``: what it finds, and a page that is whole, small, escaped and readable in a browser."""

from __future__ import annotations

import errno
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from conftest import complaint, mmload, ran
from picture_folders import picture
from PIL import Image
from written_datasets import of_tensors

from mmload.builder.dataset_change import write_card
from mmload.builder.pipeline import build
from mmload.builder.recipe import BuildRecipe, square
from mmload.cli.options import training_of
from mmload.remote.opening import open as open_dataset
from mmload.runtime import files
from mmload.store.dataset import Dataset
from mmload.store.manifest import read
from mmload.view.report import class_rows, report

FLAT = {"black": 0, "white": 254, "gray": 130}
ODD_CLASS = "<img src=x onerror=alert(1)> & 'co'"


@pytest.fixture(scope="module")
def odd(tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    """Two splits with one picture twice in both, another twice in val, outliers, and a class full of HTML."""
    place, rng = tmp_path_factory.mktemp("report"), np.random.default_rng(0)

    def picture() -> np.ndarray:
        return rng.integers(30, 220, (6, 6, 3), dtype=np.uint8)

    leak, twice, usual = picture(), picture(), (64, 64)
    files = [
        *((f"{split}/{ODD_CLASS}/{number}.png", picture(), usual) for split in ("train", "val") for number in range(6)),
        *((f"train/{ODD_CLASS}/{name}.png", leak, usual) for name in ("leak", "again")),
        (f"val/{ODD_CLASS}/leak.png", leak, (96, 96)),
        (f"val/{ODD_CLASS}/leak too.png", leak, (160, 160)),
        *((f"val/{ODD_CLASS}/{name}.png", twice, usual) for name in ("twice", "twice too")),
        *((f"train/dark/{name}.png", np.full((4, 4, 3), level, np.uint8), usual) for name, level in FLAT.items()),
        ("val/dark/long.png", picture(), (300, 60)),
    ]
    for name, pixels, size in files:
        path = place / "photos" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(pixels).resize(size, Image.Resampling.BICUBIC).save(path)
    build(BuildRecipe(kind="imagefolder", root=place / "photos", out=place / "out", transforms=square(48)), threads=2)
    return open_dataset(place / "out")


def name_of(dataset: Dataset, split: str, row: int) -> str:
    return Path(dataset[split].source(row).id).name


def test_it_finds_copies_across_splits_first_and_outliers(odd: Dataset) -> None:
    found = report(odd)
    names = [[(split, name_of(odd, split, row)) for split, row in each.rows] for each in found.copied]
    assert names == [
        [("train", "again.png"), ("val", "leak too.png"), ("train", "leak.png"), ("val", "leak.png")],
        [("val", "twice too.png"), ("val", "twice.png")],
    ]
    assert [each.equal for each in found.copied] == [False, True]
    assert [each.is_across for each in found.copied] == [True, False]
    assert found.complete
    outliers = {(name_of(odd, one.split, one.row), one.reason) for one in found.outliers}
    assert outliers == {
        ("black.png", "nearly black"),
        ("black.png", "one color"),
        ("white.png", "nearly white"),
        ("white.png", "one color"),
        ("gray.png", "one color"),
        ("long.png", "extreme aspect"),
    }
    assert found.brightness["train"].sum() == len(odd["train"])


def test_report_page_is_complete_and_escaped(odd: Dataset, tmp_path: Path) -> None:
    out = tmp_path / "page.html"
    done = ran("report", odd.path, "-o", out)
    assert done.stdout == f"{out}: 2 pictures in several rows, 1 of them in two splits; 6 outliers\n"
    text = out.read_text(encoding="utf-8")
    assert len(text) < 5_000_000
    images = re.findall(r"<img\b[^>]*>", text)
    train, val = len(odd["train"]), len(odd["val"])
    assert len(images) == train + val + 8 * min(6, train) + 4 + 6  # stored, drawn, two pairs, outliers
    training, evaluation = text.split(">Split train</h2>")[1].split(">Split val</h2>")
    assert "As training sees them" in training
    assert "As evaluation sees them" in evaluation
    assert "As training sees them" not in evaluation
    assert "again<wbr>.png" not in text  # only behind separators
    assert "train/<wbr>" in text
    assert all('src="data:image/' in image and re.search(r' alt="[^"]', image) for image in images)
    assert not re.findall(r"<script|<\w[^>]* on\w+=", re.sub(r'="[^"]*"', "", text))
    assert not re.search(r'(?:src|href)="(?!data:|#)', text)
    assert "&lt;img src=x onerror=alert(1)&gt; &amp; &#x27;co&#x27;" in text


@pytest.mark.slow
def test_a_browser_shows_it(odd: Dataset, tmp_path: Path) -> None:
    browser = shutil.which("chromium") or shutil.which("google-chrome")
    if browser is None:
        pytest.skip("there is no Chromium here")
    out = tmp_path / "page.html"
    ran("report", odd.path, "-o", out)
    words = [browser, "--headless=new", "--no-sandbox", "--disable-gpu", f"--user-data-dir={tmp_path / 'profile'}"]
    words += ["--enable-logging=stderr", "--hide-scrollbars", "--virtual-time-budget=2000"]
    for width in (1200, 390):
        picture = tmp_path / f"{width}.png"
        shot = [*words, f"--window-size={width},2400", f"--screenshot={picture}", out.as_uri()]
        done = subprocess.run(shot, capture_output=True, text=True, timeout=120, check=True)
        assert "CONSOLE" not in done.stderr, done.stderr
        assert len(np.unique(np.asarray(Image.open(picture).convert("L")))) > 50


def test_report_page_of_many_classes_shows_no_wall_of_equal_bars(tmp_path: Path) -> None:
    pages = []
    for name in ("equal", "unequal"):
        for number in range(42):
            picture(tmp_path / f"photos/{number:02d}/0.png", number)
        build(BuildRecipe(kind="imagefolder", root=tmp_path / "photos", out=tmp_path / name, transforms=square(8)))
        ran("report", tmp_path / name, "-o", tmp_path / f"{name}.html")
        pages.append((tmp_path / f"{name}.html").read_text(encoding="utf-8").split("<h3>Classes</h3>")[1])
        picture(tmp_path / "photos/07/1.png", 99)
    equal, unequal = (page.split("<h3>")[0] for page in pages)
    assert "Each of the 42 classes has 1 row." in equal
    assert 'class="bar' not in equal
    assert "42 classes with 1 to 2 rows each, median 1." in unequal
    assert unequal.count('class="bar"') == 20
    assert unequal.index(">07<") < unequal.index(">00<")


def kinds() -> dict[str, dict[str, torch.Tensor]]:
    """Fields of rows of every kind."""
    draw = torch.Generator().manual_seed(0)
    noise = {size: torch.randint(0, 256, (6, *size), dtype=torch.uint8, generator=draw) for size in
             ((3, 24, 24), (1, 24, 24), (4, 80, 70))}  # fmt: skip
    boxes = torch.tensor([[2.0, 3.0, 20.0, 21.0], [0.0, 0.0, 9.0, 9.0], [0.0, 0.0, 0.0, 0.0]]).expand(6, 3, 4)
    labels = torch.tensor([[0, 2, -1], [2, 2, -1], *[[1, -1, -1]] * 4])
    masks = torch.zeros(6, 24, 24, dtype=torch.uint8)
    masks[0, :2], masks[1, 0, 0], masks[2, 5] = 2, 1, 255
    vectors = torch.tensor([[1.0, 0, 0], [1, 1, 0], [0, 0, 0], [1, 0, 0], [1, 0, 0], [0, 1, 0]])
    return {
        "detection": {"images": noise[3, 24, 24], "boxes": boxes, "labels": labels, "counts": (labels >= 0).sum(1)},
        "segmentation": {"images": 255 - noise[3, 24, 24], "masks": masks},
        "multi-label": {"images": noise[4, 80, 70], "targets": vectors},
        "gray": {"images": noise[1, 24, 24], "targets": torch.tensor([0, 1, 2, 0, 1, 2])},
        "bare": {"features": torch.randn(6, 5, generator=draw)},
    }


@pytest.fixture(scope="module")
def every_kind(tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    """A dataset with a split of each kind, and a checks' card that may hold anything."""
    path = of_tensors(tmp_path_factory.mktemp("kinds") / 'it"s', kinds(), ("ant", "bee", "cat"))
    verdicts = [{"part": "train", "name": "pixels", "state": "pass", "text": "<b>1 level</b>"}, 3]
    results = [{"name": "stock", "images_per_second": 1234.5, "of_ceiling": 0.5, "ceiling": "fill"}, {"name": "x"}]
    write_card(path, "parity", {"date": "2026-01-02T03", "verdicts": verdicts}, read(path).contents)
    write_card(path, "bench", {"date": 7, "verdict": "It is <fast>.", "results": results}, read(path).contents)
    write_card(path, "verify", {"faults": 0, "compared": True}, read(path).contents)
    return open_dataset(path)


def test_classes_of_boxes_masks_and_vectors_are_counted(every_kind: Dataset) -> None:
    found = {name: class_rows(split) for name, split in every_kind.items()}
    boxes, masks, vectors = (found.pop(name) for name in ("detection", "segmentation", "multi-label"))
    assert boxes == {"rows": [1, 4, 2], "boxes": [1, 4, 3]}
    assert masks == {"rows": [6, 1, 1], "pixels": [6 * 24 * 24 - 48 - 1 - 24, 1, 48]}
    assert vectors == {"rows": [4, 2, 0]}
    assert not any(found.values())


def test_every_kind_of_rows_has_a_page_with_what_was_recorded(every_kind: Dataset, tmp_path: Path) -> None:
    out = tmp_path / "page.html"
    ran("report", every_kind.path, "-o", out)
    text = out.read_text(encoding="utf-8")
    assert "cannot be applied" not in text
    assert text.count("As training sees them") == 4  # each split but the one without images
    assert text.count("There are no images to show.") == 1
    for words in (
        "RandomHorizontalFlip(), ColorJitter(0.4, 0.4, 0.4)",
        "RandomCrop(24, padding=3)",
        "Crop(70)",
        "all 1 checks hold",
        "&lt;b&gt;1 level&lt;/<wbr>b&gt;",
        "It is &lt;fast&gt;.",
        "1,234",
        "not measured",
        "whole, and equal to its source",
    ):
        assert words in text


@pytest.mark.parametrize(("name", "preset"), [*((name, None) for name in kinds()), ("segmentation", "simclr")])
def test_the_code_of_a_page_loads_the_split(name: str, preset: str | None, every_kind: Dataset) -> None:
    split = every_kind[name]
    variables: dict[str, Any] = {}
    exec(training_of(preset, 3).code(split), variables)
    loaded = variables["images" if "images" in split.fields else "features"]
    assert [len(view) for view in (loaded if preset else [loaded])] == [6] * (2 if preset else 1)


def test_report_shows_the_steps_that_are_asked_for(every_kind: Dataset, tmp_path: Path) -> None:
    out = tmp_path / "page.html"
    ran("report", every_kind.path, "-o", out, "--augment", "CenterCrop(16)")
    assert out.read_text().count("epochs of <code>CenterCrop(16)</code>") == 4
    assert "collate = mmload.Collate(CenterCrop(16))" in out.read_text()


@pytest.mark.parametrize(
    ("words", "code", "expected"),
    [
        (["-o", "a.txt"], 2, "give a name that ends in .html"),
        (["-o", "no/a.html"], 2, "does not exist; make it first"),
        (["-o", "copy/a.html"], 2, "which lies in"),
        (["-o", "a.html", "--augment", "RandomCrop(64)"], 2, "these steps cannot render split"),
        (["-o", "a.html", "--augment", "x"], 2, "--augment is 'x': "),
    ],
)
def test_report_that_cannot_be_written_is_one_line(
    words: list[str], code: int, expected: str, copy: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert expected in complaint(mmload("report", copy, *words), code)
    assert list(tmp_path.iterdir()) == [copy]


def test_report_page_is_written_completely_or_not_at_all(
    dataset: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out, link = tmp_path / "page.html", tmp_path / "link.html"
    out.write_text("an earlier page")
    link.symlink_to(out)

    def full(file: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(files, "sync", full)
        done = mmload("report", dataset.path, "-o", link)
    assert complaint(done, 1) == f"mmload: cannot write {link} (No space left on device)"
    assert out.read_text() == "an earlier page"
    assert sorted(tmp_path.iterdir()) == [link, out]
    ran("report", dataset.path, "-o", link)
    assert link.is_symlink()
    text = out.read_text()
    assert text.startswith("<!doctype html>")
    assert "No picture was found in more than one row" in text
    assert "No sample of the source was left out." in text


def test_the_list_of_findings_names_copies_and_outliers_as_a_subset_takes_them(odd: Dataset, tmp_path: Path) -> None:
    file, copy = tmp_path / "odd.txt", tmp_path / "copy"
    shutil.copytree(odd.path, copy)
    ran("report", copy, "-o", tmp_path / "page.html", "--findings", file)
    reasons = {tuple(line.split("\t")[1:]) for line in file.read_text().splitlines()[1:]}
    assert {("copy", "train"), ("copy", "val"), ("nearly black", "train"), ("extreme aspect", "val")} <= reasons
    ran("subset", copy, "odd", "--rows", file, "--split", "val")
    opened = open_dataset(copy)
    assert {Path(source.id).name for source in opened["odd"].source(slice(None))} == {
        "leak.png",
        "leak too.png",
        "long.png",
        "twice.png",
    }
    assert list(opened["odd"].mean) == pytest.approx(opened["odd"][:].images.double().mean((0, 2, 3)) / 255)
