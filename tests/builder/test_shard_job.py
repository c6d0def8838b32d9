"""The plan of shards, what a worker is sent, what a sample costs in memory, and disks that fail behind a writer."""

from __future__ import annotations

import pickle
import tracemalloc
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from conftest import contents
from hypothesis import given
from hypothesis import strategies as st

from mmload.builder import shards as store
from mmload.builder.pipeline import build
from mmload.builder.planned_build import fields_of, plan_shards, splits_of
from mmload.builder.recipe import BuildRecipe, square
from mmload.builder.shard_job import ShardJob
from mmload.builder.shards import BuildPaths, ShardPlan, array_of
from mmload.builder.transforms import TransformChain
from mmload.errors import BuildError, RecipeError, SampleError
from mmload.records import DTYPES, Sample


@pytest.fixture
def made(folder: Path, tmp_path: Path) -> BuildRecipe:
    """The recipe of ``folder`` in shards of five rows; nothing is built."""
    shard_bytes = 5 * (3 * 32 * 32 + 8)
    return BuildRecipe(
        kind="imagefolder", root=folder, out=tmp_path / "out", transforms=square(32), shard_bytes=shard_bytes
    )


@given(samples=st.integers(0, 10**4), shard_samples=st.integers(1, 10**5), first=st.integers(0, 9))
def test_a_plan_covers_every_sample_once(samples: int, shard_samples: int, first: int) -> None:
    plans = plan_shards("train", samples, shard_samples, first)
    assert [plan.index for plan in plans] == list(range(first, first + len(plans)))
    assert [row for plan in plans for row in range(plan.start, plan.stop)] == list(range(samples))
    assert all(len(plan) == shard_samples for plan in plans[:-1])


@pytest.mark.parametrize("seed", [None, 3])
def test_a_worker_is_sent_the_samples_of_its_shard_alone(seed: int | None, made: BuildRecipe, tmp_path: Path) -> None:
    splits, chain = splits_of(made), TransformChain(made.transforms)
    fields = {name: fields_of(name, split, chain, False) for name, split in splits.items()}
    job = ShardJob(splits=splits, fields=fields, chain=chain, paths=BuildPaths(tmp_path), shuffle_seed=seed)
    samples = job.samples(plan_shards("train", 18, 5)[1])
    assert samples is not None
    assert pickle.dumps(samples).count(b".png") == 5
    sent = [samples.id(index) for index in range(len(samples))]
    expected = [splits["train"].id(index) for index in range(5, 10)]
    assert sent == expected if seed is None else len(set(sent)) == 5
    assert b"ant" not in pickle.dumps(job.without_samples())


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


def rows_of(split: Featured) -> npt.NDArray[Any]:
    chain = TransformChain(())
    fields = {"train": fields_of("train", split, chain, False)}
    job = ShardJob(splits={"train": split}, fields=fields, chain=chain, paths=BuildPaths(Path()))
    chunks = job.chunks(ShardPlan(split="train", index=0, start=0, stop=6), 1)
    return np.concatenate([chunk.fields["features"].copy() for chunk in chunks])


@pytest.mark.parametrize("name", DTYPES)
def test_fields_of_every_dtype(name: str) -> None:
    split = Featured(name)
    rows = rows_of(split)
    assert (rows.dtype, DTYPES[name]) == (name.replace("bfloat16", "uint16"), rows.itemsize)
    want = torch.stack([split.read(index).fields["features"] for index in range(6)])
    assert np.array_equal(rows, array_of(want))


@pytest.mark.parametrize(
    ("dtype", "other", "message"),
    [
        ("bfloat16", "int16", r"int16 \[3, 2\], the first .* bfloat16 \[3, 2\]; every row has one shape and dtype$"),
        ("bfloat16", "uint16", r"of dtype torch.uint16, which a dataset cannot store$"),
        ("uint8", "bool", r"bool \[3, 2\], the first .* uint8 \[3, 2\]; every row has one shape and dtype$"),
    ],
)
def test_a_field_whose_dtype_changes_is_named(dtype: str, other: str, message: str) -> None:
    with pytest.raises(RecipeError, match=f"4.png: field features is {message}"):
        rows_of(Featured(dtype, other))


class Padded(Tiny):
    """Rows of a source of another package, with boxes that it does not call a list."""

    def read(self, index: int) -> Sample:
        sample = super().read(index)
        return Sample(sample.id, {**sample.fields, "boxes": torch.zeros(2, 4), "counts": torch.tensor(1)}, sample.size)


def test_boxes_that_are_no_list_are_refused() -> None:
    with pytest.raises(SampleError, match="give boxes without padding as a list"):
        fields_of("train", Padded(3), TransformChain(()), False)


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
