"""Does a folder full of what is no image get more than a line out of a build, or make it wait?"""

from __future__ import annotations

import io
import os
import shutil
import socket
import threading
import time
import zipfile
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from PIL import Image
from torture_builds import DifferenceError, make_source
from torture_strangers import Answer, Watch, check_line, command

DEEP = 60  # folders in each other
EPS = "%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n({}) (w) file closefile showpage\n"
CANARY = "written-by-postscript"  # beside the source of an attack


def fifo(root: Path) -> None:
    """Makes a FIFO with the name of an image."""
    os.mkfifo(root / "a.jpg")


def bound_socket(root: Path) -> None:
    """Makes a socket."""
    here = os.getcwd()
    os.chdir(root)  # its name may be no longer than 108 bytes
    with socket.socket(socket.AF_UNIX) as made:
        made.bind("a.jpg")
    os.chdir(here)


def device(root: Path) -> None:
    """Makes a link to a device that never ends, which leads out of the source."""
    (root / "a.jpg").symlink_to("/dev/zero")


def loops(root: Path) -> None:
    """Links that lead to themselves and to the folders above."""
    (root / "self.jpg").symlink_to("self.jpg")
    (root / "up").symlink_to("..")
    (root / "round").symlink_to(root)


def deep(root: Path) -> None:
    """Folders in each other."""
    place = root
    for _ in range(DEEP):
        place /= "d"
    place.mkdir(parents=True)
    Image.new("RGB", (9, 9)).save(place / "a.png")


def odd_names(root: Path) -> None:
    """Names with line ends, quotes, backslashes, control characters, bytes that are no text, and very long ones."""
    content = io.BytesIO()
    Image.new("RGB", (9, 9)).save(content, "png")
    for name in (
        b"a\nb.png",
        b"'\".png",
        b"a\\b.png",
        b"\x1b[31m.png",
        b"\xff\xfe.png",
        b"x" * 250 + b".png",
        b"-a.png",
        b" .png",
    ):
        with suppress(OSError):
            Path(os.fsdecode(os.fsencode(root) + b"/" + name)).write_bytes(content.getvalue())


def programs(root: Path) -> None:
    """Writes PostScript as a JPEG, and other files that are not what their names say."""
    (root / "a.jpg").write_text(EPS.format(root.parents[2] / CANARY))
    (root / "b.png").write_bytes(b"GIF89a")
    (root / "c.jpg").write_bytes(b"\xff\xd8\xff" + bytes(99))
    (root / "d.png").write_bytes(b"")


def bomb(root: Path) -> None:
    """Writes a picture of 60,000 x 60,000 pixels in a few bytes, and a .pt that unpacks to 64 MiB."""
    with zipfile.ZipFile(root / "a.pt", "w", zipfile.ZIP_DEFLATED) as file, file.open("a/data.pkl", "w") as part:
        for _ in range(64):
            part.write(bytes(2**20))
    body = io.BytesIO()
    Image.new("1", (9, 9)).save(body, "png")
    data = bytearray(body.getvalue())
    data[16:24] = (60_000).to_bytes(4, "big") * 2
    (root / "a.png").write_bytes(bytes(data))


TREES: dict[str, Callable[[Path], None]] = {
    each.__name__: each for each in (fifo, bound_socket, device, loops, deep, odd_names, programs, bomb)
}


SKIPPED = ("fifo", "bound_socket", "odd_names", "programs", "bomb")
"""Trees of which a build with --on-error skip must come to its end."""


def torture(folder: Path, seconds: float) -> str:
    """Builds of all trees, then of folders that vanish, for some seconds; what was done, in words.

    Raises:
        DifferenceError: at the first answer that is not a build or one line.
    """
    watch, codes = Watch(), Counter[int]()
    for name, spoil in TREES.items():
        source = make_source(folder / name, 12)
        spoil(source / "train" / "class0")
        codes[built(watch, source, folder / "out", []).code] += 1
        answer = built(watch, source, folder / "out", ["--on-error", "skip"])
        if answer.code and name in SKIPPED:
            raise DifferenceError(f"{name}: --on-error skip did not skip it: {answer.err}")
        codes[answer.code] += 1
    codes[masks(watch, folder).code] += 1
    rounds, until = 0, time.monotonic() + seconds
    while not rounds or time.monotonic() < until:
        codes[vanishing(watch, folder).code] += 1
        rounds += 1
    return f"{len(TREES)} kinds of trees, {rounds} that vanished: {codes[0]} built, {codes[1] + codes[2]} one line"


def built(watch: Watch, source: Path, out: Path, more: list[str], kind: str = "imagefolder") -> Answer:
    """Builds a tree, checks the answer and returns it.

    Raises:
        DifferenceError: if it is not a build or one line, or anything was started.
    """
    words: list[object] = ["build", kind, source, out, "--size", 16, "--threads", 2, *more]
    watch.on = True
    answer = command(words)
    watch.on = False
    check_line(words, answer, (0, 1, 2))
    if watch.seen:
        raise DifferenceError(f"a build of {source.name}: {watch.seen}")
    if (source.parent / CANARY).exists():
        raise DifferenceError(f"a build of {source.name} ran the PostScript in a.jpg")
    for path in (out, out.parent / f".{out.name}.building"):
        shutil.rmtree(path, ignore_errors=True)
    return answer


def masks(watch: Watch, folder: Path) -> Answer:
    """Builds a VOC devkit whose mask has another size than its image, which must be refused."""
    home = folder / "devkit" / "VOC2012"
    for name in ("JPEGImages", "Annotations", "SegmentationClass", "ImageSets/Segmentation"):
        (home / name).mkdir(parents=True)
    Image.new("RGB", (20, 16)).save(home / "JPEGImages" / "a.jpg")
    Image.new("P", (16, 20)).save(home / "SegmentationClass" / "a.png")
    (home / "ImageSets" / "Segmentation" / "train.txt").write_text("a\n")
    answer = built(watch, folder / "devkit", folder / "out", ["--task", "segmentation"], "voc")
    if not answer.code:
        raise DifferenceError("a mask of another size than its image was built")
    return answer


def vanishing(watch: Watch, folder: Path) -> Answer:
    """Builds a source whose class folders are removed meanwhile."""
    source = folder / "vanishing"
    shutil.rmtree(source, ignore_errors=True)
    make_source(source, 60)
    thread = threading.Timer(0.05, lambda: [shutil.rmtree(path, True) for path in sorted(source.glob("*/class*"))])
    thread.start()
    try:
        return built(watch, source, folder / "out", [])
    finally:
        thread.join()
