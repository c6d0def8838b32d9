"""The loader: order -> reader -> collate -> batch, in threads, a few batches ahead of the training loop.

Comes in: a split and a collate. Goes out: finished batches, in order. Every batch equals the collate applied to the
gathered rows, whatever the threads, tier, ranks and resume point. Needs neither Pillow nor typer; never forks.
"""

from __future__ import annotations

import os
import warnings
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from pathlib import Path
from time import perf_counter
from types import TracebackType
from typing import Any

import torch
from torch import Tensor

from mmload.collate import Collate
from mmload.dataset import Dataset, Split
from mmload.dataset import open as open_dataset
from mmload.errors import UsageError, choices
from mmload.maker import Maker
from mmload.mixing import mixing
from mmload.order import Given, Order
from mmload.records import Batch
from mmload.threads import available_cores, single_op_pool
from mmload.tiers import choose

__all__ = ["Collate", "Loader"]

_POSITIONS_AT_ONCE = 4096  # asking an Order for many positions costs little more than for few


class Loader:
    """Batches of one split, epoch after epoch.

    ``for batch in loader`` is one epoch; the next ``for`` is the next epoch, in another order. The order of the rows
    and every random draw are functions of (seed, epoch, row) alone.

    Args:
        dataset: a dataset's path, an opened Dataset, or one of its splits.
        split: the split's name; not needed where a Split is given or there is only one.
        batch_size: rows of a batch, on each rank.
        shuffle: True for a new random order each epoch, False for the stored order, "block" for a random order that
            reads neighbours together: for data larger than memory on disks that like long reads.
        seed: 0 to 2**64 - 1; what order and draws are made of.
        collate: usually a :class:`Collate`; any callable that takes a Batch of uint8 rows and returns a batch.
            None: the rows as they are stored.
        device: where batches are to arrive; None: where the collate puts them, else the CPU.
        tier: where images are read from: "disk", "memory", "device", or "auto" by size and free memory.
        threads: how many threads read and render; None takes the cores available.
        prefetch: finished batches to keep ahead of the training loop, besides one in work in each thread.
        drop_last: leave out the last batch of an epoch if it is smaller.
        sampler: another order: a list of rows, a tensor of them, or a torch ``Sampler``; instead of ``shuffle``. It is
            this rank's own, as in a DataLoader.
        rank: which of the ranks this is; None: torch.distributed's where it is initialised, else 0.
        world_size: how many ranks share an epoch; None: torch.distributed's where it is initialised, else 1.
        tail: what to do when the ranks do not divide the rows: "exact" reads each row once (some ranks have one more),
            "pad" repeats some and "drop" leaves some out, as DistributedSampler does.
        fields: which stored fields to read; None: all.

    Raises:
        UsageError: if the split or a field does not exist.
        StoreError: if the dataset cannot be opened.
        ValueError, TypeError: if an argument cannot be meant.
    """

    def __init__(
        self,
        dataset: str | Path | Dataset | Split,
        *,
        split: str | None = None,
        batch_size: int = 64,
        shuffle: bool | str = False,
        seed: int = 0,
        collate: Callable[[Batch], Batch] | None = None,
        device: torch.device | str | None = None,
        tier: str = "auto",
        threads: int | None = None,
        prefetch: int = 2,
        drop_last: bool = False,
        sampler: Iterable[int] | None = None,
        rank: int | None = None,
        world_size: int | None = None,
        tail: str = "exact",
        fields: Sequence[str] | None = None,
    ) -> None:
        for name, value, least in (("batch_size", batch_size, 1), ("prefetch", prefetch, 0), ("threads", threads, 1)):
            if value is not None and (type(value) is not int or value < least):
                raise ValueError(f"{name} is {value!r}; give a whole number of at least {least}")
        self.split = _split_of(dataset, split)
        self.batch_size = batch_size
        self.drop_last = drop_last
        self.collate = collate
        self.threads = threads or available_cores()
        self.prefetch = prefetch
        self.seed = seed
        self.device = _device_of(device, collate)
        images = self.split.fields.get("images")
        size = images.row_bytes * len(self.split) if images else 0
        self.tier, self.tier_reason = choose(tier, size, self.device)
        self._order = _order_of(len(self.split), shuffle, seed, sampler, *_ranks(rank, world_size), tail)
        self._fields = _fields_of(self.split, fields)
        self._maker: Maker | None = None
        self._pool: ThreadPoolExecutor | None = None
        self._pool_process = 0
        self._epoch = self._offset = 0
        self._state = (0, 0)
        self._waited = 0.0
        self._batches = 0
        if isinstance(self._order, Order) and self._order.kind == "block":
            self._warn_of_poor_mixing()

    @property
    def epoch(self) -> int:
        """The epoch that the next iteration will be."""
        return self._epoch

    def __len__(self) -> int:
        """Batches of a whole epoch on this rank."""
        return self._count(0)

    def set_epoch(self, epoch: int) -> None:
        """Make the next iteration epoch ``epoch``; without this, each iteration is the one after the last.

        An epoch that was resumed in its middle goes on from there if it is the one that is set.
        """
        if type(epoch) is not int or epoch < 0:
            raise ValueError(f"epoch is {epoch!r}; give a whole number from 0")
        if epoch != self._epoch:
            self._epoch, self._offset = epoch, 0

    def state_dict(self) -> dict[str, int]:
        """Where training is: the batches given out so far count as used. A few integers, whatever the dataset's size.

        Returns:
            ``epoch``, ``samples`` (of this epoch, used by all ranks together), ``rows`` and ``seed``.
        """
        epoch, samples = self._state
        return {"epoch": epoch, "samples": samples, "rows": len(self.split), "seed": self.seed}

    def load_state_dict(self, state: dict[str, int]) -> None:
        """Go on where ``state`` was taken; the number of ranks and the batch size may have changed since.

        Raises:
            ValueError: if it is the state of a loader over other rows or with another seed.
        """
        for name, own in (("rows", len(self.split)), ("seed", self.seed)):
            if state[name] != own:
                raise ValueError(f"the state has {name} {state[name]}, this loader has {own}; resume with the same")
        self._epoch, self._offset = state["epoch"], state["samples"]
        self._state = (self._epoch, self._offset)

    def stats(self) -> dict[str, Any]:
        """What happened since the loader was made.

        Returns:
            ``batches`` given out; ``waited_s`` the training loop stood still for them; ``read_s`` and ``render_s`` of
            all threads together (read and rendered row by row, they count as render); ``tier`` and its
            ``tier_reason``; ``hits`` and ``misses`` of rows that were in memory already or not.
        """
        made = self._maker
        return {
            "batches": self._batches,
            "waited_s": self._waited,
            "read_s": made.read_seconds if made else 0.0,
            "render_s": made.render_seconds if made else 0.0,
            "tier": self.tier,
            "tier_reason": self.tier_reason,
            "hits": made.hits if made else 0,
            "misses": made.misses if made else 0,
        }

    def __iter__(self) -> Iterator[Batch]:
        epoch, offset = self._epoch, self._offset
        self._epoch, self._offset = epoch + 1, 0
        self._state = (epoch, offset)
        return self._run(epoch, offset)

    def _run(self, epoch: int, offset: int) -> Iterator[Batch]:
        pool, maker = self._started()
        under_way: deque[tuple[int, Future[Callable[[], Batch]]]] = deque()
        used = 0
        try:
            for rows in self._batches_of(epoch, offset):
                used += len(rows)
                under_way.append((used, pool.submit(maker.make, rows, epoch)))
                if len(under_way) > self.threads + self.prefetch:
                    yield self._given(epoch, offset, *under_way.popleft())
            while under_way:
                yield self._given(epoch, offset, *under_way.popleft())
        finally:
            for _, future in under_way:
                future.cancel()

    def _given(self, epoch: int, offset: int, used: int, future: Future[Callable[[], Batch]]) -> Batch:
        """The next batch, once it is there; only now does it count as used."""
        began = perf_counter()
        batch = future.result()()
        self._waited += perf_counter() - began
        self._batches += 1
        self._state = (epoch, self._order.consumed(used, offset))
        return batch

    def _count(self, offset: int) -> int:
        rows = self._order.remaining(offset)
        return rows // self.batch_size if self.drop_last else -(-rows // self.batch_size)

    def _batches_of(self, epoch: int, offset: int) -> Iterator[Tensor]:
        """The rows of each batch, int64 [B]; positions are asked for many batches at a time."""
        size = self.batch_size
        step = size * max(1, _POSITIONS_AT_ONCE // size) if isinstance(self._order, Order) else size
        for start in range(0, self._count(offset) * size, step):
            rows = self._order.take(epoch, start, start + step, offset)
            for batch in rows.split(size):  # type: ignore[no-untyped-call]  # torch has none
                if len(batch) == size or not self.drop_last:
                    yield batch

    def _started(self) -> tuple[ThreadPoolExecutor, Maker]:
        """The threads and what they run; made anew in a forked child, which inherits no threads."""
        if self._maker is None:
            self._maker = Maker(
                self.split,
                self._fields,
                self.collate,
                device=self.device,
                tier=self.tier,
                seed=self.seed,
                batch_size=self.batch_size,
                slots=self.threads + self.prefetch + 2,
            )
        if self._pool is None or self._pool_process != os.getpid():
            self._pool = single_op_pool(self.threads, "mmload-loader")
            self._pool_process = os.getpid()
            weakref.finalize(self, self._pool.shutdown, wait=False, cancel_futures=True).atexit = False
        return self._pool, self._maker

    def close(self) -> None:
        """End the threads and let go of memory; iterating again starts anew. Also done when the loader is collected."""
        if self._pool is not None and self._pool_process == os.getpid():
            self._pool.shutdown(wait=True, cancel_futures=True)
        self._pool = self._maker = None

    def __enter__(self) -> Loader:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _warn_of_poor_mixing(self) -> None:
        """Say so if block order leaves batches of few classes, as in a store that is sorted by class."""
        spec = self.split.fields.get("targets")
        order = replace(self._order, rank=0, world_size=1) if isinstance(self._order, Order) else None
        if order is None or spec is None or spec.shape or self.batch_size < 2 or len(order) < 2:
            return
        labels = partial(self.split.reader.gather, "targets")
        advice = mixing(order, labels, batch_size=self.batch_size).warning()
        if advice is not None:
            warnings.warn(f'shuffle="block" over {self.split!r}: {advice}', stacklevel=3)


def _split_of(dataset: str | Path | Dataset | Split, name: str | None) -> Split:
    if isinstance(dataset, Split):
        if name not in (None, dataset.name):
            raise UsageError(f"the split given is {dataset.name!r}, and split= says {name!r}; give one of them")
        return dataset
    opened = dataset if isinstance(dataset, Dataset) else open_dataset(dataset)
    if name is None:
        if len(opened) > 1:
            raise UsageError(f"{opened.path} has several splits; choose one with split=: {choices(opened)}")
        name = next(iter(opened))
    return opened[name]


def _fields_of(split: Split, names: Sequence[str] | None) -> tuple[str, ...]:
    if names is None:
        return tuple(split.fields)
    for name in names:
        if name not in split.fields:
            raise UsageError(f"split {split.name!r} has no field {name!r}; it has {choices(split.fields)}")
    return tuple(names)


def _device_of(device: torch.device | str | None, collate: object) -> torch.device:
    if device is not None:
        return torch.device(device)
    own = collate.device if isinstance(collate, Collate) else None
    return own or torch.device("cpu")


def _ranks(rank: int | None, world_size: int | None) -> tuple[int, int]:
    """Which rank of how many: as given, else torch.distributed's, else the only one."""
    if (rank is None) != (world_size is None):
        raise ValueError(f"rank is {rank} and world_size is {world_size}; give both or none")
    if rank is not None and world_size is not None:
        return rank, world_size
    distributed = torch.distributed
    if distributed.is_available() and distributed.is_initialized():
        return distributed.get_rank(), distributed.get_world_size()
    return 0, 1


def _order_of(
    rows: int, shuffle: bool | str, seed: int, sampler: Iterable[int] | None, rank: int, world_size: int, tail: str
) -> Order | Given:
    if shuffle not in (True, False, "block"):
        raise ValueError(f'shuffle is {shuffle!r}; use True, False or "block"')
    if sampler is None:
        kind = {True: "full", False: "sequential", "block": "block"}[shuffle]
        return Order(kind=kind, rows=rows, seed=seed, rank=rank, world_size=world_size, tail=tail)
    if shuffle:
        raise ValueError("shuffle and sampler are both given; a sampler decides the order by itself")
    return Given(sampler, rows)
