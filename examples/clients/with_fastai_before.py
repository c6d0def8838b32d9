"""fastai over torchvision's ImageFolder; with_fastai.py is the same over mmload.

python with_fastai_before.py photos
"""

import sys

from fastai.data.core import DataLoaders
from fastai.learner import Learner
from fastai.metrics import accuracy
from torch import nn
from torch.utils.data import DataLoader
from torchvision import transforms
from torchvision.datasets import ImageFolder


def loaders(folder, size, batch_size):
    """Batches of the training and the validation images."""
    normalize = transforms.Normalize((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
    augment = [transforms.RandomResizedCrop(size), transforms.RandomHorizontalFlip(), transforms.ToTensor(), normalize]
    center = [transforms.Resize(256), transforms.CenterCrop(size), transforms.ToTensor(), normalize]
    train = ImageFolder(f"{folder}/train", transforms.Compose(augment))
    val = ImageFolder(f"{folder}/val", transforms.Compose(center))
    options = {"batch_size": batch_size, "num_workers": 2}
    return (
        DataLoader(train, shuffle=True, drop_last=True, **options),
        DataLoader(val, **options),
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
