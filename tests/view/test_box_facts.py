"""Boxes of a split by size, shape and number per image."""

from __future__ import annotations

import pytest
from coco_sets import coco_dataset
from conftest import ran

from mmload.remote.opening import open as open_dataset
from mmload.view.report import ASPECTS, PER_IMAGE, SIDES, box_facts


@pytest.mark.parametrize("size", [64, None])
def test_boxes_are_counted_by_size_aspect_and_number(tmp_path, size):
    split = open_dataset(coco_dataset(tmp_path, "detection", size))["train"]
    sizes, aspects, counts = [], [], []
    for row in range(len(split)):
        own = split[row]
        counts.append(int(own.counts))
        for x0, y0, x1, y1 in own.boxes[: counts[-1]].tolist():
            sizes.append(((x1 - x0) * (y1 - y0)) ** 0.5)
            aspects.append((x1 - x0) / (y1 - y0))
    found = box_facts(split)
    for ours, values, edges in (
        (found.sizes, sizes, SIDES),
        (found.aspects, aspects, ASPECTS),
        (found.per_image, counts, PER_IMAGE),
    ):
        expected = [
            sum(first <= value < last for value in values) for first, last in zip(edges, (*edges[1:], 1e9), strict=True)
        ]
        assert ours.tolist() == expected
    assert (found.most, found.total) == (max(counts), len(sizes))
    assert int(found.per_image[0]) == counts.count(0)


def test_rows_without_boxes_have_no_box_facts(dataset):
    assert box_facts(dataset["train"]) is None


def test_report_has_a_chart_of_boxes(tmp_path):
    ran("report", coco_dataset(tmp_path, "detection"), "-o", tmp_path / "page.html")
    text = (tmp_path / "page.html").read_text()
    assert "2.5 per image" in text
    assert "width / height" in text
