"""Marks of ``mmload browse``: saved before they are shown, kept beside what others wrote, taken by ``build``."""

from __future__ import annotations

import json
import signal
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from browsing import browsed
from building import recipe
from conftest import make_folder
from forked_program import MMLOAD, Program, run_program
from picture_folders import ODD_NAMES

from mmload.builder.pipeline import build
from mmload.errors import MmloadError
from mmload.remote.opening import open as open_dataset
from mmload.runtime import files
from mmload.sources.listed_split import read_entries
from mmload.view.marks import Marks

ROWS = 100


@pytest.fixture(scope="module")
def hundred(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A dataset of 100 rows."""
    place = tmp_path_factory.mktemp("hundred")
    make_folder(place / "photos" / "train", ROWS // 2, ("a", "b"))
    build(recipe(place / "photos", place / "out"))
    return place / "out"


def test_marks_are_lines_of_a_list_that_stay_where_they_are(tmp_path: Path) -> None:
    marks = Marks(tmp_path / "m.txt", Path("photos"))
    assert not (tmp_path / "m.txt").exists()
    marks.set("a/1.png", "train", "broken", alone=True)
    marks.set("a/2.png", "train", "wrong label", alone=False)
    marks.set("a/3.png", "val", "other", alone=True)
    marks.set("a/1.png", "train", "duplicate", alone=True)
    lines = (tmp_path / "m.txt").read_text().splitlines()
    assert lines[0].startswith("# Marked in photos; mmload build ... --exclude")
    assert lines[1:] == ["a/1.png\tduplicate", "a/2.png\twrong label\ttrain", "a/3.png\tother"]
    assert [marks.current().reason("a/2.png", split) for split in ("train", "val")] == ["wrong label", None]
    marks.set("a/1.png", "train", None, alone=True)
    assert (tmp_path / "m.txt").read_text().splitlines()[1:] == lines[2:]
    assert Marks(tmp_path / "m.txt", Path("photos")).current().reason("a/3.png", "val") == "other"


def test_marks_edited_by_others_keeps_their_lines_and_rereads(tmp_path: Path) -> None:
    file = tmp_path / "m.txt"
    file.write_bytes("\ufeff# mine\r\n\r\na/1.png\r\na/1.png\tagain\r\n".encode() + b"b/\xff.png\tbytes")
    marks = Marks(file, Path("photos"))
    assert marks.current().reason("a/1.png", "train") == "again"
    assert marks.current().reason("b/\udcff.png", "train") == "bytes"
    marks.set("a/1.png", "train", None, alone=True)
    assert [line.rstrip() for line in file.read_text().splitlines()] == ["# mine", "", "b/\\udcff.png\tbytes"]
    file.write_text("c/1.png\tby hand\n")
    assert marks.current().reason("c/1.png", "train") == "by hand"
    marks.set("c/2.png", "train", "other", alone=True)
    assert file.read_text() == "c/1.png\tby hand\nc/2.png\tother\n"
    file.unlink()
    assert len(marks.current()) == 0


def test_a_mark_that_cannot_be_saved_is_not_shown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    marks = Marks(tmp_path / "m.txt", Path("photos"))
    marks.set("a/1.png", "train", "broken", alone=True)

    def full(file: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(files, "sync", full)
    with pytest.raises(MmloadError, match=r"\(No space left on device\); nothing was saved"):
        marks.set("a/2.png", "train", "broken", alone=True)
    assert marks.current().reason("a/2.png", "train") is None
    assert [entry.name for entry in read_entries(tmp_path / "m.txt")] == ["a/1.png"]
    assert sorted(path.name for path in tmp_path.iterdir()) == [".m.txt.lock", "m.txt"]


def test_a_list_that_cannot_be_read_is_an_error_and_stays(tmp_path: Path) -> None:
    file = tmp_path / "m.txt"
    marks = Marks(file, Path("photos"))
    file.symlink_to(file.name)  # to itself
    for act in (marks.current, lambda: marks.set("a/new.png", "train", "broken", alone=True)):
        with pytest.raises(MmloadError, match=rf"cannot read {file} \(Too many levels of symbolic links\)"):
            act()
    assert file.is_symlink()


def test_a_file_that_another_process_keeps_locked_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    marks = Marks(tmp_path / "m.txt", Path("photos"))
    monkeypatch.setattr(files, "LOCK_WAIT_S", 0.0)
    with (
        files.file_lock(tmp_path / ".m.txt.lock"),
        pytest.raises(MmloadError, match=r"another process holds .*\.m\.txt\.lock, .*; nothing was saved"),
    ):
        marks.set("a/1.png", "train", "broken", alone=True)
    assert not (tmp_path / "m.txt").exists()


@pytest.mark.parametrize("there", [True, False])
def test_a_link_stays_and_its_target_is_written(tmp_path: Path, there: bool) -> None:
    (tmp_path / "real").mkdir()
    target, link = tmp_path / "real" / "target.txt", tmp_path / "m.txt"
    if there:
        target.write_text("a/1.png\n")
    link.symlink_to("real/target.txt")
    marks = Marks(link, Path("photos"))
    marks.set("a/2.png", "train", "broken", alone=True)
    assert link.is_symlink()
    assert [entry.name for entry in read_entries(target)] == ["a/1.png"] * there + ["a/2.png"]
    Marks(target, Path("photos")).set("a/3.png", "train", "broken", alone=True)
    assert len(marks.current()) == 2 + there


def test_two_servers_of_a_dataset_lose_no_mark(hundred: Path, tmp_path: Path) -> None:
    words = ["browse", hundred, "--no-open", "--marks", tmp_path / "m.txt"]
    with ExitStack() as stack:
        servers = [Program(MMLOAD, words) for _ in range(2)]
        for server in servers:
            stack.callback(server.ended)
            stack.callback(server.send_signal, signal.SIGKILL)
            server.wait_for("\n")
        addresses = [server.printed.splitlines()[0].split()[-1] for server in servers]
        with ThreadPoolExecutor(8) as pool:
            answers = list(pool.map(lambda row: marked(addresses[row % 2], row), range(ROWS)))
    assert [answer["mark"] for answer in answers] == ["broken"] * ROWS
    assert len({entry.name for entry in read_entries(tmp_path / "m.txt")}) == ROWS


def marked(address: str, row: int) -> Any:
    body = json.dumps({"split": "train", "row": row, "reason": "broken"}).encode()
    asked = urllib.request.Request(f"{address}api/marks", body, {"Content-Type": "application/json"})
    with urllib.request.urlopen(asked, timeout=60) as reply:
        return json.load(reply)


def test_a_kill_loses_nothing_that_was_answered(tmp_path: Path) -> None:
    program = f"""
import os, signal
from pathlib import Path
from mmload.view.marks import Marks
marks = Marks(Path({str(tmp_path / "m.txt")!r}), Path("photos"))
for number in range(50):
    marks.set(f"a/{{number}}.png", "train", "broken", alone=True)
    print(number, flush=True)
    if number == 20:
        os.kill(os.getpid(), signal.SIGKILL)
"""
    assert run_program(program).returncode == -signal.SIGKILL
    saved = [entry.name for entry in read_entries(tmp_path / "m.txt")]
    assert saved == [f"a/{number}.png" for number in range(21)]


def test_what_is_marked_in_the_page_is_left_out_by_a_build(tmp_path: Path) -> None:
    photos = tmp_path / "photos"
    for split in ("train", "val"):
        make_folder(photos / split, 3, ("a", "# b"))
        for name in ODD_NAMES:
            (photos / split / "# b" / name).write_bytes((photos / split / "a" / "00.png").read_bytes())
    build(recipe(photos, tmp_path / "out"))
    marks = tmp_path / "out.excluded.txt"
    with browsed(tmp_path / "out", marks) as page:
        rows = page.get("api/rows?split=train&count=50").json["rows"]
        chosen = [row for row in rows if Path(row["id"]).name in ODD_NAMES or row["id"] == "train/a/01.png"]
        assert len(chosen) == 8
        for number, row in enumerate(chosen, 1):
            assert page.mark(row["row"], "broken").json == {"mark": "broken", "marked": number}
        assert page.mark(chosen[0]["row"], None).json == {"mark": None, "marked": 7}
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


def test_what_a_killed_server_left_beside_the_marks_is_removed(tmp_path: Path) -> None:
    (tmp_path / f"m.txt.{'a' * 16}.partial").write_text("half")
    (tmp_path / "n.txt.partial").write_text("of another")
    Marks(tmp_path / "m.txt", Path("photos")).set("a/1.png", "train", "broken", alone=True)
    assert sorted(path.name for path in tmp_path.iterdir()) == [".m.txt.lock", "m.txt", "n.txt.partial"]
