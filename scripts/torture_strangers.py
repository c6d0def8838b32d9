"""Does a dataset from a stranger, or a spoiled recipe, get more than a line out of mmload?

Commands run in this process, watched by an audit hook: to connect, to start a program or to import the canary is a
failure, and so is whatever is not one line and exit code 1 or 2.
"""

from __future__ import annotations

import contextlib
import faulthandler
import io
import json
import random
import re
import shutil
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any, NamedTuple

from torture_builds import DifferenceError, make_source, recipe

from mmload.builder.pipeline import build
from mmload.cli.app import main
from mmload.store.manifest import sealed_text

CANARY = "torture_canary_module"
FORBIDDEN = ("socket.connect", "socket.getaddrinfo", "subprocess.Popen", "os.system", "os.posix_spawn", "os.exec")
PATIENCE = 60.0  # seconds that a command may take, before this ends with where it hangs
CONFIGS = Path(__file__).resolve().parents[1] / "configs"


class Answer(NamedTuple):
    """What a command said."""

    code: int
    out: str
    err: str


class Watch:
    """An audit hook that notes forbidden events while it is on; a hook cannot be removed."""

    def __init__(self) -> None:
        self.on, self.seen = False, list[str]()
        sys.addaudithook(self)

    def __call__(self, event: str, args: tuple[object, ...]) -> None:
        """Notes an event, and stops what it would do."""
        if self.on and (event in FORBIDDEN or (event == "import" and args[0] == CANARY)):
            self.seen.append(f"{event} {args[:1]}")
            raise PermissionError(f"torture forbids {event}")


def command(words: list[object]) -> Answer:
    """Runs a command here. What hangs ends this program with the stack of every thread."""
    out, err = io.StringIO(), io.StringIO()
    before, sys.argv = sys.argv, ["mmload", *map(str, words)]
    faulthandler.dump_traceback_later(PATIENCE, exit=True)
    try:
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            main()
        code = 0
    except SystemExit as left:
        code = left.code if isinstance(left.code, int) else int(left.code is not None)
    except BaseException as error:
        raise DifferenceError(f"mmload {shown(words)}: {type(error).__name__}: {error}") from error
    finally:
        faulthandler.cancel_dump_traceback_later()
        sys.argv = before
    return Answer(code, out.getvalue(), err.getvalue())


def check_line(words: list[object], answer: Answer, codes: tuple[int, ...]) -> None:
    """Checks that an answer has one of these codes, and a failure is one line.

    Raises:
        DifferenceError: if it is not.
    """
    notes = re.compile("mmload: (writes|.* are enlarged to --size) ")
    said = [line for line in answer.err.splitlines() if not notes.match(line)]
    line = len(said) == 1 and said[0].startswith("mmload: ") and "a bug in mmload" not in answer.err
    if answer.code not in codes or (answer.code and not line):
        raise DifferenceError(f"mmload {shown(words)}: exit code {answer.code}, said: {answer.err[-600:]!r}")


def shown(words: list[object]) -> str:
    """Formats a command's words."""
    return " ".join(map(str, words))


def manifests(folder: Path) -> str:
    """Datasets that ask for more than they may; what was done, in words.

    Raises:
        DifferenceError: if one of them gets it, or an answer is not one line.
    """
    source = make_source(folder / "photos", 12)
    build(recipe(source, folder / "whole"), threads=1)
    canary = folder / f"{CANARY}.py"
    canary.write_text("import pathlib\npathlib.Path(__file__).with_suffix('.ran').touch()\nrows = [(0, 0)]\n")
    (source / canary.name).write_text(canary.read_text())
    watch, count, named = Watch(), 0, 0
    for asked in wishes(folder):
        for name, *more in (("verify",), ("verify", "--repair"), ("parity",)):
            out = folder / "asking"
            shutil.copytree(folder / "whole", out)
            ask(out, asked)
            words: list[object] = [name, out, *more, "--source", source]
            watch.on = True
            answer = command(words)
            watch.on = False
            check_line(words, answer, (1, 2))
            ran = [path.name for path in folder.rglob("*.ran")]
            if watch.seen or ran or CANARY in sys.modules:
                raise DifferenceError(f"mmload {name} of a dataset that asks {asked}: {[*watch.seen, *ran]}")
            shutil.rmtree(out)
            count += 1
            named += "--trust" in answer.err
    if not named:
        raise DifferenceError("no command named --trust: the datasets were refused for something else")
    return f"{count} commands over datasets that ask for more than they may: nothing ran, {named} named --trust"


def wishes(folder: Path) -> list[dict[str, Any]]:
    """Returns what a dataset's recipe may ask for and must not get."""
    return [
        {"kind": "python", "dataset": f"{CANARY}:rows"},
        {"kind": "python", "dataset": f"{CANARY}:rows", "splits": {"train": {}}},
        {"kind": CANARY},
        {"kind": "cifar10", "download": True},
        {"kind": "voc", "download": True, "year": "2012"},
        {"kind": "voc", "download": 1},
        {"kind": "list", "file": "/etc/passwd", "allow_outside": True},
        {"kind": "list", "file": "../whole/dataset.json"},
        {"kind": "imagefolder", "root": str(folder), "download": True},
        {"kind": ["python"], "dataset": f"{CANARY}:rows"},
        {"kind": "PYTHON", "dataset": f"{CANARY}:rows"},
        {},
    ]


def ask(dataset: Path, source: dict[str, Any]) -> None:
    """Makes a dataset's recipe ask for this, with damage that repair would fix."""
    body = json.loads((dataset / "dataset.json").read_text())
    body["recipe"]["source"] = source
    (dataset / "dataset.json").write_text(sealed_text(body))  # with the checksum of what it says now
    (dataset / "train" / "samples.jsonl").write_text("")


def links(folder: Path) -> str:
    """Datasets of which a folder is a link to that of another dataset; what was done, in words.

    Raises:
        DifferenceError: if a command changes the other dataset, or an answer is not one line.
    """
    source = make_source(folder / "photos", 12)
    good, evil = folder / "good", folder / "evil"
    build(recipe(source, good), threads=1)
    (folder / "rows.txt").write_text("0\n1\n")
    for more in (["--split", "train", "--rows", folder / "rows.txt"], ["--remove"]):
        words: list[object] = ["subset", good, "few", *more]
        check_line(words, command(words), (0,))
    sorted(source.rglob("*.jpg"))[0].unlink()
    before = {path: path.read_bytes() for path in good.rglob("*") if path.is_file()}
    refused = Counter[str]()
    for link in ("train", "versions", "train/000000"):
        for words in (
            ["gc", evil],
            ["gc", evil, "--compact"],
            ["update", evil, source],
            ["subset", evil, "few", "--split", "train", "--rows", folder / "rows.txt"],
            ["verify", evil, "--repair", "--source", source],
            ["verify", evil],
        ):
            shutil.copytree(good, evil)
            shutil.rmtree(evil / link)
            (evil / link).symlink_to(good / link)
            answer = command(words)
            check_line(words, answer, (0, 1, 2))
            refused["is a link"] += "is a link" in answer.err
            if {path: path.read_bytes() for path in good.rglob("*") if path.is_file()} != before:
                raise DifferenceError(f"mmload {shown(words)} changed what {link} leads to")
            shutil.rmtree(evil)
            shutil.rmtree(folder / ".evil.building", ignore_errors=True)
    if not refused["is a link"]:
        raise DifferenceError("no command named a link")
    return f"3 links, 6 commands each: nothing behind them changed, {refused['is a link']} named the link"


VALUES = ("nan", "-1", "0", "1e400", "99999999999999999999", "true", "''", '"\\u0000"', "[]", "[[[[]]]]", "{}",
          "1979-05-27", '"../../x"', '"/dev/zero"', '"\\n"', "inf", "-inf",
          "0x7fffffffffffffff", '"nearest"', "[1, 'a', {}]", '"1e9GiB"')  # fmt: skip


def spoiled(text: str, draw: random.Random) -> bytes:
    """Returns a recipe with a few random changes."""
    for _ in range(draw.randint(1, 3)):
        lines = text.split("\n")
        at = draw.randrange(len(lines))
        kind = draw.randrange(6)
        if kind == 0 and "=" in lines[at]:
            lines[at] = f"{lines[at].split('=')[0]}= {draw.choice(VALUES)}"
        elif kind == 1:
            lines[at] = ""
        elif kind == 2:
            lines.insert(at, draw.choice(lines))
        elif kind == 3:
            lines.insert(
                at, draw.choice(["[", "x = 1", "[decode]", "[[transforms]]", "[[store]]", "[x.y]", 'step = "Pad"'])
            )
        elif lines[at]:
            place = draw.randrange(len(lines[at]))
            lines[at] = (
                lines[at][:place] + chr(draw.choice([0, 9, 34, 46, 61, 91, 93, 955, 120])) + lines[at][place + 1 :]
            )
        text = "\n".join(lines)
    body = text.encode()
    return body[: draw.randrange(len(body))] if draw.random() < 0.05 else body


def recipes(folder: Path, seconds: float, seed: int) -> str:
    """Builds by spoiled recipes for some seconds; what was done, in words.

    Raises:
        DifferenceError: at the first answer that is not a build or one line.
    """
    source = make_source(folder / "photos", 12)
    (source / "labels.csv").write_text("path,label\ntrain/class0/0000.jpg,a\n")
    texts = [path.read_text() for path in sorted(CONFIGS.glob("*.toml")) if path.stem != "python"]
    draw, codes, until = random.Random(seed), Counter[int](), time.monotonic() + seconds
    watch = Watch()
    file, out = folder / "recipe.toml", folder / "out"
    while time.monotonic() < until:
        file.write_bytes(spoiled(draw.choice(texts), draw))
        words: list[object] = ["build", "--config", file, source, out, "--threads", 1]
        watch.on = True
        answer = command(words)
        watch.on = False
        try:
            check_line(words, answer, (0, 1, 2))
        except DifferenceError as error:
            raise DifferenceError(f"{error}\nrecipe:\n{file.read_text(errors='replace')}") from error
        codes[answer.code] += 1
        for path in (out, out.parent / f".{out.name}.building"):
            shutil.rmtree(path, ignore_errors=True)
    return f"{codes.total()} spoiled recipes, {codes[0]} built, {codes[1] + codes[2]} refused in one line"
