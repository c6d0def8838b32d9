"""mmload under the packages that people train with: the real ones."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import documents
import pytest
import torch
from conftest import build_splits
from torch import nn
from torch.utils.data import DataLoader, Subset

import mmload
from mmload.augment import Normalize, RandomCrop


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A dataset with train and val."""
    return build_splits(tmp_path_factory.mktemp("both"), side=32, per_class=(6, 2))


def collate() -> mmload.Collate:
    return mmload.Collate(RandomCrop(24), Normalize.imagenet())


def network() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(3 * 24 * 24, 3))


@pytest.mark.filterwarnings("ignore")
def test_lightning_trains_and_resumes_with_a_loader_that_begins_at_its_first_batch(path: Path, tmp_path: Path) -> None:
    lightning = pytest.importorskip("lightning", reason="lightning is not installed")
    page = next(
        block for block in documents.blocks(documents.ROOT / "docs" / "clients.md") if block.needs == "lightning"
    )
    names: dict[str, Any] = {"torch": torch, "nn": nn}
    exec(page.code[: page.code.index("class Module")], names)  # the loader of the page

    class Module(lightning.LightningModule):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.network = network()
            self.rows: list[int] = []

        def train_dataloader(self) -> mmload.Loader:
            options = {"batch_size": 4, "shuffle": True, "seed": 7, "collate": collate()}
            loader: mmload.Loader = names["TrainLoader"](mmload.open(path)["train"], **options)
            return loader

        def training_step(self, batch: mmload.Batch, index: int) -> torch.Tensor:
            self.rows += batch.ids.tolist()
            return nn.functional.cross_entropy(self.network(batch.images), batch.targets)

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.SGD(self.parameters(), lr=0.01)

    quiet = {"logger": False, "enable_progress_bar": False, "enable_model_summary": False}
    options = {"accelerator": "cpu", "default_root_dir": tmp_path, **quiet}
    plain = mmload.Loader(mmload.open(path)["train"], batch_size=4, shuffle=True, seed=7)
    epochs = [[row for batch in plain for row in batch.ids.tolist()] for _ in range(3)]
    trainer, module = lightning.Trainer(max_epochs=2, **options), Module()
    trainer.fit(module)
    assert module.rows == epochs[0] + epochs[1]
    trainer.save_checkpoint(tmp_path / "kept.ckpt")
    more = Module()
    lightning.Trainer(max_epochs=3, **options).fit(more, ckpt_path=tmp_path / "kept.ckpt", weights_only=False)
    assert more.rows == epochs[2]


@pytest.mark.parametrize("rank", [0, 1])
def test_a_worker_of_ray_train_reads_its_share(path: Path, rank: int, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("ray.train", reason="ray[train] is not installed")
    import ray.train

    class Context:
        def get_world_rank(self) -> int:
            return rank

        def get_world_size(self) -> int:
            return 2

    monkeypatch.setattr(ray.train, "get_context", Context)
    page = next(block for block in documents.blocks(documents.ROOT / "docs" / "clients.md") if block.needs == "ray")
    model = nn.Sequential(nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(12, 3))
    names: dict[str, Any] = {"criterion": nn.CrossEntropyLoss(), "model": model}
    exec(page.code.replace("batch_size=64", "batch_size=2"), names)
    batches, state = names["train_loop"]({"dataset": path, "epochs": 2})
    again = mmload.Loader(mmload.open(path)["train"], batch_size=2, shuffle=True, seed=0, tail="pad", ranks=(rank, 2))
    assert batches == len(again) == 5
    again.load_state_dict(state)


@pytest.mark.filterwarnings("ignore")
def test_accelerate_prepares_both_kinds_of_loader(path: Path) -> None:
    accelerate = pytest.importorskip("accelerate", reason="accelerate is not installed")
    accelerator = accelerate.Accelerator(cpu=True)
    split = mmload.open(path)["train"]
    plain = DataLoader(split, batch_size=4, shuffle=True, collate_fn=collate())
    own = mmload.Loader(split, batch_size=4, shuffle=True, collate=collate())
    model = network()
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
    assert isinstance(mmload.Loader(mmload.open(path)["train"]), protocol.Stateful)


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
