"""Brings machine code into a wheel: hatchling calls it where it builds one, without mmload's dependencies.

Where ``scripts/machine_code`` has made no library yet, it makes one for this processor, in a minute. ``MMLOAD_WHEEL``
set to "any" makes a wheel without machine code, for any processor.
"""

from __future__ import annotations

import os
import platform
import subprocess
import sys
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

LIBRARIES = "mmload/machine_code/*.so"

TAG = f"py3-none-manylinux_2_17_{platform.machine()}"
"""Any Python 3, as nothing of it is used; of the C library kernels need what every release has."""


class MachineCode(BuildHookInterface):  # type: ignore[type-arg]  # it is configured by nothing
    """Makes a wheel one of a platform if there is machine code for it; otherwise it is one of any."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Compiles the kernels, chooses the files, and sets the tag; an editable installation compiles at first use."""
        if version == "editable" or os.environ.get("MMLOAD_WHEEL") == "any" or sys.platform != "linux":
            return
        if not any(Path(self.root).glob(LIBRARIES)):
            script = str(Path(self.root) / "scripts" / "machine_code")
            if subprocess.run([sys.executable, script, "own"], check=False).returncode:
                self.app.display_warning("no machine code (ld and numba are needed): pip install 'mmload[compile]'")
        if any(Path(self.root).glob(LIBRARIES)):
            build_data["pure_python"] = False
            build_data["tag"] = TAG
            build_data["artifacts"].append(LIBRARIES)
