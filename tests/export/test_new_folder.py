"""Half an export never looks whole, and an export touches nothing of others."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from conftest import complaint, contents, mmload

from mmload.errors import MmloadError
from mmload.export import new_folder as new_folder_module
from mmload.export.new_folder import new_folder


def test_the_folder_appears_at_the_end(tmp_path: Path) -> None:
    out = tmp_path / "deep" / "out"
    with new_folder(out) as folder:
        (folder / "a").write_text("whole")
        assert not out.exists()
    assert contents(out) == {"a": b"whole"}
    assert [*out.parent.iterdir()] == [out]


@pytest.mark.parametrize("error", [KeyboardInterrupt(), ValueError("no"), OSError(28, "No space left on device", "a")])
def test_new_folder_a_failure_leaves_nothing(error: BaseException, tmp_path: Path) -> None:
    out = tmp_path / "out"
    out.mkdir()
    kind = MmloadError if isinstance(error, OSError) else type(error)
    with pytest.raises(kind), new_folder(out) as folder:  # noqa: PT012  # the failure is inside
        (folder / "a").touch()
        raise error
    assert [*tmp_path.iterdir()] == [out]
    assert [*out.iterdir()] == []


def test_all_files_are_durable_before_the_folder_appears_and_it_is_after(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out, seen = tmp_path / "out", []
    monkeypatch.setattr(os, "sync", lambda: seen.append(("files", out.exists(), len(list(tmp_path.rglob("a"))))))
    monkeypatch.setattr(new_folder_module, "sync_folder", lambda folder: seen.append((folder.name, out.exists(), 1)))
    with new_folder(out) as folder:
        (folder / "a").touch()
    assert seen == [("files", False, 1), (tmp_path.name, True, 1)]


@pytest.mark.parametrize(
    ("place", "out", "code", "expected"),
    [
        ("copy", "full", 2, "full exists and is not an empty folder; choose another place, or remove it"),
        ("copy", "file", 2, "file exists and is not an empty folder; choose another place, or remove it"),
        ("copy", "copy/more", 2, "lies in the dataset"),
        ("copy", ".", 2, "is the working directory"),
        ("copy", "x" * 300, 1, "(File name too long); nothing was exported"),
        ("copy", "file/out", 1, "(File exists); nothing was exported"),
        ("full", "out", 1, "is not a finished dataset"),
    ],
)
def test_a_place_that_cannot_be_written_is_one_line_and_stays(
    place: str, out: str, code: int, expected: str, copy: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(copy.parent)
    Path("full").mkdir()
    Path("full/thesis.tex").write_text("years of work")
    Path("file").touch()
    before = contents(copy.parent)
    assert expected in complaint(mmload("export", place, out), code)
    assert contents(copy.parent) == before
