"""What is said about a dataset whose build has begun and not ended."""

from __future__ import annotations

import json
import shlex
from pathlib import Path

import pytest
from building import recipe
from conftest import complaint, mmload

from mmload.builder.pipeline import build
from mmload.builder.recipe import square
from mmload.store.manifest import how_to_go_on


def stop(done: int, total: int) -> None:
    if done >= 8:
        raise KeyboardInterrupt


@pytest.fixture
def words(source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The command of a build that was interrupted after its second shard."""
    monkeypatch.chdir(tmp_path)
    words = ["build", "imagefolder", str(source), "my out", "--size", "32", "--shard-size", "12416"]
    asked = recipe(source, Path("my out"), transforms=square(32), shard_bytes=12416)
    with pytest.raises(KeyboardInterrupt):
        build(asked, threads=1, progress=stop, command=words)
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
    out = Path("my out").absolute()
    assert (
        said == f"mmload: the build of {out} is unfinished; if it no longer runs, continue it with: "
        f"mmload {shlex.join(words)}"
    )


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
    with pytest.raises(KeyboardInterrupt):
        build(recipe(source, tmp_path / "out"), threads=1, progress=stop)
    advice = f"mmload build KIND ROOT {tmp_path / 'out'}, with the recipe that it was begun with"
    assert str(how_to_go_on(tmp_path / "out")).endswith(advice)


@pytest.mark.parametrize(
    "plan", ["", "[1]", '{"recipe": [], "command": 3}', '{"command": {"words": [1], "folder": 2}}']
)
def test_a_plan_that_cannot_be_read_is_no_obstacle(plan: str, tmp_path: Path) -> None:
    staging = tmp_path / ".out.building"
    staging.mkdir()
    assert how_to_go_on(tmp_path / "out") is None
    (staging / "lock").touch()
    (staging / "plan.json").write_text(plan)
    said = complaint(mmload("info", tmp_path / "out"), 1)
    assert said.endswith(
        f"continue it with: mmload build KIND ROOT {tmp_path / 'out'}, with the recipe that it was begun with"
    )


def test_the_command_of_a_plan_is_shown_quoted_in_one_line(tmp_path: Path) -> None:
    staging = tmp_path / ".out.building"
    staging.mkdir()
    (staging / "lock").touch()
    asked = {"words": ["build", "a; rm -rf ~\n\x1b[2J"], "folder": "/$(id)"}
    (staging / "plan.json").write_text(json.dumps({"command": asked}))
    said = complaint(mmload("info", tmp_path / "out"), 1)
    assert said.endswith("continue it with: cd '/$(id)' && mmload build 'a; rm -rf ~\\n\\x1b[2J'")
