"""Trains one of torchvision's detection models on boxes in VOC's layout.

mmload build voc VOCDEVKIT voc-512 --size 512          # --set classes=auto for classes of your own
python examples/detection.py voc-512
"""

from __future__ import annotations

import argparse

import torch
import torchvision

import mmload
from mmload.augment import RandomHorizontalFlip, RandomIoUCrop, Resize


def main(words: list[str] | None = None) -> list[float]:
    """Trains; returns the loss of each batch."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("dataset")
    parser.add_argument("--model", default="fasterrcnn_resnet50_fpn", help="a name of torchvision's")
    parser.add_argument("--size", type=int, default=512)
    parser.add_argument("--batch-size", type=int, default=4)
    parser.add_argument("--epochs", type=int, default=10)
    args = parser.parse_args(words)
    device = "cuda" if torch.cuda.is_available() else "cpu"

    train = mmload.open(args.dataset)["train"]
    loader = mmload.Loader(
        train,
        batch_size=args.batch_size,
        shuffle=True,
        seed=0,
        device=device,
        collate=mmload.Collate(RandomIoUCrop(), Resize((args.size, args.size)), RandomHorizontalFlip()),
        returns="torchvision",  # lists of images and of targets
    )
    torch.manual_seed(0)
    options = {"weights": None, "weights_backbone": None, "num_classes": 1 + len(train.classes)}  # 0: the background
    model = torchvision.models.get_model(args.model, **options).to(device).train()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.005, momentum=0.9)
    losses = []
    for epoch in range(args.epochs):
        for images, targets in loader:
            loss = sum(model(images, targets).values())
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        print(f"epoch {epoch}: loss {losses[-1]:.3f}")
    return losses


if __name__ == "__main__":
    main()
