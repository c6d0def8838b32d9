"""The plan of shards, what a worker is sent, what a sample costs in memory, and disks that fail behind a writer."""

from __future__ import annotations

import pickle
import tracemalloc
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from conftest import contents
from hypothesis import given
from hypothesis import strategies as st

from mmload.builder import shards as store
from mmload.builder.pipeline import build
from mmload.builder.planned_build import fields_of, plan_shards, samples_per_shard, splits_of
from mmload.builder.recipe import BuildRecipe, square
from mmload.builder.shard_job import ShardJob, chunk_rows
from mmload.builder.shards import BuildPaths, ShardPlan
from mmload.builder.transforms import TransformChain
from mmload.errors import BuildError, RecipeError
from mmload.records import DTYPES, FieldSpec, Sample


@pytest.fixture
def made(folder: Path, tmp_path: Path) -> BuildRecipe:
    """The recipe of ``folder`` in shards of five rows; nothing is built."""
    shard_bytes = 5 * (3 * 32 * 32 + 8)
    return BuildRecipe(
        kind="imagefolder", root=folder, out=tmp_path / "out", transforms=square(32), shard_bytes=shard_bytes
    )


@given(
    samples=st.integers(0, 10**6),
    sizes=st.lists(st.integers(1, 300), min_size=1, max_size=3),
    shard_bytes=st.integers(1, 10**9),
)
def test_a_plan_covers_every_sample_once(samples: int, sizes: list[int], shard_bytes: int) -> None:
    fields = {f"f{i}": FieldSpec(dtype="float32", shape=(size, 3)) for i, size in enumerate(sizes)}
    row = sum(12 * size for size in sizes)
    if samples * row / shard_bytes > 2000:
        shard_bytes = samples * row
    plans = plan_shards("train", samples, samples_per_shard(samples, fields, shard_bytes))
    assert [plan.index for plan in plans] == list(range(len(plans)))
    edges = [plan.start for plan in plans] + [samples]
    assert edges[0] == 0
    assert [plan.stop for plan in plans] == edges[1:]
    for plan in plans:
        assert plan.stop - plan.start == 1 or (plan.stop - plan.start) * row <= shard_bytes
    assert 1 <= chunk_rows(fields) <= 256


@pytest.mark.parametrize(
    ("side", "shard_bytes", "expected"),
    [
        (224, 2**30, 2**30 // (3 * 224 * 224 + 8) // 64 * 64),  # 147 KiB per row: 64 KiB pages
        (224, 64 * (3 * 224 * 224 + 8), 64),
        (224, 50 * (3 * 224 * 224 + 8), 48),  # 16 KiB pages
        (224, 9 * (3 * 224 * 224 + 8), 8),  # 4 KiB pages
        (224, 7 * (3 * 224 * 224 + 8), 7),  # none: 4 rows would be too few
        (256, 3 * (3 * 256 * 256 + 8), 3),  # whole pages a row
        (224, 10**12, 10**12 // (3 * 224 * 224 + 8)),  # one shard
    ],
)
def test_shard_files_of_several_shards_are_multiples_of_a_page(side: int, shard_bytes: int, expected: int) -> None:
    fields = {
        "images": FieldSpec(dtype="uint8", shape=(3, side, side)),
        "targets": FieldSpec(dtype="int64", shape=()),
    }
    assert samples_per_shard(10**5, fields, shard_bytes) == expected


def test_shard_rows_of_all_large_fields_fill_pages_where_that_fits() -> None:
    fields = {
        "images": FieldSpec(dtype="uint8", shape=(3, 64, 64)),
        "masks": FieldSpec(dtype="uint8", shape=(1, 60, 60)),
    }
    row = 3 * 64 * 64 + 3600
    assert samples_per_shard(10**6, fields, 4500 * row) == 4096  # 3600 = 16 * 225, of 64 KiB


@pytest.mark.parametrize("seed", [None, 3])
def test_a_worker_is_sent_the_samples_of_its_shard_alone(seed: int | None, made: BuildRecipe, tmp_path: Path) -> None:
    splits, chain = splits_of(made), TransformChain(made.transforms)
    fields = {name: fields_of(name, split, chain, False) for name, split in splits.items()}
    job = ShardJob(splits=splits, fields=fields, chain=chain, paths=BuildPaths(tmp_path), shuffle_seed=seed)
    samples = job.samples(plan_shards("train", 18, 5)[1])
    assert samples is not None
    sent = [samples.id(index) for index in range(len(samples))]
    expected = [splits["train"].id(index) for index in range(5, 10)]
    assert sent == expected if seed is None else len(set(sent)) == 5
    assert b"ant" not in pickle.dumps(job.without_samples())
    assert pickle.dumps(samples).count(b".png") == 5


class Tiny:
    """Many small samples that take no memory themselves."""

    classes = ("only",)

    def __init__(self, count: int) -> None:
        self.count = count

    def __len__(self) -> int:
        return self.count

    def id(self, index: int) -> str:
        return f"{index}.png"

    def revision(self, index: int) -> str:
        return str(index)

    def read(self, index: int) -> Sample:
        fields = {"images": torch.zeros(3, 8, 8, dtype=torch.uint8), "targets": torch.tensor(0)}
        return Sample(self.id(index), fields, (8, 8))


@pytest.mark.slow
def test_memory_does_not_grow_with_samples(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    peaks = []
    for count in (2000, 2000, 8000):  # the first fills what is kept for good
        split = {"train": Tiny(count)}
        monkeypatch.setattr("mmload.builder.planned_build._all_splits", lambda recipe, split=split: split)
        made = BuildRecipe(
            kind="imagefolder", root=tmp_path / "source", out=tmp_path / f"{count}{len(peaks)}", shard_bytes=60 * count
        )
        tracemalloc.start()
        build(made, threads=1, processes=1)
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    assert (peaks[2] - peaks[1]) / 6000 < 40


class Featured(Tiny):
    """Rows of one more field, whose dtype changes from a row on."""

    def __init__(self, dtype: str, other: str | None = None) -> None:
        super().__init__(6)
        self.dtypes = [dtype] * 4 + [other or dtype] * 2

    def read(self, index: int) -> Sample:
        sample = super().read(index)
        values = torch.tensor([[0, 1, 1], [1, 0, index % 2]]).mT  # not contiguous
        features = values.to(getattr(torch, self.dtypes[index]))
        return Sample(sample.id, {**sample.fields, "features": features}, sample.size)


def rows_of(split: Featured) -> torch.Tensor:
    chain = TransformChain(())
    fields = {"train": fields_of("train", split, chain, False)}
    job = ShardJob(splits={"train": split}, fields=fields, chain=chain, paths=BuildPaths(Path()))
    chunks = job.chunks(ShardPlan(split="train", index=0, start=0, stop=6), 1)
    return torch.cat([chunk.fields["features"] for chunk in chunks])


@pytest.mark.parametrize("name", DTYPES)
def test_fields_of_every_dtype(name: str) -> None:
    split = Featured(name)
    rows = rows_of(split)
    assert (rows.dtype, DTYPES[name]) == (getattr(torch, name), rows.itemsize)
    assert torch.equal(rows, torch.stack([split.read(index).fields["features"] for index in range(6)]))


@pytest.mark.parametrize(("dtype", "other"), [("bfloat16", "int16"), ("bfloat16", "uint16"), ("uint8", "bool")])
def test_a_field_whose_dtype_changes_is_named(dtype: str, other: str) -> None:
    message = (
        rf"4.png: field features is {other} \[3, 2\], the first .* {dtype} \[3, 2\]; every row has one shape and dtype$"
    )
    with pytest.raises(RecipeError, match=message):
        rows_of(Featured(dtype, other))


def test_what_is_written_to_the_disk_ahead_is_the_same(
    made: BuildRecipe, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    build(made)
    ranges: list[tuple[int, int]] = []
    monkeypatch.setattr(store, "_FLUSH_BYTES", 1)
    monkeypatch.setattr(store, "begin_sync", lambda file, start, length: ranges.append((start, length)))
    build(replace(made, out=tmp_path / "flushed"))
    assert ranges
    assert contents(tmp_path / "out") == contents(tmp_path / "flushed")


def test_a_disk_that_fails_at_a_seal_is_said(
    made: BuildRecipe, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def failing(file: object) -> None:
        raise OSError(5, "Input/output error")

    with monkeypatch.context() as patch:
        patch.setattr(store, "sync", failing)
        with pytest.raises(BuildError, match=r"cannot write .*\(Input/output error\); .*run the same command again"):
            build(made)
    assert not (tmp_path / "out").exists()
    build(made)
    build(replace(made, out=tmp_path / "whole"))
    assert contents(tmp_path / "out") == contents(tmp_path / "whole")
