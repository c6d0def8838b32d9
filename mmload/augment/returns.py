"""Forms of a batch for training scripts: tuples, dicts, torchvision's lists, arrays of other frameworks.

The input is the result of a collate: a :class:`~mmload.batch.Batch`, or a tuple of one per view. No pixels are copied.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from itertools import chain
from typing import Any

import numpy.typing as npt
import torch
from torch import Tensor

from mmload.augment.arguments import argument_error
from mmload.augment.collate import collates_of
from mmload.augment.given_samples import stacked_rows
from mmload.augment.views import Views
from mmload.batch import BOX_FORMATS, Batch, BatchOrViews, fields_of
from mmload.errors import UsageError, choices, shown
from mmload.records import PER_BOX, SEGMENTS

Form = tuple[str, ...] | list[str] | Mapping[Any, str] | str | Callable[[Any], Any]
"""Type of the form that :class:`Returns` takes."""

_BOXES = ("boxes", "labels", "counts")

_FORMATS = {f"boxes_{box_format}": box_format for box_format in BOX_FORMATS}
"""Names by which a form has boxes of each format, beside the fields."""

_FIELDS_OF_FORMATS = {f"boxes_{box_format}": field for box_format, field in BOX_FORMATS.items()}
"""These names -> fields that the boxes are made of."""

_OF_EACH_VIEW = frozenset(
    ("images", "boxes", "counts", "masks", "seeds", "image_sizes", *_FORMATS, *PER_BOX, *chain.from_iterable(SEGMENTS))
)
"""Fields that differ between views, whatever their steps are: what is moved, or dropped with a box."""

_EXPECTED = (
    'a tuple or list of names of fields such as ("images", "targets"), a dict whose values are such names, '
    '"torchvision", "numpy", "dlpack" or a function of the batch'
)


class Returns:
    """Converts batches to the form that a script expects. Picklable, if its functions are.

    A :class:`~mmload.loader.Loader` takes ``form`` as its ``returns``; for ``torch.utils.data.DataLoader`` this is a
    ``collate_fn``. With a :class:`~mmload.augment.views.Views`, a field that differs between views, such as
    ``images``, is a tuple with one of each view, and a field that all views share, such as ``targets``, comes once:
    ``(first, second), targets``.

    Args:
        form: a tuple or list of names of fields, for one of their tensors; a dict whose values are names of fields,
            for a dict with the same keys, where "boxes_xywh", "boxes_cxcywh" and "boxes_xyxyxyxy" are boxes in these
            formats (see :meth:`Batch.boxes_as`); "torchvision", for lists as :meth:`Batch.to_torchvision` gives them;
            "numpy" or "dlpack", for a dict of all fields, by name, as numpy arrays or as what ``from_dlpack`` of JAX,
            CuPy and others takes, both without a copy; or a function, which gets the Batch, or a tuple of one per view.
        collate: makes the batch of rows first; None: the rows as they are stored.

    Raises:
        ValueError, TypeError: if the form is none of these, or cannot be made of what the collate gives.
    """

    def __init__(self, form: Form, collate: Callable[[Any], BatchOrViews] | None = None) -> None:
        if not (isinstance(form, tuple | list | str | Mapping) or callable(form)) or isinstance(form, Returns):
            raise TypeError(f"returns is {shown(form)}, expected {_EXPECTED}")
        if isinstance(form, str) and form not in ("torchvision", *_ARRAYS):
            raise argument_error("returns", form, _EXPECTED)
        self._names: tuple[str, ...] = ()
        if isinstance(form, tuple | list | Mapping):
            self._names = tuple(form.values() if isinstance(form, Mapping) else form)
            if not self._names or not all(isinstance(name, str) for name in self._names):
                raise argument_error("returns", form, "at least one field, each by its name")
        self.form = form
        self.collate = collate
        if isinstance(collate, Returns):
            raise TypeError("collate is a Returns; give the collate inside it, and one returns=")
        self._check_views(isinstance(collate, Views))
        for view in collates_of(collate):
            if form == "numpy" and view.dtype == torch.bfloat16:
                raise ValueError('returns is "numpy", which has no bfloat16; use another dtype of Collate or "dlpack"')
            self.check_device(view.device)

    @property
    def fields(self) -> tuple[str, ...]:
        """The fields that a batch has to have."""
        if self._names:
            return tuple(_FIELDS_OF_FORMATS.get(name, name) for name in self._names)
        return _BOXES if self.form == "torchvision" else ()

    def __call__(self, batch: Batch | Sequence[Batch]) -> Any:
        """Returns the batch of rows in this form, as a ``collate_fn``."""
        return self.given(stacked_rows(batch) if self.collate is None else self.collate(batch))

    def given(self, made: BatchOrViews) -> Any:
        """Converts the result of a collate to this form.

        Raises:
            TypeError: if it is no Batch, and no tuple of one per view.
            ValueError: if it lacks a field.
        """
        if callable(self.form):
            return self.form(made)
        views = made if isinstance(made, tuple) else (made,)
        odd = next((view for view in views if not isinstance(view, Batch)), None)
        if odd is not None or not views:
            got = "an empty tuple" if odd is None else shown(type(odd).__name__)
            raise TypeError(f"the collate gives {got}, returns= needs a Batch; or give a function as returns=")
        if self.form == "torchvision":
            self._check_views(isinstance(made, tuple))
            return views[0].to_torchvision()
        fields = [self._fields_of(view) for view in views]
        if not isinstance(made, tuple):
            return self._filled(fields[0])
        return self._filled({name: _of_views(name, [view[name] for view in fields]) for name in fields[0]})

    def check_fields(self, stored: Collection[str], read: Collection[str], source: str) -> None:
        """Rejects a form of fields that batches do not have.

        Args:
            stored: the fields of the dataset.
            read: fields that batches have.
            source: the dataset's name, for the message.

        Raises:
            UsageError: if one is missing.
        """
        for name in self.fields:
            if name not in read:
                why = "fields= leaves it out" if name in stored else f"{source} has {choices(read)}"
                raise UsageError(f"returns={shown(self.form)} needs the field {name!r}: {why}")

    def check_device(self, device: torch.device | None) -> None:
        """Raises a ValueError if batches on this device do not exist in this form."""
        if self.form == "numpy" and device is not None and device.type != "cpu":
            raise ValueError(f'returns is "numpy", but batches are on {device}; use returns="dlpack" there')

    def _check_views(self, several: bool) -> None:
        if several and self.form == "torchvision":
            raise ValueError('returns is "torchvision", but its models take one view; use a Collate, or a function')

    def _fields_of(self, view: Batch) -> dict[str, Tensor]:
        """Returns the fields of a batch, and its boxes in the formats that the form names."""
        fields, formats = fields_of(view), _FORMATS.keys() & self._names
        boxes = {name: view.boxes_as(_FORMATS[name]) for name in formats if _FIELDS_OF_FORMATS[name] in fields}
        return {**boxes, **fields}

    def _filled(self, fields: Mapping[str, Any]) -> Any:
        """Returns the form with the fields in place of their names."""
        form = self.form
        if isinstance(form, str):
            return {name: _each(_ARRAYS[form], value) for name, value in fields.items()}
        for name, field in zip(self._names, self.fields, strict=True):
            if name not in fields:
                raise ValueError(f"returns={shown(form)} needs the field {field!r}; the batch has {choices(fields)}")
        if isinstance(form, Mapping):
            return {key: fields[name] for key, name in form.items()}
        values = (fields[name] for name in self._names)
        return list(values) if isinstance(form, list) else tuple(values)


def _of_views(name: str, values: list[Tensor]) -> Tensor | tuple[Tensor, ...]:
    """Returns one field of all views: once if they share it, which they do not after steps that mix targets."""
    shared = name not in _OF_EACH_VIEW and all(value is values[0] for value in values)
    return values[0] if shared else tuple(values)


def _numpy(value: Tensor) -> npt.NDArray[Any]:
    if value.dtype == torch.bfloat16:
        raise ValueError('returns is "numpy", which has no bfloat16; use another dtype, or returns="dlpack"')
    array: npt.NDArray[Any] = value.detach().numpy()
    return array


_ARRAYS: Mapping[str, Callable[[Tensor], Any]] = {"numpy": _numpy, "dlpack": Tensor.detach}
"""Forms that are dicts of all fields -> what makes the array of one."""


def _each(change: Callable[[Tensor], Any], value: Tensor | tuple[Tensor, ...]) -> Any:
    """Changes a tensor, or each tensor of a tuple."""
    return tuple(map(change, value)) if isinstance(value, tuple) else change(value)
