"""From a recipe to a dataset on disk: recipe, transforms, shard jobs, engines, staging, verify and repair."""

from mmload.lazy import importer

__getattr__ = importer(__name__)
