"""Tags a wheel that has machine code: hatchling calls it where it builds a wheel, without mmload's dependencies."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

TAG = "py3-none-manylinux_2_17_x86_64"
"""Any Python 3, as entries use its stable interface; of the C library they need what every release has."""


class WheelTag(BuildHookInterface):  # type: ignore[type-arg]  # it is configured by nothing
    """Makes a wheel one of a platform if ``scripts/machine_code`` has made files; otherwise it is one of any."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Sets the tag."""
        if version != "editable" and any(Path(self.root, "mmload", "machine_code").glob("x86-64*/*.o")):
            build_data["pure_python"] = False
            build_data["tag"] = TAG
