"""Writes the chosen rows of a dataset as PNGs into a new folder, with the recipe that builds the same rows again.

A format makes a :class:`PngExport`, checks the rows, and writes each of them, and its other files beside them.
"""

from __future__ import annotations

import io
import json
import shlex
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from PIL import Image

from mmload.errors import UsageError, choices
from mmload.export.chosen_rows import Choice, ExportRow, T, chosen_rows, map_rows
from mmload.export.new_folder import check_destination, new_folder
from mmload.pictures.drawing import color_of, png
from mmload.records import VOID, FieldSpec, Progress
from mmload.store.dataset import Dataset

CHANNELS = {1: "L", 2: "LA", 3: "RGB", 4: "RGBA"}
"""Pillow's mode of an image with so many channels."""

_LEVEL = 1  # of masks: a quarter of level 6's time

_COLORS = [(0, 0, 0), *(color_of(index) for index in range(1, VOID)), (255, 255, 255)]
_PALETTE = [level for color in _COLORS for level in color]
"""The background black, void white, each class in the color that contact sheets give it."""


def is_image(spec: FieldSpec | None) -> bool:
    """Returns whether a PNG can hold the values of a field as an image."""
    return spec is not None and spec.dtype == "uint8" and len(spec.shape) == 3 and spec.shape[0] in CHANNELS


def is_mask(spec: FieldSpec | None) -> bool:
    """Returns whether a PNG can hold the values of a field as a mask."""
    return spec is not None and spec.dtype == "uint8" and len(spec.shape) == 2


def png_of(image: npt.NDArray[Any]) -> bytes:
    """Encodes an image, uint8 [C, H, W] with 1 to 4 channels, as PNG: gray, gray and alpha, RGB, RGB and alpha."""
    return png(image.transpose(1, 2, 0))


def png_of_mask(mask: npt.NDArray[Any]) -> bytes:
    """Encodes a mask, uint8 [H, W], as PNG: a palette image whose indices are the classes."""
    image = Image.fromarray(np.ascontiguousarray(mask)).convert("L")
    image.putpalette(_PALETTE)
    file = io.BytesIO()
    image.save(file, "PNG", compress_level=_LEVEL)
    return file.getvalue()


@dataclass(frozen=True, kw_only=True)
class Exported:
    """Description of an export.

    Attributes:
        out: its folder.
        rows: number of rows.
        notes: notes on differences from the dataset, one sentence each.
        next: suggested next steps, lines of a shell or of Python.
    """

    out: Path
    rows: int
    notes: list[str] = field(default_factory=list)
    next: list[str] = field(default_factory=list)


class PngExport:
    """Export in the making.

    Attributes:
        chosen: the rows to export, split by split.
        names: names of these splits.
        place: absolute path of the destination.
        folder: folder to write into; it becomes the destination when it is complete.
        made: description of the export, to which a format adds notes and next steps.

    Raises:
        UsageError: if the destination is taken, or there are no such rows, or no images that a PNG can hold.
    """

    folder: Path

    def __init__(
        self,
        dataset: Dataset,
        out: str | Path,
        choice: Choice | None,
        threads: int | None,
        progress: Progress | None,
    ) -> None:
        self.place, self.chosen = check_destination(Path(out), dataset.path), chosen_rows(dataset, choice)
        self.names = [split.name for split, _ in self.chosen]
        self.made = Exported(out=Path(out), rows=sum(len(rows) for _, rows in self.chosen))
        self._threads, self._progress = threads, progress
        for split, _ in self.chosen:
            spec = split.fields.get("images")
            if not is_image(spec):
                found = choices(f"{name} {each}" for name, each in split.fields.items())
                raise UsageError(
                    f"split {split.name!r} of {split.path} has no uint8 images of 1 to 4 channels, as a PNG has; it "
                    f"has {found}; export to huggingface instead"
                )

    @contextmanager
    def writing(self, *folders: str) -> Iterator[None]:
        """Makes the folder with some folders in it; it appears at its place when the block ends without an error.

        Raises:
            MmloadError: if it cannot be written.
        """
        with new_folder(self.place) as self.folder:
            for name in folders:
                (self.folder / name).mkdir(parents=True, exist_ok=True)
            yield

    def results(self, write: Callable[[ExportRow], T]) -> Iterator[T]:
        """Returns what ``write`` returns for each row, in order; it runs on several threads."""
        return map_rows(self.chosen, write, threads=self._threads, progress=self._progress)

    def write_image(self, path: str, row: ExportRow) -> None:
        """Writes the image of a row to a path in the folder."""
        (self.folder / path).write_bytes(png_of(row.fields["images"]))

    def note_omitted(self, where: str, known: set[str]) -> None:
        """Notes the fields that have no place in a format."""
        omitted = sorted({name for split, _ in self.chosen for name in split.fields} - known)
        if omitted:
            self.made.notes.append(f"{where} has no place for {', '.join(omitted)}: left out")

    def write_recipe(self, name: str, source: Mapping[str, Any] | None, why_none: str) -> None:
        """Writes the recipe in TOML that builds the same rows again.

        There is none without a ``source``, or if images are neither all gray nor all RGB: a note says ``why_none``. If
        rows vary in size, it stores them so, as pixels: a JPEG would be encoded once more, which changes them.
        """
        modes = {CHANNELS[split.fields["images"].channels] for split, _ in self.chosen}
        if source is None or modes not in ({"RGB"}, {"L"}):
            self.made.notes.append(f"no {name}: {why_none}")
            return
        lines = [f"# The same rows again: mmload build --config {name} . NEW", "", "[source]"]
        lines += [f"{key} = {_toml(value)}" for key, value in source.items()]
        lines += ["", "[decode]", f"mode = {_toml(modes.pop())}"]
        if any(split.fields["images"].variable_size for split, _ in self.chosen):
            lines += ["", "[store]", 'layout = "variable"']
        (self.folder / name).write_text(without_surrogates("\n".join([*lines, ""])), encoding="utf-8")
        self.made.next.append(
            shlex.join(["mmload", "build", "--config", str(self.place / name), str(self.place), "NEW"])
        )


def check_installed(module: str, extra: str) -> None:
    """Raises UsageError if a package is not installed."""
    if find_spec(module) is None:
        need = f"an export to {extra} needs {module}, which is not installed"
        raise UsageError(f"{need}; in a clone of mmload run: pip install '.[{extra}]'")


def without_surrogates(text: str) -> str:
    """Returns a text that a recipe can hold: bytes of names that are no text become U+FFFD."""
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def _toml(value: Any) -> str:
    """Writes a value as TOML: strings and lists of them are JSON, but for the sign DEL, and tables have other signs."""
    if isinstance(value, Mapping):
        return f"{{{', '.join(f'{_toml(key)} = {_toml(each)}' for key, each in value.items())}}}"
    return json.dumps(value, ensure_ascii=False).replace("\x7f", r"\u007f")
