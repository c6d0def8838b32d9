"""Lightning over mmload; with_lightning_before.py is the same over torchvision's ImageFolder.

python with_lightning.py photos-256
"""

import sys

import lightning
import torch
from torch import nn

import mmload
from mmload.augment import CenterCrop, Normalize, RandomHorizontalFlip, RandomResizedCrop


class TrainLoader(mmload.Loader):
    """Begins an epoch with its first batch: Lightning calls iter() several times before it takes one."""

    def __iter__(self):
        yield from super().__iter__()


def loaders(folder, size, batch_size):
    """Batches of the training and the validation images."""
    augment = mmload.Collate(RandomResizedCrop(size), RandomHorizontalFlip(), Normalize.imagenet())
    center = mmload.Collate(CenterCrop(size), Normalize.imagenet())
    options = {"batch_size": batch_size, "returns": ("images", "targets")}
    return (
        TrainLoader(
            mmload.open(folder)["train"], shuffle=True, drop_last=True, tail="drop", collate=augment, **options
        ),
        mmload.Loader(mmload.open(folder)["val"], collate=center, **options),
    )


class Classifier(lightning.LightningModule):
    """A small network."""

    def __init__(self, classes):
        super().__init__()
        self.network = nn.Sequential(
            nn.Conv2d(3, 16, 7, 4), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(16, classes)
        )

    def training_step(self, batch, index):
        images, targets = batch
        return nn.functional.cross_entropy(self.network(images), targets)

    def validation_step(self, batch, index):
        images, targets = batch
        self.log("right", (self.network(images).argmax(1) == targets).float().mean(), batch_size=len(images))

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=1e-3)


def main(folder, size=224, batch_size=32, epochs=1):
    """Trains, and returns the share of validation images that are right."""
    train, val = loaders(folder, size, batch_size)
    trainer = lightning.Trainer(
        max_epochs=epochs, accelerator="auto", logger=False, enable_checkpointing=False, enable_progress_bar=False
    )
    trainer.fit(Classifier(len(train.dataset.classes)), train, val)
    right = float(trainer.callback_metrics["right"])
    print(f"right: {right:.3f}")
    return right


if __name__ == "__main__":
    main(sys.argv[1])
