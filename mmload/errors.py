"""Every error that mmload raises on purpose.

    MmloadError                exit code 1: it failed
    ├── UsageError             exit code 2: it was asked wrongly
    │   └── RecipeError        a recipe or an option that cannot be meant
    ├── SourceError            the source folder is not what its kind says
    │   └── SampleError        one sample of it cannot be read
    ├── StoreError             a dataset on disk cannot be opened, read or written
    │   ├── VersionError       it was written in a format this version does not know
    │   └── DamagedError       its files do not match its manifest
    └── BuildError             a build cannot start or cannot finish

A message says what was wrong, the value got, and what to do next. Wrong arguments to a function stay ``ValueError`` and
``TypeError``. This module never formats for a terminal.
"""

from __future__ import annotations

from collections.abc import Iterable


class MmloadError(Exception):
    """The root of the family; ``exit_code`` is what the command line ends with."""

    exit_code = 1


class UsageError(MmloadError):
    """mmload was asked for something that does not exist or cannot be meant."""

    exit_code = 2


class RecipeError(UsageError):
    """A recipe file or a build option is wrong."""


class SourceError(MmloadError):
    """The source is missing, empty, or not laid out as its kind says."""


class SampleError(SourceError):
    """One sample cannot be read.

    Attributes:
        sample: the sample's id, usually its path relative to the source's root.
        reason: why, in plain words.
    """

    def __init__(self, sample: str, reason: str) -> None:
        super().__init__(f"{sample}: {reason}")
        self.sample = sample
        self.reason = reason

    def __reduce__(self) -> tuple[type[SampleError], tuple[str, str]]:
        return type(self), (self.sample, self.reason)


class StoreError(MmloadError):
    """A dataset on disk cannot be opened, read or written."""


class VersionError(StoreError):
    """The dataset's format version is not one that this mmload reads."""


class DamagedError(StoreError):
    """A file of the dataset is missing, has another size or other content than the manifest says."""


class BuildError(MmloadError):
    """A build cannot start or cannot finish."""


def choices(names: Iterable[str]) -> str:
    """Names as a person reads them in a message: ``a, b, c``."""
    return ", ".join(sorted(names))
