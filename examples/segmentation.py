"""Trains one of torchvision's segmentation models on masks in VOC's layout, and measures its mean IoU.

mmload build --config configs/voc_segmentation_512.toml VOCDEVKIT voc-masks
python examples/segmentation.py voc-masks
"""

from __future__ import annotations

import argparse

import torch
import torchvision
from torch import Tensor, nn

import mmload
from mmload.augment import ColorJitter, Normalize, RandomHorizontalFlip, ScaleJitter

VOID = 255
"""Pixels of a mask that have no class: unlabeled ones, and what a step adds around the image."""


def mean_iou(confusion: Tensor) -> float:
    """Returns the mean over classes of intersection over union, from a confusion matrix [true, predicted]."""
    both = confusion.diag()
    either = confusion.sum(0) + confusion.sum(1) - both
    return float((both[either > 0] / either[either > 0]).mean())


def main(words: list[str] | None = None) -> float:
    """Trains; returns the mean IoU of the validation split."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("dataset", help="a dataset with the splits train and val")
    parser.add_argument("--model", default="deeplabv3_resnet50", help="a name of torchvision's")
    parser.add_argument("--size", type=int, default=480)
    parser.add_argument("--batch-size", type=int, default=8)
    parser.add_argument("--epochs", type=int, default=10)
    args = parser.parse_args(words)
    device = "cuda" if torch.cuda.is_available() else "cpu"

    splits = mmload.open(args.dataset)
    train, val = splits["train"], splits["val"]
    normalize = Normalize(train.mean, train.std)
    augment = mmload.Collate(
        ScaleJitter((args.size, args.size), scale_range=(0.5, 2.0)), RandomHorizontalFlip(), ColorJitter(0.2), normalize
    )
    options = {"batch_size": args.batch_size, "device": device}
    loader = mmload.Loader(
        train, shuffle=True, seed=0, drop_last=True, collate=augment, **options
    )  # batch norm needs two
    held_out = mmload.Loader(val, collate=mmload.Collate(normalize), **options)

    torch.manual_seed(0)
    classes = len(train.classes)
    model = torchvision.models.get_model(args.model, weights=None, weights_backbone=None, num_classes=classes).to(
        device
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    for epoch in range(args.epochs):
        model.train()
        for batch in loader:
            scores = model(batch.images)["out"]
            loss = nn.functional.cross_entropy(scores, batch.masks.long(), ignore_index=VOID)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        model.eval()
        confusion = torch.zeros(classes, classes)
        with torch.no_grad():
            for batch in held_out:
                seen = batch.masks != VOID
                predicted = model(batch.images)["out"].argmax(1)[seen]
                pairs = classes * batch.masks[seen].long() + predicted
                confusion += pairs.bincount(minlength=classes**2).view(classes, classes).cpu()
        print(f"epoch {epoch}: loss {loss.item():.3f}, mean IoU {mean_iou(confusion):.3f}")
    return mean_iou(confusion)


if __name__ == "__main__":
    main()
