"""Shows what training sees: the steps of a split, as text and as code, and several draws of each of some rows."""

from __future__ import annotations

import ast
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import torch
from PIL import Image
from torch import nn

import mmload.augment
from mmload.augment import Mosaic, Normalize, Views
from mmload.augment.collate import Collate, collates_of
from mmload.augment.step import AfterStep, Step, sample_seeds
from mmload.batch import Batch, fields_of
from mmload.errors import UsageError, did_you_mean
from mmload.pictures.contact_sheet import SHOWN, Cell, cells_of, contact_sheet
from mmload.records import FIELD_NAMES, FieldSpec
from mmload.store.dataset import cells_of_rows, skeleton_of
from mmload.store.row_numbers import row_numbers

if TYPE_CHECKING:
    from mmload.store.dataset import Rows, Split


_SMALL = 64
"""Images up to this side are padded and cropped, as CIFAR's are; of larger ones a part is cut out and resized."""

_SIDE = 224

_CANVAS = 640
"""Pixels of a side of variable-size images with boxes or masks, as detection models take them."""

_EVALUATED = ("val", "test", "dev", "eval")

_LIKE = 'write steps of mmload.augment, as in "RandomCrop(24), ColorJitter(0.4, 0.4)"'


@dataclass(frozen=True, kw_only=True)
class Training:
    """The steps or the preset that a page shows rows with; by default, the usual steps for the fields of each split.

    Attributes:
        steps: steps in the form of ``--augment``; empty: the usual ones.
        preset: a call of :mod:`mmload.presets`, such as ``simclr()``; empty: steps are shown.
        made: the collate of either; None: it is made for each split.
    """

    steps: str = ""
    preset: str = ""
    made: Collate | Views | None = None

    def collate(self, split: Split) -> Collate | Views:
        """Returns what renders the rows of a split."""
        if self.made is not None:
            return self.made
        return Collate(*steps_of(self.text(split)))

    def text(self, split: Split) -> str:
        """Returns the steps or the preset, in Python."""
        return self.preset or self.steps or usual_steps(split.fields)

    def code(self, split: Split) -> str:
        """Writes a program that loads a split, as it is shown; it ends after one epoch."""
        place = split.folder.title
        cached = "" if place == str(split.path) else ", cache='cache'"  # a URL
        imports = collate = argument = ""
        if "images" in split.fields:
            steps, argument = self.text(split), ", collate=collate"
            if self.preset:
                imports, collate = "from mmload import presets\n", f"collate = presets.{steps}\n"
            else:
                steps += ", Normalize.from_split(split)" if split.mean and "Normalize" not in steps else ""
                names = [name for name in sorted(mmload.augment.__all__) if re.search(rf"\b{name}\b", steps)]
                imports = f"from mmload.augment import {', '.join(names)}\n"
                collate = f"collate = mmload.Collate({steps})\n"
        loader = f"mmload.Loader(split, batch_size=64, shuffle=True{argument})"
        loop = f"for views in {loader}:\n    images = [view.images for view in views]\n"
        if not hasattr(self.made, "collates"):
            used = [name for name in split.fields if name in FIELD_NAMES]
            taken = (
                f"{', '.join(used)} = {', '.join(f'batch.{name}' for name in used)}" if used else "fields = batch.extra"
            )
            loop = f"for batch in {loader}:\n    {taken}\n"
        return f"import mmload\n{imports}\nsplit = mmload.open({place!r}{cached})[{split.name!r}]\n{collate}\n{loop}"


def usual_steps(fields: Mapping[str, FieldSpec]) -> str:
    """Returns the steps that most trainings on such rows have in common; none without images."""
    if "images" not in fields:
        return ""
    channels, *sides = fields["images"].shape
    if "boxes" in fields or "masks" in fields:
        first = f"Letterbox({_CANVAS}), " if fields["images"].variable_size else ""
        return f"{first}RandomHorizontalFlip()" + (", ColorJitter(0.4, 0.4, 0.4)" if channels == 3 else "")
    if fields["images"].variable_size:
        return f"RandomResizedCrop({_SIDE}), RandomHorizontalFlip()"
    if max(sides) <= _SMALL:
        size = str(sides[0]) if sides[0] == sides[1] else str(tuple(sides))
        return f"RandomCrop({size}, padding={max(1, min(sides) // 8)}), RandomHorizontalFlip()"
    return f"RandomResizedCrop({min(_SIDE, *sides)}), RandomHorizontalFlip()"


def is_evaluated(split: Split) -> bool:
    """Returns whether a split is one of evaluation, by its name: training does not see it."""
    return split.name.lower().startswith(_EVALUATED)


def augmented_sheet(
    split: Split, collate: Collate | Views, rows: Rows, *, draws: int = 7, seed: int = 0
) -> Image.Image:
    """Draws a contact sheet with a line for each row: as it is stored, then as it is drawn in some epochs.

    Of views each line has all, one after the other.

    Raises:
        UsageError: if the collate cannot render these rows.
    """
    stored = cells_of_rows(split, rows)
    drawn = drawn_cells(split, collate, rows, draws=draws, seed=seed)
    lines = [[cell, *line] for cell, line in zip(stored, drawn, strict=True)]
    title = f"{split.path.name}, {split.name}: as stored, and as drawn"
    return contact_sheet([cell for line in lines for cell in line], len(lines[0]), title=title, classes=split.classes)


def drawn_cells(split: Split, collate: Collate | Views, rows: Rows, *, draws: int, seed: int = 0) -> list[list[Cell]]:
    """Draws some rows as training sees them: for each row, its draws in the order of the epochs.

    The rows are one batch: steps that mix samples mix these. Of views each epoch gives all.

    Raises:
        UsageError: if the collate cannot render these rows.
    """
    collates = collates_of(collate)
    ids = torch.from_numpy(row_numbers(rows, len(split), f"split {split.name!r}"))
    batch = split.rows(ids)
    variable_size = any(spec.variable_size for spec in split.fields.values())
    lines: list[list[Cell]] = [[] for _ in range(len(ids))]
    for epoch in range(draws):
        seeds = sample_seeds(seed, epoch, ids)
        collate.set_epoch(epoch)
        try:
            if variable_size:
                made = collate([batch[number].replace(seeds=seeds[number]) for number in range(len(ids))])
            else:
                made = collate(batch.replace(seeds=seeds))
        except (ValueError, TypeError) as error:
            raise UsageError(
                f"these steps cannot render split {split.name!r} of {split.folder.title}: {error}"
            ) from error
        views = made if isinstance(made, tuple) else (made,)
        for number, (view, one) in enumerate(zip(views, collates, strict=True), 1):
            name = f"draw {epoch + 1}" + (f", view {number}" if len(views) > 1 else "")
            for line, cell in zip(lines, _cells(view, one, split), strict=True):
                line.append(replace(cell, detail=name))
    return lines


def _cells(batch: Batch, collate: Collate, split: Split) -> list[Cell]:
    """Makes the cells of a rendered batch, with Normalize undone."""
    mean, std = next(((step.mean, step.std) for step in collate.steps if isinstance(step, Normalize)), ((), ()))
    arrays = {
        name: (value.float() if value.is_floating_point() else value).cpu().numpy()
        for name, value in fields_of(batch).items()
        if name in SHOWN
    }
    return cells_of(arrays, split.classes, mean=mean, std=std, skeleton=skeleton_of(split.record))


def steps_of(text: str) -> list[nn.Module]:
    """Parses the steps that a text names, in order. It calls the classes of steps only.

    Their arguments are numbers, strings, lists, tuples and other steps.

    Raises:
        UsageError: if it is something else, or a step refuses its arguments.
    """
    try:
        body = ast.parse(f"({text},)", mode="eval").body
        steps = [_value(part) for part in getattr(body, "elts", [body])]
        if not steps or not all(isinstance(step, nn.Module) for step in steps):
            raise ValueError("it is not a list of steps")
    except (SyntaxError, ValueError, TypeError, RecursionError, MemoryError) as error:
        raise UsageError(f"--augment is {text!r}: {getattr(error, 'msg', error)}; {_LIKE}") from error
    return steps


def _value(node: ast.expr) -> Any:
    """Evaluates a step, a list or tuple of values, or a constant."""
    if isinstance(node, ast.List | ast.Tuple):
        values = [_value(each) for each in node.elts]
        return values if isinstance(node, ast.List) else tuple(values)
    if not isinstance(node, ast.Call):
        try:
            return ast.literal_eval(node)
        except ValueError as error:
            raise ValueError(f"{ast.unparse(node)} is neither a step nor a constant") from error
    name, names = ast.unparse(node.func), mmload.augment.__all__
    kind: Any = getattr(mmload.augment, name) if name in names else None
    if not isinstance(kind, type) or not issubclass(kind, Step | AfterStep | Mosaic):
        raise ValueError(f"step {name} does not exist; see docs/augment.md for all{did_you_mean(name, names)}")
    arguments, named = map(_value, node.args), {each.arg or "**": _value(each.value) for each in node.keywords}
    try:
        return kind(*arguments, **named)
    except (TypeError, ValueError) as error:
        raise ValueError(f"{name}: {error}") from error
