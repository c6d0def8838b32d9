"""``mmload parity``: verifies that only the speed has changed.

reference -> store; replay -> load; both -> report. References use only Pillow and torchvision:
:func:`mmload.interop.torchvision.torchvision_equivalent` of the recipe and of the collate.
"""

from mmload.parity.report import ParityReport, Verdict, table
from mmload.parity.run import DEFAULT_ROWS, run

__all__ = ["DEFAULT_ROWS", "ParityReport", "Verdict", "run", "table"]
