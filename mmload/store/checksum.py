"""CRC-32, the one of zip, PNG and zlib: by ISA-L where it is installed, ten times as fast, else by zlib."""

from __future__ import annotations

try:
    from isal.isal_zlib import crc32
except ImportError:  # a platform that it has no wheels for
    from zlib import crc32

__all__ = ["crc32"]
