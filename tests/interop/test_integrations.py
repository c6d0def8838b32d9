"""mmload under the packages that people train with: the real ones."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import make_folder
from torch import nn
from torch.utils.data import DataLoader, Subset

import mmload
from mmload.augment import Normalize, RandomCrop
from mmload.builder.pipeline import build
from mmload.builder.recipe import BuildRecipe, square
from mmload.errors import UsageError
from mmload.store.dataset import Dataset


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A dataset with train and val."""
    root = tmp_path_factory.mktemp("both")
    make_folder(root / "photos" / "train", per_class=6)
    make_folder(root / "photos" / "val", per_class=2, seed=1)
    build(BuildRecipe(kind="imagefolder", root=root / "photos", out=root / "built", transforms=square(32)))
    return root / "built"


def collate() -> mmload.Collate:
    return mmload.Collate(RandomCrop(24), Normalize.imagenet())


def network() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(3 * 24 * 24, 3))


def lightning_module(lightning: Any) -> Any:
    """A module that keeps the rows that it was trained with, and counts those that it was validated with."""

    class Module(lightning.LightningModule):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.network = network()
            self.rows: list[int] = []
            self.validated = 0

        def training_step(self, batch: mmload.Batch, index: int) -> torch.Tensor:
            self.rows += batch.ids.tolist()
            return nn.functional.cross_entropy(self.network(batch.images), batch.targets)

        def validation_step(self, batch: mmload.Batch, index: int) -> None:
            self.validated += len(batch)

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.SGD(self.parameters(), lr=0.01)

    return Module


@pytest.mark.filterwarnings("ignore")
def test_lightning_trains_validates_and_resumes(path: Path, tmp_path: Path) -> None:
    lightning = pytest.importorskip("lightning", reason="lightning is not installed")
    from mmload.interop.lightning import DataModule

    Module = lightning_module(lightning)
    data = DataModule(path, train_collate=collate(), eval_collate=collate(), batch_size=4)
    module = Module()
    options = {"accelerator": "cpu", "logger": False, "enable_progress_bar": False, "enable_model_summary": False}
    trainer = lightning.Trainer(max_epochs=2, default_root_dir=tmp_path, num_sanity_val_steps=0, **options)
    trainer.fit(module, data)
    assert sorted(module.rows[:18]) == sorted(module.rows[18:]) == list(range(18))
    assert module.rows[:18] != module.rows[18:]
    assert module.validated == 12
    trainer.save_checkpoint(tmp_path / "kept.ckpt")
    again = DataModule(path, train_collate=collate(), eval_collate=collate(), batch_size=4)
    more = Module()
    lightning.Trainer(max_epochs=3, default_root_dir=tmp_path, num_sanity_val_steps=0, **options).fit(
        more, again, ckpt_path=tmp_path / "kept.ckpt", weights_only=False
    )
    assert sorted(more.rows) == list(range(18))


@pytest.mark.filterwarnings("ignore")
def test_lightning_reloads_loaders_and_each_epoch_has_an_order_of_its_own(path: Path, tmp_path: Path) -> None:
    lightning = pytest.importorskip("lightning", reason="lightning is not installed")
    from mmload.interop.lightning import DataModule

    Module = lightning_module(lightning)
    options = {"accelerator": "cpu", "logger": False, "enable_progress_bar": False, "enable_model_summary": False}
    rows = []
    for every in (0, 1):
        data, module = DataModule(path, train_collate=collate(), eval_collate=collate(), batch_size=4), Module()
        lightning.Trainer(
            max_epochs=3, reload_dataloaders_every_n_epochs=every, default_root_dir=tmp_path, **options
        ).fit(module, data)
        rows.append(module.rows)
    assert rows[0][:18] != rows[0][18:36]
    assert rows[1] == rows[0]


@pytest.mark.filterwarnings("ignore")
def test_lightning_steps_get_what_the_data_module_returns(path: Path, tmp_path: Path) -> None:
    lightning = pytest.importorskip("lightning", reason="lightning is not installed")
    from mmload.interop.lightning import DataModule

    class Module(lightning_module(lightning)):  # type: ignore[misc]  # made when lightning is there
        def training_step(self, batch: Any, index: int) -> torch.Tensor:
            images, targets = batch
            loss = nn.functional.cross_entropy(self.network(images), targets)
            self.log("loss", loss, on_epoch=True)  # Lightning finds the batch size in the tensors
            return loss

        def validation_step(self, batch: Any, index: int) -> None:
            images, targets = batch
            self.validated += len(images)

    data = DataModule(
        path, train_collate=collate(), eval_collate=collate(), batch_size=4, returns=("images", "targets")
    )
    module = Module()
    options = {"accelerator": "cpu", "logger": False, "enable_progress_bar": False, "enable_model_summary": False}
    lightning.Trainer(fast_dev_run=2, default_root_dir=tmp_path, **options).fit(module, data)
    assert module.validated == 6


@pytest.mark.filterwarnings("ignore")
def test_lightning_takes_an_order_for_training_and_evaluates_all_rows_in_theirs(path: Path) -> None:
    pytest.importorskip("lightning", reason="lightning is not installed")
    from mmload.interop.lightning import DataModule

    given = ({"order": "block"}, {"sampler": None}, {"sampler": [3, 3, 3]}, {"shuffle": False, "sampler": [3, 3, 3]})
    for options in given:
        data = DataModule(path, batch_size=4, **options)
        trained = torch.cat([batch.ids for batch in data.train_dataloader()]).tolist()
        assert trained == [3, 3, 3] if options.get("sampler") else sorted(trained) == list(range(18)) != trained
        with data.val_dataloader() as loader:
            assert torch.cat([batch.ids for batch in loader]).tolist() == list(range(len(data.dataset["val"])))


@pytest.mark.filterwarnings("ignore")
def test_accelerate_prepares_both_kinds_of_loader(path: Path) -> None:
    accelerate = pytest.importorskip("accelerate", reason="accelerate is not installed")
    accelerator = accelerate.Accelerator(cpu=True)
    split = mmload.open(path)["train"]
    plain = DataLoader(split, batch_size=4, shuffle=True, collate_fn=collate())
    own = mmload.Loader(split, batch_size=4, shuffle=True, collate=collate())
    model, optimizer = network(), None
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    model, optimizer, plain, own = accelerator.prepare(model, optimizer, plain, own)
    for loader in (plain, own):
        rows = []
        for batch in loader:
            loss = nn.functional.cross_entropy(model(batch.images), batch.targets)
            accelerator.backward(loss)
            optimizer.step()
            optimizer.zero_grad()
            rows += batch.ids.tolist()
        assert sorted(rows) == list(range(18))


@pytest.mark.filterwarnings("ignore:'set_vital' is deprecated:UserWarning")  # torchdata 0.11 asks torch 2.15 for it
@pytest.mark.parametrize("workers", [0, 2])
def test_a_stateful_dataloader_goes_on_in_the_middle_of_an_epoch(path: Path, workers: int) -> None:
    stateful = pytest.importorskip("torchdata.stateful_dataloader", reason="torchdata is not installed")

    def loader() -> DataLoader:
        options = {"batch_size": 4, "shuffle": True, "num_workers": workers, "collate_fn": mmload.Collate()}
        made: DataLoader = stateful.StatefulDataLoader(mmload.open(path)["train"], **options)
        return made

    first = loader()
    batches = iter(first)
    used = [next(batches).ids.tolist() for _ in range(2)]
    state = first.state_dict()
    rest = [batch.ids.tolist() for batch in batches]
    again = loader()
    again.load_state_dict(state)
    assert [batch.ids.tolist() for batch in again] == rest
    assert sorted(sum(used + rest, [])) == list(range(18))


def test_the_loader_has_torchdatas_protocol_of_state(path: Path) -> None:
    protocol = pytest.importorskip("torchdata.stateful_dataloader.stateful", reason="torchdata is not installed")
    first = mmload.Loader(path, split="train", batch_size=4, shuffle=True, collate=collate())
    assert isinstance(first, protocol.Stateful)
    batches = iter(first)
    next(batches)
    state = first.state_dict()
    rest = [batch.images for batch in batches]
    again = mmload.Loader(path, split="train", batch_size=4, shuffle=True, collate=collate())
    again.load_state_dict(state)
    assert all(torch.equal(batch.images, images) for batch, images in zip(again, rest, strict=True))


@pytest.mark.slow
def test_workers_that_are_spawned_read_the_same(path: Path) -> None:
    split = mmload.open(path)["train"]
    split[0]  # its files are open
    nested = Subset(split.subset(range(1, 18)), range(16))
    loader = DataLoader(
        nested,
        batch_size=6,
        num_workers=1,
        multiprocessing_context="spawn",
        collate_fn=mmload.Collate(dtype=torch.uint8),
    )
    assert torch.equal(torch.cat([batch.images for batch in loader]), split[1:17].images)


def test_data_is_the_split_mapped_read_only(path: Path) -> None:
    split = mmload.open(path)["train"]
    assert torch.equal(split.data.images, split[:].images)
    assert split.data.targets.tolist() == split[:].targets.tolist()
    assert [len(shard) for shard in split.shards] == [18]
    assert torch.equal(split.subset([4, 2])[1].images, split[2].images)


def test_data_of_several_shards_that_do_not_end_with_a_page_says_what_to_do(
    path: Path, dataset: Dataset, folder: Path, tmp_path: Path
) -> None:
    split = dataset["train"]
    with pytest.raises(
        UsageError, match=r"images of .* 4 files that do not end with a page .* --shard-size (\d+)"
    ) as caught:
        split.data  # noqa: B018  # a property
    assert torch.equal(torch.cat([shard.images for shard in split.shards]), split[:].images)
    size = int(str(caught.value).rpartition(" ")[2])
    build(BuildRecipe(kind="imagefolder", root=folder, out=tmp_path / "one", transforms=square(32), shard_bytes=size))
    assert torch.equal(mmload.open(tmp_path / "one")["train"].data.images, split[:].images)
