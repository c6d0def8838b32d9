"""Hugging Face Accelerate over mmload; with_accelerate_before.py is the same over torchvision's ImageFolder.

accelerate launch with_accelerate.py photos-256
"""

import sys

import torch
from accelerate import Accelerator
from torch import nn

import mmload
from mmload.augment import CenterCrop, Normalize, RandomHorizontalFlip, RandomResizedCrop


def loaders(folder, size, batch_size):
    """Batches of the training and the validation images."""
    augment = mmload.Collate(RandomResizedCrop(size), RandomHorizontalFlip(), Normalize.imagenet())
    center = mmload.Collate(CenterCrop(size), Normalize.imagenet())
    options = {"batch_size": batch_size, "returns": ("images", "targets")}
    return (
        mmload.Loader(
            mmload.open(folder)["train"], shuffle=True, drop_last=True, tail="drop", collate=augment, **options
        ),
        mmload.Loader(mmload.open(folder)["val"], collate=center, **options),
    )


def main(folder, size=224, batch_size=32, epochs=1):
    """Trains, and returns the share of validation images that are right."""
    accelerator = (
        Accelerator()
    )  # before the loaders: it starts torch.distributed, whose ranks they share an epoch among
    train, val = loaders(folder, size, batch_size)
    network = nn.Sequential(
        nn.Conv2d(3, 16, 7, 4),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(16, len(train.dataset.classes)),
    )
    optimizer = torch.optim.AdamW(network.parameters(), lr=1e-3)
    rows = len(val.dataset)
    network, optimizer, train, val = accelerator.prepare(network, optimizer, train, val)
    for epoch in range(epochs):
        network.train()
        for images, targets in train:
            loss = nn.functional.cross_entropy(network(images.to(accelerator.device)), targets.to(accelerator.device))
            accelerator.backward(loss)
            optimizer.step()
            optimizer.zero_grad()
        network.eval()
        right = torch.zeros((), device=accelerator.device)
        with torch.no_grad():
            for images, targets in val:
                right += (network(images.to(accelerator.device)).argmax(1) == targets.to(accelerator.device)).sum()
        right = float(accelerator.reduce(right)) / rows
        accelerator.print(f"epoch {epoch}: loss {loss.item():.3f}, right: {right:.3f}")
    return right


if __name__ == "__main__":
    main(sys.argv[1])
