"""The command line: what it shows, what it answers to wrong questions, and what it ends with."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import typer
from cifar_files import write_cifar10
from conftest import complaint, contents, mmload
from devkit import Devkit, thing

from mmload import __version__
from mmload.bench.options import SECONDS
from mmload.cli.app import HABITS, app
from mmload.errors import BuildError
from mmload.remote.opening import open as open_dataset
from mmload.store.dataset import Dataset

CONFIG = Path(__file__).parents[2] / "configs" / "imagefolder_256.toml"


PROGRAM = """
import sys
sys.argv = ["mmload", *{words!r}]
try:
    import mmload.cli.app
    mmload.cli.app.main()
except SystemExit:
    print(sorted({{"torch", "tensordict", "numba"}} & set(sys.modules)))
"""


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["--help"], "build"),
        (["build", "imagefolder", "foto", "out"], "no such folder or file: foto"),
        (["build", "imagfolder", "photos", "out"], "unknown source kind 'imagfolder'"),
        (["build", "imagefolder", "photos", "out", "--threads", "0"], "threads is 0"),
    ],
)
def test_help_is_shown_and_what_is_mistyped_is_said_before_torch_is_imported(
    words: list[str], text: str, tmp_path: Path
) -> None:
    (tmp_path / "photos").mkdir()
    program = [sys.executable, "-c", PROGRAM.format(words=words)]
    done = subprocess.run(program, capture_output=True, text=True, check=True, cwd=tmp_path)
    assert text in done.stdout + done.stderr
    assert done.stdout.splitlines()[-1] == "[]"


def test_the_module_runs_as_a_program(tmp_path: Path) -> None:
    """And imports no torch to look at a dataset: that takes 3 s of processor time."""
    words = [sys.executable, "-X", "importtime", "-m", "mmload", "info", tmp_path]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    lines = done.stderr.splitlines(keepends=True)
    imported = {line.rpartition("|")[2].strip() for line in lines if line.startswith("import time:")}
    assert "mmload.store.dataset_folder" in imported
    assert not imported & {"torch", "tensordict", "torchvision", "numba", "PIL"}
    said = "".join(line for line in lines if not line.startswith("import time:"))
    advice = "it has no dataset.json; give a folder that mmload build made as OUT"
    assert said == f"mmload: {tmp_path} is not a finished dataset: {advice}\n"
    assert mmload("--version").stdout.strip() == f"mmload {__version__}"


def test_build_says_what_it_did_and_what_to_type_next(folder: Path, tmp_path: Path) -> None:
    done = mmload("build", "imagefolder", folder, tmp_path / "out", "--size", 48)
    assert done.returncode == 0, done.stderr
    assert re.search(r"built .*out: 18 images in \d+\.\d s \([\d,.]+ images/s\)", done.stdout)
    assert "train: 18 rows, 3 classes, 0.1 MiB in 1 shard" in done.stdout
    assert f"mmload bench {tmp_path / 'out'} --source {folder}" in done.stdout
    assert open_dataset(tmp_path / "out")["train"].fields["images"].shape == (3, 48, 48)
    again = mmload("build", "imagefolder", folder, tmp_path / "out", "--size", 48)
    assert again.returncode == 0
    assert "nothing to do" in again.stdout


def test_a_recipe_builds_with_paths_from_the_command_line_or_its_own(folder: Path, tmp_path: Path) -> None:
    assert mmload("build", "--config", CONFIG, folder, tmp_path / "a").returncode == 0
    own = tmp_path / "own.toml"
    text = CONFIG.read_text().replace('# root = "photos"', f'root = "{folder}"')
    own.write_text(f'out = "{tmp_path / "b"}"\n' + text)
    assert mmload("build", "--config", own).returncode == 0
    assert (tmp_path / "a" / "dataset.json").read_bytes() == (tmp_path / "b" / "dataset.json").read_bytes()


def test_other_sources_take_their_options_and_tell_their_notes(tmp_path: Path, devkit: Devkit) -> None:
    done = mmload("build", "cifar10", write_cifar10(tmp_path / "batches"), tmp_path / "cifar")
    assert done.returncode == 0, done.stderr
    assert "note on train: not the original CIFAR10" in done.stdout
    built = {name: len(split) for name, split in open_dataset(tmp_path / "cifar").items()}
    assert built == {"train": 7 + 8 + 9 + 10 + 11, "test": 12}
    devkit.add("a", thing("raccoon", (1, 2, 8, 6)))
    devkit.list("train", "a")
    words = ["--size", 128, "--task", "detection", "--set", "classes=auto", "--set", 'image_set=["train"]']
    done = mmload("build", "voc", devkit.root, tmp_path / "voc", *words)
    assert done.returncode == 0, done.stderr
    split = open_dataset(tmp_path / "voc")["train"]
    assert split.classes == ("raccoon",)
    assert split[:4].boxes.shape[2] == 4
    assert split.fields["images"].shape == (3, 128, 128)


@pytest.mark.parametrize(
    ("words", "parts"),
    [
        (["build", "--sise", 3], ["no such option: --sise", "--size", "build --help"]),
        (["nonsense"], ["no such command 'nonsense'", "--help"]),
        (["verify"], ["missing argument", "verify --help"]),
        (["update"], ["missing argument", "update --help"]),
        (["verify", "x", "--repair"], ["--repair needs --source ROOT"]),
        (["build", "--size"], ["option '--size' requires an argument", "--help"]),
        (["bench", "x", "--batch-size", "many"], ["--batch-size is 'many': ", "integer", "bench --help"]),
        (["bench", "x", "--size=1.5"], ["--size is '1.5': ", "integer", "bench --help"]),
        (["bench", "x", "--batch_size", 3], ["no such option: --batch_size", "--batch-size"]),
        (["build", "x"], ["expected 3: KIND ROOT OUT"]),
        (["build", "imagefolders", "x", "y"], ["unknown source kind 'imagefolders'; use one of ", "mean imagefolder?"]),
        (["build", "voc", "x", "y", "--set", "year"], ["--set is 'year'"]),
        (["build", "--config", CONFIG, "x", "y", "--size", 3], ["--size and --config are both given"]),
    ],
)
def test_words_that_mean_nothing_are_one_line_with_the_value(words: list[object], parts: list[str]) -> None:
    line = complaint(mmload(*words), 2)
    assert all(part in line for part in parts), line
    assert mmload(*words).stderr.count("\n") == 1


@pytest.mark.parametrize(
    ("words", "answer"),
    [
        (["repair", "x", "--source", "y"], "mmload verify DATASET --repair --source ROOT"),
        (["where", "x", 3], "mmload info DATASET --row N, or --file PATH"),
        (["log", "x"], "mmload info DATASET --versions"),
        (["bench", "build", "--source", "y"], "mmload bench DATASET --source ROOT --build"),
        (["rm", "x"], "mmload gc DATASET frees"),
        (["build", "imagefolder", "x", "y", "--update"], "mmload update OUT ROOT"),
        (["build", "imagefolder", "x", "y", "--num-workers", 4], "--threads N"),
        (["build", "imagefolder", "x", "y", "--val-split=0.1"], "--val-fraction SHARE"),
    ],
)
def test_names_of_other_programs_are_answered_with_what_to_type(words: list[object], answer: str) -> None:
    line = complaint(mmload(*words), 2)
    assert line.startswith("mmload: there is no ")
    assert answer in line


def test_every_habit_is_no_command_or_option_and_its_answer_is_one() -> None:
    group: Any = typer.main.get_command(app)
    assert not HABITS.keys() & group.commands.keys()
    for habit, answer in HABITS.items():
        for name in re.findall(r"mmload ([a-z-]+) ", answer):
            assert name in group.commands, habit
    assert len(group.commands) <= 17


def test_without_words_it_says_what_there_is() -> None:
    done = mmload()
    assert (done.returncode, done.stderr) == (2, "")
    assert "Usage" in done.stdout


@pytest.fixture
def short_bench(monkeypatch: pytest.MonkeyPatch) -> None:
    """A bench with one short turn of each loader; tests/bench has one of all."""
    monkeypatch.setattr("mmload.bench.measure.LONGEST_TURN", 0.05)
    monkeypatch.setitem(SECONDS, False, 2.0)
    monkeypatch.setattr("mmload.bench.run.busy_share", lambda: 0.0)  # it takes a second


@pytest.mark.usefixtures("short_bench")
def test_bench_shows_a_table_and_writes_a_record(dataset: Dataset, folder: Path, tmp_path: Path) -> None:
    words = ["--size", 24, "--batch-size", 8, "--threads", 1, "--json", tmp_path / "record.json"]
    words += ["--loaders", "torchvision,disk"]
    done = mmload("bench", dataset.path, "--source", folder, *words)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert all(len(line) <= 80 for line in lines[:-1])
    assert lines[0].startswith("The stock loader")
    assert "v2 tensors" not in done.stdout
    assert lines[-1] == f"record: {tmp_path / 'record.json'}"
    for name in ("DataLoader + torchvision, 1 worker", "mmload.Loader", "fill_"):
        assert any(line.startswith(name) for line in lines), done.stdout
    record = json.loads((tmp_path / "record.json").read_text())
    # On a busy machine the time ends before those that the verdict does not need.
    measured = [result for result in record["results"] if result["epochs"]]
    assert {"stock", "mmload", "ceiling"} <= {result["group"] for result in measured}
    assert all(len(result["epochs"]) <= 3 and min(result["epochs"]) > 0 for result in measured)


@pytest.mark.usefixtures("short_bench")
@pytest.mark.parametrize("steps", ["resized-crop", "none"])
def test_bench_takes_other_steps_and_chosen_loaders(dataset: Dataset, folder: Path, steps: str) -> None:
    words = ["--steps", steps, "--batch-size", 6, "--loaders", "disk"]
    done = mmload("bench", dataset.path, "--source", folder, *words)
    assert done.returncode == 0, done.stderr
    assert "mmload.Loader" in done.stdout
    assert "DataLoader" not in done.stdout


@pytest.mark.usefixtures("short_bench")
def test_bench_measures_cifar_against_torchvisions(tmp_path: Path) -> None:
    source = write_cifar10(tmp_path / "source")
    assert mmload("build", "cifar10", source, tmp_path / "cifar").returncode == 0
    words = ["--threads", 1, "--loaders", "1 worker,disk"]
    done = mmload("bench", tmp_path / "cifar", "--source", source, *words)
    assert done.returncode == 0, done.stderr
    for name in ("DataLoader + torchvision", "DataLoader + v2 tensors", "mmload.Loader"):
        assert f"\n{name}" in done.stdout
    assert "crop 32 of rows padded by 4" in done.stdout


@pytest.mark.slow
@pytest.mark.usefixtures("short_bench")
def test_demo_makes_builds_reads_benches_and_learns(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from mmload.cli.demo import run_demo

    def run() -> list[float]:
        return run_demo(tmp_path / "demo", lambda words: app(words, standalone_mode=False), images=24, epochs=3)

    losses = run()
    assert losses[-1] < losses[0]
    text = capsys.readouterr().out
    for step in ("made 24 JPEGs", "$ mmload build", "$ mmload preview", "$ mmload bench", "a small network"):
        assert step in text
    for name in ("stored.jpg", "training.jpg", "bench.png"):
        assert 4_000 < (tmp_path / "demo" / name).stat().st_size < 120_000
    assert len(open_dataset(tmp_path / "demo" / "dataset")["train"]) == 24
    before = contents(tmp_path / "demo" / "photos")
    (tmp_path / "demo" / "dataset" / "best.pt").write_text("days of training")
    with pytest.raises(BuildError, match=r"holds more than its dataset: best\.pt"):
        run()
    assert (tmp_path / "demo" / "dataset" / "best.pt").read_text() == "days of training"
    assert contents(tmp_path / "demo" / "photos") == before


def test_demo_leaves_a_folder_of_other_things_alone(tmp_path: Path) -> None:
    (tmp_path / "thesis.txt").write_text("years of work")
    assert "holds other things" in complaint(mmload("demo", tmp_path), 1)
    assert contents(tmp_path) == {"thesis.txt": b"years of work"}


def test_help_of_build_shows_options_under_their_headings() -> None:
    text = mmload("build", "--help").stdout
    headings = [line for line in text.splitlines() if line.endswith(":") and not line.startswith(" ")]
    assert headings == ["Arguments:", "What to build:", "How to build:", "Clusters:", "Options:"]
    assert text.index("What to build:") < text.index("--size") < text.index("How to build:") < text.index("--threads")
