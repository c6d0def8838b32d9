"""Trains a classifier, evaluates it after each epoch, and goes on from its checkpoint, also within an epoch.

mmload build imagefolder photos photos-256 --size 256
python examples/classification.py photos-256 --checkpoint last.pt     # the same command resumes
"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch
import torchvision
from torch import nn

import mmload
from mmload.augment import CenterCrop, Normalize, RandomHorizontalFlip, RandomResizedCrop


def parsed(words: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("dataset", help="a dataset with the splits train and val")
    parser.add_argument("--model", default="resnet18", help="a name of torchvision's")
    parser.add_argument("--size", type=int, default=224)
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--checkpoint", type=Path, default=Path("last.pt"))
    parser.add_argument("--save-every", type=int, default=500, help="batches")
    parser.add_argument("--stop-after", type=int, help="batches: to try how training goes on from its checkpoint")
    return parser.parse_args(words)


def main(words: list[str] | None = None) -> tuple[list[int], float]:
    """Trains; returns the rows in their order, and the share of validation images that are right at the end."""
    args = parsed(words)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    splits = mmload.open(args.dataset)
    train, val = splits["train"], splits["val"]
    normalize = Normalize(train.mean, train.std)
    augment = mmload.Collate(RandomResizedCrop(args.size), RandomHorizontalFlip(), normalize)
    options = {"batch_size": args.batch_size, "device": device}
    loader = mmload.Loader(
        train, shuffle=True, seed=7, drop_last=True, collate=augment, **options
    )  # batch norm needs two
    held_out = mmload.Loader(val, collate=mmload.Collate(CenterCrop(args.size), normalize), **options)

    torch.manual_seed(0)
    model = torchvision.models.get_model(args.model, num_classes=len(train.classes)).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    state = {"model": model, "optimizer": optimizer, "loader": loader}  # a loader's state is where in the epoch it is
    if args.checkpoint.exists():
        for name, saved in torch.load(args.checkpoint, weights_only=True).items():
            state[name].load_state_dict(saved)
        print(f"goes on in epoch {loader.epoch}")

    rows: list[int] = []
    right, seen = 0.0, 0
    while loader.epoch < args.epochs:
        epoch = loader.epoch
        model.train()
        for batch in loader:
            loss = nn.functional.cross_entropy(model(batch.images), batch.targets)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            rows += batch.ids.tolist()
            seen += 1
            if seen % args.save_every == 0 or seen == args.stop_after:
                torch.save({name: each.state_dict() for name, each in state.items()}, args.checkpoint)
            if seen == args.stop_after:
                return rows, right
        right = accuracy(model, held_out) / len(val)
        print(f"epoch {epoch}: loss {loss.item():.3f}, right {right:.3f}")
        torch.save({name: each.state_dict() for name, each in state.items()}, args.checkpoint)
    return rows, right


@torch.no_grad()
def accuracy(model: nn.Module, loader: mmload.Loader) -> int:
    """Returns how many images are classified right."""
    model.eval()
    return sum(int((model(batch.images).argmax(1) == batch.targets).sum()) for batch in loader)


if __name__ == "__main__":
    main()
