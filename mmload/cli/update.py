"""The ``mmload update`` command: the recipe of the dataset says how, so that nothing of it is typed again."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path

from mmload.builder.recipe import RunOptions, option
from mmload.cli.build import run
from mmload.cli.options import TRUST_HELP, on_a_disk, takes
from mmload.errors import UsageError


@dataclass(frozen=True, kw_only=True)
class UpdateArguments(RunOptions):
    """What the command takes beside how shards are built."""

    out: Path = field(metadata={"help": "A built dataset.", "flag": ""})
    root: str | None = option(
        "What it was built from, where that is now: a path or a URL; by default where it was.", flag=""
    )
    append: bool = option("Rows keep their order, and new ones come last.", False)
    checksum: bool = option("Compare the content of all files, not only sizes and times.", False)
    dry_run: bool = option("Only say what would be done.", False)
    trust: bool = option(TRUST_HELP, False)

    def __post_init__(self) -> None:
        super().__post_init__()
        on_a_disk(self.out)
        if self.dry_run and self.in_parts:
            raise UsageError("--dry-run builds nothing, and --part and --commit do; give one of them")


@takes(UpdateArguments)
def update(given: UpdateArguments) -> None:
    """Update a dataset to its source, as a new version.

    It builds what is new or changed, and drops what is gone.
    """
    from mmload.builder.previous_version import UpdateOptions
    from mmload.builder.verify import recipe_at
    from mmload.store.manifest import read

    recipe = replace(recipe_at(read(given.out), given.out, given.root, given.trust), out=given.out)
    run(recipe, given, UpdateOptions(append=given.append, checksum=given.checksum, dry_run=given.dry_run))
