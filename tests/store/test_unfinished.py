"""What is said about a dataset whose build has begun and not ended."""

from __future__ import annotations

import json
import shlex
from pathlib import Path

import pytest
from building import recipe
from conftest import complaint, mmload
from meanwhile import interrupted

from mmload.builder.pipeline import build
from mmload.builder.recipe import square
from mmload.store.manifest import how_to_go_on


@pytest.fixture
def words(source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The command of a build that was interrupted after its second shard."""
    monkeypatch.chdir(tmp_path)
    words = ["build", "imagefolder", str(source), "my out", "--size", "32", "--shard-size", "12416"]
    asked = recipe(source, Path("my out"), transforms=square(32), shard_bytes=12416)
    interrupted(build, asked, after=8, command=words)
    return words


COMMANDS = (
    ("info", "DATASET"),
    ("preview", "DATASET"),
    ("report", "DATASET"),
    ("info", "DATASET", "--row", "0"),
    ("verify", "DATASET"),
    ("verify", "DATASET", "--repair", "--source", "photos"),
    ("parity", "DATASET", "--source", "photos"),
    ("bench", "DATASET", "--source", "photos"),
)


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_every_command_names_the_command_that_goes_on(command: tuple[str, ...], words: list[str]) -> None:
    said = complaint(mmload(*(word.replace("DATASET", "my out") for word in command)), 1)
    unfinished = f"the build of {Path('my out').absolute()} is unfinished; if it no longer runs, continue it with: "
    assert said == f"mmload: {unfinished}mmload {shlex.join(words)}"


def test_the_named_command_goes_on(words: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    for folder in ("my out", ".my out.building", ".my out.building/dataset"):
        said = complaint(mmload("info", tmp_path / folder), 1)
        assert said.endswith(f"continue it with: cd {tmp_path} && mmload {shlex.join(words)}")
    monkeypatch.chdir(tmp_path)
    done = mmload(*shlex.split(said.partition("&& ")[2])[1:])
    assert done.returncode == 0, done.stderr
    assert "4 from an earlier run" in done.stdout
    assert how_to_go_on(tmp_path / "my out") is None
    assert mmload("info", "my out").returncode == 0


def test_unfinished_build_records_its_command_line(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (source / "class2" / "4.jpg").write_bytes(b"no image")
    monkeypatch.chdir(tmp_path)
    words = ["build", "imagefolder", "photos", "out", "--size", "16", "--shard-size", "4000"]
    assert mmload(*words).returncode == 1
    assert complaint(mmload("info", "out"), 1).endswith(f"continue it with: mmload {shlex.join(words)}")


def test_a_build_from_python_has_no_command(source: Path, tmp_path: Path) -> None:
    interrupted(build, recipe(source, tmp_path / "out"), after=8)
    assert str(how_to_go_on(tmp_path / "out")).endswith(WITHOUT.format(out=tmp_path / "out"))


WITHOUT = "mmload build KIND ROOT {out}, with the recipe that it was begun with"
ODD = {"words": ["build", "a; rm -rf ~\n\x1b[2J"], "folder": "/$(id)"}


@pytest.mark.parametrize(
    ("plan", "advice"),
    [
        *((plan, WITHOUT) for plan in ("", "[1]", '{"recipe": [], "command": 3}')),
        ('{"command": {"words": [1], "folder": 2}}', WITHOUT),
        (json.dumps({"command": ODD}), "cd '/$(id)' && mmload build 'a; rm -rf ~\\n\\x1b[2J'"),
    ],
)
def test_the_command_of_a_plan_is_shown_quoted_in_one_line_if_it_can_be_read(
    plan: str, advice: str, tmp_path: Path
) -> None:
    staging = tmp_path / ".out.building"
    staging.mkdir()
    assert how_to_go_on(tmp_path / "out") is None
    (staging / "lock").touch()
    (staging / "plan.json").write_text(plan)
    said = complaint(mmload("info", tmp_path / "out"), 1)
    assert said.endswith(f"continue it with: {advice.format(out=tmp_path / 'out')}")
