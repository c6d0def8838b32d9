"""Other libraries: the torchvision equivalent of a pipeline, and a LightningDataModule."""

from mmload.lazy import importer

__getattr__ = importer(__name__)
