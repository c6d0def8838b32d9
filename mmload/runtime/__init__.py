"""Code shared by all packages: compiled loops, pooled memory, cores and threads, durable files, random words."""
