"""The sample that `mmload bench build` measures."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest
from conftest import make_folder
from hypothesis import given
from hypothesis import strategies as st

from mmload.bench.sample import balanced, build_sample, span
from mmload.errors import SourceError, UsageError, bytes_text
from mmload.remote.opening import open as open_dataset


@given(
    counts=st.lists(st.integers(1, 12), min_size=1, max_size=6),
    most=st.integers(0, 60),
)
def test_a_sample_is_balanced_and_as_large_as_asked(counts: list[int], most: int) -> None:
    starts = [sum(counts[:target]) for target in range(len(counts))]
    classes = {t: range(start, start + count) for t, (start, count) in enumerate(zip(starts, counts, strict=True))}
    chosen = balanced(classes, most)
    assert len(set(chosen)) == len(chosen) == min(most, sum(counts))
    got = Counter(target for index in chosen for target, indices in classes.items() if index in indices)
    for target, count in enumerate(counts):
        for other in range(len(counts)):
            assert got[target] == count or got[target] >= got[other] - 1


def test_bench_sample_estimates_the_complete_build(tmp_path: Path) -> None:
    root = make_folder(tmp_path / "photos" / "train", per_class=6).parent
    make_folder(tmp_path / "photos" / "val", per_class=2)
    before = sorted(root.rglob("*"))
    work = tmp_path / "work"
    work.mkdir()
    sample = build_sample(root, work, split=None, images=7, side=32, threads=1, cold=False)
    built = open_dataset(sample.dataset)["train"]
    assert (len(built), sample.estimate.sampled, sample.estimate.images) == (7, 7, 24)
    assert sorted(Counter(built[:].targets.tolist()).values()) == [2, 2, 3]
    assert sample.estimate.bytes == 24 * (3 * 32 * 32 + 8)
    assert "Building all 24 images would take about" in sample.estimate.sentence()
    assert sorted(root.rglob("*")) == before
    val = tmp_path / "val"
    val.mkdir()
    assert list(
        open_dataset(build_sample(root, val, split="val", images=3, side=16, threads=1, cold=True).dataset)
    ) == ["val"]
    with pytest.raises(UsageError, match="no split 'test'; it has train, val"):
        build_sample(root, tmp_path / "other", split="test", images=3, side=16, threads=1, cold=False)
    with pytest.raises(SourceError, match="no such folder"):
        build_sample(tmp_path / "nowhere", work, split=None, images=3, side=16, threads=1, cold=False)


def test_bench_sizes_and_times_have_readable_units() -> None:
    assert [span(seconds) for seconds in (0.2, 8.4, 100, 1620, 11_520)] == [
        "1 s",
        "8 s",
        "2 min",
        "27 min",
        "3.2 hours",
    ]
    sizes = {0: "0 B", 1000: "1000 B", 1536: "1.5 KiB", 60_000: "0.1 MiB", 23_592_960: "22.5 MiB", 5 * 2**29: "2.5 GiB"}
    assert {count: bytes_text(count) for count in sizes} == sizes
