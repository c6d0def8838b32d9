"""Finds the photograph that a row was made of, below the source's folder only, and makes a picture of it."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from PIL import Image

from mmload.errors import SampleError, UsageError

DEVKIT = "VOCdevkit"


class Originals:
    """The files of a source.

    Args:
        root: the source's folder, or for a list the list itself; None: it was not given.
        recipe: the dataset's, which says how files are decoded and which subfolder they are in.
    """

    def __init__(self, root: Path | None, recipe: Mapping[str, Any]) -> None:
        source, decode = recipe.get("source"), recipe.get("decode")
        self._folder = source.get("folder") if isinstance(source, dict) else None
        self._oriented = isinstance(decode, dict) and decode.get("exif_orient") is True
        self._root = None if root is None else root.resolve() if root.is_dir() else root.resolve().parent

    def picture(self, sample: str) -> Image.Image:
        """The photograph of a sample, in RGB.

        Raises:
            UsageError: if the source was not given, or has no such file.
            SampleError: if the file cannot be read or is no image.
        """
        from mmload.sources.decode import Decoder  # torch
        from mmload.sources.files import read_image

        root, name = self._place(sample)
        pixels = read_image(root, name, Decoder(exif_orient=self._oriented), sample)
        return Image.fromarray(pixels.permute(1, 2, 0).contiguous().numpy())

    def missing(self, sample: str) -> str:
        """Why there is no photograph of a sample; empty if there is a file."""
        try:
            self._place(sample)
        except (UsageError, SampleError) as error:
            return str(error)
        return ""

    def _place(self, sample: str) -> tuple[Path, str]:
        """The folder and the name of a sample's file, which lies below the source's folder, with its links followed."""
        if self._root is None:
            raise UsageError("start mmload browse with --source ROOT to see the photograph that it was made of")
        folders = ["", DEVKIT, *([self._folder] if isinstance(self._folder, str) else [])]
        for folder in folders:
            name = _inner(os.path.join(folder, sample))
            if name is None:
                continue
            real = os.path.realpath(self._root / name)
            if real.startswith(os.path.join(self._root, "")) and os.path.isfile(real):
                return self._root, os.path.relpath(real, self._root)
        raise UsageError(f"there is no file {sample} in {self._root}")


def _inner(name: str) -> str | None:
    """A name that stays below its folder, else None."""
    plain = os.path.normpath(name)
    outside = os.path.isabs(plain) or plain.split(os.sep)[0] in ("..", ".", "") or os.path.splitdrive(plain)[0]
    return None if outside or "\0" in name else plain
