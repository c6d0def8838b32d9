"""Part "transfer": does the loader keep the way from pinned memory to the device busy, and with how many threads?

Batches of 256 leave the page cache, or memory, as 256 x 256 uint8, and arrive as 224 x 224 float16 channels_last,
cropped, flipped and normalized on the device. The limit is a pinned copy of the same bytes, in the same
rounds. Beside the loader stands what it might become: the device fetches the rows by itself, from memory that it can
read, with no thread of the CPU gathering them; the kernel then reads no more than the crops, 0.77 of the bytes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from typing import Any

import gpu_check_data as data
import torch
from gpu_check_measure import Settings, epochs_of, host_copy, in_turns, median, row, same_half, share
from torch import Tensor

from mmload.augment import Normalize, RandomCrop, RandomHorizontalFlip, sample_seeds
from mmload.augment.collate import Collate
from mmload.augment.draws import Draws
from mmload.batch import Batch
from mmload.loader import Loader
from mmload.render.plan import Plan
from mmload.render.rendering import gpu_crop
from mmload.runtime.resources import available_cores
from mmload.store.dataset import Split

CROP = 224

AIM = 0.95
"""The share of the pinned bandwidth that is hoped for."""

_READ_ONLY = 8  # cudaHostRegisterReadOnly


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
    return [*rows, *fetched(settings, split)]


def fetched(settings: Settings, split: Split) -> list[dict[str, Any]]:
    """Rows that the device fetches by itself, from pinned memory and from the files' map registered with the driver."""
    device = torch.device(settings.device)
    crop = gpu_crop(device)
    if crop is None:
        missing = row("there is no kernel here that could fetch rows", 0.0, "", "", False)
        return [missing] if settings.device == "cuda" else []
    mapped = split.data.images
    pinned = torch.empty(mapped.shape, dtype=torch.uint8, pin_memory=settings.device == "cuda").copy_(mapped)
    sources, rows = {"pinned memory": pinned}, []
    refused = registered(mapped)
    if refused:
        rows.append(row("registering the files' map is refused", refused))
    else:
        sources["the registered map"] = mapped
    order = torch.randperm(len(mapped)).to(device).split(settings.batch)
    numbers = [ids.tolist() for ids in order]
    turns = {"limit": host_copy(settings, (settings.batch, *mapped.shape[1:]))}
    for name, source in sources.items():
        read = partial(kernel_batch, crop, source)
        expected = collate_of(settings.device).render(batch_of(order[0]), mapped[order[0].cpu()].to(device)).images
        rows.append(same_half(f"the kernel on {name} against Collate", read(order[0]), expected))
        turns[f"the kernel reads {name}"] = epochs_of(lambda read=read: map(read, order), settings)  # type: ignore[misc]
    turns["the copy engine, row by row from pinned memory"] = epochs_of(
        lambda: (copied_rows(pinned, ids, device) for ids in numbers), settings
    )
    rates = in_turns(turns, settings)
    limits = [rate / split.fields["images"].row_bytes for rate in rates.pop("limit")]
    for name, values in rates.items():
        rows.append(row(name, median(values), "images/s"))
        rows.append(row(f"{name}: share of the limit", share(values, limits)))
    return rows


def registered(mapped: Tensor) -> str:
    """Lets the device read memory of the CPU where it is; what the driver says if it refuses."""
    code = torch.cuda.cudart().cudaHostRegister(mapped.data_ptr(), mapped.nbytes, _READ_ONLY)
    if int(code) == 0:
        return ""
    with suppress(RuntimeError):  # takes the error that the argument_error leaves behind
        torch.zeros(1, device="cuda").add_(1)
    return f"error {int(code)}"


def batch_of(ids: Tensor) -> Batch:
    """The rows' draws."""
    return Batch(ids=ids, seeds=sample_seeds(0, 0, ids), batch_size=[len(ids)])


def kernel_batch(crop: Callable[..., None], source: Tensor, ids: Tensor) -> Tensor:
    """A batch drawn on the device, and rendered from rows that lie elsewhere."""
    plan = described(batch_of(ids).seeds, tuple(source.shape[1:]))
    shape = (len(ids), source.shape[1], plan.height, plan.width)
    out = torch.empty(shape, dtype=torch.float16, device=ids.device, memory_format=torch.channels_last)
    crop(source, ids, plan, plan.shift, plan.scale, out)
    return out


def described(seeds: Tensor, source: tuple[int, int, int]) -> Plan:
    """The windows, flips and color map that the Collate draws."""
    plan = Plan.unchanged(len(seeds), source, 255.0, seeds.device)
    for place, step in enumerate((RandomCrop(CROP), RandomHorizontalFlip(), Normalize.imagenet())):
        plan = step.describe(plan, Draws(seeds, place))
    return plan


def copied_rows(source: Tensor, ids: list[int], device: torch.device) -> Tensor:
    """A batch of whole rows, each a copy of its own."""
    out = torch.empty((len(ids), *source.shape[1:]), dtype=torch.uint8, device=device)
    for place, number in zip(out, ids, strict=True):
        place.copy_(source[number], non_blocking=True)
    return out


def collate_of(device: str, dtype: torch.dtype = torch.float16) -> Collate:
    """224 x 224, cropped, flipped and normalized, channels_last."""
    steps = RandomCrop(CROP), RandomHorizontalFlip(), Normalize.imagenet()
    return Collate(*steps, device=device, dtype=dtype, memory_format=torch.channels_last)


def loader_of(settings: Settings, *, tier: str, threads: int, dtype: torch.dtype = torch.float16) -> Loader:
    """A loader of whole batches in random order; its epochs are long, so that their ends count little."""
    split = data.squares(settings.work)
    return Loader(
        split,
        batch_size=settings.batch,
        order=torch.randperm(len(split)).repeat(1 if settings.quick else 8),
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
    with Loader(split, batch_size=settings.batch, shuffle=True, collate=collate, seed=0, tier="disk") as loader:
        batch = next(iter(loader))
    ids = batch.ids.cpu()
    rows = Batch(images=split.rows(ids).images, seeds=sample_seeds(0, 0, ids), batch_size=[len(ids)])
    return same_half("Loader on the device against Collate on a CPU", batch.images, collate_of("cpu")(rows).images)
