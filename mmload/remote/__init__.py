"""Datasets in object storage: pushed there, pulled from there, and read in place through a cache on the local disk."""

from mmload.lazy import importer

__getattr__ = importer(__name__)
