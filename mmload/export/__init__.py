"""Writes a dataset as other programs read it: PNG folders, COCO, YOLO, Hugging Face ``datasets``, FiftyOne.

Each function takes an open dataset, and which rows of it as a :class:`Choice`.
"""

from mmload.export.chosen_rows import Choice
from mmload.export.coco import to_coco
from mmload.export.fiftyone import to_fiftyone
from mmload.export.huggingface import save_huggingface, to_huggingface
from mmload.export.imagefolder import to_imagefolder
from mmload.export.png_export import Exported
from mmload.export.yolo import to_yolo

__all__ = [
    "Choice",
    "Exported",
    "save_huggingface",
    "to_coco",
    "to_fiftyone",
    "to_huggingface",
    "to_imagefolder",
    "to_yolo",
]
