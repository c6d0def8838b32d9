"""Ray Train's workers: each has its share of an epoch, all together have every row, with the draws of one process."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from conftest import crop_collate
from ray_cluster import ray_cluster

from mmload.loader import Loader
from mmload.store.dataset import Dataset


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of ray.data's own options
def test_two_workers_of_ray_train_share_every_epoch(dataset: Dataset, tmp_path: Path) -> None:
    store = dataset.path
    ray = pytest.importorskip("ray", reason="ray is not installed")
    pytest.importorskip("ray.train", reason="ray[train] is not installed")
    from ray.train import RunConfig, ScalingConfig
    from ray.train.torch import TorchTrainer

    def work(config: dict[str, Any]) -> None:
        from mmload.interop.ray import DatasetShard

        shard = DatasetShard(config["store"], split="train", batch_size=2, shuffle=True, fields=["images", "targets"])
        context = ray.train.get_context()
        epochs = []
        for _ in range(2):
            batches = list(shard.iter_torch_batches())
            epochs.append(
                [[batch["images"].sum(dim=(1, 2, 3)).tolist(), batch["targets"].tolist()] for batch in batches]
            )
        place = Path(config["place"]) / f"{context.get_world_rank()}-{context.get_world_size()}.json"
        place.write_text(json.dumps(epochs))

    with ray_cluster(3) as cluster:
        ray.init(address=cluster.address, log_to_driver=False, logging_level="ERROR")
        TorchTrainer(
            work,
            train_loop_config={"store": str(store), "place": str(tmp_path)},
            scaling_config=ScalingConfig(num_workers=2),
            run_config=RunConfig(storage_path=str(tmp_path / "runs")),
        ).fit()
        ray.shutdown()
    for rank in range(2):
        found = json.loads((tmp_path / f"{rank}-2.json").read_text())
        loader = Loader(store, split="train", batch_size=2, shuffle=True, rank=rank, world_size=2, tail="pad")
        for epoch in found:
            expected = [[batch.images.sum(dim=(1, 2, 3)).tolist(), batch.targets.tolist()] for batch in loader]
            assert epoch == expected


def test_a_shard_has_its_workers_rank_and_the_loaders_options(
    dataset: Dataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = dataset.path
    pytest.importorskip("ray.train", reason="ray[train] is not installed")
    import ray.train

    from mmload.interop.ray import DatasetShard

    class Context:
        def get_world_rank(self) -> int:
            return 1

        def get_world_size(self) -> int:
            return 2

    monkeypatch.setattr(ray.train, "get_context", Context)
    shard = DatasetShard(store, split="train", batch_size=4, shuffle=True, collate=crop_collate())
    with Loader(
        store, split="train", batch_size=4, shuffle=True, collate=crop_collate(), rank=1, world_size=2, tail="pad"
    ) as loader:
        for got, batch in zip(shard.iter_torch_batches(), loader, strict=True):
            assert set(got) == {"images", "targets"}
            assert got["images"].equal(batch.images)
            assert got["targets"].equal(batch.targets)
    exact = DatasetShard(store, split="train", batch_size=4, returns=("images", "targets"))
    assert sum(len(images) for images, _ in exact.iter_torch_batches()) == len(exact.loader.split) // 2
