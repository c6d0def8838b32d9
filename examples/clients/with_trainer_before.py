"""Hugging Face's Trainer over torchvision's ImageFolder; with_trainer.py is the same over mmload.

python with_trainer_before.py photos
"""

import sys
import tempfile

from torch.utils.data import DataLoader, default_collate
from torchvision import transforms
from torchvision.datasets import ImageFolder
from transformers import ResNetConfig, ResNetForImageClassification, Trainer, TrainingArguments


def collate(samples):
    """Returns a dict as the model takes it."""
    images, targets = default_collate(samples)
    return {"pixel_values": images, "labels": targets}


def loaders(folder, size, batch_size):
    """Batches of the training and the validation images."""
    normalize = transforms.Normalize((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
    augment = [transforms.RandomResizedCrop(size), transforms.RandomHorizontalFlip(), transforms.ToTensor(), normalize]
    center = [transforms.Resize(256), transforms.CenterCrop(size), transforms.ToTensor(), normalize]
    train = ImageFolder(f"{folder}/train", transforms.Compose(augment))
    val = ImageFolder(f"{folder}/val", transforms.Compose(center))
    options = {"batch_size": batch_size, "num_workers": 2, "collate_fn": collate}
    return (
        DataLoader(train, shuffle=True, drop_last=True, **options),
        DataLoader(val, **options),
    )


class LoaderTrainer(Trainer):
    """A Trainer that reads from loaders that are given, in place of making its own."""

    def __init__(self, *arguments, train, val, **more):
        super().__init__(*arguments, train_dataset=train.dataset, eval_dataset=val.dataset, **more)
        self.loaders = train, val

    def get_train_dataloader(self):
        return self.loaders[0]

    def get_eval_dataloader(self, eval_dataset=None):
        return self.loaders[1]


def main(folder, size=224, batch_size=32, epochs=1):
    """Trains, and returns the share of validation images that are right."""
    train, val = loaders(folder, size, batch_size)
    config = ResNetConfig(
        embedding_size=8, hidden_sizes=[8, 16], depths=[1, 1], layer_type="basic", num_labels=len(train.dataset.classes)
    )
    with tempfile.TemporaryDirectory() as output:
        arguments = TrainingArguments(
            output, per_device_train_batch_size=batch_size, num_train_epochs=epochs, report_to=[], save_strategy="no"
        )
        trainer = LoaderTrainer(
            ResNetForImageClassification(config),
            arguments,
            train=train,
            val=val,
            compute_metrics=lambda seen: {"right": (seen.predictions.argmax(1) == seen.label_ids).mean()},
        )
        trainer.train()
        right = trainer.evaluate()["eval_right"]
    print(f"right: {right:.3f}")
    return right


if __name__ == "__main__":
    main(sys.argv[1])
