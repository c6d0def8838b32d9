"""Interprets the arguments of a Loader: rows, fields, collate, device, rank, order, and what it returns."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Mapping, Sequence
from inspect import signature
from pathlib import Path
from typing import Any

import numpy as np
import torch

from mmload.augment.arguments import torch_device
from mmload.augment.canvas_steps import RandomShortestSize
from mmload.augment.collate import Collate
from mmload.augment.draws import batch_of_epoch
from mmload.augment.mosaic import Mosaic
from mmload.augment.returns import Form, Returns
from mmload.augment.step import Step, TargetStep
from mmload.augment.views import Views, collates_of, has_per_sample
from mmload.batch import make_batch
from mmload.errors import UsageError, bytes_text, choices, counted, did_you_mean, shown
from mmload.loader.order import EpochOrder, Sampling, ShuffledOrder, StoredOrder
from mmload.loader.tiers import MEMORY_SHARE
from mmload.loader.window_orders import BlockOrder
from mmload.remote.opening import open as open_dataset
from mmload.render.torch_sampling import OwnMasks
from mmload.runtime.memory_pool import can_share
from mmload.store.dataset import Dataset
from mmload.store.split_views import AnySplit, View, view_of

DECODERS = ("cpu", "scaled", "cuda")
"""Ways to decode the JPEGs of variable-size images."""

TIERS = ("auto", "disk", "memory", "device")

_OF_DATALOADER = {
    "cache_pixels": 'the page cache holds stored rows; for decoded pixels in memory build with encode="raw" or "mixed"',
    "num_workers": "it reads in threads; give threads=N, or subprocess=True for a loop that keeps Python busy",
    "pin_memory": "batches for a device are pinned where that helps; give device='cuda'",
    "pin_memory_device": "give device='cuda'",
    "non_blocking": "copies to a device overlap with training already; leave it out",
    "collate_fn": "give collate=, which gets a Batch of many rows",
    "transform": "give collate=Collate(...) of the steps of mmload.augment; PerSample(transform) runs any other",
    "transforms": "give collate=Collate(...) of the steps of mmload.augment; PerSample(transform) runs any other",
    "batch_sampler": "give sampler= and batch_size=, or an order of mmload.loader.orders",
    "prefetch_factor": "give prefetch=N, batches to keep ready",
    "persistent_workers": "threads stay between epochs; leave it out",
    "worker_init_fn": "draws depend on seed=, the epoch and the row alone; leave it out",
    "generator": "give seed=N",
    "multiprocessing_context": "it reads in threads; leave it out",
    "timeout": "a read that fails is an error, so nothing waits for a worker; leave it out",
    "in_order": "batches come in order; leave it out",
}
"""Replacement for each argument of torch's DataLoader that a Loader does not have."""

_SHUFFLES: Mapping[object, str] = {"shuffled": "give shuffle=True", "sequential": "leave it out, or give shuffle=False"}
"""Replacement for each order that ``shuffle`` requests."""


def check_unknown(arguments: Mapping[str, object], loader: type) -> None:
    """Raises TypeError for arguments that the Loader does not have; one of a DataLoader's says what to write."""
    for name in arguments:
        if name in _OF_DATALOADER:
            raise TypeError(f"Loader has no argument {name!r}: {_OF_DATALOADER[name]}")
        close = did_you_mean(name, signature(loader).parameters)
        raise TypeError(f"Loader has no argument {name!r}; see help(mmload.Loader){close}")


def check_number(name: str, value: object, least: int, greatest: int | None = None) -> None:
    """Checks that the value is an integer from ``least`` to ``greatest``; raises ValueError otherwise."""
    if type(value) is not int or value < least or (greatest is not None and value > greatest):
        bounds = f"of at least {least}" if greatest is None else f"from {least} to {greatest}"
        raise ValueError(f"{name} is {shown(value)}; give an integer {bounds}")


def check_booleans(**values: object) -> None:
    """Checks that arguments are booleans; raises TypeError otherwise."""
    for name, value in values.items():
        if not isinstance(value, bool):
            raise TypeError(f"{name} is {shown(value)}; give True or False")


def resolve_collate(collate: object) -> Any:
    """Returns the collate, a list of steps as a Collate; raises TypeError if it is neither that nor a function."""
    if isinstance(collate, Sequence) and not isinstance(collate, str):
        return Collate(*collate)
    if isinstance(collate, Step | TargetStep | Mosaic):
        raise TypeError(f"collate is the step {type(collate).__name__}; give a list of steps, as in collate=[step]")
    if collate is not None and not callable(collate):
        raise TypeError(f"collate is {shown(collate)}; give a Collate, a list of its steps, or a function of a Batch")
    return collate


def resolve_view(dataset: object, name: str | None) -> View:
    """Returns the rows of a path, a Dataset, a Split, or a Subset or ConcatDataset of splits."""
    if isinstance(dataset, str | Path):
        dataset = open_dataset(dataset)
    if isinstance(dataset, Dataset):
        if name is None:
            if len(dataset) > 1:
                raise UsageError(
                    f"{dataset.folder.title} has several splits; choose one with split=: {choices(dataset)}"
                )
            name = next(iter(dataset))
        return view_of(dataset[name])
    if name not in (None, getattr(dataset, "name", None)):
        raise UsageError(f"split={name!r}, but the split is chosen already: {dataset!r}; leave split out")
    return view_of(dataset)


def resolve_fields(split: AnySplit, names: Sequence[str] | None) -> tuple[str, ...]:
    """Returns the fields to read; all if ``names`` is None."""
    if names is None:
        return tuple(split.fields)
    if isinstance(names, str) or not isinstance(names, Iterable):
        raise TypeError(f"fields is {shown(names)}; give a list of names, such as {list(split.fields)[:2]}")
    found = tuple(names)
    for name in found:
        if not isinstance(name, str) or name not in split.fields:
            raise UsageError(f"split {split.name!r} has no field {name!r}; it has {choices(split.fields)}")
    return found


def check_variable_size(
    split: AnySplit, fields: Sequence[str], collate: object, device: torch.device, tier: str, framed: bool
) -> None:
    """Checks what is requested of variable-size rows.

    Raises:
        UsageError: if masks are variable-size and images are not read, nothing gives the images of a batch one size,
            or the tier is "device" and the device is no GPU.
    """
    for name in fields:
        if not split.fields[name].variable_size:
            continue
        if name != "images" and (name != "masks" or "images" not in fields):
            others = tuple(one for one in fields if one != name)
            raise UsageError(
                f"{name} of split {split.name!r} have variable sizes and require images; add 'images' to fields, "
                f"or give fields={others!r}"
            )
        problem = f"{name} of split {split.name!r} have variable sizes"
        if not isinstance(collate, Collate | Views):
            enough = "with bucket='aspect', collate=Collate() is enough"
            one = "give a Collate that resizes them, such as Collate(Resize(256), CenterCrop(224))"
            raise UsageError(f"{problem}, but a batch has one; {enough if framed else one}; split[i] gives single rows")
        if tier == "device" and device.type != "cuda":
            raise UsageError(f"{problem}, so tier='device' needs device='cuda'; use it, or tier='memory'")
        if tier == "device" and has_per_sample(collate):
            raise UsageError(f"{problem}, and PerSample runs on the CPU; use tier='memory' or tier='disk'")


def check_decode(decode: object, split: AnySplit, fields: Sequence[str], collate: object, device: torch.device) -> None:
    """Checks that these rows can be decoded in the requested way.

    Raises:
        ValueError: if ``decode`` is none of :data:`DECODERS`, rows are pixels, or a device cannot do it alone.
        UsageError: if there is no device.
    """
    if decode not in DECODERS:
        raise ValueError(f"decode is {decode!r}; use one of {', '.join(DECODERS)}")
    if decode == "cpu":
        return
    option = f"decode={decode!r}"
    if not _has_jpegs(split, fields):
        raise ValueError(f"{option}, but split {split.name!r} is read without JPEGs; leave decode out")
    if decode == "scaled":
        return
    if device.type != "cuda":
        raise ValueError(f"{option} needs device='cuda', but batches go to {device}")
    if has_per_sample(collate):
        raise ValueError(
            f"{option} cannot be combined with PerSample, which runs in the training thread; use decode='cpu'"
        )
    from mmload.runtime import nvjpeg

    nvjpeg.check()


def check_subprocess(subprocess: bool, device: torch.device) -> None:
    """Checks that a subprocess can give batches to the training process.

    Raises:
        ValueError: if ``subprocess`` is True, and batches go to a device, or the system cannot share memory.
    """
    if subprocess and device.type != "cpu":
        raise ValueError(
            f"subprocess=True, but batches go to {device}; give device='cpu' and a collate without a device, and move "
            "batches in the training loop: batch.to(device)"
        )
    if subprocess and not can_share():
        raise ValueError("subprocess=True, but this system has no memory files (memfd_create); leave subprocess out")


def _has_jpegs(split: AnySplit, fields: Sequence[str]) -> bool:
    images = split.fields["images"] if "images" in fields else None
    return images is not None and images.encoding in ("jpeg", "mixed")


def check_collate(collate: object, view: View, fields: Sequence[str], framed: bool = False) -> None:
    """Checks that a Collate or Views can be applied to the rows, before one is read.

    Steps that follow the epoch are checked when the epoch begins: no other epoch has to be possible.

    Raises:
        ValueError, TypeError: if there are no images, or as the step that cannot be done to such images or targets.
    """
    if "images" not in fields:
        if collates_of(collate):
            raise ValueError(f"fields are {', '.join(fields)}, and a collate renders images: add them, or leave it out")
        return
    split = view.rows
    images, one = split.fields["images"], torch.zeros(1, dtype=torch.int64, device="cpu")
    channels, height, width = images.shape
    if images.variable_size and not len(view):
        return
    sizes = _extreme_sizes(view) if images.variable_size else None
    if sizes is not None:
        height = width = 0
        one = torch.zeros(len(sizes), dtype=torch.int64, device="cpu")
    others = {name: split.fields[name] for name in fields if name != "images" and not split.fields[name].variable_size}
    masks = OwnMasks(torch.zeros(1, dtype=torch.uint8, device="cpu"), one) if len(others) + 1 < len(fields) else None
    row = {name: one.new_zeros((len(one), *spec.shape), dtype=spec.torch_dtype) for name, spec in others.items()}
    batch = make_batch(row, len(one), ids=one, seeds=one)
    for each in collates_of(collate):
        if all(step.at_epoch(0) is step for step in each.steps if isinstance(step, Step)):
            places, seeds = each.with_partners(torch.arange(len(one), device="cpu"), one, len(one), lambda drawn: drawn)
            with batch_of_epoch(0):
                each.prepare(
                    batch[places].replace(seeds=seeds),
                    (channels, height, width),
                    source=images.torch_dtype,
                    sizes=None if sizes is None else sizes[places],
                    masks=None if masks is None else masks._replace(starts=one[places]),
                    framed=framed,
                )


def _extreme_sizes(view: View) -> torch.Tensor:
    """Returns the sizes of the lowest, narrowest, highest and widest images; a step that fails, fails for one."""
    rows = np.arange(len(view)) if view.chosen is None else view.chosen.numpy()
    located = view.rows.reader.field("images").located(rows)
    sizes = np.stack([located["height"], located["width"]], 1)
    ends = [*sizes.argmin(0), *sizes.argmax(0)]
    return torch.from_numpy(sizes[ends].astype(np.int64))


def returns_for(
    form: Form | None, collate: Any, split: AnySplit, fields: Sequence[str], device: torch.device, framed: bool = False
) -> Returns | None:
    """Returns the form of the batches; None: as the collate makes them.

    A function in place of a Collate may add and remove fields, so its results are checked batch by batch.
    """
    if isinstance(collate, Returns):
        raise TypeError("collate is a Returns; give the Loader the collate inside it, and what it returns as returns=")
    if form is None:
        return None
    returns = Returns(form, collate)
    if collate is None or isinstance(collate, Collate | Views):
        source = f"split {split.name!r}"
        steps = [step for each in collates_of(collate) for step in each.steps]
        has_sizes = framed or any(isinstance(step, RandomShortestSize) for step in steps)
        made = ("ids", "seeds", "image_sizes") if has_sizes else ("ids", "seeds")
        returns.check_fields(split.fields, (*fields, *made), source)
    returns.check_device(device)
    return returns


def device_for(device: torch.device | str | int | None, collate: object) -> torch.device:
    """Returns the given device (a number is that of a CUDA device), else the collate's, else the CPU.

    Raises:
        ValueError: if it is none, or neither the CPU nor a CUDA device.
    """
    collate_device = collate.device if isinstance(collate, Collate | Views) else None
    given = f"cuda:{device}" if type(device) is int else device
    found = (collate_device or torch.device("cpu")) if given is None else torch_device(given)
    if found.type not in ("cpu", "cuda"):
        raise ValueError(
            f"device is {found}; a loader gives batches on the CPU or a CUDA device: move them from the CPU"
        )
    return found


def warn_of_no_batch(rows: int, batch_size: int) -> None:
    """Warns if ``drop_last`` leaves no batch of the rows of an epoch."""
    if 0 < rows < batch_size:
        message = f"drop_last=True leaves no batch: {counted(rows, 'row')} per rank and epoch, but batch_size is"
        warnings.warn(f"{message} {batch_size}; use a smaller batch_size or drop_last=False", stacklevel=3)


def resolve_order(shuffle: object, order: str | Sampling | None, sampler: object, bucket: str | None) -> str | Sampling:
    """Returns the order that ``shuffle`` or ``order`` requests; "sequential" if a sampler is given.

    Raises:
        ValueError: if several are given, ``shuffle`` is something else, or ``bucket`` is combined with a sampler.
        TypeError: if ``order`` is something else.
    """
    if shuffle not in (True, False):
        advice = f"order={shuffle!r}" if isinstance(shuffle, str) else "True or False"
        raise ValueError(f"shuffle is {shuffle!r}; give {advice}")
    if bucket is not None and sampler is not None:
        raise ValueError(f"bucket={bucket!r} cannot be combined with a sampler, which decides what is in a batch")
    options = {"shuffle": shuffle or None, "order": order, "sampler": sampler}
    names = [name for name, value in options.items() if value is not None]
    if len(names) > 1:
        raise ValueError(f"{' and '.join(names)} are both given; each decides the order alone")
    if not isinstance(order, str | Sampling | None):
        raise TypeError(f"order is {order!r}; give 'block', or an order of mmload.loader.orders")
    if order in _SHUFFLES:
        raise ValueError(f"order is {order!r}; {_SHUFFLES[order]}")
    return ("shuffled" if shuffle else "sequential") if order is None else order


def order_of(order: str | Sampling, dataset: object, view: View, seed: int) -> EpochOrder:
    """Returns the order that a Loader's argument requests.

    Raises:
        ValueError, TypeError, UsageError: if there is none, or it does not fit the rows.
    """
    if isinstance(order, Sampling):
        return order.bound(dataset, view, seed)
    if order == "shuffled":
        return ShuffledOrder(rows=len(view), seed=seed)
    if order == "block":
        return BlockOrder(rows=len(view), seed=seed)
    if order == "sequential":
        return StoredOrder(rows=len(view))
    raise ValueError(f"order is {order!r}; give 'block', or an order of mmload.loader.orders")


def choose_tier(name: str, split: AnySplit, device: torch.device) -> tuple[str, str]:
    """Returns the tier for a split: "auto" takes the device if the images fit there, otherwise the disk.

    Returns:
        "disk", "memory" or "device"; and the reason as a sentence.

    Raises:
        ValueError: if ``name`` is none of :data:`TIERS`, or torch finds no such device.
    """
    if name not in TIERS:
        raise ValueError(f"tier is {name!r}; use one of {', '.join(TIERS)}")
    if name != "auto":
        return name, f"{name}: as asked"
    images = split.fields.get("images")
    size = _stored_bytes(split) if images else 0
    if device.type == "cuda" and not (images and images.variable_size):
        from mmload.loader.device_batches import check_cuda  # not needed for a CPU

        check_cuda(device)
        free = torch.cuda.mem_get_info(device)[0]
        if size <= MEMORY_SHARE * free:
            return "device", f"device: {bytes_text(size)} of images, {bytes_text(free)} free on {device}"
    return "disk", f"disk: {bytes_text(size)} of images, mapped"


def _stored_bytes(split: AnySplit) -> int:
    """Returns the bytes of all images of a split as they are stored."""
    spec = split.fields["images"]
    if not spec.variable_size:
        return len(split) * spec.row_bytes
    return int(split.reader.field("images").located(np.arange(len(split)))["bytes"].sum())
