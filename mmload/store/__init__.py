"""The format on disk: manifest, shard files, opened datasets and their rows. A build writes it, a loader reads it."""

from mmload.lazy import importer

__getattr__ = importer(__name__)
