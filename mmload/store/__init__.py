"""The format on disk: manifest, shard files, opened datasets and their rows. Builds write it, loaders read it."""
