"""How many files this process may have open."""

from __future__ import annotations

from contextlib import suppress


def allow_more_files() -> bool:
    """Raise the soft limit of open files (often 1,024) to the hard limit; returns whether that changed anything.

    Each field of each shard is a file: 2 TB in shards of 1 GiB with targets are 4,000 files.
    """
    try:
        import resource
    except ImportError:  # Windows has no such limit
        return False
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with suppress(ValueError, OSError):  # macOS reports a hard limit that it does not grant
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
        return soft != hard
    return False
