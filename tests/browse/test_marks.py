"""Marks of ``mmload browse``: saved before they are shown, kept beside what others wrote, taken by ``build``."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest
from browsing import browsed
from building import recipe
from conftest import make_folder

from mmload.browse.marks import Marks
from mmload.builder.pipeline import build
from mmload.errors import MmloadError
from mmload.runtime import durable_files
from mmload.store.dataset import open as open_dataset
from mmload.store.exclusion_list import read_entries

ODD = ("line\nend.png", "tab\there.png", "# comment.png", "<b onclick=x>&amp;.png", "\udcff.png")


def test_marks_are_lines_of_a_list_that_stay_where_they_are(tmp_path: Path) -> None:
    marks = Marks(tmp_path / "m.txt", Path("photos"))
    assert len(marks) == 0
    assert not (tmp_path / "m.txt").exists()
    marks.set("a/1.png", "train", "broken", alone=True)
    marks.set("a/2.png", "train", "wrong label", alone=False)
    marks.set("a/3.png", "val", "other", alone=True)
    marks.set("a/1.png", "train", "duplicate", alone=True)
    lines = (tmp_path / "m.txt").read_text().splitlines()
    assert lines[0].startswith("# Marked in photos; mmload build ... --exclude")
    assert lines[1:] == ["a/1.png\tduplicate", "a/2.png\twrong label\ttrain", "a/3.png\tother"]
    assert [marks.reason("a/2.png", split) for split in ("train", "val")] == ["wrong label", None]
    marks.set("a/1.png", "train", None, alone=True)
    assert (tmp_path / "m.txt").read_text().splitlines()[1:] == lines[2:]
    again = Marks(tmp_path / "m.txt", Path("photos"))
    assert len(again) == 2
    assert again.reason("a/3.png", "val") == "other"


def test_comments_and_lines_of_others_stay_and_changes_are_seen(tmp_path: Path) -> None:
    file = tmp_path / "m.txt"
    file.write_bytes("\ufeff# mine\r\n\r\na/1.png\r\na/1.png\tagain\r\n".encode() + b"b/\xff.png\tbytes")
    marks = Marks(file, Path("photos"))
    assert marks.reason("a/1.png", "train") == "again"
    assert marks.reason("b/\udcff.png", "train") == "bytes"
    marks.set("a/1.png", "train", None, alone=True)
    assert [line.rstrip() for line in file.read_text().splitlines()] == ["# mine", "", "b/\\udcff.png\tbytes"]
    file.write_text("c/1.png\tby hand\n")
    assert marks.reason("c/1.png", "train") == "by hand"
    marks.set("c/2.png", "train", "other", alone=True)
    assert file.read_text() == "c/1.png\tby hand\nc/2.png\tother\n"
    file.unlink()
    assert len(marks) == 0
    assert marks.reason("c/1.png", "train") is None


def test_a_mark_that_cannot_be_saved_is_not_shown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    marks = Marks(tmp_path / "m.txt", Path("photos"))
    marks.set("a/1.png", "train", "broken", alone=True)

    def full(file: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(durable_files, "sync", full)
    with pytest.raises(MmloadError, match=r"\(No space left on device\); nothing was saved"):
        marks.set("a/2.png", "train", "broken", alone=True)
    assert marks.reason("a/2.png", "train") is None
    assert [entry.name for entry in read_entries(tmp_path / "m.txt")] == ["a/1.png"]
    assert [path.name for path in tmp_path.iterdir()] == ["m.txt"]


def test_a_kill_loses_nothing_that_was_answered(tmp_path: Path) -> None:
    program = f"""
import os, signal
from pathlib import Path
from mmload.browse.marks import Marks
marks = Marks(Path({str(tmp_path / "m.txt")!r}), Path("photos"))
for number in range(50):
    marks.set(f"a/{{number}}.png", "train", "broken", alone=True)
    print(number, flush=True)
    if number == 20:
        os.kill(os.getpid(), signal.SIGKILL)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == -signal.SIGKILL
    saved = [entry.name for entry in read_entries(tmp_path / "m.txt")]
    assert saved == [f"a/{number}.png" for number in range(21)]


def test_what_is_marked_in_the_page_is_left_out_by_a_build(tmp_path: Path) -> None:
    photos = tmp_path / "photos"
    for split in ("train", "val"):
        make_folder(photos / split, 3, ("a", "# b"))
        for name in ODD:
            (photos / split / "# b" / name).write_bytes((photos / split / "a" / "00.png").read_bytes())
    build(recipe(photos, tmp_path / "out"))
    marks = tmp_path / "out.excluded.txt"
    with browsed(tmp_path / "out", marks) as page:
        rows = page.get("api/rows?split=train&count=50").json["rows"]
        chosen = [row for row in rows if Path(row["id"]).name in ODD or row["id"] == "train/a/01.png"]
        assert len(chosen) == 6
        for number, row in enumerate(chosen, 1):
            assert page.mark(row["row"], "broken").json == {"mark": "broken", "marked": number}
        assert page.mark(chosen[0]["row"], None).json == {"mark": None, "marked": 5}
        shown = page.get("api/rows?split=train&marked").json
        assert page.get(f"api/row?split=train&row={chosen[1]['row']}").json["mark"] == "broken"
        assert page.get("api/rows?split=val&marked").json["total"] == 0
        for wrong in ({"split": "none"}, {"reason": "<b>"}):
            assert page.mark(0, **{"reason": "broken", **wrong}).status == 400
        assert page.mark(10**6, "broken").status == 400
    assert [row["id"] for row in shown["rows"]] == [row["id"] for row in chosen[1:]]
    build(recipe(photos, tmp_path / "new"), exclude=marks)
    kept = [source.id for source in open_dataset(tmp_path / "new")["train"].source(slice(None))]
    gone = {row["id"] for row in chosen[1:]}
    assert kept == [row["id"] for row in rows if row["id"] not in gone]
    assert len(open_dataset(tmp_path / "new")["val"]) == len(open_dataset(tmp_path / "out")["val"])
