"""mmload under PyTorch Lightning: a DataModule over a built dataset, with one loader for each stage.

Needs the ``lightning`` package: ``pip install '.[lightning]'`` in a clone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from lightning import LightningDataModule

from mmload.batch import Batch
from mmload.loader import Loader
from mmload.loader.resume_state import State
from mmload.store.dataset import Dataset

_ORDERS = {"order", "sampler"}
"""Options of a loader that decide the order of training in place of shuffle; evaluations have the stored order."""


class DataModule(LightningDataModule):  # type: ignore[misc]  # mypy does not follow lightning, which may be absent
    """Loaders over the splits of a dataset: ``train`` shuffled, ``val`` and ``test`` in stored order.

    Ranks are Lightning's, through torch.distributed. A checkpoint holds where in the epoch training was.

    Args:
        dataset: the dataset's path.
        train_collate: for the training split.
        eval_collate: for the others.
        val_split: name of the split for validation.
        test_split: name of the split for tests.
        options: further arguments of :class:`~mmload.loader.Loader`, such as batch_size and seed; ``shuffle``,
            ``order`` and ``sampler`` are of training alone.
    """

    def __init__(
        self,
        dataset: str | Path,
        *,
        train_collate: Callable[[Batch], Batch] | None = None,
        eval_collate: Callable[[Batch], Batch] | None = None,
        val_split: str = "val",
        test_split: str = "test",
        **options: Any,
    ) -> None:
        super().__init__()
        self.dataset = Dataset(dataset)
        self._train_collate, self._eval_collate = train_collate, eval_collate
        self._val_split, self._test_split = val_split, test_split
        self._options = options
        self._train: Loader | None = None
        self._resumed: State | None = None

    def train_dataloader(self) -> Loader:
        """Returns the training split in a new random order each epoch, with equally many batches on every rank."""
        is_ordered = any(self._options.get(name) is not None for name in _ORDERS)
        shuffle = {} if is_ordered else {"shuffle": True}
        options: dict[str, Any] = {**shuffle, "tail": "pad", **self._options}
        reloaded = self._train is not None
        self._train = _TrainLoader(self.dataset["train"], collate=self._train_collate, **options)
        if self._resumed is not None:
            self._train.load_state_dict(self._resumed)
        if reloaded and self.trainer is not None:  # reload_dataloaders_every_n_epochs: do not repeat epoch 0
            self._train.set_epoch(self.trainer.current_epoch)
        return self._train

    def val_dataloader(self) -> Loader:
        return self._eval(self._val_split)

    def test_dataloader(self) -> Loader:
        return self._eval(self._test_split)

    def _eval(self, split: str) -> Loader:
        options = {name: value for name, value in self._options.items() if name not in ("shuffle", *_ORDERS)}
        return Loader(self.dataset[split], collate=self._eval_collate, **options)

    def state_dict(self) -> dict[str, Any]:
        return {} if self._train is None else {"train": self._train.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._resumed = state.get("train")
        if self._train is not None and self._resumed is not None:
            self._train.load_state_dict(self._resumed)


class _TrainLoader(Loader):
    """A loader whose epoch begins at the first batch: Lightning calls ``iter`` several times before it takes one."""

    def __iter__(self) -> Iterator[Batch]:
        yield from super().__iter__()
