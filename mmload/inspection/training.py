"""How a split would be trained on: the steps that a page shows its rows with, and the code that loads it."""

from __future__ import annotations

import ast
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from mmload.records import FIELD_NAMES, FieldSpec

if TYPE_CHECKING:
    from mmload.augment import Views
    from mmload.augment.collate import Collate
    from mmload.store.dataset import Split

_SMALL = 64
"""Images up to this side are padded and cropped, as CIFAR's are; of larger ones a part is cut out and resized."""

_SIDE = 224

_CANVAS = 640
"""Of whole photographs with boxes or masks, as detection models take them."""


@dataclass(frozen=True, kw_only=True)
class Training:
    """What training sees; by default, the usual steps for the fields of each split.

    Attributes:
        steps: as ``--augment`` takes them; empty: the usual ones.
        recipe: a call of :mod:`mmload.recipes`, such as ``simclr()``; empty: steps are shown.
        made: the collate of either; None: it is made for each split.
    """

    steps: str = ""
    recipe: str = ""
    made: Collate | Views | None = None

    def collate(self, split: Split) -> Collate | Views:
        """What rows of a split are rendered with."""
        if self.made is not None:
            return self.made
        from mmload.augment.collate import Collate
        from mmload.inspection.step_text import steps_of

        return Collate(*steps_of(self.text(split)))

    def text(self, split: Split) -> str:
        """The steps or the recipe, in Python."""
        return self.recipe or self.steps or usual_steps(split.fields)

    def code(self, split: Split) -> str:
        """A program that loads a split, as it is shown; it ends after one epoch."""
        named = f"{split.name.replace('-', '_')}" if split.name.replace("-", "_").isidentifier() else "split"
        opened = f"{named} = mmload.open({str(split.path)!r})[{split.name!r}]"
        if "images" not in split.fields:
            imports, collate, argument = "", "", ""
        elif self.recipe:
            imports, collate = "from mmload import recipes\n", f"collate = recipes.{self.recipe}\n"
            argument = ", collate=collate"
        else:
            steps, names = self.text(split), _called(self.text(split))
            if split.mean and "Normalize" not in names:
                steps, names = f"{steps}, Normalize.of({named})", names | {"Normalize"}
            imports = f"from mmload.augment import {', '.join(sorted(names))}\n"
            collate, argument = f"collate = mmload.Collate({steps})\n", ", collate=collate"
        return f"import mmload\n{imports}\n{opened}\n{collate}\n{self._loop(split, named, argument)}"

    def _loop(self, split: Split, named: str, argument: str) -> str:
        loader = f"mmload.Loader({named}, batch_size=64, shuffle=True{argument})"
        if hasattr(self.made, "collates"):
            return f"for views in {loader}:\n    images = [view.images for view in views]\n"
        used = [name for name in split.fields if name in FIELD_NAMES]
        body = f"{', '.join(used)} = {', '.join(f'batch.{name}' for name in used)}" if used else "fields = batch.extra"
        return f"for batch in {loader}:\n    {body}\n"


def usual_steps(fields: Mapping[str, FieldSpec]) -> str:
    """The steps that most trainings on such rows have in common; none without images."""
    if "images" not in fields:
        return ""
    channels, *sides = fields["images"].shape
    if "boxes" in fields or "masks" in fields:
        first = f"Letterbox({_CANVAS}), " if fields["images"].own_sizes else ""
        return f"{first}RandomHorizontalFlip()" + (", ColorJitter(0.4, 0.4, 0.4)" if channels == 3 else "")
    if fields["images"].own_sizes:
        return f"RandomResizedCrop({_SIDE}), RandomHorizontalFlip()"
    if max(sides) <= _SMALL:
        size = str(sides[0]) if sides[0] == sides[1] else str(tuple(sides))
        return f"RandomCrop({size}, padding={max(1, min(sides) // 8)}), RandomHorizontalFlip()"
    return f"RandomResizedCrop({min(_SIDE, *sides)}), RandomHorizontalFlip()"


def _called(steps: str) -> set[str]:
    """The names of the steps in a text."""
    return {node.id for node in ast.walk(ast.parse(f"({steps},)", mode="eval")) if isinstance(node, ast.Name)}
