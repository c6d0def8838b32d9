"""What any room may use: compiled loops, pooled memory, thread pools, container limits, durable files, the hash."""
