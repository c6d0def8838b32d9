"""Code shared by all packages: compiled loops, pooled memory, thread pools, cgroup limits, durable files, hashing."""
