"""A bench's result as a table for people and as plain data for machines.

Comes in: measurements. Goes out: text of at most 80 columns, or a dict for JSON. Never prints.
"""

from __future__ import annotations

import os
import platform
from dataclasses import dataclass
from typing import Any

import torch

import mmload
from mmload.bench.measure import Measurement
from mmload.threads import available_cores


@dataclass(frozen=True, kw_only=True)
class Record:
    """What was measured, on what, with which settings.

    Attributes:
        settings: what every contender had to deliver.
        measurements: each contender's; the first is the baseline group, see :meth:`baseline`.
    """

    settings: dict[str, Any]
    measurements: list[Measurement]

    @property
    def baseline(self) -> Measurement:
        """The fastest of the stock loaders."""
        stock = [m for m in self.measurements if "torchvision" in m.name]
        return max(stock, key=lambda m: m.median)

    def as_json(self) -> dict[str, Any]:
        """Settings, machine, versions and every sample."""
        return {
            "settings": self.settings,
            "machine": machine(),
            "results": [{"name": m.name, "images_per_second": m.median, "epochs": m.rates} for m in self.measurements],
        }


def machine() -> dict[str, Any]:
    """What the numbers were measured on."""
    return {
        "processor": _processor(),
        "cores": available_cores(),
        "system": f"{platform.system()} {platform.machine()}",
        "python": platform.python_version(),
        "torch": torch.__version__,
        "mmload": mmload.__version__,
    }


def table(record: Record) -> str:
    """The measurements as lines: images a second, median and range over the epochs, and the ratio to the best stock."""
    base = record.baseline.median
    lines = [f"{'':<38}{'images/s':>10}  {'lowest..highest':>15}  {'x stock':>8}"]
    for result in record.measurements:
        spread = f"{min(result.rates):,.0f}..{max(result.rates):,.0f}"
        lines.append(f"{result.name:<38}{result.median:>10,.0f}  {spread:>15}  {result.median / base:>7.1f}x")
    return "\n".join(lines)


def _processor() -> str:
    if os.path.exists("/proc/cpuinfo"):
        with open("/proc/cpuinfo", encoding="utf-8", errors="replace") as file:
            for line in file:
                if line.startswith("model name"):
                    return line.split(":", 1)[1].strip()
    return platform.processor() or platform.machine()
