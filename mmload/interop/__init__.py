"""Other libraries: the torchvision equivalent of a pipeline, one image at a time."""

from mmload.lazy import importer

__getattr__ = importer(__name__)
