"""Sends batches to a device: every field goes through pinned memory and the copy stream."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from mmload.augment.collate import Collate
from mmload.augment.epochs import batch_of_epoch
from mmload.augment.views import Views
from mmload.batch import Batch, Made, make_batch
from mmload.loader.device_transfer import Port, Ring, Shipped
from mmload.loader.tiers import OnDevice, Tier
from mmload.records import FieldSpec


class DeviceBatches:
    """Pinned buffers for every field of a batch. Thread-safe.

    Nothing is copied from pageable memory: such a copy would block the training thread until its stream gets there.

    Args:
        port: the device's.
        fields: the fields to copy, with dtypes and row shapes.
        tier: where images are read from; those of an ``OnDevice`` tier are not among ``fields``.
        collate: rendered on the device.
        batch_size: the largest batch.
        slots: batches that can be in flight at once.
    """

    def __init__(
        self,
        port: Port,
        fields: Mapping[str, FieldSpec],
        *,
        tier: Tier | None,
        collate: Callable[[Batch], Made] | None,
        batch_size: int,
        slots: int,
    ) -> None:
        self._port, self._collate = port, collate
        self._resident = tier if isinstance(tier, OnDevice) else None
        self._fields = {
            name: Ring(port, (batch_size, *spec.shape), spec.torch_dtype, slots) for name, spec in fields.items()
        }
        self._ids, self._seeds = (Ring(port, (batch_size,), torch.int64, slots) for _ in range(2))

    def ship(
        self, rows: Tensor, seeds: Tensor, epoch: int, fill: Callable[[str, Tensor, Tensor], None]
    ) -> ArrivingBatch:
        """Gather a batch into pinned buffers and queue the copies.

        Args:
            rows: int64 [B].
            seeds: int64 [B].
            epoch: the batch's.
            fill: (field, rows, buffer) writes the rows of a field into its buffer.
        """
        count = len(rows)
        ids, keys = self._ids.ship(count, partial(_copy, rows)), self._seeds.ship(count, partial(_copy, seeds))
        fields = {name: ring.ship(count, partial(fill, name, rows)) for name, ring in self._fields.items()}
        return ArrivingBatch(self._port, self._resident, self._collate, epoch, ids, keys, fields)


@dataclass(frozen=True)
class ArrivingBatch:
    """A batch whose copies to the device are queued: a :class:`~mmload.loader.batch_worker.Delivery`."""

    port: Port
    resident: OnDevice | None
    collate: Callable[[Batch], Made] | None
    epoch: int
    ids: Shipped
    seeds: Shipped
    fields: Mapping[str, Shipped]

    def receive(self) -> Made:
        """Make the caller's stream wait for the copies, and render there."""
        ids = self.ids.arrive(self.port)
        fields = {name: shipped.arrive(self.port) for name, shipped in self.fields.items()}
        batch = make_batch(fields, len(ids), ids=ids, seeds=self.seeds.arrive(self.port), device=ids.device)
        if self.resident is not None:
            [(images, indices)] = self.resident.parts(ids, scratch=self.resident.rows)  # one part with all
            if isinstance(self.collate, Collate | Views):
                with batch_of_epoch(self.epoch):
                    return self.collate.render(batch, images, indices)
            batch.images = images[indices]
        if self.collate is None:
            return batch
        with batch_of_epoch(self.epoch):
            return self.collate(batch)


def _copy(values: Tensor, buffer: Tensor) -> None:
    buffer.copy_(values)
