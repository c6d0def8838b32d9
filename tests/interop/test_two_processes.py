"""Lightning and Accelerate with two ranks: every row once over both, the same number of batches on each."""

from __future__ import annotations

import json
import socket
from pathlib import Path
from typing import Any

import pytest
from forked_program import Program

from mmload.store.dataset import Dataset

pytestmark = pytest.mark.slow

LIGHTNING = """
import json, logging, sys, warnings
import lightning, torch
from torch import nn
from mmload.loader import Loader
warnings.simplefilter("ignore")
logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)

class TrainLoader(Loader):
    def __iter__(self):
        yield from super().__iter__()

class Module(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.network = nn.Sequential(nn.Flatten(), nn.Linear(3 * 32 * 32, 3))
        self.rows = []

    def train_dataloader(self):
        return TrainLoader(sys.argv[1], batch_size=4, shuffle=True, seed=7, tail="pad", threads=1)

    def training_step(self, batch, index):
        self.rows.append(batch.ids.tolist())
        return nn.functional.cross_entropy(self.network(batch.images.float() / 255), batch.targets)

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.01)

module = Module()
trainer = lightning.Trainer(
    max_epochs=2, accelerator="cpu", devices=2, strategy="ddp", logger=False, enable_checkpointing=False,
    enable_progress_bar=False, enable_model_summary=False, default_root_dir=sys.argv[2],
)
trainer.fit(module)
weights = [float(one.detach().sum()) for one in module.parameters()]
print(json.dumps([module.rows, weights]))
"""

RESUME = """
import json, sys
from accelerate import Accelerator
from mmload.errors import UsageError
from mmload.loader import Loader
accelerator = Accelerator(cpu=True)

def prepared():
    return accelerator.prepare(Loader(sys.argv[1], batch_size=4, shuffle=True, seed=7, tail="pad", threads=1))

def rows(batches):
    return [batch.ids.tolist() for batch in batches]

def resumed(way):
    loader = prepared()
    if way != "skip":
        loader.load_state_dict(state)
    if way != "state":
        loader.set_epoch(1)
        return [begun + rows(accelerator.skip_first_batches(loader, 2)), rows(loader)]
    return [begun + rows(loader), rows(loader)]

loader = prepared()
whole = [rows(loader) for _ in range(3)]
loader.set_epoch(1)
iterator = iter(loader)
begun = [next(iterator).ids.tolist() for _ in range(2)]
accelerator.register_for_checkpointing(loader)
accelerator.save_state(sys.argv[2])
accelerator.wait_for_everyone()  # the first process alone writes it
loader.set_epoch(5)
accelerator.load_state(sys.argv[2])
state = loader.state_dict()
print(json.dumps([whole[1:], [begun + rows(loader), rows(loader)], *map(resumed, ("skip", "state", "both"))]))
accelerator.end_training()
"""


def free_port() -> int:
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        port: int = listening.getsockname()[1]
        return port


def printed_by_ranks(program: str, dataset: Dataset, tmp_path: Path) -> tuple[Any, Any]:
    """Returns the last line that each of two ranks prints, as JSON."""
    shared = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()), "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2"}
    ranks = [
        Program(
            program, [dataset.path, tmp_path], {**shared, "NODE_RANK": "0", "RANK": str(rank), "LOCAL_RANK": str(rank)}
        )
        for rank in range(2)
    ]
    ended = [rank.ended() for rank in ranks]
    assert [rank.returncode for rank in ended] == [0, 0], ended
    first, second = (json.loads(rank.stdout.splitlines()[-1]) for rank in ended)
    return first, second


def test_two_ranks_of_lightning_share_each_epoch(dataset: Dataset, tmp_path: Path) -> None:
    pytest.importorskip("lightning")
    (first, weights), (second, others) = printed_by_ranks(LIGHTNING, dataset, tmp_path)
    assert weights == others  # gradients were averaged
    batches = len(first) // 2
    for epoch in range(2):
        mine, theirs = (sum(rows[epoch * batches : (epoch + 1) * batches], []) for rows in (first, second))
        assert len(mine) == len(theirs) == 9
        assert sorted(mine + theirs) == list(range(18))


def test_two_ranks_of_accelerate_resume_by_skipping_or_by_the_state(dataset: Dataset, tmp_path: Path) -> None:
    pytest.importorskip("accelerate")
    ranks = printed_by_ranks(RESUME, dataset, tmp_path)
    for expected, *found in ranks:
        assert found == [expected] * 4
    for epoch in range(2):
        assert sorted(sum(ranks[0][0][epoch] + ranks[1][0][epoch], [])) == list(range(18))
