"""The loader: batches of a dataset, epoch after epoch, prepared by threads a few ahead of the training loop.

It takes a dataset and a collate. Every batch equals the collate of its rows, whatever the threads, tier, ranks and
resume point. It never forks, and needs neither Pillow nor typer.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from copy import deepcopy
from dataclasses import replace
from inspect import signature
from pathlib import Path
from typing import Any, Never

import torch
from torch.utils.data import ConcatDataset, Sampler, Subset

from mmload.augment.collate import Collate, collates_of
from mmload.augment.returns import Form
from mmload.augment.step import Step
from mmload.batch import Batch, BatchOrViews
from mmload.errors import counted, shown
from mmload.lazy import lazy_property
from mmload.loader.arguments import (
    agreed_seed,
    check_arguments,
    check_collate,
    check_decode,
    check_variable_size,
    needs_agreement,
    rendering_device,
    resolve_collate,
    resolve_device,
    resolve_fields,
    resolve_order,
    resolve_returns,
    resolve_view,
    torch_seed,
)
from mmload.loader.batch_worker import BatchSettings, BatchWorker, LoadingStatistics
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
    EpochOrder,
    Order,
    OrderContext,
    Sampling,
    bind_order,
    check_batches,
    distributed_ranks,
    occurrences_in,
)
from mmload.loader.samplers import SamplerOrder
from mmload.loader.tiers import choose_tier
from mmload.runtime.resources import threads_of_rank
from mmload.store.dataset import Dataset, Split

__all__ = ["Collate", "Loader"]


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
        self.threads, self.threads_reason = (threads, "as asked") if threads else threads_of_rank()
        self.prefetch = prefetch
        self._named = resolve_order(shuffle, order)
        framed = isinstance(self._named, Sampling) and self._named.framed
        names = resolve_fields(self.split, fields)
        check_variable_size(self.split, names, made, tier, framed)
        check_decode(decode, self.split, names)
        rendered = rendering_device(made, self.device, tier)
        self.tier, self.tier_reason = choose_tier(tier, self.split, rendered)
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
        if isinstance(self._order, Order) and not self._ranks_given:
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
        sampler = order.digest if isinstance(order, SamplerOrder) else None
        more = {"subset": self._view.subset, "sampler": sampler, "version": split.version}
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


class SkippableBatches:
    """Batches of a loader's next epoch for a DataLoader without workers, as Accelerate's ``skip_first_batches`` makes.

    It yields placeholders, of which that function drops the first ones. The DataLoader calls :meth:`make_batch` with
    each other one, and the loader's threads make the batches.
    """

    def __init__(self, loader: Loader) -> None:
        self._loader = loader
        self._batches: Iterator[Any] | None = None
        self._number = 0

    def set_epoch(self, epoch: int) -> None:
        """Sets the number of the loader's next epoch."""
        self._loader.set_epoch(epoch)

    def __len__(self) -> int:
        return len(self._loader)

    def __iter__(self) -> Iterator[list[int]]:
        self._batches, epoch = None, self._loader.epoch
        for number in range(len(self)):
            self._number = number
            yield []
        if self._batches is None:  # all are skipped
            self._loader.set_epoch(epoch + 1)

    def make_batch(self, placeholder: object) -> Any:
        """Returns the next batch; the first one decides how many are skipped."""
        if self._batches is None:
            self._batches = self._loader.begin_after(self._number)
        return next(self._batches)


class EpochSampler(Sampler[int]):
    """Rows of a loader's next epoch on its rank, by their place in ``loader.dataset``."""

    def __init__(self, order: Order, loader: Loader) -> None:
        self._order, self._loader = order, loader

    @property
    def epoch(self) -> int:
        """Number of the next epoch."""
        return self._loader.epoch

    def set_epoch(self, epoch: int) -> None:
        """Sets the number of the loader's next epoch."""
        self._loader.set_epoch(epoch)

    def __len__(self) -> int:
        """Returns the number of rows of a complete epoch on this rank."""
        return self._order.remaining()

    def __iter__(self) -> Iterator[int]:
        order = self._loader.agreed_order()
        return iter(order.rows_for(self.epoch).tolist() if isinstance(order, Order) else ())
