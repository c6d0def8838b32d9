"""What ``mmload build --advise`` shows: the layouts of a source, and what each would cost on this machine."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from mmload.cli.interrupt import interruptible
from mmload.cli.terminal import show
from mmload.errors import UsageError, counted
from mmload.runtime.byte_sizes import bytes_text

if TYPE_CHECKING:
    from mmload.bench.advice import Layout
    from mmload.builder.recipe import BuildRecipe

_SIZE = 256


def show_advice(recipe: BuildRecipe, size: str | None, store: Mapping[str, object], threads: int | None) -> None:
    """Try each layout with a sample of a recipe's source, and show what all images would cost.

    Raises:
        UsageError: if a layout is chosen already, or the size is no number of pixels.
    """
    if chosen := [key for key, value in store.items() if value is not None]:
        name = chosen[0].replace("_", "-")
        raise UsageError(f"--advise compares all layouts, and --{name} is given; give one of them")
    if size is not None and not size.isdigit():
        raise UsageError(f"--size is {size!r}; with --advise use pixels, as in --size 256")
    from mmload.bench.advice import CROP, SAMPLES, advise

    pixels = _SIZE if size is None else int(size)
    with interruptible("nothing was built"):
        found = advise(recipe, pixels, threads=threads)
    show(
        f"{SAMPLES} images at most were built in each layout, and loaded from memory as resized crops of "
        f"{min(CROP, pixels)} pixels:"
    )
    tried, unreadable = found[0].tried, found[0].unreadable
    if unreadable:
        show(
            f"{counted(unreadable, 'image')} of the {tried} cannot be read: a build ends at the first, or leaves them "
            "out with --on-error skip"
        )
    show(f"  {'bytes':>10}  {'build':>9}  {'images/s':>9}  {'never seen':>10}  options", *map(_line, found))


def _line(layout: Layout) -> str:
    from mmload.bench.sample import span

    return (
        f"  {bytes_text(layout.bytes):>10}  {span(layout.build_seconds):>9}  {layout.images_per_second:>9,.0f}  "
        f"{layout.never_seen:>10.1%}  {layout.options}"
    )
