"""Other libraries: the torchvision equivalent of a pipeline, and a LightningDataModule."""
