#!/usr/bin/env python3
"""Data-parallel training of a small network: one process per GPU, or per so many CPU cores.

    torchrun --nproc-per-node 4 examples/ranks.py photos-256 --epochs 2
    python examples/ranks.py photos-256 --epochs 2                          # the same losses, in one process

The batch size is that of all ranks together, so the losses do not depend on their number. With --checkpoint, a run
begins where the last one ended, on as many ranks as there are now.
"""

from __future__ import annotations

import argparse
import os
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel

import mmload
from mmload.augment import CenterCrop, Normalize, RandomHorizontalFlip, RandomResizedCrop
from mmload.loader import Loader


def network(classes: int) -> nn.Module:
    """Makes a small network, the same on all ranks. A batch norm would see a rank's rows only: it has group norms."""
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(3, 16, 7, stride=4),
        nn.GroupNorm(4, 16),
        nn.ReLU(),
        nn.Conv2d(16, 32, 3, stride=2),
        nn.GroupNorm(4, 32),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(32, classes),
    )


def total(*values: float | Tensor) -> list[float]:
    """Returns each value's sum over all ranks."""
    sums = torch.tensor([float(value) for value in values], dtype=torch.float64)
    if dist.is_initialized():
        dist.all_reduce(sums)
    return sums.tolist()


def accuracy(model: nn.Module, loader: Loader) -> float:
    """Returns the accuracy over all rows, each of which one rank has seen: ranks may have one more than others."""
    right = seen = 0
    with torch.no_grad():
        for batch in loader:
            right += int((model(batch.images).argmax(1) == batch.targets).sum())
            seen += len(batch)
    everywhere, of = total(right, seen)
    return everywhere / of


def main() -> None:
    """Trains, and prints the loss of every step and the accuracy after every epoch."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("dataset", type=Path)
    parser.add_argument("--epochs", type=int, default=1)
    parser.add_argument("--batch-size", type=int, default=32, help="of all ranks together")
    parser.add_argument("--crop", type=int, default=64)
    parser.add_argument("--stop-after", type=int, help="steps, after which a checkpoint is written")
    parser.add_argument("--checkpoint", type=Path, help="read it if it exists, and write it at the end")
    options = parser.parse_args()

    rank, world_size = int(os.environ.get("RANK", 0)), int(os.environ.get("WORLD_SIZE", 1))  # torchrun sets them
    local = int(os.environ.get("LOCAL_RANK", 0))
    device = torch.device("cuda", local) if torch.cuda.is_available() else torch.device("cpu")
    if world_size > 1:
        dist.init_process_group("nccl" if device.type == "cuda" else "gloo")
    if options.batch_size % world_size:
        raise SystemExit(f"--batch-size {options.batch_size} does not divide among {world_size} ranks")

    dataset = mmload.open(options.dataset)
    train = dataset["train"]
    normalize = Normalize(train.mean, train.std)
    loader = Loader(  # made after init_process_group, from which it knows its rank
        train,
        batch_size=options.batch_size // world_size,
        shuffle=True,
        seed=0,
        collate=mmload.Collate(RandomResizedCrop(options.crop), RandomHorizontalFlip(), normalize),
        device=device,
        tail="drop",  # every rank takes the same number of steps, as they wait for each other
        drop_last=True,
    )
    evaluation = Loader(
        dataset.get("val", train),
        batch_size=options.batch_size,
        collate=mmload.Collate(CenterCrop(options.crop), normalize),
        device=device,
    )

    model = network(len(train.classes)).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    if options.checkpoint and options.checkpoint.exists():
        saved = torch.load(options.checkpoint, map_location=device)
        model.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
        loader.load_state_dict(saved["loader"])
    trained = DistributedDataParallel(model) if world_size > 1 else model

    steps = 0
    while loader.epoch < options.epochs and steps != options.stop_after:
        epoch = loader.epoch
        for batch in loader:
            loss = cross_entropy(trained(batch.images), batch.targets)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            steps += 1
            (mean,) = total(loss.detach() / world_size)
            if rank == 0:
                print(f"epoch {epoch} loss {mean:.6f}", flush=True)
            if steps == options.stop_after:
                break
        else:
            share = accuracy(model, evaluation)
            if rank == 0:
                print(f"epoch {epoch} accuracy {share:.4f}", flush=True)
    if options.checkpoint and rank == 0:
        states = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "loader": loader.state_dict()}
        torch.save(states, options.checkpoint)
    if dist.is_initialized():
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
