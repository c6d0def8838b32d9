"""The options of a bench, declared once, and their checks. Imports no torch."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from mmload.builder.recipe import option
from mmload.errors import UsageError, choices
from mmload.runtime.resources import check_threads

STEPS = ("crop", "resized-crop", "none")
"""Steps that need no preset: a random crop or a resized one, each with flip and normalize; the stored rows."""

SECONDS = {False: 60.0, True: 600.0}
"""Whether ``--full`` is given -> seconds of a bench."""

_MOST_PIXELS = 16_384  # catches typing errors


@dataclass(frozen=True, kw_only=True)
class BenchOptions:
    """The settings of ``mmload bench``, as they are written; None selects the default.

    Raises:
        UsageError: if a setting is invalid.
    """

    # The task.
    steps: str = option(
        "crop, resized-crop, none (the stored rows), or a preset: one of mmload.presets, such as simclr, or "
        "your own MODULE:FUNCTION.",
        "crop",
        metavar="NAME",
    )
    size: int | None = option("Pixels of the square that training gets; 7/8 of the stored side.")
    batch_size: int = option("Images per batch.", 64)

    # The loaders.
    threads: int | None = option("Threads or workers of each loader; the cores available by default.")
    loaders: str | None = option(
        "Only the loaders whose names have one of these words, as in stock,ffcv,mmload.", metavar="WORDS"
    )

    # What else is measured, and for how long.
    cold: bool = option("Evict all files from the page cache before every epoch, and prove it.", False)
    train: str | None = option(
        "Train this torchvision model, or small; measure how long its steps wait for data.", metavar="MODEL"
    )
    build: bool = option("Measure building, too, beside torchvision's pass over the same files.", False)
    full: bool = option("Take ten minutes instead of one.", False)

    def __post_init__(self) -> None:
        if self.batch_size < 1:
            raise UsageError(f"--batch-size is {self.batch_size}; use at least 1")
        if self.size is not None and not 1 <= self.size <= _MOST_PIXELS:
            raise UsageError(f"--size is {self.size}; use 1 to {_MOST_PIXELS}")
        check_threads(self.threads)
        if self.steps not in STEPS:
            preset_function(self.steps)
            if self.train is not None:
                raise UsageError(f"--train is {self.train}, and --steps {self.steps} is no crop; leave one of them out")

    @property
    def seconds(self) -> float:
        """Seconds of the whole bench, including starting and ending the processes; turns are as long as it allows."""
        return SECONDS[self.full]


def preset_function(name: str) -> Callable[..., Any]:
    """Returns the function of :mod:`mmload.presets`, or MODULE:FUNCTION, that makes the collate of a preset.

    Raises:
        UsageError: listing the names, or saying why a module cannot be imported.
    """
    from mmload import presets  # imports torch

    published = set(presets.__all__) - {"evaluation"}
    module, colon, function = name.partition(":")
    if not colon:
        if name not in published:
            raise UsageError(
                f"--steps is {name!r}; use crop, resized-crop, none, {choices(published)}, or MODULE:FUNCTION"
            )
        module, function = presets.__name__, name
    try:
        found: Any = getattr(importlib.import_module(module), function)
    except (ImportError, AttributeError, ValueError) as error:
        raise UsageError(f"--steps is {name!r}: {error}; give MODULE:FUNCTION, and PYTHONPATH to its folder") from error
    if not callable(found):
        raise UsageError(f"--steps is {name!r}, which is {type(found).__name__}; give a function that makes a Collate")
    return found  # type: ignore[no-any-return]  # whatever the module has
