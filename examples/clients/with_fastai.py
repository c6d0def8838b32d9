"""fastai over mmload; with_fastai_before.py is the same over torchvision's ImageFolder.

python with_fastai.py photos-256
"""

import sys

from fastai.data.core import DataLoaders
from fastai.learner import Learner
from fastai.metrics import accuracy
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
    train, val = loaders(folder, size, batch_size)
    network = nn.Sequential(
        nn.Conv2d(3, 16, 7, 4),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(16, len(train.dataset.classes)),
    )
    learner = Learner(DataLoaders(train, val), network, loss_func=nn.CrossEntropyLoss(), metrics=accuracy)
    learner.fit(epochs, 1e-3)
    right = learner.recorder.values[-1][-1]
    print(f"right: {right:.3f}")
    return right


if __name__ == "__main__":
    main(sys.argv[1])
