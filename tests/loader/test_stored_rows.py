"""Rows as they are stored: which go together, where their lines are, and copies of their bytes."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from variable_datasets import some_images, variable_dataset
from written_datasets import of_tensors

from mmload.augment import CenterCrop
from mmload.loader import Loader
from mmload.loader.tiers import ALL_LINES, copy_ranges, locate_rows, split_by_size
from mmload.remote.opening import open as open_dataset
from mmload.render.kernel_arguments import LINES, NEEDED, PLANES
from mmload.render.rendering import ImageLines
from mmload.runtime.resident_pages import can_populate
from mmload.store.row_reader import FieldRows


@given(st.lists(st.integers(0, 12), max_size=20), st.integers(1, 20))
def test_groups_take_as_many_rows_as_there_is_room_for(room: list[int], most: int) -> None:
    expected: list[list[int]] = []
    for row, size in enumerate(room):
        if expected and sum(room[other] for other in expected[-1]) + size <= most:
            expected[-1].append(row)
        else:
            expected.append([row])
    groups = split_by_size(np.array(room, np.int64), most)
    assert [list(range(group.start, group.stop)) for group in groups] == expected


def test_ranges_are_copied_to_their_places() -> None:
    memory, out = np.arange(50, dtype=np.uint8), np.zeros(20, np.uint8)
    copy_ranges(memory, np.array([40, 3, 7]), np.array([5, 0, 2]), out, np.array([10, 0, 1]))
    expected = np.zeros(20, np.uint8)
    expected[10:15], expected[1:3] = memory[40:45], memory[7:9]
    assert np.array_equal(out, expected)


def test_a_fixed_size_row_begins_at_its_number_times_its_bytes(tmp_path: Path) -> None:
    images = torch.zeros(9, 3, 8, 6, dtype=torch.uint8)
    field = open_dataset(of_tensors(tmp_path, {"train": {"images": images}}))["train"].reader.field("images")
    rows = np.array([8, 0, 3])
    located, stored = locate_rows(field, rows, ALL_LINES.repeat(3))
    first_rows = np.array([field.located(np.array([row]))["offset"][0] for row in rows])
    assert np.array_equal(located["offset"], first_rows)
    assert (located["bytes"] == 3 * 8 * 6).all()
    assert not stored.jpeg.any()
    assert stored.places[["height", "width", "count", "layout", "shrink"]].tolist() == [(8, 6, 8, PLANES, 1)] * 3


def test_of_variable_size_rows_of_pixels_the_needed_lines_are_located(tmp_path: Path) -> None:
    path = variable_dataset(tmp_path / "data", some_images([(10, 7), (20, 5)]), encoding="mixed")
    field = open_dataset(path)["train"].reader.field("images")
    rows, needed = np.array([0, 1]), np.array([(2, 90, 1), (4, 9, 2)], NEEDED)
    whole, _ = locate_rows(field, rows, ALL_LINES.repeat(2))
    located, stored = locate_rows(field, rows, needed)
    assert located["offset"][0] == whole["offset"][0] + 2 * 7 * 3
    assert located["bytes"][0] == 8 * 7 * 3
    assert np.array_equal(located[1:], whole[1:])  # of a JPEG all bytes
    assert stored.places[["first", "count", "layout"]].tolist() == [(2, 8, LINES), (4, 5, LINES)]
    assert needed["stop"][0] == 90


def test_images_of_one_shape_are_a_batch() -> None:
    images = torch.arange(4 * 3 * 2 * 5, dtype=torch.uint8).view(4, 3, 2, 5)
    found, indices = ImageLines.of_batch(images, np.array([2, 0])).batch((3, 2, 5))
    assert np.array_equal(found[indices], images[[2, 0]].numpy())


@pytest.mark.skipif(not can_populate(), reason="the system cannot populate maps")
@pytest.mark.parametrize("variable_size", [False, True])
def test_large_rows_beside_the_images_come_from_maps(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, variable_size: bool
) -> None:
    images = some_images([(40, 36)] * 7)
    masks = [image[0] for image in images]
    if variable_size:
        path = variable_dataset(tmp_path / "data", images, masks=masks)
    else:
        tensors = {"images": torch.from_numpy(np.stack(images)), "masks": torch.from_numpy(np.stack(masks))}
        path = of_tensors(tmp_path, {"train": tensors})
    read: list[str] = []
    fill = FieldRows.fill
    monkeypatch.setattr(FieldRows, "fill", lambda *args: (read.append(args[0].name), fill(*args))[1])
    batches = list(Loader(path, collate=[CenterCrop(32)], batch_size=3, shuffle=True, tier="disk"))
    found = {int(row): mask for batch in batches for row, mask in zip(batch.ids, batch.masks, strict=True)}
    assert all(np.array_equal(found[row], mask[4:36, 2:34]) for row, mask in enumerate(masks))
    assert "masks" not in read
