"""CRC-32 as in zip, PNG and zlib: computed by ISA-L if it is installed (ten times as fast), else by zlib."""

from __future__ import annotations

try:
    from isal.isal_zlib import crc32
except ImportError:  # no wheel for this platform
    from zlib import crc32

__all__ = ["crc32"]
