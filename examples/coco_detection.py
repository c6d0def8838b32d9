"""Trains a detection model of torchvision by the recipe of its references/detection, and evaluates it as COCO does.

mmload build coco COCO coco-800 --layout variable --size 800        # or voc, yolo: any dataset with boxes
python examples/coco_detection.py coco-800                          # pip install pycocotools

The recipe: SGD, a linear warmup over the first epoch, and lower learning rates after epochs 16 and 22. With
``--augment lsj --size 1024 --copy-paste 1 --model maskrcnn_resnet50_fpn``, of a build with ``--task instances``, it is
that of "Simple copy-paste". Images come in the size that the model works at, so it resizes none again, in training and
evaluation; a model of a fixed size, such as SSD, resizes them to that. Crowds are not trained on, as there, and count
as COCO has it in the evaluation.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable
from contextlib import redirect_stdout
from io import StringIO
from typing import Any

import torch
import torchvision
from pycocotools.coco import COCO
from pycocotools.cocoeval import COCOeval
from torch import Tensor, nn
from torchvision.ops import box_convert

import mmload
from mmload.augment import RandomShortestSize
from mmload.presets import detection

Target = dict[str, Tensor]


def without_crowds(target: Target) -> Target:
    """Returns a target with single objects alone, which models learn."""
    real = ~target["iscrowd"] if "iscrowd" in target else torch.ones(len(target["labels"]), dtype=torch.bool)
    return {name: target[name][real] for name in ("boxes", "labels", "masks", "keypoints") if name in target}


def truth_of(image: int, target: Target) -> list[dict[str, Any]]:
    """Returns the annotations of an image as COCO's files have them."""
    boxes = box_convert(target["boxes"].as_subclass(Tensor), "xyxy", "xywh")
    crowds = target.get("iscrowd", torch.zeros(len(boxes))).tolist()
    areas = target.get("area", boxes[:, 2] * boxes[:, 3]).tolist()
    objects = zip(boxes.tolist(), target["labels"].tolist(), areas, crowds, strict=True)
    return [
        {"image_id": image, "category_id": label, "bbox": box, "area": area, "iscrowd": int(crowd)}
        for box, label, area, crowd in objects
    ]


def found_in(image: int, output: Target) -> list[dict[str, Any]]:
    """Returns the detections of an image as COCO's results have them."""
    boxes = box_convert(output["boxes"].cpu(), "xyxy", "xywh").tolist()
    objects = zip(boxes, output["labels"].tolist(), output["scores"].tolist(), strict=True)
    return [{"image_id": image, "category_id": label, "bbox": box, "score": score} for box, label, score in objects]


def average_precision(truth: list[list[dict[str, Any]]], found: list[dict[str, Any]]) -> float:
    """Returns COCO's metric, AP at IoU 0.50 to 0.95, of the annotations of each image and all detections."""
    annotations = [each for image in truth for each in image]
    gt = COCO()
    gt.dataset = {
        "images": [{"id": image} for image in range(len(truth))],
        "annotations": [{"id": 1 + number, **each} for number, each in enumerate(annotations)],
        "categories": [{"id": label} for label in sorted({each["category_id"] for each in annotations})],
    }
    with redirect_stdout(StringIO()):
        gt.createIndex()
        evaluation = COCOeval(gt, gt.loadRes(found) if found else COCO(), "bbox")
        evaluation.evaluate()
        evaluation.accumulate()
        evaluation.summarize()
    return float(evaluation.stats[0])


def evaluate(model: nn.Module, loader: Iterable[Any]) -> float:
    """Returns the AP of a model on a loader's images."""
    truth: list[list[dict[str, Any]]] = []
    found: list[dict[str, Any]] = []
    model.eval()
    with torch.inference_mode():
        for images, targets in loader:
            for target, output in zip(targets, model(images), strict=True):
                found += found_in(len(truth), output)
                truth.append(truth_of(len(truth), target))
    return average_precision(truth, found)


def collates_of(augment: str, size: int, copy_paste: float = 0.0) -> tuple[mmload.Collate, mmload.Collate, int]:
    """Returns the collates of training and evaluation, and the greatest length of the longer side."""
    if augment == "lsj":
        longest, train = size, detection.lsj(size=size, copy_paste=copy_paste)
    else:
        longest = size * 1333 // 800
        train = detection.faster_rcnn(sizes=size, max_size=longest)
    return train, mmload.Collate(RandomShortestSize(size, longest)), longest


def keep_sizes(model: nn.Module, size: int, longest: int) -> None:
    """Sets the sizes to which a model resizes images to those that they have."""
    model.transform.min_size, model.transform.max_size = (size,), longest


def main(words: list[str] | None = None) -> tuple[list[float], float]:
    """Trains; returns the loss of each batch and the AP at the end."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("dataset")
    parser.add_argument("--model", default="fasterrcnn_resnet50_fpn", help="a name of torchvision's")
    parser.add_argument("--augment", default="faster_rcnn", choices=("faster_rcnn", "lsj"))
    parser.add_argument("--copy-paste", type=float, default=0.0)
    parser.add_argument("--size", type=int, default=800, help="pixels of the shorter side, for lsj of both")
    parser.add_argument("--batch-size", type=int, default=2)
    parser.add_argument("--epochs", type=int, default=26)
    parser.add_argument("--lr", type=float, default=0.0025, help="0.02 for 8 GPUs")
    args = parser.parse_args(words)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    collate, unchanged, longest = collates_of(args.augment, args.size, args.copy_paste)
    dataset = mmload.open(args.dataset)
    train, val = dataset["train"], dataset["val" if "val" in dataset else "train"]
    options = {"batch_size": args.batch_size, "device": device, "returns": "torchvision"}
    loader = mmload.Loader(train, shuffle=True, seed=0, drop_last=True, collate=collate, **options)
    evaluation = mmload.Loader(val, collate=unchanged, **options)

    torch.manual_seed(0)
    classes = 1 + len(train.classes)  # 0 is the background
    untrained = {"weights": None, "weights_backbone": None, "num_classes": classes}
    model = torchvision.models.get_model(args.model, **untrained).to(device)
    keep_sizes(model, args.size, longest)
    optimizer = torch.optim.SGD(model.parameters(), lr=args.lr, momentum=0.9, weight_decay=1e-4)
    warmup = torch.optim.lr_scheduler.LinearLR(optimizer, 1e-3, total_iters=min(1000, len(loader)))
    steps = torch.optim.lr_scheduler.MultiStepLR(optimizer, milestones=[16, 22])
    losses, precision = [], 0.0
    for epoch in range(args.epochs):
        model.train()
        for images, targets in loader:
            loss = sum(model(images, [without_crowds(target) for target in targets]).values())
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
            if epoch == 0:
                warmup.step()
        steps.step()
        precision = evaluate(model, evaluation)
        print(f"epoch {epoch}: loss {losses[-1]:.3f}, AP {precision:.3f}")
    return losses, precision


if __name__ == "__main__":
    main()
