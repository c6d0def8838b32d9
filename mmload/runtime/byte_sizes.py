"""Formats numbers of bytes as text."""

from __future__ import annotations


def bytes_text(count: float) -> str:
    """``23.1 MiB``, ``1.2 GiB``."""
    return f"{count / 2**30:,.1f} GiB" if count >= 2**30 else f"{count / 2**20:,.1f} MiB"
