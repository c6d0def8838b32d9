"""Tags a wheel that has machine code: hatchling calls it where it builds a wheel, without mmload's dependencies.

``MMLOAD_WHEEL`` chooses the processors that the wheel is for, x86_64 or aarch64; by default they are this machine's.
"""

from __future__ import annotations

import os
import platform
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

FILES = {"x86_64": "mmload/machine_code/x86-64*/*.o", "aarch64": "mmload/machine_code/aarch64/*.o"}
"""Processors -> the files for them, which ``scripts/machine_code`` makes."""

TAG = "py3-none-manylinux_2_17_{}"
"""Any Python 3, as entries use its stable interface; of the C library they need what every release has."""


class WheelTag(BuildHookInterface):  # type: ignore[type-arg]  # it is configured by nothing
    """Makes a wheel one of a platform if there is machine code for it; otherwise it is one of any."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Chooses the files, and sets the tag."""
        chosen = os.environ.get("MMLOAD_WHEEL")
        if chosen is not None and chosen not in FILES:
            raise ValueError(f"MMLOAD_WHEEL is {chosen!r}; use one of {', '.join(FILES)}")
        processor = chosen or platform.machine()
        if version != "editable" and processor in FILES and any(Path(self.root).glob(FILES[processor])):
            build_data["pure_python"] = False
            build_data["tag"] = TAG.format(processor)
            build_data["artifacts"].append(FILES[processor])
