"""``mmload parity``: verifies that only the speed has changed.

reference -> store, draws -> load, equal -> verdict -> page, record. The reference uses only Pillow and torchvision:
:func:`mmload.interop.torchvision.torchvision_equivalent` of the recipe and of the collate.
"""

from mmload.parity.page import page
from mmload.parity.record import record
from mmload.parity.run import DEFAULT_ROWS, run
from mmload.parity.verdict import Report, Verdict, WorstRow, table

__all__ = ["DEFAULT_ROWS", "Report", "Verdict", "WorstRow", "page", "record", "run", "table"]
