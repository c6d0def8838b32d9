"""``mmload bench``: measures the gain of a stored dataset on equal tasks, and identifies the bottleneck.

    options -> task -> contenders, ceilings -> measure (process, child) -> record -> verdict, report, chart, compare

Every contender performs the same task: the same images, the same crop, flip and normalize, float32 batches and labels,
shuffled, on the same device. The table lists any deviations.
"""

from mmload.bench.options import BenchOptions
from mmload.bench.record import Record, read_record, write_record
from mmload.bench.report import table
from mmload.bench.run import run_on_dataset, run_on_sample

__all__ = ["BenchOptions", "Record", "read_record", "run_on_dataset", "run_on_sample", "table", "write_record"]
