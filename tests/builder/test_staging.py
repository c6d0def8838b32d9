"""The folder that a build works in: nobody else's files are touched, and at any moment there is a dataset to read."""

from __future__ import annotations

import shutil
import sys
import threading
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from building import recipe
from conftest import contents
from msgspec import structs

from mmload.builder import staging as staging_module
from mmload.builder.pipeline import build, build_part
from mmload.builder.recipe import square
from mmload.builder.staging import MARK, Staging
from mmload.errors import BuildError, UsageError
from mmload.runtime.durable_files import exchange, folder_lock
from mmload.store.manifest import read


def test_the_source_is_never_the_folder_that_the_build_works_in(source: Path, tmp_path: Path) -> None:
    staging = source.rename(tmp_path / ".sg.building")
    with pytest.raises(UsageError, match="where the build would write"):
        build(recipe(staging, tmp_path / "sg"))


@pytest.mark.parametrize("name", ["plan.json", "notes/thesis.tex", "dataset/thesis.tex", "thesis.tex", "lock"])
def test_a_folder_of_somebody_elses_is_not_worked_in(source: Path, tmp_path: Path, name: str) -> None:
    staging = tmp_path / ".out.building"
    (staging / name).parent.mkdir(parents=True)
    (staging / name).write_text("years of work")
    for overwrite in (False, True):
        with pytest.raises(BuildError, match="a build works there: rename it, or remove it"):
            build(recipe(source, tmp_path / "out"), overwrite=overwrite)
    assert contents(staging) == {name: b"years of work"}


def test_a_link_is_not_worked_in(source: Path, tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (tmp_path / ".out.building").symlink_to(elsewhere)
    with pytest.raises(BuildError, match="is a link; a build works there"):
        build(recipe(source, tmp_path / "out"))
    (tmp_path / ".out.building").unlink()
    (tmp_path / ".out.building").write_text("a file")
    with pytest.raises(BuildError, match="is a file; a build works there"):
        build(recipe(source, tmp_path / "out"))
    (tmp_path / ".out.building").unlink()
    for name in ("dataset", "lock"):
        (tmp_path / ".out.building").mkdir()
        (tmp_path / ".out.building" / name).symlink_to(elsewhere)
        with pytest.raises(BuildError, match=f"holds {name}, which no build made"):
            build(recipe(source, tmp_path / "out"))
        (tmp_path / ".out.building" / name).unlink()
        (tmp_path / ".out.building").rmdir()
    (tmp_path / ".out.building").mkdir()
    (tmp_path / ".out.building" / "lock").write_bytes(MARK)
    (tmp_path / ".out.building" / "dataset").symlink_to(elsewhere)
    with pytest.raises(BuildError, match="holds dataset, a link that no build made"):
        build(recipe(source, tmp_path / "out"))
    assert list(elsewhere.iterdir()) == []


@pytest.mark.parametrize("part", [None, "1/1"])
def test_empty_folders_and_one_with_half_a_mark_are_taken_away(source: Path, tmp_path: Path, part: str | None) -> None:
    """A kill leaves such folders beside the working folder, where one is created or removed."""
    for name in (".out.building.0123456789abcdef.partial", ".out.building.0123456789abcde0.partial"):
        (tmp_path / name).mkdir()
    (tmp_path / name / "lock").write_bytes(MARK[:9])
    asked = recipe(source, tmp_path / "out")
    assert (build(asked) if part is None else build_part(asked, part)).built == 15
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out", "photos"]


@pytest.mark.parametrize(
    ("found", "done"),
    [
        ("nothing", {"alone": 15, "overwrite": 15, "part": 15}),
        ("no plan", {"alone": 15, "overwrite": 15, "part": 15}),
        ("own", {"alone": "resumes", "overwrite": "resumes", "part": "resumes"}),
        ("empty", {"alone": 15, "overwrite": 15, "part": "refuses"}),
        ("other", {"alone": "refuses", "overwrite": 15, "part": "refuses"}),
    ],
)
@pytest.mark.parametrize("wanted", ["alone", "overwrite", "part"])
def test_staging_goes_on_with_discards_or_refuses_what_it_finds(
    source: Path, tmp_path: Path, found: str, done: dict[str, Any], wanted: str
) -> None:
    out = (tmp_path / "out").resolve()
    if found in ("own", "other"):
        interrupted(source, out, **({} if found == "own" else {"transforms": square(24)}))
    elif found == "empty":
        Staging(out, {"recipe": {}, "fingerprint": "", "versions": {}}).__exit__(None, None, None)
    elif found == "no plan":
        Staging(out).__exit__(None, None, None)
    asked = recipe(source, out)

    def run() -> int:
        return (
            build_part(asked, "1/1").built if wanted == "part" else build(asked, overwrite=wanted == "overwrite").built
        )

    if done[wanted] == "refuses":
        with pytest.raises(BuildError, match="holds an unfinished build"):
            run()
        return
    built = run()
    assert 0 < built < 15 if done[wanted] == "resumes" else built == done[wanted]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out", "photos"]


def interrupted(source: Path, out: Path, **more: Any) -> None:
    """A build that Ctrl-C ended: its folder stays."""

    def stop(done: int, total: int) -> None:
        if done > total // 2:  # some shards are finished
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        build(recipe(source, out, **more), threads=1, progress=stop)


def test_the_lock_of_a_folder_is_of_the_one_that_has_the_name(out: Path, tmp_path: Path) -> None:
    with folder_lock(out):
        assert out.is_dir()
    with pytest.raises(FileNotFoundError), folder_lock(tmp_path / "nowhere"):
        pass


@pytest.mark.slow
@pytest.mark.skipif(sys.platform not in ("linux", "darwin"), reason="the system cannot exchange folders")
def test_a_reader_sees_a_dataset_at_every_moment_of_an_overwrite(source: Path, out: Path) -> None:
    old, seen, failed = read(out), Counter[str](), []
    stop = threading.Event()

    def look() -> None:
        while not stop.is_set():
            try:
                seen[read(out).fingerprint] += 1
            except Exception as error:  # whatever it is, it is told below
                failed.append(error)
                return

    reader = threading.Thread(target=look)
    reader.start()
    try:
        for number in range(40):
            new = structs.replace(old, fingerprint=str(number))
            with Staging(out) as staging:
                shutil.copytree(out, staging.paths.dataset)
                staging.commit(new, replaces=read(out).contents)
    finally:
        stop.set()
        reader.join()
    assert failed == []
    assert len(seen) > 1
    assert not (out.parent / ".out.building").exists()


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
            patch.setattr(f"mmload.builder.staging.{name}", doomed(getattr(staging_module, name)))
        patch.setattr("mmload.builder.staging.exchange", doomed(exchange if atomic else lambda one, other: False))
        patch.setattr(Path, "rename", doomed(Path.rename))
        with Staging(out) as staging:
            shutil.copytree(out.parent / "new", staging.paths.dataset)
            staging.commit(read(out.parent / "new"), replaces=read(out).contents)
    if atomic or out.exists():
        assert contents(out) in (old, new)
    report = build(recipe(source, out, shard_bytes=9000), overwrite=contents(out) == old if out.exists() else False)
    assert report.foreign_files is None
    assert contents(out) == new
    assert sorted(path.name for path in out.parent.iterdir()) == ["new", "out", "photos"]


def test_nothing_is_built_in_a_folder_that_another_build_empties(source: Path, tmp_path: Path) -> None:
    with Staging(tmp_path / "out"):
        for name in ("dataset", "notes/x", "x"):
            with pytest.raises(UsageError, match="which another build empties"):
                build(recipe(source, tmp_path / ".out.building" / name))


def test_a_folder_that_another_command_removes_meanwhile_is_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / ".out.building"
    looks = iter([True])  # it was there at the first look
    monkeypatch.setattr(staging_module.os.path, "lexists", lambda path: next(looks, False))
    with Staging(tmp_path / "out") as staging:
        assert (folder / "lock").read_bytes() == MARK
        staging.discard()
    assert not folder.exists()


def test_a_folder_that_is_being_made_is_removed_whole_or_not_at_all(tmp_path, monkeypatch):
    folder, remove = tmp_path / ".o.building", staging_module.remove
    new = folder.with_name(f"{folder.name}.{'0' * 16}.partial")
    new.mkdir()
    (new / "lock").write_bytes(MARK)

    def while_another_makes_it(path):
        remove(path)
        with suppress(FileNotFoundError):
            (new / "dataset").mkdir()  # the command that makes the folder goes on, and is killed then

    with monkeypatch.context() as patch:
        patch.setattr(staging_module, "remove", while_another_makes_it)
        staging_module.remove_set_aside(folder)
    staging_module.remove_set_aside(folder)
    assert list(tmp_path.iterdir()) == []
