"""Part "transfer": does the loader keep the way from pinned memory to the device busy, and with how many threads?

Batches of 256 leave the page cache, or memory, as 256 x 256 uint8, and arrive as 224 x 224 float16 channels_last,
cropped, flipped and normalised on the device. The limit is a pinned copy of the same bytes, in the same
rounds.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import gpu_check_data as data
import torch
from gpu_check_measure import Settings, epochs_of, host_copy, in_turns, median, row, same_half, share

from mmload.augment import Normalize, RandomCrop, RandomHorizontalFlip, sample_seeds
from mmload.collate import Collate
from mmload.loader import Loader
from mmload.records import Batch
from mmload.threads import available_cores

AIM = 0.95
"""The share of the pinned bandwidth that is hoped for."""


def run(settings: Settings) -> list[dict[str, Any]]:
    """The part's rows."""
    split = data.squares(settings.work)
    shape = (settings.batch, *split.fields["images"].shape)
    rows = [first_batch(settings)]
    counts = [count for count in (1, 2, 4, 8) if count == 1 or count <= 2 * available_cores()]
    for tier in ("disk", "memory"):
        loaders = {
            f"{tier}, {count} thread{'s' * (count > 1)}": loader_of(settings, tier=tier, threads=count)
            for count in counts
        }
        epochs = {name: epochs_of(partial(images_of, one), settings) for name, one in loaders.items()}
        turns = {"limit": host_copy(settings, shape), **epochs}
        rates = in_turns(turns, settings)
        limits = [rate / split.fields["images"].row_bytes for rate in rates.pop("limit")]
        what = "pinned copy" if settings.device == "cuda" else "copy in memory"
        rows.append(row(f"limit beside {tier}: {what}", median(limits), "images/s"))
        shares = {name: share(values, limits) for name, values in rates.items()}
        for name, values in rates.items():
            rows.append(row(name, median(values), "images/s"))
            rows.append(row(f"{name}: share of the limit", shares[name], "", f"{AIM}"))
        least = next((count for count, name in zip(counts, shares, strict=True) if shares[name] >= AIM), None)
        rows.append(row(f"{tier}: least threads that reach {AIM}", "none" if least is None else least))
        for loader in loaders.values():
            loader.close()
    return rows


def collate_of(device: str, dtype: torch.dtype = torch.float16) -> Collate:
    """224 x 224, cropped, flipped and normalised, channels_last."""
    steps = RandomCrop(224), RandomHorizontalFlip(), Normalize.imagenet()
    return Collate(*steps, device=device, dtype=dtype, memory_format=torch.channels_last)


def loader_of(settings: Settings, *, tier: str, threads: int, dtype: torch.dtype = torch.float16) -> Loader:
    """A loader of whole batches in random order; its epochs are long, so that their ends count little."""
    split = data.squares(settings.work)
    return Loader(
        split,
        batch_size=settings.batch,
        sampler=torch.randperm(len(split)).repeat(1 if settings.quick else 8),
        drop_last=True,
        collate=collate_of(settings.device, dtype),
        tier=tier,
        threads=threads,
    )


def images_of(loader: Loader) -> Iterator[torch.Tensor]:
    """The images of an epoch."""
    for batch in loader:
        yield batch.images


def first_batch(settings: Settings) -> dict[str, Any]:
    """A check that the loader's first batch is the CPU's rendering of the rows it names."""
    split = data.squares(settings.work)
    collate = collate_of(settings.device)
    with Loader(split, batch_size=settings.batch, shuffle=True, collate=collate, tier="disk") as loader:
        batch = next(iter(loader))
    ids = batch.ids.cpu()
    rows = Batch(images=split.rows(ids).images, seeds=sample_seeds(0, 0, ids), batch_size=[len(ids)])
    return same_half("Loader on the device against Collate on a CPU", batch.images, collate_of("cpu")(rows).images)
