"""Keras 3 on torch over mmload; with_keras_before.py is the same over torchvision's ImageFolder.

KERAS_BACKEND=torch python with_keras.py photos-256
"""

import os
import sys

os.environ["KERAS_BACKEND"] = "torch"

import keras  # noqa: E402  # it chooses the backend when it is imported

import mmload  # noqa: E402
from mmload.augment import CenterCrop, Normalize, RandomHorizontalFlip, RandomResizedCrop  # noqa: E402


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


def endless(loader):
    """Yields epoch after epoch: Keras takes generators, and no other iterables."""
    while True:
        yield from loader


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
    history = network.fit(
        endless(train),
        validation_data=endless(val),
        epochs=epochs,
        steps_per_epoch=len(train),
        validation_steps=len(val),
        verbose=2,
    )
    right = history.history["val_accuracy"][-1]
    print(f"right: {right:.3f}")
    return right


if __name__ == "__main__":
    main(sys.argv[1])
