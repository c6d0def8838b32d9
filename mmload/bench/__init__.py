"""``mmload bench``: measures the gain of a stored dataset on equal tasks, and identifies the bottleneck.

    options -> task -> contenders, ceilings -> measure (process, server) -> record -> report

Every contender performs the same task: the same images, the same crop, flip and normalize, float32 batches and labels,
shuffled, on the same device. The table lists any deviations.
"""
