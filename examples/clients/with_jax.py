"""JAX over mmload; with_jax_before.py is the same over torchvision's ImageFolder.

python with_jax.py photos-256
"""

import sys

import jax
import jax.numpy as jnp

import mmload
from mmload.augment import CenterCrop, Normalize, RandomHorizontalFlip, RandomResizedCrop


def loaders(folder, size, batch_size):
    """Batches of the training and the validation images, as what jax.numpy.from_dlpack takes."""
    augment = mmload.Collate(RandomResizedCrop(size), RandomHorizontalFlip(), Normalize.imagenet())
    center = mmload.Collate(CenterCrop(size), Normalize.imagenet())
    options = {"batch_size": batch_size, "fields": ["images", "targets"], "returns": "dlpack"}
    return (
        mmload.Loader(
            mmload.open(folder)["train"], shuffle=True, drop_last=True, tail="drop", collate=augment, **options
        ),
        mmload.Loader(mmload.open(folder)["val"], collate=center, **options),
    )


def arrays(batch):
    """Returns the batch in JAX's memory, without a copy on a CPU."""
    return jnp.from_dlpack(batch["images"]), jnp.from_dlpack(batch["targets"])


def scores(weights, images):
    """Computes a convolution, its mean, and a linear layer."""
    features = jax.lax.conv_general_dilated(images, weights["filters"], (4, 4), "VALID")
    return jax.nn.relu(features).mean((2, 3)) @ weights["linear"]


def loss_of(weights, images, targets):
    """Returns the mean cross entropy."""
    return -jnp.take_along_axis(jax.nn.log_softmax(scores(weights, images)), targets[:, None], 1).mean()


@jax.jit
def step(weights, images, targets):
    """Takes a step of gradient descent; returns (weights, loss)."""
    loss, gradients = jax.value_and_grad(loss_of)(weights, images, targets)
    return jax.tree.map(lambda weight, gradient: weight - 0.1 * gradient, weights, gradients), loss


def main(folder, size=224, batch_size=32, epochs=1):
    """Trains, and returns the share of validation images that are right."""
    train, val = loaders(folder, size, batch_size)
    first, second = jax.random.split(jax.random.key(0))
    weights = {
        "filters": 0.1 * jax.random.normal(first, (16, 3, 7, 7)),
        "linear": 0.1 * jax.random.normal(second, (16, len(train.dataset.classes))),
    }
    for epoch in range(epochs):
        for batch in train:
            weights, loss = step(weights, *arrays(batch))
        right = 0
        for batch in val:
            images, targets = arrays(batch)
            right += int((scores(weights, images).argmax(1) == targets).sum())
        right /= len(val.dataset)
        print(f"epoch {epoch}: loss {float(loss):.3f}, right: {right:.3f}")
    return right


if __name__ == "__main__":
    main(sys.argv[1])
