"""The format on disk: manifest, shard files, opened datasets and their rows. A build writes it, a loader reads it."""
