"""Keras 3 on torch over torchvision's ImageFolder; with_keras.py is the same over mmload.

KERAS_BACKEND=torch python with_keras_before.py photos
"""

import os
import sys

os.environ["KERAS_BACKEND"] = "torch"

import keras  # noqa: E402  # it chooses the backend when it is imported
from torch.utils.data import DataLoader  # noqa: E402
from torchvision import transforms  # noqa: E402
from torchvision.datasets import ImageFolder  # noqa: E402


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
    keras.config.set_image_data_format("channels_first")
    train, val = loaders(folder, size, batch_size)
    network = keras.Sequential(
        [
            keras.Input((3, size, size)),
            keras.layers.Conv2D(16, 7, 4, activation="relu"),
            keras.layers.GlobalAveragePooling2D(),
            keras.layers.Dense(len(train.dataset.classes)),
        ]
    )
    network.compile("adamw", keras.losses.SparseCategoricalCrossentropy(from_logits=True), metrics=["accuracy"])
    history = network.fit(train, validation_data=val, epochs=epochs, verbose=2)
    right = history.history["val_accuracy"][-1]
    print(f"right: {right:.3f}")
    return right


if __name__ == "__main__":
    main(sys.argv[1])
