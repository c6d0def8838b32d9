"""Limits how many unreadable samples a build may skip."""

from __future__ import annotations

from mmload.errors import BuildError, UsageError, counted

ON_ERROR = ("fail", "skip")


class ErrorLimit:
    """Counts the samples that a build skips, and aborts it if there are too many.

    Args:
        on_error: "fail" or "skip".
        most: with "skip", the upper bound on skipped samples: a number, or a share such as "1%"; None: no bound.
        samples: number of samples in the source.

    Attributes:
        skip: whether samples may be skipped at all.

    Raises:
        UsageError: if an argument is invalid.
    """

    def __init__(self, on_error: str, most: int | str | None, samples: int) -> None:
        if on_error not in ON_ERROR:
            raise UsageError(f"on-error is {on_error!r}; use one of {', '.join(ON_ERROR)}")
        if most is not None and on_error != "skip":
            raise UsageError("max-errors is for --on-error skip; add that, or leave it out")
        self.skip = on_error == "skip"
        self._most = most
        self._limit = samples if most is None else _limit(most, samples)
        self._count = 0

    def add(self, skipped: int) -> None:
        """Count skipped samples.

        Raises:
            BuildError: if the limit is exceeded.
        """
        self._count += skipped
        if self._count > self._limit:
            raise BuildError(
                f"{counted(self._count, 'sample')} could not be read, more than --max-errors {self._most} allows; "
                "run with --on-error fail to see the first, or allow more"
            )


def _limit(most: int | str, samples: int) -> int:
    text = str(most).strip()
    share = text.endswith("%")
    try:
        value = float(text[:-1]) if share else int(text)
    except ValueError:
        value = -1
    if not 0 <= value <= (100 if share else 2**62):
        raise UsageError(f"max-errors is {most!r}; use an integer, or a share such as 1%")
    return int(samples * value / 100) if share else int(value)
