"""The loader: batches of a dataset, epoch after epoch, prepared by threads a few ahead of the training loop.

It takes a dataset and a collate. Every batch equals the collate of its rows, whatever the threads, tier, ranks and
resume point. It never forks, and needs neither Pillow nor typer.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import ConcatDataset, Subset

from mmload.augment.collate import Collate
from mmload.augment.returns import Form
from mmload.batch import Batch, Made
from mmload.loader.announcing import Announcer
from mmload.loader.arguments import (
    device_for,
    fields_named,
    order_named,
    ranks_for,
    refuse_collate,
    refuse_decode,
    refuse_decoded,
    refuse_number,
    refuse_other_ranks,
    refuse_own_sizes,
    returns_for,
    view_named,
)
from mmload.loader.batch_diversity import warn_of_similar_samples
from mmload.loader.batch_worker import BatchWorker
from mmload.loader.bucket_orders import bucketed
from mmload.loader.epoch_iterator import BatchRows, Counts, EpochIterator, Position
from mmload.loader.epoch_orders import Blocks
from mmload.loader.epoch_sampler import EpochSampler
from mmload.loader.occurrences import occurrences_in
from mmload.loader.order import Order, Taken, told_apart
from mmload.loader.orders import Sampling, order_of
from mmload.loader.resume_state import OrderIdentity, State, position_in, refuse_other_sampler, state_of
from mmload.loader.sampler_order import SamplerOrder
from mmload.loader.tiers import chosen
from mmload.loader.worker_pool import WorkerPool
from mmload.runtime.local_ranks import threads_of_rank
from mmload.runtime.permutation import check_integer
from mmload.runtime.splitmix import FACTORS
from mmload.store.dataset import Dataset, Split
from mmload.store.split_views import View

__all__ = ["Collate", "Loader"]

_POSITIONS_AT_ONCE = 4096  # many positions of an Order cost little more than few

_BEGINNING = threading.RLock()
"""Held while an epoch begins, so that threads that begin at the same time share one pool and get an epoch each."""


def _after_fork() -> None:
    """A thread of the parent may have held the lock; it does not exist here."""
    global _BEGINNING
    _BEGINNING = threading.RLock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


def _listed_again(view: View) -> Tensor | None:
    """How often each row of a subset comes before in its list, int64 [N]; None if none comes twice."""
    found = None if view.chosen is None else occurrences_in(view.chosen.numpy(), len(view.rows))
    return None if found is None else torch.from_numpy(found)


class Loader:
    """Batches of one split, epoch after epoch.

    ``for batch in loader`` is one epoch; the next ``for`` is the next epoch, in another order. The order of the rows
    and every random draw are functions of (seed, epoch, row) alone.

    Args:
        dataset: a dataset's path, an opened Dataset, one of its splits, or a ``Subset`` or ``ConcatDataset`` of splits,
            nested in any way (``split.subset``, ``random_split``). ``ids`` are row numbers of the split or
            concatenation beneath any subsets, as without them. An empty subset has empty epochs.
        split: the split's name; only needed where a dataset has several.
        batch_size: rows of a batch, on each rank.
        shuffle: True for a new random order each epoch, False for the stored order, "block" for a random order that
            reads neighbors together: for data larger than memory on disks that like long reads.
        order: the same as a name, "shuffled", "sequential" or "block"; or how rows are drawn, by a function of
            :mod:`mmload.loader.orders` such as ``weighted(weights)``.
        seed: 0 to 2**64 - 1; decides order and draws.
        collate: usually a :class:`Collate`, or a :class:`~mmload.augment.views.Views`, whose batches are tuples of a
            Batch per view; any callable that takes a Batch of uint8 rows. None: the rows as they are stored.
        device: where batches go; None: the collate's device, else the CPU.
        tier: where images are read from: "disk", "memory", "device", or "auto" by size and free memory.
        threads: how many threads read and render; None: one per available core, or per core that is this rank's part of
            the machine's (``LOCAL_WORLD_SIZE``, which torchrun sets).
        prefetch: finished batches to keep ready, besides the one that each thread is making.
        drop_last: leave out the last batch of an epoch if it is smaller.
        sampler: another order: a list, array or tensor of rows or of one boolean a row, or a torch ``Sampler``; instead
            of ``shuffle`` or ``order``. It is this rank's own, as in a DataLoader. A sampler's ``set_epoch`` is called
            with the loader's epoch until its user calls it: after that, the loader leaves it to the user.
        rank: which of the ranks this is; None: torch.distributed's where it is initialized, else 0.
        world_size: how many ranks share an epoch; None: torch.distributed's where it is initialized, else 1.
        tail: what to do when the ranks do not divide the rows: "exact" reads each row once (some ranks have one more),
            "pad" repeats some and "drop" leaves some out, as DistributedSampler does.
        bucket: "aspect" makes batches of whole photographs of like shapes, in any order that does not make batches of
            its own: where no step gives them one size, each batch has the size of its largest, black beside the others.
        decoded: whether ``tier="memory"`` keeps the pixels of JPEGs in place of their bytes: each row is decoded once,
            and takes as much memory as its pixels. "auto" counts these, and keeps the JPEGs where only they fit.
        decode: how the JPEGs of whole photographs are decoded. "cpu": exactly. "scaled": to a half or a quarter where
            their window shrinks by three or six, for pixels that differ by a level or so. "cuda": by nvJPEG on the
            device that batches go to, which rounds colors differently. Draws are the same.
        fields: which stored fields to read; None: all.
        returns: what to give in place of a Batch: a tuple or a dict of names of fields, "torchvision", "numpy",
            "dlpack" or a function, as :class:`~mmload.augment.returns.Returns` says. The training thread calls the
            function, in order. None: the Batch, or the tuple of a Views.

    Attributes:
        dataset: the split, subset or concatenation that is read; ``len(loader.dataset)`` is its number of rows.
        num_workers: 0, as there are threads in place of a DataLoader's worker processes.

    Raises:
        UsageError: if the split or a field does not exist.
        StoreError: if the dataset cannot be opened.
        ValueError, TypeError: if an argument is invalid, or a step of the collate cannot be done to these rows.
    """

    num_workers = 0
    batch_sampler = None  # Lightning reads it of whatever has a sampler

    def __init__(
        self,
        dataset: str | Path | Dataset | Split | Subset[Batch] | ConcatDataset[Batch],
        *,
        split: str | None = None,
        batch_size: int = 64,
        shuffle: bool | str = False,
        order: str | Sampling | None = None,
        seed: int = 0,
        collate: Callable[[Batch], Made] | None = None,
        device: torch.device | str | None = None,
        tier: str = "auto",
        threads: int | None = None,
        prefetch: int = 2,
        drop_last: bool = False,
        sampler: Iterable[Any] | None = None,
        rank: int | None = None,
        world_size: int | None = None,
        tail: str = "exact",
        bucket: str | None = None,
        decoded: bool = False,
        decode: str = "cpu",
        fields: Sequence[str] | None = None,
        returns: Form | None = None,
    ) -> None:
        refuse_number("batch_size", batch_size, 1)
        refuse_number("prefetch", prefetch, 0)
        check_integer("seed", seed, 0, 2**64 - 1)
        if threads is not None:
            refuse_number("threads", threads, 1)
        self._view = view_named(dataset, split)
        self.split = self._view.rows
        self.dataset: Any = self.split if isinstance(dataset, str | Path | Dataset) else dataset
        self._subset = self._view.subset
        self.batch_size = batch_size
        self.drop_last = drop_last
        self.collate = collate
        self.threads, self.threads_reason = (threads, "as asked") if threads else threads_of_rank()
        self.prefetch = prefetch
        self.seed = seed
        self.device = device_for(device, collate)
        self._fields = fields_named(self.split, fields)
        refuse_own_sizes(self.split, self._fields, collate, self.device, tier, framed=bucket is not None)
        refuse_decoded(decoded, self.split, self._fields, tier)
        refuse_decode(decode, self.split, self._fields, collate, self.device, decoded)
        self._decode = decode
        self.tier, self.tier_reason, self._decoded = chosen(tier, self.split, self.device, decoded)
        named = order_named(shuffle, order, sampler)
        self._order: Order | SamplerOrder
        if sampler is not None:
            if bucket is not None:
                raise ValueError(f"bucket is {bucket!r}, and a sampler decides what is in a batch: give one of them")
            self._order = SamplerOrder(sampler, len(self._view))
        else:
            of, (rank_, world_size_) = order_of(named, dataset, self._view, seed), ranks_for(rank, world_size)
            of = of if bucket is None else bucketed(bucket, of, self._view, batch_size, seed)
            self._order = Order(of=of, rank=rank_, world_size=world_size_, tail=tail)
            if batch_size % of.together:
                raise ValueError(
                    f"batch_size is {batch_size}, and order={named} makes batches of {of.together}: "
                    f"give batch_size={of.together}"
                )
        self._listed_again = _listed_again(self._view)
        self._sampler = sampler
        self._ranks_given = rank is not None or sampler is not None
        self._framed = bucket is not None
        self._returns = returns_for(returns, collate, self.split, self._fields, self.device, self._framed)
        refuse_collate(collate, self._view, self._fields, self._framed)
        self._pool: WorkerPool | None = None
        self._epoch = self._offset = 0
        self._position = Position(0, 0)  # of the iterator begun last
        # Set by set_epoch, with the rows used then; it is the state until the iterator gives another batch.
        self._announced: tuple[Position | None, int] = (None, 0)
        self._finished = (-1, 0)  # the epoch at whose end a state was taken, and its samples
        self._counts = Counts()
        self._announcer = Announcer(self._order, self._view, self._fields, (self.threads - 1) * batch_size)
        if isinstance(self._order, Order) and isinstance(self._order.of, Blocks):
            warn_of_similar_samples(self._order, self._view, batch_size)

    @property
    def epoch(self) -> int:
        """The epoch that the next iteration will be."""
        return self._epoch

    @property
    def sampler(self) -> Any:
        """The sampler that was given; else the loader's order as one, whose ``set_epoch`` is the loader's."""
        return EpochSampler(self._order, self) if isinstance(self._order, Order) else self._sampler

    def __len__(self) -> int:
        """Batches of a whole epoch on this rank."""
        return self._batches_in(self._order.remaining())

    def set_epoch(self, epoch: int) -> None:
        """Make the next iteration epoch ``epoch``; without this, each iteration is the one after the last.

        If this epoch was resumed in its middle, it continues from there; if it was resumed at its end, it is empty.
        An iterator that is already running continues with its own epoch, and its next batch sets the state again.
        """
        if type(epoch) is not int or epoch < 0:
            raise ValueError(f"epoch is {epoch!r}; give an integer from 0")
        if epoch != self._epoch:
            finished, samples = self._finished
            self._epoch, self._offset = epoch, samples if epoch == finished else 0
            self._announced = Position(self._epoch, self._offset), self._position.used

    def state_dict(self) -> State:
        """The position as a small dict: batches that were yielded count as used.

        If several iterators run at once, this is the position of the one that was begun last.

        Returns:
            ``epoch``, ``samples`` (of this epoch, used by all ranks together; at its end all of it), ``rows``,
            ``seed``, ``order`` and ``dataset``, a digest of what the rows are made of; over a subset also ``subset``, a
            digest of its rows; with a sampler also ``sampler``, a digest of its rows or its length.
        """
        announced, used = self._announced
        is_announced = announced is not None and used == self._position.used
        position = announced if announced is not None and is_announced else self._position
        epoch, samples = position.epoch, self._order.consumed(position.used, position.offset)
        begun = not is_announced and self._epoch > epoch
        if (samples or begun) and not self._batches_in(self._order.most_remaining(samples)):
            samples = self._length  # what drop_last and tail leave out would make batches under other settings
            epoch += not samples
        return state_of(epoch, samples, self._identity())

    def load_state_dict(self, state: State) -> None:
        """Continue where ``state`` was taken; the number of ranks and the batch size may have changed since.

        A state that was taken at the end of an epoch continues with the next. Iterators that are already running
        continue with their own epoch and no longer change the state.

        Raises:
            ValueError: if it is not a state, or the state of a loader over other rows, in another order or with another
                seed.
        """
        order, identity = self._order, self._identity()
        epoch, samples = position_in(state, identity, length=self._length)
        finished = (-1, 0)
        if samples and not self._batches_in(order.most_remaining(samples)):
            finished = epoch, samples
            epoch, samples = epoch + 1, 0
        elif samples:
            refuse_other_sampler(state, identity)
        self._finished = finished
        self._epoch, self._offset = epoch, samples
        self._position, self._announced = Position(epoch, samples), (None, 0)

    def stats(self) -> dict[str, Any]:
        """Counters since the loader was created.

        Returns:
            ``batches`` yielded; ``waited_s``, how long the training loop waited for them; ``read_s`` and ``render_s``
            of all threads together (rows that are read and rendered one by one count as render); ``tier`` and its
            ``tier_reason``, with the processes that share the memory now; ``hits`` and ``misses``, rows that were in
            memory or had to be read; ``threads``, how many there are, and ``threads_reason``.
        """
        worker = self._pool.worker if self._pool else None
        return {
            "batches": self._counts.batches,
            "waited_s": self._counts.waited_s,
            "read_s": worker.read_seconds if worker else 0.0,
            "render_s": worker.render_seconds if worker else 0.0,
            "tier": self.tier,
            "tier_reason": "; ".join(filter(None, (self.tier_reason, worker.sharing if worker else ""))),
            "hits": worker.hits if worker else 0,
            "misses": worker.misses if worker else 0,
            "threads": self.threads,
            "threads_reason": self.threads_reason,
        }

    def __iter__(self) -> Iterator[Any]:
        """An epoch: a Batch each, or what ``collate`` and ``returns`` make of it."""
        if not self._ranks_given:
            refuse_other_ranks(self._order.world_size)
        with _BEGINNING:
            epoch, offset = self._epoch, self._offset
            pool, rows = self._usable_pool(), self._batch_rows(epoch, offset)
            self._epoch, self._offset, self._finished = epoch + 1, 0, (-1, 0)
            self._position, self._announced = Position(epoch, offset), (None, 0)
            self._announcer.announce(epoch, offset)
            ahead, returns = self.threads + self.prefetch, self._returns
            return EpochIterator(pool, rows, self._position, self._counts, ahead=ahead, returns=returns)

    def __getstate__(self) -> dict[str, Any]:
        """Everything but the threads: a copy starts its own."""
        return {
            **self.__dict__,
            "_pool": None,
            "_position": replace(self._position),
            "_counts": replace(self._counts),
        }

    def _identity(self) -> OrderIdentity:
        order = self._order
        return OrderIdentity(
            order=order.identity,
            rows=order.rows,
            seed=self.seed,
            dataset=self.split.digest,
            subset=self._subset,
            sampler=order.digest if isinstance(order, SamplerOrder) else None,
        )

    @property
    def _length(self) -> int:
        """Samples of an epoch, of all ranks together."""
        return self._order.of.length if isinstance(self._order, Order) else len(self._order)

    def _batches_in(self, rows: int) -> int:
        return rows // self.batch_size if self.drop_last else -(-rows // self.batch_size)

    def _batch_rows(self, epoch: int, offset: int) -> BatchRows:
        """The rows of each batch; an Order is asked for the positions of many batches at a time."""
        size, order = self.batch_size, self._order
        at_once = max(1, _POSITIONS_AT_ONCE // size) if isinstance(order, Order) else 1
        take: Callable[[int, int, int], Taken]
        take = partial(order.take, epoch) if isinstance(order, Order) else order.begin(epoch).take

        def taken(start: int, stop: int) -> Taken:
            places, occurrences = take(start, stop, offset)
            if self._listed_again is not None:
                occurrences = told_apart(self._listed_again[places], occurrences, FACTORS[0])
            return Taken(self._view.ids(places), occurrences)

        return BatchRows(taken, self._batches_in(order.remaining(offset)), size, at_once)

    def _usable_pool(self) -> WorkerPool:
        """The threads and what they run; a forked process inherits no threads, so it gets its own pool."""
        if self._pool is None or not self._pool.usable:
            worker = BatchWorker(
                self.split,
                self._fields,
                self.collate,
                device=self.device,
                tier=self.tier,
                seed=self.seed,
                batch_size=self.batch_size,
                slots=self.threads + self.prefetch + 2,
                framed=self._framed,
                decoded=self._decoded,
                decode=self._decode,
            )
            self._pool = WorkerPool(worker, self.threads)
        return self._pool

    def close(self) -> None:
        """End the threads and release memory; iterating again starts new ones. Collecting the loader does the same."""
        pool, self._pool = self._pool, None
        if pool is not None:
            pool.close()
        self._announcer.close()

    def __enter__(self) -> Loader:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
