"""Learns features without labels, as SimCLR does: two views of each image should be more alike than those of others.

mmload build imagefolder photos photos-256 --size 256
python examples/two_views.py photos-256
"""

from __future__ import annotations

import argparse

import torch
import torchvision
from torch import Tensor, nn

import mmload
from mmload.presets import simclr


def contrastive_loss(first: Tensor, second: Tensor, temperature: float = 0.1) -> Tensor:
    """SimCLR's loss of two batches of features [B, D]: each of the 2 B has to find its other view."""
    features = nn.functional.normalize(torch.cat([first, second]), dim=1)
    alike = features @ features.T / temperature
    alike.fill_diagonal_(float("-inf"))
    count = len(first)
    others = torch.arange(2 * count, device=first.device).roll(count)
    return nn.functional.cross_entropy(alike, others)


def main(words: list[str] | None = None) -> list[float]:
    """Trains; returns the loss of each batch."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("dataset")
    parser.add_argument("--model", default="resnet18", help="a name of torchvision's")
    parser.add_argument("--size", type=int, default=224)
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--epochs", type=int, default=10)
    args = parser.parse_args(words)
    device = "cuda" if torch.cuda.is_available() else "cpu"

    loader = mmload.Loader(
        mmload.open(args.dataset)["train"],
        batch_size=args.batch_size,
        shuffle=True,
        seed=0,
        drop_last=True,
        device=device,
        collate=simclr(size=args.size),
        returns=("images",),
    )
    torch.manual_seed(0)
    model = torchvision.models.get_model(args.model, num_classes=128).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    losses = []
    for epoch in range(args.epochs):
        for ((first, second),) in loader:
            loss = contrastive_loss(model(first), model(second))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        print(f"epoch {epoch}: loss {losses[-1]:.3f}")
    return losses


if __name__ == "__main__":
    main()
