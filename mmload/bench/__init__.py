"""``mmload bench``: what a stored dataset gains, like for like.

contenders -> measure -> report. Every contender delivers the same: the same images, the same crop, flip and normalise,
float32 batches and labels, shuffled. What differs is said in the table.
"""

from mmload.bench.measure import Measurement
from mmload.bench.report import Record, table
from mmload.bench.run import run

__all__ = ["Measurement", "Record", "run", "table"]
