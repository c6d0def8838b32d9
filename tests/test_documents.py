"""README.md, CONTRIBUTING.md and docs/ as readers have them: Python runs, commands parse, links lead somewhere."""

from __future__ import annotations

import json
import math
import re
import shutil
import warnings
from collections.abc import Callable
from functools import reduce
from importlib import import_module
from inspect import isfunction, signature
from pathlib import Path
from statistics import median
from typing import Any, get_args

import documents
import numpy as np
import pytest
import torch
import typer
from conftest import mmload
from documents import PAGES, ROOT
from PIL import Image
from torch import nn

import mmload as package
from mmload import parity, presets
from mmload.builder.recipe import ENCODES, VariableLayout
from mmload.builder.shard_job import JPEG_SIDE
from mmload.builder.transforms import TransformChain
from mmload.cli.app import app
from mmload.cli.copies import Format
from mmload.loader import order, orders
from mmload.loader.tiers import TIERS
from mmload.parity.load import ROWS
from mmload.records import FIELD_NAMES
from mmload.remote.chunk_map import CHUNKS_OF_WINDOW, MOST_IDLE
from mmload.remote.chunks import CHUNK_BYTES
from mmload.remote.object_store import RETRIES
from mmload.remote.urls import PARALLEL
from mmload.sources import SOURCES, coco_annotations, files, voc, yolo
from mmload.sources.list_rows import MAX_CLASSES
from mmload.sources.objects import MAX_KEYPOINTS
from mmload.store import manifest
from mmload.store.variable_rows import MAX_PIXELS

ARCHITECTURE = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
SMALLER = {"batch_size=256": "batch_size=8", "batch_size=128": "batch_size=4"}
"""What a user would write, and what the tests run in its place, as their splits have 30 and 12 rows."""

CHEAP = ("build", "info", "verify")
"""Commands that are run where they name folders that are there; the others are parsed only."""


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with ``photos`` (train and val, three classes) and what is built from it: the world of every page."""
    place = tmp_path_factory.mktemp("documents")
    rng = np.random.default_rng(0)
    for split, count in (("train", 10), ("val", 4)):
        for name in ("ant", "bee", "cat"):
            (place / "photos" / split / name).mkdir(parents=True)
            for number in range(count):
                few = Image.fromarray(rng.integers(0, 256, (9, 12, 3), dtype=np.uint8))
                few.resize((300, 280)).save(place / "photos" / split / name / f"{number}.jpg")
    whole = ["--layout", "variable", "--encode", "jpeg"]
    for name, more in (("photos-256", []), ("photos-mixed", ["--shuffle-seed", 0]), ("photos-variable", whole)):
        done = mmload("build", "imagefolder", place / "photos", place / name, "--size", 256, *more)
        assert done.returncode == 0, done.stderr
    coco = place / "coco"
    shutil.copytree(place / "photos" / "train" / "ant", coco / "train2017")
    (coco / "annotations").mkdir()
    objects = [
        {"id": number, "image_id": number, "bbox": [200, 8, 100.4, 40], "category_id": 3, "iscrowd": number % 2}
        for number in range(10)  # reaching out of the image, as some of COCO's do by a fraction
    ]
    listed = [{"id": number, "file_name": f"{number}.jpg"} for number in range(10)]
    content = {"images": listed, "annotations": objects, "categories": [{"id": 3, "name": "ant"}]}
    (coco / "annotations" / "instances_train2017.json").write_text(json.dumps(content))
    pets = place / "pets"
    shutil.copytree(coco / "train2017", pets / "images" / "train")
    (pets / "data.yaml").write_text("train: images/train\nnames: [ant]\n")
    (place / "photos-256.excluded.txt").write_text("train/bee/3.jpg\tbroken\n")  # as browse writes it
    return place


@pytest.fixture
def world(prepared: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of it, where the test is."""
    shutil.copytree(prepared, tmp_path / "world")
    monkeypatch.chdir(tmp_path / "world")
    return tmp_path / "world"


def names() -> dict[str, Any]:
    """What pages take as given: the reader's own model, criterion and optimizer."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(12, 3))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    return {"model": model, "criterion": nn.CrossEntropyLoss(), "optimizer": optimizer, "__name__": "__main__"}


@pytest.mark.parametrize("page", [page for page in PAGES if documents.blocks(page)], ids=lambda page: page.name)
def test_every_block_of_python_runs_in_the_pages_order(page: Path, world: Path) -> None:
    space = names()
    for block in documents.blocks(page):
        if block.language == "python" and not block.skipped:
            text = block.code
            for usual, small in SMALLER.items():
                text = text.replace(usual, small)
            code = compile("\n" * (block.line - 1) + text, str(page), "exec")
            with warnings.catch_warnings():
                if block.needs:
                    warnings.simplefilter("ignore")  # what another package warns of is not the page's
                exec(code, space)


def test_every_block_says_its_language() -> None:
    languages = {block.language for page in PAGES for block in documents.blocks(page)}
    assert languages <= {"python", "sh", "toml", "", "json", "csv"}


GROUP: Any = typer.main.get_command(app)
"""All commands, as click has them."""


def parsed(words: list[str]) -> None:
    """Parse a command's words as the command line does, and run nothing."""
    context = GROUP.make_context("mmload", list(words))
    name, command, rest = GROUP.resolve_command(context, list(words))
    command.make_context(name, rest, parent=context)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_command_parses(page: Path) -> None:
    whole = documents.commands(page)
    for words in whole + documents.inline_commands(page):
        try:
            parsed(words)
        except typer.Exit:
            assert "--help" in words
        except Exception as error:
            if words not in whole and "Missing parameter" in str(error):
                continue  # a sentence about the command
            raise AssertionError(f"{page.name}: mmload {' '.join(words)}: {error}") from error


OF_OTHERS = {
    "--find-links",
    "--format",
    "--freeze",
    "--head",
    "--hypothesis-profile",
    "--nproc-per-node",
    "--standalone",
}
"""Options on pages of pip, aws, pytest, Ray and torchrun."""


@pytest.mark.parametrize("page", [page for page in PAGES if page.stem != "clients"], ids=lambda page: page.name)
def test_every_option_named_is_one_of_a_command(page: Path) -> None:
    """Of mmload's commands, or of the programs of a clone; docs/clients.md has those of timm."""
    flags = {flag for command in GROUP.commands.values() for each in command.params for flag in each.opts}
    programs = [
        path for name in ("benchmarks", "examples", "scripts") for path in (ROOT / name).iterdir() if path.is_file()
    ]
    flags.update(*(re.findall(r"(?<![\w-])--[a-z][a-z-]+", path.read_text(encoding="utf-8")) for path in programs))
    named = set(re.findall(r"(?<![\w-])--[a-z][a-z-]+", page.read_text(encoding="utf-8")))
    assert named - flags - OF_OTHERS - {"--help", "--version"} == set()


@pytest.mark.parametrize("page", [page for page in PAGES if documents.commands(page)], ids=lambda page: page.name)
def test_the_cheap_commands_do_what_the_page_says(page: Path, world: Path) -> None:
    """Each with the folders of its page: a command over others, such as DATASET, is only parsed."""
    for folder in ("photos-256", "photos-mixed"):
        if any(words[0] == "build" and folder in words for words in documents.commands(page)):
            shutil.rmtree(folder)
    for words in documents.commands(page):
        there = [word for word in words if (world / word).is_dir()]
        if words[0] in CHEAP and there:
            done = mmload(*words)
            assert done.returncode == 0, f"mmload {' '.join(words)}: {done.stderr}"


RECORDED = {
    "DataLoader + torchvision on Pillow images": "DataLoader + torchvision,",
    "DataLoader + torchvision v2 on tensors": "DataLoader + v2 ",
    "DataLoader over mmload rows, 0 workers": "DataLoader + mmload dataset",
    "output filled past the caches: the limit": "output filled past the caches",
}
"""Loaders of the tables of measurements whose names in the records are others."""

STOCK, DISK, MEMORY = "DataLoader + torchvision v2 on tensors", "mmload.Loader, disk", "mmload.Loader, memory"


def record(name: str) -> Any:
    """Reads a record of docs/benchmarks."""
    return json.loads((ROOT / "docs" / "benchmarks" / f"{name}.json").read_text(encoding="utf-8"))


def fastest(name: str, loader: str) -> dict[str, Any]:
    """Returns a loader's fastest result in a record."""
    of_loader = [each for each in record(name)["results"] if each["name"].startswith(RECORDED.get(loader, loader))]
    return max(of_loader, key=lambda result: float(result["images_per_second"] or result["trained_per_second"] or 0))


def recorded(name: str, loader: str) -> list[str]:
    """Returns images per second, and CPU seconds per 1,000 images, of a loader's fastest result in a record."""
    found = fastest(name, loader)
    return [f"{found['images_per_second']:,.0f}", f"{found['cpu_seconds_per_1000']:.2f}"]


@pytest.mark.parametrize(("page", "columns"), [("README.md", 1), ("docs/benchmarks/README.md", 2)])
def test_tables_of_loaders_have_the_numbers_of_their_records(page: str, columns: int) -> None:
    rows = 0
    for line in (ROOT / page).read_text(encoding="utf-8").splitlines():
        loader, *cells = (cell.strip() for cell in line.strip("|").split("|"))
        if len(cells) == 2 * columns and loader.startswith(("DataLoader ", "mmload.Loader, ", "FFCV", "NVIDIA")):
            rows += 1
            assert cells == [*recorded("crop", loader)[:columns], *recorded("resized-crop", loader)[:columns]], line
    assert rows >= 5


def texts_of_records() -> dict[str, list[str]]:
    """Returns what pages say of measurements, made of their records."""
    rates = [
        float(fastest(name, loader)["images_per_second"])
        for name in ("crop", "resized-crop")
        for loader in (STOCK, DISK, MEMORY)
    ]
    small = {loader: fastest("train-small", loader) for loader in (STOCK, MEMORY, "one cached batch")}
    stock, ours, none = (f"{each['trained_per_second']:,.0f}" for each in small.values())
    stock_waits, our_waits, _ = (f"{each['waited']:.0%}" for each in small.values())
    cpu = [small[loader]["cpu_seconds_per_1000"] for loader in (MEMORY, STOCK)]
    step = f"{1000 * small['one cached batch']['step_seconds']:.1f} ms"
    cifar = [f"{fastest('cifar-512', loader)['images_per_second']:,.0f}" for loader in (STOCK, "FFCV raw")]
    cold = record("cold-large")["results"]["rows as stored, uint8"]
    built = {each["name"]: f"{each['images_per_second']:,.0f}" for each in record("build")["results"]}
    steps = {row["name"]: row["ratio"] for row in record("steps")["rows"]}
    lists = {name: f"{min(times):,.0f} us" for name, times in record("detection")["us_per_image"].items()}
    whole, few, nothing = (cpu for _, cpu in record("update")["seconds"].values())
    kinds = record("crop-study")["rows"]
    square, pixels, jpeg = (kind["row_bytes"] for kind in (kinds[0], kinds[2], kinds[3]))
    row = 3 * 256 * 256 + 8
    return {
        "README.md": [
            f"{min(rates[1] / rates[0], rates[4] / rates[3]):.0f} to {rates[2] / rates[0]:.0f} times as many images",
            f"{ours} images per second in place of {stock}, and the loader {cpu[0]:.2f} s",
            f"images in place of {cpu[1]:.1f} s.",
            f"the stock loaders make up to {rates[0]:,.0f} images per second, mmload {rates[1]:,.0f} from disk and "
            f"{rates[2]:,.0f} from memory",
            f"step takes {step} waits for the stock loader {stock_waits} of its time ({stock} images/s), for mmload "
            f"{our_waits} ({ours})",
            f"trains on {none} (",
            f"{row / 1e3:.0f} kB per 256 x 256 row, {row * 1_281_167 / 1e9:.0f} GB for ImageNet",
            f"take {jpeg / square:.0%} of that",
        ],
        "docs/which-loader.md": [f"{row / 1e3:.0f} kB per 256 x 256 row, {jpeg / 1e3:.0f} kB as a variable-size JPEG"],
        "docs/recipes.md": [f"{jpeg / square:.0%} of the bytes of squares"],
        "docs/variable-size.md": [f"leaves out {['', 'a quarter', 'half'][round(4 - 4 * square / pixels)]} of the"],
        "docs/benchmarks/README.md": [
            f"step takes {step}",
            f"| {stock} | {stock_waits} |",
            f"| {ours} | {our_waits} |",
            f"| {none} | 0% |",
            f"at most 1/{min(steps.values()):.0f} of its processor time, 1/{median(steps.values()):.0f} in the median, "
            f"and 1/{steps['GaussianBlur(23)']:.0f} for",
            f"{cifar[0]} by the best stock loader, {cifar[1]} by FFCV",
            f"{median(cold['mmload.Loader']['rates']):,.0f} images/s, {median(cold['preadv']['rates']):,.0f} of the",
            f"reads {median(cold['mmload.Loader']['read']):.1f} times the needed bytes",
            f"{built['mmload build']} images/s; {built['bare decode + resize, 2 threads']} by a bare loop",
            f"{built['tensordict tutorial, 2 workers']} by the tensordict tutorial's, "
            f"{built['FFCV DatasetWriter, 2 workers']} by FFCV's writer",
            f"a build takes {whole:.1f} s of processor time, an update of 1% new files {few:.2f} s, one without "
            f"changes {nothing:.2f} s",
            *(
                f"| {name} | {lists[f'{name}, {other}']} | {lists[f'{name}, mmload, JPEGs']} | "
                f"{lists[f'{name}, mmload, pixels']} |"
                for name, other in (("YOLO", "Ultralytics"), ("LSJ", "torchvision"))
            ),
            *(
                f"{kind['row_bytes']:,.0f} | {kind['enlarged']:.0%} | {kind['psnr']:.1f} dB | {kind['levels']:.1f} |"
                for kind in kinds
            ),
        ],
    }


def texts_of_constants() -> dict[str, list[str]]:
    """Returns what pages say of limits and defaults, made of the code's."""
    chunk, row = CHUNK_BYTES // 2**20, 3 * 256 * 256 + 8
    shards = [round(1e9 / (size // row), -3) for size in (2**30, 2**33)]
    layout = VariableLayout()
    waits = [RETRIES["backoff"][name].total_seconds() for name in ("init_backoff", "max_backoff")]
    return {
        "docs/variable-size.md": [f"The rows of {order.BATCHES_SORTED} batches"],
        "docs/clusters.md": [
            f"{chunk} MiB of successive rows",
            f"each window of {CHUNKS_OF_WINDOW} chunks ({CHUNKS_OF_WINDOW * chunk // 1024} GiB)",
            f"Up to {CHUNKS_OF_WINDOW} chunks per field are fetched ahead, by `parallel={PARALLEL}` requests",
            f"up to {(CHUNKS_OF_WINDOW + MOST_IDLE + PARALLEL) * chunk / 1024:g} GiB per field and process",
            f"It copies {PARALLEL} files at once",
            f"up to {RETRIES['max_retries']} times, with a backoff from {waits[0]:g} s to {waits[1]:g} s",
            f"is {row:,} bytes, so a billion are {row / 1e3:.0f} TB: {shards[0]:,.0f} shards of 1 GiB",
            f"there are {2 * shards[1]:,.0f} files",
        ],
        "docs/format.md": [
            f"{MAX_PIXELS:,} pixels",
            f"({manifest.MOST_BYTES:,} bytes)",
            f"first {manifest.SKIPPED_SHOWN}",
        ],
        "docs/images.md": [f"more than {MAX_PIXELS:,} pixels"],
        "docs/loading.md": [f"the system alone serves {0.5 + 0.5 * math.log(0.5):.2f}"],
        "docs/parity.md": [f"`--rows {parity.DEFAULT_ROWS}`", f"on {ROWS} rows of the Loader"],
        "docs/recipes.md": [
            f"`--quality {layout.quality}`",
            f"`--raw-share {layout.raw_share}`",
            f"more than {JPEG_SIDE:,} pixels a side",
        ],
        "docs/security.md": [
            f"| pixels of an image or mask | {MAX_PIXELS:,},",
            f"| bytes of a file | {files.MOST_BYTES:,} |",
            f"| {voc.MOST_BYTES >> 20} MiB, no document type; {coco_annotations.MOST_BYTES >> 30} GiB; "
            f"{yolo.MOST_LABEL_BYTES >> 20} MiB |",
            f"| {MAX_KEYPOINTS}; {MAX_CLASSES:,} |",
        ],
    }


@pytest.mark.parametrize("texts", [texts_of_records, texts_of_constants])
def test_numbers_of_pages_are_those_of_records_and_code(texts: Callable[[], dict[str, list[str]]]) -> None:
    for page, expected in texts().items():
        words = " ".join((ROOT / page).read_text(encoding="utf-8").split())
        assert [text for text in expected if text not in words] == [], page


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_between_documents_lead_somewhere(page: Path) -> None:
    for target, anchor in re.findall(r"\]\(([^)#:]*)(?:#([^)]*))?\)", page.read_text(encoding="utf-8")):
        file = page.parent / target if target else page
        assert file.exists(), f"{page.name}: {target}"
        if anchor and file.suffix == ".md":
            headings = re.findall(r"^#+ (.*)$", file.read_text(encoding="utf-8"), re.MULTILINE)
            slugs = {re.sub(r"[^\w -]", "", heading).lower().replace(" ", "-") for heading in headings}
            assert anchor in slugs, f"{page.name}: {target}#{anchor}"


def test_reference_has_every_public_name_and_no_other() -> None:
    page = (ROOT / "docs" / "reference.md").read_text(encoding="utf-8")
    listed = set(re.findall(r"^::: (mmload\S*)$", page, re.MULTILINE))
    assert {f"mmload.{name}" for name in dir(package)} - {"mmload.__version__"} <= listed
    for path in listed:
        reduce(getattr, path.split(".")[1:], package)
    members = re.findall(r"::: (\S+)\n +options:\n +members: \[(.*)\]", page)
    for path, names in members:
        defined = vars(import_module(path)).values()
        public = {each.__name__ for each in defined if isfunction(each) and each.__module__ == path}
        assert {name for name in public if not name.startswith("_")} == set(names.split(", ")), path


def test_every_room_has_its_line() -> None:
    rooms = {path.parent.name for path in (ROOT / "mmload").glob("*/__init__.py")}
    assert rooms == {name for name in rooms if f"\n| `{name}` |" in ARCHITECTURE}


@pytest.mark.parametrize("kind", SOURCES)
def test_sources_section_of_a_kind_has_every_option(kind: str) -> None:
    page = (ROOT / "docs" / "sources.md").read_text(encoding="utf-8")
    (section,) = re.findall(rf"^## (?:\w+, )?{kind}\b.*?(?=^## )", page, re.MULTILINE | re.DOTALL)
    module, name = SOURCES[kind].split(":")
    options = list(signature(getattr(import_module(module), name)).parameters)[2:]
    assert [option for option in options if f"`{option}`" not in section and option != "allow_outside"] == []
    assert ("allow_outside" in options) == (kind not in ("huggingface", "python"))
    table = section.partition("| option | meaning |")[2].partition("\n\n")[0]
    named = re.findall(r"`(\w+)`", " ".join(line.split("|")[1] for line in table.splitlines()[2:]))
    assert set(named) <= {*options, "labels"}  # of cifar100


NAMES = {
    "inspection": [*get_args(Format)],
    "loading": [*signature(package.Loader).parameters, *FIELD_NAMES, "ids", "seeds", "image_sizes", *TIERS],
    "orders": [name for name, each in vars(orders).items() if isfunction(each) and each.__module__ == orders.__name__],
    "presets": [*presets.__all__, *presets.detection.__all__],
    "recipes": [*TransformChain.STEPS, *ENCODES],
}
"""Page -> what it has to name."""


@pytest.mark.parametrize("page", NAMES)
def test_page_has_every_name(page: str) -> None:
    text = (ROOT / "docs" / f"{page}.md").read_text(encoding="utf-8")
    names = [name for name in NAMES[page] if name not in ("dataset", "others") and not name.startswith("_")]
    assert [name for name in names if not re.search(rf"`(order=)?\"?{name}\"?[`(]", text)] == []


def test_info_prints_the_keys_of_its_page(prepared: Path) -> None:
    facts = json.loads(mmload("info", prepared / "photos-256", "--json").stdout)
    text = (ROOT / "docs" / "inspection.md").read_text(encoding="utf-8")
    assert [key for key in (*facts, *facts["splits"]["train"]) if f"`{key}`" not in text] == []


def test_every_module_that_the_architecture_names_exists() -> None:
    named = re.findall(r"`([a-z_]+/[a-z_/]+\.py)`", ARCHITECTURE)
    assert len(named) > 30
    assert [path for path in named if not (ROOT / "mmload" / path).is_file()] == []
    dotted = re.findall(r"`([a-z_]+\.[a-z_.]+)`", ARCHITECTURE)
    rooms = {path.parent.name for path in (ROOT / "mmload").glob("*/__init__.py")}
    for name in {name for name in dotted if name.split(".")[0] in rooms}:
        assert (ROOT / "mmload" / name.replace(".", "/")).with_suffix(".py").is_file(), name


def test_every_contract_is_where_the_architecture_says() -> None:
    rows = re.findall(r"^\| (`\w+`(?:, `\w+`)*) \| `([a-z_.]+)` \|", ARCHITECTURE, re.MULTILINE)
    contracts = [(module, name) for names, module in rows for name in re.findall(r"\w+", names)]
    assert len(contracts) >= 7
    assert [each for each in contracts if not hasattr(import_module(f"mmload.{each[0]}"), each[1])] == []


def test_every_script_and_module_named_exists() -> None:
    for page in PAGES:
        text = page.read_text(encoding="utf-8")
        for script in re.findall(r"(?<![\w/(.])((?:scripts|benchmarks)/\w+(?:\.py)?)(?![\w.])", text):
            assert (ROOT / script).exists(), f"{page.name}: {script}"
        for module in re.findall(r"(?<![\w/(.])((?:mmload|tests)/[a-z_/]+\.py)\b", text):
            assert (ROOT / module).exists(), f"{page.name}: {module}"
        for name in re.findall(r"\btest_\w+\.py\b", text):
            assert [*(ROOT / "tests").rglob(name)] or "MYKIND" in name, f"{page.name}: {name}"
