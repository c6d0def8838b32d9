"""The folder that a build works in: nobody else's files are touched, and at any moment there is a dataset to read."""

from __future__ import annotations

import shutil
import sys
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from building import recipe
from conftest import contents
from meanwhile import interrupted, once
from msgspec import structs

from mmload.builder import staging as staging_module
from mmload.builder.pipeline import build, build_part
from mmload.builder.recipe import square
from mmload.builder.staging import MARK, Staging
from mmload.errors import BuildError
from mmload.runtime.files import exchange, folder_lock
from mmload.store.manifest import read


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Where a build of ``out`` works."""
    return tmp_path / ".out.building"


def names_in(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


@pytest.mark.parametrize("name", ["plan.json", "notes/thesis.tex", "dataset/thesis.tex", "thesis.tex", "lock"])
def test_a_folder_of_somebody_elses_is_not_worked_in(source: Path, tmp_path: Path, folder: Path, name: str) -> None:
    (folder / name).parent.mkdir(parents=True)
    (folder / name).write_text("years of work")
    for overwrite in (False, True):
        with pytest.raises(BuildError, match="a build works there: rename it, or remove it"):
            build(recipe(source, tmp_path / "out"), overwrite=overwrite)
    assert contents(folder) == {name: b"years of work"}


@pytest.mark.parametrize(
    ("link", "is_marked", "message"),
    [
        (".", False, "is a link; a build works there"),
        ("dataset", False, "holds dataset, which no build made"),
        ("lock", False, "holds lock, which no build made"),
        ("dataset", True, "holds dataset, which no build made"),
        (None, False, "is a file; a build works there"),
    ],
)
def test_a_link_is_not_worked_in(
    source: Path, tmp_path: Path, folder: Path, link: str | None, is_marked: bool, message: str
) -> None:
    (tmp_path / "elsewhere").mkdir()
    (folder / (link or ".")).parent.mkdir(exist_ok=True)
    if link is None:
        folder.write_text("a file")
    else:
        (folder / link).symlink_to(tmp_path / "elsewhere")
    if is_marked:
        (folder / "lock").write_bytes(MARK)
    with pytest.raises(BuildError, match=message):
        build(recipe(source, tmp_path / "out"))
    assert names_in(tmp_path / "elsewhere") == []


@pytest.mark.parametrize("part", [None, "1/1"])
def test_empty_folders_and_one_with_half_a_mark_are_taken_away(source: Path, tmp_path: Path, part: str | None) -> None:
    """A kill leaves such folders beside the working folder, where one is created or removed."""
    for name in (".out.building.0123456789abcdef.partial", ".out.building.0123456789abcde0.partial"):
        (tmp_path / name).mkdir()
    (tmp_path / name / "lock").write_bytes(MARK[:9])
    asked = recipe(source, tmp_path / "out")
    assert (build(asked) if part is None else build_part(asked, part)).built == 15
    assert names_in(tmp_path) == ["out", "photos"]


@pytest.mark.parametrize(
    ("found", "done"),
    [
        ("nothing", {"alone": "builds", "overwrite": "builds", "part": "builds"}),
        ("no plan", {"alone": "builds", "overwrite": "builds", "part": "builds"}),
        ("own", {"alone": "resumes", "overwrite": "resumes", "part": "resumes"}),
        ("empty", {"alone": "builds", "overwrite": "builds", "part": "refuses"}),
        ("other", {"alone": "refuses", "overwrite": "builds", "part": "refuses"}),
    ],
)
@pytest.mark.parametrize("wanted", ["alone", "overwrite", "part"])
def test_staging_goes_on_with_discards_or_refuses_what_it_finds(
    source: Path, tmp_path: Path, found: str, done: dict[str, str], wanted: str
) -> None:
    out = (tmp_path / "out").resolve()
    if found in ("own", "other"):
        interrupted(build, recipe(source, out, **({} if found == "own" else {"transforms": square(24)})), after=8)
    elif found == "empty":
        with Staging(out, {"recipe": {}, "fingerprint": "", "versions": {}}):
            pass
    elif found == "no plan":
        (tmp_path / ".out.building").mkdir()
        (tmp_path / ".out.building" / "lock").write_bytes(MARK)
    run = {
        "alone": build,
        "overwrite": lambda asked: build(asked, overwrite=True),
        "part": lambda asked: build_part(asked, "1/1"),
    }[wanted]
    if done[wanted] == "refuses":
        with pytest.raises(BuildError, match="holds an unfinished build"):
            run(recipe(source, out))
    else:
        built = run(recipe(source, out)).built
        assert 0 < built < 15 if done[wanted] == "resumes" else built == 15
        assert names_in(tmp_path) == ["out", "photos"]


def test_the_lock_of_a_folder_is_of_the_one_that_has_the_name(out: Path, tmp_path: Path) -> None:
    with folder_lock(out):
        assert out.is_dir()
    with pytest.raises(FileNotFoundError), folder_lock(tmp_path / "nowhere"):
        pass


@pytest.mark.slow
@pytest.mark.skipif(sys.platform not in ("linux", "darwin"), reason="the system cannot exchange folders")
def test_a_reader_sees_a_dataset_at_every_moment_of_an_overwrite(out: Path, folder: Path) -> None:
    old, goes_on = read(out), [True]

    def looked() -> Counter[str]:
        seen = Counter[str]()
        while goes_on:
            seen[read(out).fingerprint] += 1
        return seen

    with ThreadPoolExecutor(1) as pool:
        reader = pool.submit(looked)
        try:
            for number in range(40):
                with Staging(out) as staging:
                    shutil.copytree(out, staging.paths.dataset)
                    new = structs.replace(old, fingerprint=str(number))
                    staging.commit(new, replaces=read(out).contents)
        finally:
            goes_on.clear()
        assert len(reader.result()) > 1
    assert not folder.exists()


@pytest.mark.parametrize("atomic", [True, False])
@pytest.mark.parametrize("step", range(8))
def test_a_kill_at_any_step_of_a_swap_is_recovered(
    source: Path, out: Path, monkeypatch: pytest.MonkeyPatch, step: int, atomic: bool
) -> None:
    build(recipe(source, out.parent / "new", shard_bytes=9000))
    old, new = contents(out), contents(out.parent / "new")
    left = step

    def doomed(call: Callable[..., Any]) -> Callable[..., Any]:
        def run(*words: Any) -> Any:
            nonlocal left
            if not left:
                raise KeyboardInterrupt
            left -= 1
            return call(*words)

        return run

    with monkeypatch.context() as patch, suppress(KeyboardInterrupt):
        for name in ("dataset_at", "folder_lock", "remove", "write_atomically"):
            patch.setattr(staging_module, name, doomed(getattr(staging_module, name)))
        patch.setattr(staging_module, "exchange", doomed(exchange if atomic else lambda one, other: False))
        patch.setattr(Path, "rename", doomed(Path.rename))
        with Staging(out) as staging:
            shutil.copytree(out.parent / "new", staging.paths.dataset)
            staging.commit(read(out.parent / "new"), replaces=read(out).contents)
    if atomic or out.exists():
        assert contents(out) in (old, new)
    build(recipe(source, out, shard_bytes=9000), overwrite=out.exists() and contents(out) == old)
    assert contents(out) == new
    assert names_in(out.parent) == ["new", "out", "photos"]


def test_a_folder_that_another_command_removes_meanwhile_is_made_again(
    tmp_path: Path, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks = iter([True])  # it was there at the first look
    monkeypatch.setattr(staging_module.os.path, "lexists", lambda path: next(looks, False))
    with Staging(tmp_path / "out") as staging:
        assert (folder / "lock").read_bytes() == MARK
        staging.discard()
    assert not folder.exists()


def test_a_folder_that_is_being_made_is_renamed_before_it_is_removed(
    tmp_path: Path, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So the command that makes it finds no place to write to, in place of a folder that lacks some files."""
    new, seen = folder.with_name(f"{folder.name}.{'0' * 16}.partial"), list[bool]()
    new.mkdir()
    (new / "lock").write_bytes(MARK)
    once(monkeypatch, staging_module.shutil, "rmtree", before=lambda: seen.append(new.exists()))
    staging_module.remove_set_aside(folder)
    assert seen == [False]
    assert names_in(tmp_path) == []
