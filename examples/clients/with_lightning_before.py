"""Lightning over torchvision's ImageFolder; with_lightning.py is the same over mmload.

python with_lightning_before.py photos
"""

import sys

import lightning
import torch
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
