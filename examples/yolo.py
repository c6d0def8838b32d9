"""Trains one of Ultralytics' detectors, by its own trainer, on batches of mmload.

mmload build yolo ROOT boxes-640 --size 640            # or coco, voc: any dataset with boxes
python examples/yolo.py boxes-640 --model yolov8n.yaml    # pip install ultralytics

The trainer asks its ``get_dataloader`` for batches: that is the method to override. It takes dicts of ``img`` uint8
[B, C, H, W], ``bboxes`` [N, 4] (middle, width and height in shares of the image), ``cls`` [N, 1], and ``batch_idx``
[N], the image of each box.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from typing import Any

import torch
from ultralytics.models.yolo.detect import DetectionTrainer

import mmload
from mmload.augment import Letterbox
from mmload.batch import Batch
from mmload.presets import detection


class Batches:
    """Batches of a Loader as Ultralytics' trainer and validator take them, with the attributes that they look at.

    Args:
        loader: its batches are uint8 and have boxes.
        size: pixels of a side of the images.
    """

    num_workers = 0

    def __init__(self, loader: mmload.Loader, size: int) -> None:
        self.loader, self.size = loader, size
        self.dataset, self.batch_size = loader.dataset, loader.batch_size
        self.sampler = self.dataset

    def __len__(self) -> int:
        return len(self.loader)

    def __iter__(self) -> Iterator[dict[str, Any]]:
        return map(self.converted, self.loader)

    def reset(self) -> None:
        """Does nothing: the trainer calls it where the list of augmentations changes."""

    def converted(self, batch: Batch) -> dict[str, Any]:
        """Returns a batch as a dict."""
        count, most, _ = batch.boxes.shape
        real = torch.arange(most) < batch.counts[:, None]
        boxes = batch.boxes[real] / self.size
        middle, sides = (boxes[:, :2] + boxes[:, 2:]) / 2, boxes[:, 2:] - boxes[:, :2]
        return {
            "img": batch.images,
            "bboxes": torch.cat((middle, sides), 1),
            "cls": batch.labels[real][:, None].float(),
            "batch_idx": torch.arange(count)[:, None].expand(count, most)[real].float(),
            "im_file": [f"row {row}" for row in batch.ids.tolist()],
            "ori_shape": [(self.size, self.size)] * count,
            "resized_shape": [(self.size, self.size)] * count,
            "ratio_pad": [((1.0, 1.0), (0.0, 0.0))] * count,
        }


class Trainer(DetectionTrainer):
    """Ultralytics' trainer of detectors, whose ``data`` is the path of a dataset of mmload."""

    losses: list[float]

    def get_dataset(self) -> dict[str, Any]:
        dataset = mmload.open(self.args.data)
        names = dict(enumerate(next(iter(dataset.values())).classes))
        splits = {"train": "train", "val": "val" if "val" in dataset else "train"}
        return {"nc": len(names), "names": names, "channels": 3, "path": self.args.data, **splits}

    def get_dataloader(self, dataset_path: str, batch_size: int = 16, rank: int = 0, mode: str = "train") -> Batches:
        args = self.args
        train = detection.yolo(
            size=args.imgsz, scale=args.scale, mixup=args.mixup, epochs=args.epochs, close_mosaic=args.close_mosaic,
            dtype=torch.uint8,
        )  # fmt: skip
        collate = train if mode == "train" else mmload.Collate(Letterbox(args.imgsz), dtype=torch.uint8)
        options = {"batch_size": batch_size, "shuffle": mode == "train", "seed": args.seed, "collate": collate}
        loader = mmload.Loader(mmload.open(args.data)[dataset_path], **options)
        return Batches(loader, args.imgsz)

    def final_eval(self) -> None:
        """Does nothing: it would look for a data.yaml; the metrics of the last epoch stay."""


def main(words: list[str] | None = None) -> Trainer:
    """Trains; returns the trainer, with the ``losses`` of its epochs and the ``metrics`` of the last one."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("dataset")
    parser.add_argument("--model", default="yolov8n.yaml")
    parser.add_argument("--size", type=int, default=640)
    parser.add_argument("--batch-size", type=int, default=16)
    parser.add_argument("--epochs", type=int, default=100)
    parser.add_argument("--project", default=None, help="folder of what the trainer writes")
    args = parser.parse_args(words)
    overrides = {"model": args.model, "data": args.dataset, "imgsz": args.size, "epochs": args.epochs}
    trainer = Trainer(overrides={**overrides, "batch": args.batch_size, "plots": False, "project": args.project})
    trainer.losses = []

    def note(one: Trainer) -> None:
        one.losses.append(sum(map(float, one.label_loss_items(one.tloss).values())))

    trainer.add_callback("on_train_epoch_end", note)
    trainer.train()
    return trainer


if __name__ == "__main__":
    main()
