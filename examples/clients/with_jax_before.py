"""JAX over torchvision's ImageFolder; with_jax.py is the same over mmload.

python with_jax_before.py photos
"""

import sys

import jax
import jax.numpy as jnp
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


def arrays(batch):
    """Returns the batch in JAX's memory, without a copy on a CPU."""
    return tuple(map(jnp.from_dlpack, batch))


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
