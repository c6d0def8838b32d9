"""The loader: batches of a dataset, epoch after epoch, prepared by threads a few ahead of the training loop.

Its arguments are declared, checked and interpreted above it. Every batch equals the collate of its rows, whatever the
threads, tier, ranks and resume point. It never forks, and needs neither Pillow nor typer.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import replace
from inspect import signature
from pathlib import Path
from typing import Any, NamedTuple, Never

import numpy as np
import torch
from torch.utils.data import ConcatDataset, Subset

from mmload.augment.arguments import torch_device
from mmload.augment.canvas_steps import RandomShortestSize
from mmload.augment.collate import Collate, collates_of
from mmload.augment.returns import Form, Returns
from mmload.augment.step import DeclaredStep, Step, batch_of_epoch
from mmload.augment.views import Views
from mmload.batch import Batch, BatchOrViews, make_batch
from mmload.errors import UsageError, choices, counted, did_you_mean, shown
from mmload.lazy import lazy_property
from mmload.loader.batch_worker import BatchSettings, BatchWorker, LoadingStatistics, as_it_is
from mmload.loader.epoch_iterator import (
    BatchRows,
    Counts,
    EpochIterator,
    Position,
    Progress,
    State,
    WorkerPool,
    begin_prefetch,
    beginning,
    check_same,
    position_in,
    seed_in,
)
from mmload.loader.order import (
    MOST_SEED,
    TAILS,
    EpochOrder,
    Order,
    OrderContext,
    Sampling,
    agreed_seed,
    bind_order,
    check_batches,
    distributed_ranks,
    needs_agreement,
    occurrences_in,
    resolve_order,
    torch_seed,
)
from mmload.loader.samplers import EpochSampler, SamplerOrder, SkippableBatches
from mmload.loader.tiers import TIERS, choose_tier, reason_of_tier
from mmload.remote.opening import open as open_dataset
from mmload.render.torch_sampling import OwnMasks
from mmload.runtime.resources import MOST_THREADS, core_share
from mmload.store.dataset import AnySplit, Dataset, Split, View, view_of
from mmload.store.row_numbers import Numbers
from mmload.store.row_reader import sizes_of

__all__ = ["Collate", "Loader"]

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


class ArgumentRule(NamedTuple):
    """Rule of an argument: which values it takes, the same in words, and the error for others."""

    takes: Callable[[Any], bool]
    words: str
    error: type[Exception] = ValueError


def _integer(values: range, bounds: str) -> ArgumentRule:
    return ArgumentRule(lambda value: type(value) is int and value in values, f"give an integer {bounds}")


def _or_none(rule: ArgumentRule) -> ArgumentRule:
    return rule._replace(takes=lambda value: value is None or rule.takes(value))


def _one_of(*names: str) -> ArgumentRule:
    return ArgumentRule(lambda value: isinstance(value, str) and value in names, f"use one of {', '.join(names)}")


def _is_pair_of_ranks(value: Any) -> bool:
    return isinstance(value, tuple) and list(map(type, value)) == [int, int] and 0 <= value[0] < value[1]


_BOOLEAN = ArgumentRule(lambda value: isinstance(value, bool), "give True or False", TypeError)

_DECLARED = {
    "batch_size": _integer(range(1, sys.maxsize + 1), "of at least 1"),
    "shuffle": ArgumentRule(lambda value: value in (True, False), "give True or False; order= takes other orders"),
    "seed": _or_none(_integer(range(MOST_SEED + 1), f"from 0 to {MOST_SEED}")),
    "drop_last": _BOOLEAN,
    "tier": _one_of(*TIERS),
    "threads": _or_none(_integer(range(1, MOST_THREADS + 1), f"from 1 to {MOST_THREADS}")),
    "prefetch": _integer(range(sys.maxsize + 1), "of at least 0"),
    "decode": _one_of(*DECODERS),
    "ranks": _or_none(
        ArgumentRule(_is_pair_of_ranks, "give a pair (rank, world_size), with a rank from 0 to world_size - 1")
    ),
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
        raise TypeError(f"Loader has no argument {name!r}: {_ELSEWHERE.get(name, f'see help(mmload.Loader){close}')}")
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
        if name not in list(split.fields):
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
    has_jpegs = "images" in fields and split.fields["images"].encoding in ("jpeg", "mixed")
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
    images = split.fields["images"]
    channels, height, width = images.shape
    sizes = np.array([(height, width)])
    if images.variable_size:
        if not len(view):
            return
        height, width, sizes = 0, 0, _extreme_sizes(view)
    one = torch.zeros(len(sizes), dtype=torch.int64, device="cpu")
    others = {name: split.fields[name] for name in fields if name != "images" and not split.fields[name].variable_size}
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
                    sizes=sizes[chosen] if images.variable_size else None,
                    framed=framed,
                    own={"masks": _void_masks(sizes[chosen])} if len(others) + 1 < len(fields) else {},
                )


def _void_masks(sizes: Numbers) -> OwnMasks:
    """Returns a mask of each size, int64 [B, 2], all in the same memory."""
    return OwnMasks(np.zeros(int(sizes.prod(1).max()), np.uint8), np.zeros(len(sizes), np.int64))


def _extreme_sizes(view: View) -> Numbers:
    """Returns the sizes of the lowest, narrowest, highest and widest images; a step that fails, fails for one."""
    located = view.rows.reader.field("images").located(view.ids(np.arange(len(view))))
    sizes = sizes_of(located)
    extreme: Numbers = sizes[[*sizes.argmin(0), *sizes.argmax(0)]]
    return extreme


def resolve_returns(
    form: Form | None, collate: Any, split: AnySplit, fields: Sequence[str], device: torch.device, framed: bool = False
) -> Callable[[Any], Any]:
    """Returns what gives a batch its form; without one, the batch as the collate makes it.

    A function in place of a Collate may add and remove fields, so its results are checked batch by batch.
    """
    if isinstance(collate, Returns):
        raise TypeError("collate is a Returns; give the Loader the collate inside it, and what it returns as returns=")
    if form is None:
        return as_it_is
    returns = Returns(form, collate)
    if collate is None or isinstance(collate, Collate | Views):
        steps = [step for each in collates_of(collate) for step in each.steps]
        has_sizes = framed or any(isinstance(step, RandomShortestSize) for step in steps)
        made = ("ids", "seeds", "image_sizes") if has_sizes else ("ids", "seeds")
        returns.check_fields(split.fields, (*fields, *made), f"split {split.name!r}")
    returns.check_device(device)
    return returns.given


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
    if not step:
        return device
    if tier == "device":
        raise ValueError(f"tier={tier!r}, but {step} is rendered on a CPU; leave tier out")
    return torch.device("cpu")


class Loader:
    """Batches of one split, epoch after epoch.

    ``for batch in loader`` is one epoch; the next ``for`` is the next epoch, in another order. The order of the rows
    and every random draw are functions of (seed, epoch, row) alone.

    Args:
        dataset: path of a dataset, an opened Dataset, one of its splits, or a ``Subset`` or ``ConcatDataset`` of
            splits, nested in any way (``split.subset``, ``random_split``). ``ids`` are row numbers of the split or
            concatenation beneath any subsets, as without them. An empty subset has empty epochs.
        batch_size: rows per batch, on each rank.
        shuffle: True for a new random order each epoch, False for the stored order. Of more than 1 GiB in object
            storage, True is the order "block".
        collate: a :class:`Collate`, a list of its steps, a :class:`~mmload.augment.views.Views`, whose batches have a
            Batch per view, or any callable that takes a Batch of uint8 rows. None: the rows as they are stored.
        order: in place of ``shuffle``: "block" shuffles, and reads neighbors together, for data larger than memory on
            disks that favor long reads; "full" shuffles all rows, also in object storage; a function of
            :mod:`mmload.loader.orders` such as ``weighted(weights)``; or this rank's rows, as in a DataLoader: a list,
            array or tensor of rows, one boolean per row, or a torch ``Sampler``, whose ``set_epoch`` is called with the
            loader's epoch until its user calls it.
        seed: 0 to 2**64 - 1; decides order and draws. None: the seed that ``torch.manual_seed`` set in the process that
            makes the loader; of several ranks rank 0's, which they ask for when the first epoch begins.
        drop_last: leave out the last batch of an epoch if it is smaller.
        device: device of the batches; None: the collate's device, else the CPU.
        tier: place of the images: "disk", "memory", "device" (of a fixed size), or "auto", which takes the device
            if they fit there, and otherwise the disk.
        threads: number of threads that read and render; None: one per available core of this rank's share of the
            machine (``LOCAL_WORLD_SIZE``, set by torchrun).
        prefetch: finished batches to keep ready, besides the one that each thread is making.
        decode: how the JPEGs of variable-size images are decoded. "cpu": exactly. "scaled": to a half or a quarter
            where their window shrinks by three or six, for pixels that differ by a level or so. Draws are the same.
        fields: stored fields to read; None: all.
        returns: what to give in place of a Batch: a tuple or a dict of names of fields, "torchvision", "numpy",
            "dlpack" or a function, see :class:`~mmload.augment.returns.Returns`. The training thread calls the
            function, in order. None: the Batch, or the tuple of a Views.
        ranks: number of this rank, and how many share an epoch: (rank, world_size); None: torch.distributed's if it is
            initialized, else (0, 1). Rows and samplers are of one rank already.
        tail: what to do when the ranks do not divide the rows: "exact" reads each row once (some ranks have one more),
            "pad" repeats some and "drop" leaves some out, as DistributedSampler does.

    Attributes:
        dataset: the split, subset or concatenation that is read; ``len(loader.dataset)`` is its number of rows.
        num_workers: 0, as there are threads in place of a DataLoader's worker processes.

    Raises:
        UsageError: if the split or a field does not exist.
        StoreError: if the dataset cannot be opened.
        ValueError, TypeError: if an argument is invalid, or a step of the collate cannot be applied to these rows.
    """

    num_workers = 0
    prefetch_factor = None  # Accelerate reads it, and a DataLoader without workers has none

    def __init__(
        self,
        dataset: str | Path | Dataset | Split | Subset[Batch] | ConcatDataset[Batch],
        batch_size: int = 64,
        shuffle: bool = False,
        *,
        collate: Callable[[Batch], BatchOrViews] | Sequence[Step] | None = None,
        order: str | Sampling | Iterable[Any] | None = None,
        seed: int | None = None,
        drop_last: bool = False,
        device: torch.device | str | None = None,
        tier: str = "auto",
        threads: int | None = None,
        prefetch: int = 2,
        decode: str = "cpu",
        fields: Sequence[str] | None = None,
        returns: Form | None = None,
        ranks: tuple[int, int] | None = None,
        tail: str = "exact",
        **others: Never,
    ) -> None:
        check_arguments(
            others,
            signature(Loader).parameters,
            batch_size=batch_size,
            shuffle=shuffle,
            seed=seed,
            drop_last=drop_last,
            tier=tier,
            threads=threads,
            prefetch=prefetch,
            decode=decode,
            ranks=ranks,
            tail=tail,
        )
        view = self._view = resolve_view(dataset)
        self.split = view.rows
        self.dataset: Any = self.split if isinstance(dataset, str | Path | Dataset) else dataset
        self.batch_size, self.drop_last = batch_size, drop_last
        self.seed = torch_seed() if seed is None else seed
        self.collate = made = resolve_collate(collate)
        self.device = resolve_device(device, made)
        self._cores = core_share()
        self.threads = threads or self._cores.threads
        self.prefetch = prefetch
        self._named = resolve_order(shuffle, order)
        framed = isinstance(self._named, Sampling) and self._named.framed
        names = resolve_fields(self.split, fields)
        check_variable_size(self.split, names, made, tier, framed)
        check_decode(decode, self.split, names)
        rendered = rendering_device(made, self.device, tier)
        self.tier = choose_tier(tier, self.split, rendered)
        self._is_auto_tier, self._has_own_threads = tier == "auto", threads is not None
        self._ranks_given = ranks is not None
        self._order = self._made_order(ranks or distributed_ranks() or (0, 1), tail)
        self._follows_torch = seed is None
        self._has_to_agree = seed is None and needs_agreement(self._order, made)
        self._returns = resolve_returns(returns, made, self.split, names, self.device, framed)
        check_collate(made, view, names, framed)
        self._listed_again = None if view.chosen is None else occurrences_in(view.chosen, len(view.rows))
        self._settings = BatchSettings(
            view=view,
            fields=names,
            collate=made,
            device=self.device,
            tier=self.tier,
            seed=self.seed,
            batch_size=batch_size,
            slots=self.threads + prefetch + 2,
            framed=framed,
            decode=decode,
            ranks=len(self._order.ranks_here),
        )
        self._pool: WorkerPool | None = None
        self._progress = Progress()
        self._counts = Counts()

    def _made_order(self, ranks: tuple[int, int], tail: str) -> Order | SamplerOrder:
        """Makes the order of the rows, and checks that it suits the batches."""
        if not isinstance(self._named, str | Sampling):
            return SamplerOrder(self._named, len(self._view))
        rank, world_size = ranks
        order = Order(epoch_order=self._bound_order(), rank=rank, world_size=world_size, tail=tail)
        check_batches(order, self._named, self._view, self.batch_size, self.drop_last)
        return order

    def _bound_order(self) -> EpochOrder:
        return bind_order(self._named, OrderContext(self.dataset, self._view, self.seed, self.batch_size))

    def _use_seed(self, seed: int) -> None:
        """Makes what comes next with another seed; iterators that are running continue with theirs."""
        if seed == self.seed:
            return
        self.seed, self._settings, self._pool = seed, replace(self._settings, seed=seed), None
        if isinstance(self._order, Order):
            self._order = replace(self._order, epoch_order=self._bound_order())

    def agreed_order(self) -> Order | SamplerOrder:
        """Returns the order of the rows; the first call of all ranks asks rank 0 for its seed, if there is none."""
        if self._has_to_agree:
            self._use_seed(agreed_seed(self.seed))
            self._has_to_agree = False
        return self._order

    def __repr__(self) -> str:
        order = self._named if isinstance(self._named, str | Sampling) else self._order.identity
        steps = ", ".join(type(step).__name__ for each in collates_of(self.collate) for step in each.steps)
        collate = f"{type(self.collate).__name__}({steps})" if steps else shown(self.collate)
        return (
            f"Loader({counted(len(self._view), 'row')} of {self.split!r}, batch_size={self.batch_size}, order={order}, "
            f"tier={self.tier}, device={self.device}, threads={self.threads}, collate={collate})"
        )

    @lazy_property
    def tier_reason(self) -> str:
        """Why the images are in this tier, as a sentence."""
        return reason_of_tier(self.tier, self.split, self.device) if self._is_auto_tier else f"{self.tier}: as asked"

    @property
    def threads_reason(self) -> str:
        """Why there are so many threads."""
        return "as asked" if self._has_own_threads else self._cores.reason

    @property
    def epoch(self) -> int:
        """Number of the next epoch."""
        return self._progress.epoch

    @property
    def sampler(self) -> Any:
        """The given sampler; else the loader's order as one, whose ``set_epoch`` is the loader's."""
        return EpochSampler(self._order, self) if isinstance(self._order, Order) else self._named

    @lazy_property
    def batch_sampler(self) -> SkippableBatches:
        """The batches of the next epoch as a batch sampler, which Accelerate's ``skip_first_batches`` takes."""
        return SkippableBatches(self)

    @property
    def collate_fn(self) -> Callable[[object], Any]:
        """Makes the batches of :attr:`batch_sampler`."""
        return self.batch_sampler.make_batch

    def begin_after(self, batches: int) -> Iterator[Any]:
        """Returns an iterator over the next epoch without its first batches.

        Raises:
            UsageError: if neither set_epoch nor a state says which epoch it is, or a state says another position.
        """
        self._progress.skip(self._order.consumed(batches * self.batch_size))
        return iter(self)

    def __len__(self) -> int:
        """Returns the number of batches of a complete epoch on this rank."""
        return self._batches_in(self._order.remaining())

    def set_epoch(self, epoch: int) -> None:
        """Sets the number of the next epoch; without this, each iteration is the epoch after the last.

        If this epoch was resumed in its middle, it continues from there; if it was resumed at its end, it is empty. An
        iterator that is already running continues with its own epoch, and its next batch sets the state again.
        """
        if type(epoch) is not int or epoch < 0:
            raise ValueError(f"epoch is {shown(epoch)}; give an integer from 0")
        self._progress.choose(epoch)

    def state_dict(self) -> State:
        """Returns the position as a small dict: batches that were yielded count as used.

        If several iterators run at once, this is the position of the one that was begun last.

        Returns:
            ``epoch``, ``samples`` (of this epoch, used by all ranks together; at its end all of it), ``rows``,
            ``seed``, ``order`` and ``dataset``, a digest of what the rows are made of; over a subset also ``subset``, a
            digest of its rows; with a sampler also ``sampler``, a digest of its rows or its length.
        """
        position, is_begun = self._progress.current()
        full = -(-position.used // self.batch_size) * self.batch_size  # a last batch may be a row larger on other ranks
        epoch, samples = position.epoch, self._order.consumed(full, position.offset)
        if (samples or is_begun) and not self._batches_in(self._order.most_remaining(samples)):
            samples = self._order.length  # what drop_last and tail leave out would make batches under other settings
            epoch += not samples
        return {"epoch": epoch, "samples": samples, **self._identity()}

    def load_state_dict(self, state: State, *, other_version: bool = False) -> None:
        """Continues where ``state`` was taken; the number of ranks and the batch size may have changed since.

        A state that was taken at the end of an epoch continues with the next. Iterators that are already running
        continue with their own epoch and no longer change the state.

        Args:
            state: result of :meth:`state_dict`.
            other_version: continue with another version of the dataset, after as many samples of the epoch.

        Raises:
            ValueError: if it is no state, or of a loader over other rows, in another order or with another seed; a
                loader that was given no seed takes the state's.
        """
        order, identity = self._order, self._identity()
        if self._follows_torch:
            identity["seed"] = seed_in(state, self.seed)
        saved = epoch, samples = position_in(state, identity, length=self._order.length, other_version=other_version)
        if samples and not self._batches_in(order.most_remaining(samples)):
            epoch, samples = epoch + 1, 0
        elif samples and not other_version:
            check_same("sampler", state, identity)
        self._use_seed(int(identity["seed"]))
        self._progress.resume(saved, epoch, samples)

    def stats(self) -> dict[str, Any]:
        """Returns counters since the loader was created.

        Returns:
            ``batches`` yielded; ``waited_s``, how long the training loop waited for them; ``read_s`` and ``render_s``
            of all threads together (rows that are read and rendered one by one count as render); ``tier`` and its
            ``tier_reason``, with how rows are in memory now; ``hits`` and ``misses``, rows that were in memory or
            had to be read; ``threads``, how many there are, and ``threads_reason``.
        """
        counted = self._pool.worker.statistics() if self._pool and self._pool.usable else LoadingStatistics()
        return {
            "batches": self._counts.batches,
            "waited_s": self._counts.waited_s,
            "read_s": counted.read_seconds,
            "render_s": counted.render_seconds,
            "tier": self.tier,
            "tier_reason": "; ".join(filter(None, (self.tier_reason, counted.note))),
            "hits": counted.hits,
            "misses": counted.misses,
            "threads": self.threads,
            "threads_reason": self.threads_reason,
        }

    def __iter__(self) -> Iterator[Any]:
        """Returns an iterator over an epoch: a Batch each, or what ``collate`` and ``returns`` make of it."""
        if not self._ranks_given:
            self._order.check_ranks()
        with beginning():
            order, position = self.agreed_order(), Position(self._progress.epoch, self._progress.offset)
            batches = self._batches_in(order.remaining(position.offset))
            rows = BatchRows(order, self._view, self._listed_again, position, self.batch_size, batches)
            pool = self._usable_pool()
            pool.prefetch = None  # ends before the next begins
            pool.prefetch = begin_prefetch(order, self._view, self._settings.fields, position)
            ahead, returns = self.threads + self.prefetch, self._returns
            epoch = EpochIterator(self.split, pool, rows, position, self._counts, ahead=ahead, returns=returns)
            self._progress.begin(position)  # last: after an error the next try is the same epoch
            return epoch

    def __getstate__(self) -> dict[str, Any]:
        """Returns everything but the threads: a copy starts its own."""
        own = {"_progress": deepcopy(self._progress), "_counts": replace(self._counts)}
        return {**self.__dict__, "_pool": None, **own}

    def _identity(self) -> State:
        """Returns what another loader must have in common to continue an epoch; keys that do not apply are left out."""
        order, split = self._order, self.split
        own: State = {"rows": order.rows, "seed": self.seed, "order": order.identity, "dataset": split.digest}
        more = {"subset": self._view.subset, "sampler": order.digest, "version": split.version}
        return own | {name: value for name, value in more.items() if value is not None}

    def _batches_in(self, rows: int) -> int:
        return rows // self.batch_size if self.drop_last else -(-rows // self.batch_size)

    def _usable_pool(self) -> WorkerPool:
        """Returns the pool of this process; a forked process inherits no threads, so it gets its own."""
        if self._pool is None or not self._pool.usable:
            self._pool = WorkerPool(BatchWorker(self._settings), self.threads)
        return self._pool

    def close(self) -> None:
        """Ends the threads and releases memory, as collecting the loader does; iterating again starts new ones."""
        pool, self._pool = self._pool, None
        if pool is not None:
            pool.close()

    def __enter__(self) -> Loader:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()
