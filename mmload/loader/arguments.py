"""Interprets the arguments of a Loader: rows, fields, collate, device, rank, order, and what it returns."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from mmload.augment.collate import Collate
from mmload.augment.epochs import batch_of_epoch
from mmload.augment.per_sample import has_per_sample
from mmload.augment.returns import Form, Returns
from mmload.augment.step import Step
from mmload.augment.views import Views, collates_of
from mmload.batch import make_batch
from mmload.errors import UsageError, choices
from mmload.loader.orders import ORDERS, Sampling
from mmload.remote.opening import open as open_dataset
from mmload.render.torch_sampling import OwnMasks
from mmload.runtime import nvjpeg
from mmload.runtime.local_ranks import local_ranks
from mmload.store.dataset import Dataset
from mmload.store.split_views import Rows, View, view_of

DECODERS = ("cpu", "scaled", "cuda")
"""How the JPEGs of whole photographs may be decoded."""


def refuse_number(name: str, value: object, least: int) -> None:
    """ValueError unless the value is an integer of at least ``least``."""
    if type(value) is not int or value < least:
        raise ValueError(f"{name} is {value!r}; give an integer of at least {least}")


def view_named(dataset: object, name: str | None) -> View:
    """The rows of a path, a Dataset, a Split, or a Subset or ConcatDataset of splits."""
    if isinstance(dataset, str | Path):
        dataset = open_dataset(dataset)
    if isinstance(dataset, Dataset):
        if name is None:
            if len(dataset) > 1:
                raise UsageError(f"{dataset.path} has several splits; choose one with split=: {choices(dataset)}")
            name = next(iter(dataset))
        return view_of(dataset[name])
    if name not in (None, getattr(dataset, "name", None)):
        raise UsageError(f"split= says {name!r}, but the split is chosen already: {dataset!r}; give one of them")
    return view_of(dataset)


def fields_named(split: Rows, names: Sequence[str] | None) -> tuple[str, ...]:
    """The fields to read; None: all."""
    if names is None:
        return tuple(split.fields)
    for name in names:
        if name not in split.fields:
            raise UsageError(f"split {split.name!r} has no field {name!r}; it has {choices(split.fields)}")
    return tuple(names)


def refuse_own_sizes(
    split: Rows, fields: Sequence[str], collate: object, device: torch.device, tier: str, framed: bool
) -> None:
    """Refuses what cannot be done yet to rows of a size each.

    Raises:
        UsageError: if masks have a size each and images are not read, nothing gives the images of a batch one size,
            or they are to be kept on a device that is none.
    """
    for name in fields:
        if not split.fields[name].own_sizes:
            continue
        rows = f"{name} of split {split.name!r} have a size each"
        if name != "images" and (name != "masks" or "images" not in fields):
            others = tuple(one for one in fields if one != name)
            raise UsageError(f"{rows}, and follow images: read those, too, or leave them out, fields={others!r}")
        if not isinstance(collate, Collate | Views):
            enough = "with bucket='aspect', collate=Collate() is enough"
            one = "give a Collate that makes them one, such as Collate(Resize(256), CenterCrop(224))"
            raise UsageError(f"{rows}, and a batch has one: {enough if framed else one}; split[i] gives a row as it is")
        if tier == "device" and device.type != "cuda":
            raise UsageError(f"{rows}, and are kept on a CUDA device or not: use tier='memory', or give device='cuda'")
        if tier == "device" and has_per_sample(collate):
            raise UsageError(f"{rows}, and PerSample runs on the CPU: use tier='memory' or tier='disk'")


def refuse_decoded(decoded: object, split: Rows, fields: Sequence[str], tier: str) -> None:
    """Refuses ``decoded`` where there are no JPEGs to decode, or no memory to keep them in.

    Raises:
        TypeError: if it is no boolean.
        ValueError: if it is True, and rows are pixels or not kept in memory.
    """
    if not isinstance(decoded, bool):
        raise TypeError(f"decoded is {decoded!r}; give True or False")
    if not decoded:
        return
    if not _has_jpegs(split, fields):
        raise ValueError(f"decoded is True, and split {split.name!r} is read without JPEGs: leave it out")
    if tier not in ("auto", "memory"):
        raise ValueError(f"decoded is True, and tier is {tier!r}: pixels are kept in memory, so give tier='memory'")


def refuse_decode(
    decode: object, split: Rows, fields: Sequence[str], collate: object, device: torch.device, decoded: bool
) -> None:
    """Refuses what cannot decode these rows.

    Raises:
        ValueError: if ``decode`` is none of :data:`DECODERS`, rows are pixels, or a device cannot do it alone.
        UsageError: if there is no device.
    """
    if decode not in DECODERS:
        raise ValueError(f"decode is {decode!r}; use one of {', '.join(DECODERS)}")
    if decode == "cpu":
        return
    said = f"decode is {decode!r}"
    if not _has_jpegs(split, fields):
        raise ValueError(f"{said}, and split {split.name!r} is read without JPEGs: leave it out")
    if decoded:
        raise ValueError(f"{said}, and decoded is True, which keeps whole pixels of the CPU: give one of them")
    if decode == "scaled":
        return
    if device.type != "cuda":
        raise ValueError(f"{said}, and batches go to {device}: give device='cuda'")
    if has_per_sample(collate):
        raise ValueError(f"{said}, and PerSample runs in the training thread, which may not wait for it: leave it out")
    nvjpeg.check()


def _has_jpegs(split: Rows, fields: Sequence[str]) -> bool:
    images = split.fields["images"] if "images" in fields else None
    return images is not None and images.encoding in ("jpeg", "mixed")


def refuse_collate(collate: object, view: View, fields: Sequence[str], framed: bool = False) -> None:
    """Refuses a Collate or Views that cannot be done to rows, before one is read.

    Steps that follow the epoch are looked at when the epoch begins: no other one has to be possible.

    Raises:
        ValueError, TypeError: as the step that cannot be done to such images, boxes, masks or targets.
    """
    if "images" not in fields:
        return
    split = view.rows
    images, one = split.fields["images"], torch.zeros(1, dtype=torch.int64)
    channels, height, width = images.shape
    if images.own_sizes and not len(view):
        return
    sizes = _extreme_sizes(view) if images.own_sizes else None
    if sizes is not None:
        height = width = 0
        one = torch.zeros(len(sizes), dtype=torch.int64)
    others = {name: split.fields[name] for name in fields if name != "images" and not split.fields[name].own_sizes}
    masks = OwnMasks(torch.zeros(1, dtype=torch.uint8), one) if len(others) + 1 < len(fields) else None
    row = {name: torch.zeros((len(one), *spec.shape), dtype=spec.torch_dtype) for name, spec in others.items()}
    batch = make_batch(row, len(one), ids=one, seeds=one)
    for each in collates_of(collate):
        if all(step.at_epoch(0) is step for step in each.steps if isinstance(step, Step)):
            with batch_of_epoch(0):
                each.prepare(
                    batch, (channels, height, width), source=images.torch_dtype, sizes=sizes, masks=masks, framed=framed
                )


def _extreme_sizes(view: View) -> torch.Tensor:
    """The sizes of the lowest, narrowest, highest and widest images: what cannot be done to any fails with these."""
    rows = np.arange(len(view)) if view.chosen is None else view.chosen.numpy()
    located = view.rows.reader.field("images").located(rows)
    sizes = np.stack([located["height"], located["width"]], 1)
    ends = [*sizes.argmin(0), *sizes.argmax(0)]
    return torch.from_numpy(sizes[ends].astype(np.int64))


def returns_for(
    form: Form | None, collate: Any, split: Rows, fields: Sequence[str], device: torch.device, framed: bool = False
) -> Returns | None:
    """What batches are given as; None: as the collate makes them.

    A function in place of a Collate may add and remove fields, so what it makes is looked at batch by batch.
    """
    if isinstance(collate, Returns):
        raise TypeError("collate is a Returns; give the Loader the collate inside it, and what it returns as returns=")
    if form is None:
        return None
    returns = Returns(form, collate)
    if collate is None or isinstance(collate, Collate | Views):
        source = f"split {split.name!r}"
        made = ("ids", "seeds", "image_sizes") if framed else ("ids", "seeds")
        returns.refuse_fields(split.fields, (*fields, *made), source)
    returns.refuse_device(device)
    return returns


def device_for(device: torch.device | str | None, collate: object) -> torch.device:
    """The given device, else the collate's, else the CPU."""
    if device is not None:
        return torch.device(device)
    collate_device = collate.device if isinstance(collate, Collate | Views) else None
    return collate_device or torch.device("cpu")


def ranks_for(rank: int | None, world_size: int | None) -> tuple[int, int]:
    """Rank and world size: the given ones, else those of torch.distributed, else (0, 1)."""
    if (rank is None) != (world_size is None):
        raise ValueError(f"rank is {rank} and world_size is {world_size}; give both or none")
    if rank is not None and world_size is not None:
        return rank, world_size
    return _distributed_ranks() or (0, 1)


def _distributed_ranks() -> tuple[int, int] | None:
    """Rank and world size of torch.distributed; None where it is not initialized."""
    distributed = torch.distributed
    if distributed.is_available() and distributed.is_initialized():
        return distributed.get_rank(), distributed.get_world_size()
    return None


def ranks_here(rank: int, world_size: int) -> list[int]:
    """The ranks of this machine, this one first: as many as ``LOCAL_WORLD_SIZE`` says, numbered as torchrun does."""
    count = local_ranks()
    if count == 1 or world_size % count:
        return [rank]
    first = rank // count * count
    return [rank, *(other for other in range(first, first + count) if other != rank)]


def refuse_other_ranks(world_size: int) -> None:
    """UsageError if torch.distributed was initialized since the loader was made: every rank would read all rows."""
    ranks = _distributed_ranks()
    if ranks is not None and ranks[1] != world_size:
        raise UsageError(
            f"torch.distributed has {ranks[1]} ranks, the loader was made for {world_size}: make the loader after "
            "init_process_group, or give it rank and world_size"
        )


def order_named(shuffle: bool | str, order: str | Sampling | None, sampler: object) -> str | Sampling:
    """What ``shuffle`` or ``order`` asks for; "sequential" where a sampler is given.

    Raises:
        ValueError: if several are given, or ``shuffle`` is something else.
        TypeError: if ``order`` is something else.
    """
    if shuffle not in (True, False, "block"):
        raise ValueError(f'shuffle is {shuffle!r}; use True, False or "block"')
    given = [name for name, value in (("shuffle", shuffle), ("order", order), ("sampler", sampler)) if _is_given(value)]
    if len(given) > 1:
        raise ValueError(f"{' and '.join(given)} are both given; each decides the order alone")
    if not isinstance(order, str | Sampling | None):
        raise TypeError(f"order is {order!r}; choose {choices(ORDERS)}, or an order of mmload.loader.orders")
    return order or {True: "shuffled", False: "sequential", "block": "block"}[shuffle]


def _is_given(value: object) -> bool:
    return value is not None and value is not False
