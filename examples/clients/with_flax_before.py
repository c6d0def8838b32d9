"""Flax over torchvision's ImageFolder; with_flax.py is the same over mmload.

python with_flax_before.py photos
"""

import sys

import jax.numpy as jnp
import optax
from flax import nnx
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


class Network(nnx.Module):
    """A convolution, its mean, and a linear layer."""

    def __init__(self, classes, rngs):
        self.filters = nnx.Conv(3, 16, (7, 7), strides=4, padding="VALID", rngs=rngs)
        self.linear = nnx.Linear(16, classes, rngs=rngs)

    def __call__(self, images):
        features = self.filters(images.transpose(0, 2, 3, 1))
        return self.linear(nnx.relu(features).mean((1, 2)))


@nnx.jit
def step(network, optimizer, images, targets):
    """Takes a step of gradient descent; returns the loss."""

    def loss_of(network):
        return optax.softmax_cross_entropy_with_integer_labels(network(images), targets).mean()

    loss, gradients = nnx.value_and_grad(loss_of)(network)
    optimizer.update(network, gradients)
    return loss


def main(folder, size=224, batch_size=32, epochs=1):
    """Trains, and returns the share of validation images that are right."""
    train, val = loaders(folder, size, batch_size)
    network = Network(len(train.dataset.classes), nnx.Rngs(0))
    optimizer = nnx.Optimizer(network, optax.sgd(0.1), wrt=nnx.Param)
    for epoch in range(epochs):
        for batch in train:
            loss = step(network, optimizer, *arrays(batch))
        right = 0
        for batch in val:
            images, targets = arrays(batch)
            right += int((network(images).argmax(1) == targets).sum())
        right /= len(val.dataset)
        print(f"epoch {epoch}: loss {float(loss):.3f}, right: {right:.3f}")
    return right


if __name__ == "__main__":
    main(sys.argv[1])
