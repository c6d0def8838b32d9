"""Modules of the programs in benchmarks/: data that they read, and processes that they start."""
