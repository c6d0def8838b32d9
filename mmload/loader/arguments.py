"""Interprets the arguments of a Loader: rows, fields, collate, device, rank, order, seed, and what it returns."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch.utils.data import get_worker_info

from mmload.augment.arguments import torch_device
from mmload.augment.canvas_steps import RandomShortestSize
from mmload.augment.collate import Collate, collates_of
from mmload.augment.returns import Form, Returns
from mmload.augment.step import DeclaredStep, Step, batch_of_epoch
from mmload.augment.views import Views
from mmload.batch import make_batch
from mmload.errors import UsageError, choices, did_you_mean, shown
from mmload.loader.order import TAILS, Order, distributed_ranks
from mmload.loader.samplers import SamplerOrder
from mmload.loader.tiers import TIERS
from mmload.remote.opening import open as open_dataset
from mmload.render.torch_sampling import OwnMasks
from mmload.runtime.resources import MOST_THREADS
from mmload.store.dataset import AnySplit, Dataset, View, view_of
from mmload.store.row_numbers import Numbers
from mmload.store.row_reader import sizes_of

MOST_SEED = 2**64 - 1

DECODERS = ("cpu", "scaled")
"""Ways to decode the JPEGs of variable-size images."""

_STEPS = "give collate=Collate(...) of the steps of mmload.augment; PerSample(transform) runs any other"
_THREADS = "it reads in threads; give threads=N"
_RANKS = "give ranks=(rank, world_size), or leave it to torch.distributed"
_ELSEWHERE = {
    "num_workers": _THREADS,
    "workers": _THREADS,
    "pin_memory": "batches for a device are pinned where that helps; give device='cuda'",
    "pin_memory_device": "give device='cuda'",
    "non_blocking": "copies to a device overlap with training already; leave it out",
    "collate_fn": "give collate=, which gets a Batch of many rows",
    "transform": _STEPS,
    "transforms": _STEPS,
    "sampler": "give order=, which takes a torch Sampler, rows or a mask",
    "batch_sampler": "give order= and batch_size=; order= takes a torch Sampler, or an order of mmload.loader.orders",
    "bucket": "give order=mmload.loader.orders.by_aspect()",
    "prefetch_factor": "give prefetch=N, batches to keep ready",
    "persistent_workers": "threads stay between epochs; leave it out",
    "worker_init_fn": "draws depend on seed=, the epoch and the row alone; leave it out",
    "generator": "give seed=N, or leave it to torch.manual_seed",
    "multiprocessing_context": "it reads in threads; leave it out",
    "timeout": "a read that fails is an error, so nothing waits for a worker; leave it out",
    "in_order": "batches come in order; leave it out",
    "split": 'open the split: Loader(mmload.open(path)["train"])',
    "rank": _RANKS,
    "world_size": _RANKS,
    "num_replicas": _RANKS,
    "subprocess": "threads hand the interpreter lock over once per batch; leave subprocess out",
    "cache_pixels": "the page cache holds stored rows; for decoded pixels build with --encode raw or mixed",
}
"""Replacement for each argument that a Loader lacks and that people write by habit, such as torch's DataLoader's."""

_SHUFFLES: Mapping[object, str] = {"shuffled": "give shuffle=True", "sequential": "leave it out, or give shuffle=False"}
"""Replacement for each order that ``shuffle`` requests."""


class ArgumentRule(NamedTuple):
    """Rule of an argument: which values it takes, the same in words, and the error for others."""

    takes: Callable[[Any], bool]
    words: str
    error: type[Exception] = ValueError


def _integer(least: int, greatest: int | None = None, *, optional: bool = False) -> ArgumentRule:
    def takes(value: Any) -> bool:
        if value is None:
            return optional
        return type(value) is int and least <= value and (greatest is None or value <= greatest)

    bounds = f"of at least {least}" if greatest is None else f"from {least} to {greatest}"
    return ArgumentRule(takes, f"give an integer {bounds}")


def _one_of(*names: str) -> ArgumentRule:
    return ArgumentRule(lambda value: isinstance(value, str) and value in names, f"use one of {', '.join(names)}")


def _is_pair_of_ranks(value: Any) -> bool:
    is_pair = isinstance(value, tuple) and len(value) == 2 and all(type(one) is int for one in value)
    return value is None or (is_pair and 0 <= value[0] < value[1])


_BOOLEAN = ArgumentRule(lambda value: isinstance(value, bool), "give True or False", TypeError)

_DECLARED = {
    "batch_size": _integer(1),
    "shuffle": ArgumentRule(lambda value: value in (True, False), "give True or False; order= takes other orders"),
    "seed": _integer(0, MOST_SEED, optional=True),
    "drop_last": _BOOLEAN,
    "tier": _one_of(*TIERS),
    "threads": _integer(1, MOST_THREADS, optional=True),
    "prefetch": _integer(0),
    "decode": _one_of(*DECODERS),
    "ranks": ArgumentRule(_is_pair_of_ranks, "give a pair (rank, world_size), with a rank from 0 to world_size - 1"),
    "tail": _one_of(*TAILS),
}
"""Rules of the arguments whose values can be checked alone."""


def check_arguments(unknown: Mapping[str, object], parameters: Mapping[str, object], **given: object) -> None:
    """Checks each argument as it is declared.

    Raises:
        TypeError: for arguments that the Loader, with these ``parameters``, does not have; if it is known what stands
            in place of one, the message contains it.
        ValueError, TypeError: if a value is none that the argument takes.
    """
    for name in unknown:
        close = did_you_mean(name, parameters)
        raise TypeError(
            f"Loader has no argument {name!r}{': ' if name in _ELSEWHERE else '; '}"
            f"{_ELSEWHERE.get(name, f'see help(mmload.Loader){close}')}"
        )
    for name, value in given.items():
        takes, words, error = _DECLARED[name]
        if not takes(value):
            raise error(f"{name} is {shown(value)}; {words}")


def resolve_collate(collate: object) -> Any:
    """Returns the collate, a list of steps as a Collate; raises TypeError if it is neither that nor a function."""
    if isinstance(collate, Sequence) and not isinstance(collate, str):
        return Collate(*collate)
    if isinstance(collate, DeclaredStep):
        raise TypeError(f"collate is the step {type(collate).__name__}; give a list of steps, as in collate=[step]")
    if collate is not None and not callable(collate):
        raise TypeError(f"collate is {shown(collate)}; give a Collate, a list of its steps, or a function of a Batch")
    return collate


def resolve_view(dataset: object) -> View:
    """Returns the rows of a path, a Dataset of one split, a Split, or a Subset or ConcatDataset of splits."""
    if isinstance(dataset, str | Path):
        dataset = open_dataset(dataset)
    if isinstance(dataset, Dataset):
        name = next(iter(dataset))
        if len(dataset) > 1:
            one = f'mmload.open({str(dataset.path)!r})["{name}"]'
            raise UsageError(f"{dataset.folder.title} has several splits ({choices(dataset)}); open one: {one}")
        dataset = dataset[name]
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


def check_variable_size(split: AnySplit, fields: Sequence[str], collate: object, tier: str, framed: bool) -> None:
    """Checks what is requested of variable-size rows.

    Raises:
        UsageError: if masks are variable-size and images are not read, nothing gives the images of a batch one size,
            or the tier is "device".
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
            enough = "with order=by_aspect(...), collate=Collate() is enough"
            one = "give a Collate that resizes them, such as Collate(Resize(256), CenterCrop(224))"
            raise UsageError(f"{problem}, but a batch has one; {enough if framed else one}; split[i] gives single rows")
        if tier == "device":
            raise UsageError(f"{problem}, so tier='device' cannot hold them; use tier='memory' or tier='disk'")


def check_decode(decode: object, split: AnySplit, fields: Sequence[str]) -> None:
    """Checks that these rows can be decoded in the requested way.

    Raises:
        ValueError: if rows are pixels.
    """
    images = split.fields["images"] if "images" in fields else None
    has_jpegs = images is not None and images.encoding in ("jpeg", "mixed")
    if decode != "cpu" and not has_jpegs:
        raise ValueError(f"decode={decode!r}, but split {split.name!r} is read without JPEGs; leave decode out")


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
    pixels = 1 if sizes is None else int(sizes.prod(1).max())
    masks = OwnMasks(np.zeros(pixels, np.uint8), one.numpy()) if len(others) + 1 < len(fields) else None
    row = {name: one.new_zeros((len(one), *spec.shape), dtype=spec.torch_dtype) for name, spec in others.items()}
    batch = make_batch(row, len(one), ids=one, seeds=one)
    for each in collates_of(collate):
        if all(step.at_epoch(0) is step for step in each.steps if isinstance(step, Step)):
            chosen, own = each.with_partners(np.arange(len(one)), one.numpy(), len(one), lambda drawn: drawn)
            places = torch.from_numpy(chosen)
            with batch_of_epoch(0):
                each.prepare(
                    batch[places].replace(seeds=torch.from_numpy(own)),
                    (channels, height, width),
                    source=images.torch_dtype,
                    sizes=None if sizes is None else sizes[chosen],
                    masks=None if masks is None else masks._replace(starts=masks.starts[chosen]),
                    framed=framed,
                )


def _extreme_sizes(view: View) -> Numbers:
    """Returns the sizes of the lowest, narrowest, highest and widest images; a step that fails, fails for one."""
    rows = np.arange(len(view)) if view.chosen is None else view.chosen
    located = view.rows.reader.field("images").located(rows)
    sizes = sizes_of(located)
    extreme: Numbers = sizes[[*sizes.argmin(0), *sizes.argmax(0)]]
    return extreme


def resolve_returns(
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
        steps = [step for each in collates_of(collate) for step in each.steps]
        has_sizes = framed or any(isinstance(step, RandomShortestSize) for step in steps)
        made = ("ids", "seeds", "image_sizes") if has_sizes else ("ids", "seeds")
        returns.check_fields(split.fields, (*fields, *made), f"split {split.name!r}")
    returns.check_device(device)
    return returns


def resolve_device(device: torch.device | str | int | None, collate: object) -> torch.device:
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


def rendering_device(collate: object, device: torch.device, tier: str) -> torch.device:
    """Returns the device where a loader's batches are rendered: the CPU if their samples are composed of several rows.

    Raises:
        ValueError: if samples are composed, and rows are to stay on a device.
    """
    step = collate.joining_step if isinstance(collate, Collate) else ""
    if step and tier == "device":
        raise ValueError(f"tier={tier!r}, but {step} is rendered on a CPU; leave tier out")
    return torch.device("cpu") if step else device


def resolve_order(shuffle: object, order: object) -> Any:
    """Returns the order that ``shuffle`` or ``order`` requests: a name, a Sampling, or rows and samplers as given.

    Raises:
        ValueError: if both are given, or ``order`` is a name that ``shuffle`` requests.
    """
    if order is None:
        return "shuffled" if shuffle else "sequential"
    if shuffle:
        raise ValueError("shuffle and order are both given; each decides the order alone")
    if isinstance(order, str) and order in _SHUFFLES:
        raise ValueError(f"order is {order!r}; {_SHUFFLES[order]}")
    return order


def torch_seed() -> int:
    """Returns the seed of torch's default generator.

    Raises:
        UsageError: in a worker of a DataLoader, as each worker has another one.
    """
    if get_worker_info() is not None:
        raise UsageError(
            "seed is None, and each worker of a DataLoader has a torch seed of its own; give seed=N, or make the "
            "Loader in the training process"
        )
    return torch.initial_seed() & MOST_SEED


def needs_agreement(order: Order | SamplerOrder, collate: object) -> bool:
    """Returns whether ranks have to agree on a seed: there are several, and the order or the collate draws.

    Raises:
        ValueError: if they have to and cannot, as they are not those of torch.distributed.
    """
    is_drawn = isinstance(order, Order) and order.epoch_order.is_drawn
    if order.world_size == 1 or not (is_drawn or is_random(collate)):
        return False
    ranks = distributed_ranks()
    if ranks is None or ranks[1] != order.world_size:
        given = order.rank, order.world_size
        raise ValueError(f"ranks is {given}, which are not torch.distributed's and share no seed; give seed=N")
    return True


def is_random(collate: object) -> bool:
    """Returns whether a collate may depend on the samples' seeds; a function may."""
    collates = collates_of(collate)
    return any(each.is_random for each in collates) if collates else collate is not None


def agreed_seed(own: int) -> int:
    """Returns rank 0's seed, on every rank of torch.distributed; all have to call it.

    Raises:
        UsageError: in a worker of a DataLoader, which is no rank.
    """
    if get_worker_info() is not None:
        raise UsageError("a worker of a DataLoader cannot ask rank 0 for its seed; give the Loader seed=N")
    seeds = [own]
    torch.distributed.broadcast_object_list(seeds, src=0)  # by the backend's device
    return seeds[0]
