"""Makes any batch of a split, in whichever thread asks: rows from the tier, through the collate, into pooled memory.

Comes in: row numbers and an epoch. Goes out: a function that the training thread calls for the finished batch: on a CPU
it only returns it, with a device it makes the training stream wait for the copy and renders there. Decides no order.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from functools import partial
from time import perf_counter

import torch
from torch import Tensor

from mmload.augment.draws import sample_seeds
from mmload.collate import Collate, Started
from mmload.dataset import Split
from mmload.pool import MemoryPool
from mmload.records import Batch, make_batch
from mmload.tiers import OnDevice, make
from mmload.transfer import CudaPort, Port, Ring

PART_BYTES = 768 * 2**10
"""Bytes of rows that a thread reads at a time before it renders them: what stays in cache."""


class Maker:
    """The work of a loader's threads, which share memory, tier and device; thread-safe.

    Args:
        split: where rows come from.
        fields: which of its fields.
        collate: what becomes of them; None: nothing.
        device: where batches arrive.
        tier: "disk", "memory" or "device".
        seed: the loader's.
        batch_size: the largest batch.
        slots: how many batches can be alive in the loader at once.

    Attributes:
        read_seconds: time in reading rows that were gathered as a whole, all threads together.
        render_seconds: time in rendering, row-by-row reading included.
    """

    def __init__(
        self,
        split: Split,
        fields: Sequence[str],
        collate: Callable[[Batch], Batch] | None,
        *,
        device: torch.device,
        tier: str,
        seed: int,
        batch_size: int,
        slots: int,
    ) -> None:
        self._split, self._collate, self._seed = split, collate, seed
        self._others = [name for name in fields if name != "images"]
        self._memory = MemoryPool(spare=slots)
        self._tier = make(tier, split, device) if "images" in fields else None
        self._spec = split.fields["images"] if self._tier else None
        self._scratch = threading.local()
        self._lock = threading.Lock()
        self.read_seconds = self.render_seconds = 0.0
        self._port = CudaPort(device) if device.type == "cuda" else None
        self._rings: dict[str, Ring] = {}
        if self._port is not None:
            names = self._others if self._spec is None or tier == "device" else [*self._others, "images"]
            for name in names:
                spec = split.fields[name]
                self._rings[name] = Ring(self._port, (batch_size, *spec.shape), spec.torch_dtype, slots)
            self._key_rings = [Ring(self._port, (batch_size,), torch.int64, slots) for _ in range(2)]

    @property
    def hits(self) -> int:
        """Rows that were in memory already."""
        return self._tier.hits if self._tier else 0

    @property
    def misses(self) -> int:
        """Rows that had to be read."""
        return self._tier.misses if self._tier else 0

    def make(self, rows: Tensor, epoch: int) -> Callable[[], Batch]:
        """All that can be done for a batch outside of the training thread; the rest is the function returned.

        Args:
            rows: int64 [B].
            epoch: what the samples' seeds are made of, with the loader's seed and the rows.
        """
        if self._port is not None:
            return self._bound_for_device(self._port, rows, epoch)
        batch = self._without_images(rows, epoch)
        if self._spec is not None and isinstance(self._collate, Collate):
            finished = self._rendered(self._collate, batch, rows)
        else:
            if self._spec is not None:
                batch.images = self._gathered(rows)
            finished = batch if self._collate is None else self._collate(batch)
        return lambda: finished

    def _without_images(self, rows: Tensor, epoch: int) -> Batch:
        fields = {name: self._split.reader.gather(name, rows) for name in self._others}
        return make_batch(fields, len(rows), ids=rows, seeds=sample_seeds(self._seed, epoch, rows))

    def _gathered(self, rows: Tensor) -> Tensor:
        """The rows' images as they are stored, in pooled memory."""
        if self._tier is None or self._spec is None:
            raise RuntimeError("no images are read")
        began = perf_counter()
        images = self._memory.empty((len(rows), *self._spec.shape), self._spec.torch_dtype)
        self._tier.gather_into(rows, images)
        self._took(read=perf_counter() - began)
        return images

    def _rendered(self, collate: Collate, batch: Batch, rows: Tensor) -> Batch:
        """Some rows at a time read, rendered and written while they are in cache."""
        if self._spec is None:
            raise RuntimeError("no images are read")
        channels, height, width = self._spec.shape
        started = collate.start(batch, (channels, height, width), source=self._spec.torch_dtype)
        out = self._memory.empty(started.shape, started.dtype, started.memory_format)
        if self._spec.torch_dtype == torch.uint8:
            began = perf_counter()
            self._render_parts(started, rows, out)
        else:
            images = self._gathered(rows)
            began = perf_counter()
            started.whole(images, out)
        finished = started.finish(out)
        self._took(render=perf_counter() - began)
        return finished

    def _render_parts(self, started: Started, rows: Tensor, out: Tensor) -> None:
        if self._tier is None or self._spec is None:
            raise RuntimeError("no images are read")
        if not hasattr(self._scratch, "rows"):
            count = max(1, PART_BYTES // self._spec.row_bytes)
            self._scratch.rows = torch.empty((count, *self._spec.shape), dtype=torch.uint8)
        first = 0
        for images, places in self._tier.parts(rows, self._scratch.rows):
            started.some(first, images, places, out[first : first + len(places)])
            first += len(places)

    def _bound_for_device(self, port: Port, rows: Tensor, epoch: int) -> Callable[[], Batch]:
        """The batch on its way to the device; what is left is to wait for it there and render it.

        All of it goes by pinned memory and the copy stream: a copy of pageable memory would stop the training thread
        until its stream has come so far.
        """
        tier, collate, count = self._tier, self._collate, len(rows)
        keys = (rows, sample_seeds(self._seed, epoch, rows))
        ids, seeds = (ring.ship(count, partial(_put, key)) for ring, key in zip(self._key_rings, keys, strict=True))
        shipped = {name: ring.ship(count, partial(self._fill, name, rows)) for name, ring in self._rings.items()}

        def arrive() -> Batch:
            numbers = ids.arrive(port)
            fields = {name: one.arrive(port) for name, one in shipped.items()}
            moved = make_batch(fields, count, ids=numbers, seeds=seeds.arrive(port), device=numbers.device)
            if isinstance(tier, OnDevice):
                [(images, places)] = tier.parts(numbers, scratch=tier.rows)  # all of them lie there
                if isinstance(collate, Collate):
                    return collate.render(moved, images, places)
                moved.images = images[places]
            return moved if collate is None else collate(moved)

        return arrive

    def _fill(self, name: str, rows: Tensor, part: Tensor) -> None:
        """Rows of one field into a pinned buffer."""
        began = perf_counter()
        if name == "images" and self._tier is not None:
            self._tier.gather_into(rows, part)
        else:
            self._split.reader.gather(name, rows, out=part)
        self._took(read=perf_counter() - began)

    def _took(self, *, read: float = 0.0, render: float = 0.0) -> None:
        with self._lock:
            self.read_seconds += read
            self.render_seconds += render


def _put(values: Tensor, part: Tensor) -> None:
    part.copy_(values)
