"""Reads the classes of validation images that lie in no class folders: ImageNet as Kaggle ships it, Tiny ImageNet.

Kaggle's has ``LOC_val_solution.csv`` beside ``ILSVRC/Data/CLS-LOC/{train,val,test}``, Tiny ImageNet
``val/val_annotations.txt`` beside ``val/images``. A line of both begins with an image and its class.
"""

from __future__ import annotations

import os
import posixpath
import re
from pathlib import Path

from mmload.errors import SampleError
from mmload.sources.files import RemoteFiles, read_bytes

KAGGLE_FOLDER = "ILSVRC/Data/CLS-LOC"
KAGGLE_TABLE = "LOC_val_solution.csv"
_TINY_TABLE = "val/val_annotations.txt"


def read_validation_classes(root: Path | RemoteFiles) -> tuple[str, dict[str, str]]:
    """Returns the name of the table below the root, and the class of each validation image by name without ending.

    The root may be :data:`KAGGLE_FOLDER` itself, whose table lies in the folder around. Both are empty if there is no
    table.
    """
    is_inner = isinstance(root, Path) and os.path.abspath(root).endswith(KAGGLE_FOLDER)
    for name in (f"../../../{KAGGLE_TABLE}" if is_inner else KAGGLE_TABLE, _TINY_TABLE):
        try:
            text = read_bytes(root, name, name).decode("utf-8", "replace")
        except SampleError:
            continue
        rows = (re.split(r"[,\s]", line) for line in text.splitlines())
        return name, {posixpath.splitext(row[0])[0]: row[1] for row in rows if len(row) > 1}
    return "", {}
