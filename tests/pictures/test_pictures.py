"""Pictures of rows: channels, ranges, boxes, masks, captions, and which rows come first."""

from __future__ import annotations

import base64
import io
import zlib

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from mmload.pictures import drawing
from mmload.pictures.contact_sheet import Cell, cells_of, contact_sheet, first_to_see
from mmload.pictures.drawing import (
    color_of,
    cut,
    draw_boxes,
    draw_mask,
    figure,
    fitted,
    font,
    ink_on,
    levels,
    picture,
)

SIZES = [((8, 8), 32, (32, 32), 4), ((10, 4), 32, (30, 12), 3), ((64, 32), 32, (32, 16), 0.5)]


def pixels(image: Image.Image) -> np.ndarray:
    return np.asarray(image.convert("RGB"))


def test_pixels_of_any_number_of_channels() -> None:
    image = np.random.default_rng(0).integers(0, 256, (5, 6, 7), dtype=np.uint8)
    assert (pixels(picture(image[:1])) == image[0][..., None]).all()
    assert (pixels(picture(image[:3])) == image[:3].transpose(1, 2, 0)).all()
    assert (pixels(picture(image)) == image[:3].transpose(1, 2, 0)).all()
    for channels in (2, 4):
        covered = image[:channels].copy()
        covered[-1] = 255
        colors = covered[:3] if channels == 4 else covered[:1].repeat(3, 0)
        assert (pixels(picture(covered)) == colors.transpose(1, 2, 0)).all()
        covered[-1] = 0
        assert (pixels(picture(covered)) == 255).all()  # the first square of the board is white


def test_floats_become_levels_and_normalized_ones_are_undone_or_refused() -> None:
    images = np.random.default_rng(0).integers(0, 256, (2, 3, 4, 4), dtype=np.uint8)
    floats = images.astype(np.float32) / 255
    assert (levels(images) == images).all()
    assert (levels(floats) == images).all()
    mean, std = (0.5, 0.4, 0.3), (0.1, 0.2, 0.3)
    shape = (1, 3, 1, 1)
    normalized = (floats - np.float32(mean).reshape(shape)) / np.float32(std).reshape(shape)
    assert (levels(normalized, mean, std) == images).all()
    with pytest.raises(ValueError, match="looks normalized: give the mean and std"):
        levels(normalized)


@pytest.mark.parametrize(("size", "side", "expected", "factor"), [*SIZES, ((1000, 1), 32, (32, 1), 0.032)])
def test_fitted_small_picture_grows_by_an_integer(
    size: tuple[int, int], side: int, expected: tuple[int, int], factor: float
) -> None:
    image, got = fitted(Image.new("RGB", size), side)
    assert image.size == expected
    assert got == pytest.approx(factor)


def test_boxes_are_where_they_are_in_the_color_of_their_class() -> None:
    image = Image.new("RGB", (100, 80))
    draw_boxes(image, np.array([[10, 20, 30, 40]], np.float32), [3], 2.0, ["a", "b", "c", "d"])
    shown = pixels(image)
    for y, x in ((40, 20), (79, 59), (40, 59), (79, 20)):
        assert tuple(shown[y, x]) == color_of(3)
    assert not shown[60, 40].any()  # inside
    assert (shown[30] == color_of(3)).all(1).any()  # the label above it


def test_of_many_boxes_the_largest_of_each_class_is_named() -> None:
    boxes = np.array([[0, 20 * n, 15, 20 * n + 8 + 8 * (n == 3)] for n in range(6)], np.float32)
    image = Image.new("RGB", (90, 140))
    draw_boxes(image, boxes, [1] * 6, 1.0, ["x", "a longer name"])
    beside = (pixels(image)[:, 20:] > 0).any((1, 2))
    assert beside[48:60].any()
    assert not beside[:44].any()
    assert not beside[64:].any()


@pytest.mark.parametrize("channels", [1, 2, 3, 4])
@pytest.mark.parametrize("size", [(1, 1), (5, 7)], ids=str)
def test_a_png_has_every_pixel(channels: int, size: tuple[int, int], monkeypatch: pytest.MonkeyPatch) -> None:
    made = np.random.default_rng(0).integers(0, 256, (channels, *size), dtype=np.uint8).transpose(1, 2, 0)
    for compress in (drawing.compress, zlib.compress):
        monkeypatch.setattr(drawing, "compress", compress)
        with Image.open(io.BytesIO(drawing.png(made))) as opened:
            assert opened.mode == ("L", "LA", "RGB", "RGBA")[channels - 1]
            assert (np.asarray(opened).reshape(made.shape) == made).all()


@pytest.mark.parametrize(("side", "cell"), [(32, 128), (96, 192), (100, 128), (128, 128), (1024, 192)])
def test_cells_are_wide_enough_for_names(side: int, cell: int) -> None:
    sheet = contact_sheet([Cell(image=np.zeros((3, side // 2, side), np.uint8))], 1)
    assert sheet.width == cell + 24
    many = contact_sheet([Cell(image=np.zeros((3, 8, side), np.uint8))] * 201, 1)
    assert many.width == 128 + 24


def test_boxes_beyond_the_edges_and_many_of_them_do_no_harm() -> None:
    boxes = np.array([[-50, -50, 500, 500], [0, 0, 0, 0], [5, 5, 3, 3], *[[1, 1, 9, 9]] * 30], np.float32)
    draw_boxes(Image.new("RGB", (40, 30)), boxes, [0] * len(boxes), 1.0, ["x" * 100])


def test_masks_color_classes_and_leave_the_background() -> None:
    image = Image.new("RGB", (6, 4), (100, 100, 100))
    mask = np.zeros((4, 6), np.uint8)
    mask[0, 0], mask[0, 1] = 7, 255
    shown = pixels(draw_mask(image, mask)).astype(int)
    assert (shown[1:] == 100).all()
    assert np.abs(shown[0, 0] - (np.array(color_of(7)) + 100) / 2).max() <= 1
    assert np.abs(shown[0, 1] - 177).max() <= 1


def test_text_on_a_class_color_is_legible() -> None:
    def luminance(color: tuple[int, int, int]) -> float:
        parts = [c / 255 / 12.92 if c <= 10 else ((c / 255 + 0.055) / 1.055) ** 2.4 for c in color]
        return 0.2126 * parts[0] + 0.7152 * parts[1] + 0.0722 * parts[2]

    for index in range(256):
        light, dark = sorted((luminance(color_of(index)), luminance(ink_on(color_of(index)))), reverse=True)
        assert (light + 0.05) / (dark + 0.05) >= 4.5
    assert len({color_of(index) for index in range(200)}) == 200


@pytest.mark.parametrize("text", ["i" * 40 + "W" * 40, "W" * 40 + "i" * 40, "iW" * 40])
def test_names_keep_as_many_letters_as_there_is_room_for(text: str) -> None:
    letters = font(13)
    for width in (60, 90, 140):
        kept = len(cut(text, letters, width)) - len("...")
        assert letters.getlength(f"{text[:kept]}...") <= width < letters.getlength(f"{text[: kept + 1]}...")


def test_a_sheet_has_every_cell_in_its_place() -> None:
    colors = [(200, 0, 0), (0, 200, 0), (0, 0, 200), (200, 200, 0), (0, 200, 200)]
    images = [np.zeros((3, 40, 40), np.uint8) + np.array(color, np.uint8)[:, None, None] for color in colors]
    cells = [Cell(image=image, name="<b>", detail="row 1") for image in images]
    shown = pixels(contact_sheet(cells, 2, title="a title"))
    found = [np.argwhere((shown == color).all(2)) for color in colors]
    assert [len(places) for places in found] == [160**2] * 5  # each is shown four times as large
    rows, columns = [places[:, 0].mean() for places in found], [places[:, 1].mean() for places in found]
    assert rows[0] == rows[1] < rows[2] == rows[3] < rows[4]
    assert columns[0] == columns[2] == columns[4] < columns[1] == columns[3]
    untitled = pixels(contact_sheet(cells, 2))
    assert rows[0] == np.argwhere((untitled == colors[0]).all(2))[:, 0].mean() + len(shown) - len(untitled)
    with pytest.raises(ValueError, match="there are 0 pictures"):
        contact_sheet([], 2)


def test_a_number_of_columns_is_an_integer_from_one() -> None:
    cells = [Cell(image=np.zeros((3, 40, 40), np.uint8))] * 3
    for columns in (0, -1):
        with pytest.raises(ValueError, match=f"columns is {columns}; give at least 1"):
            contact_sheet(cells, columns)
    with pytest.raises(TypeError):
        contact_sheet(cells, 0.25)  # type: ignore[arg-type]  # what is refused
    assert contact_sheet(cells, np.uint8(2)).size == contact_sheet(cells, 2).size


def test_a_white_picture_has_an_edge() -> None:
    sheet = pixels(contact_sheet([Cell(image=np.full((3, 32, 64), 255, np.uint8))], columns=1))
    assert {tuple(color) for color in sheet.reshape(-1, 3)} == {(255, 255, 255), (200, 200, 200)}
    rows, columns = np.nonzero((sheet == 200).all(2))
    factor = 32 / 64
    assert (np.ptp(rows) - 1) == (np.ptp(columns) - 1) * factor


def test_the_legend_names_what_masks_and_boxes_show() -> None:
    image = np.zeros((3, 64, 64), np.uint8)
    plain = contact_sheet([Cell(image=image)], 1)
    mask = np.zeros((64, 64), np.uint8)
    mask[0, 0] = 2
    boxed = Cell(image=image, boxes=np.array([[1, 1, 60, 60]], np.float32), labels=(1,))
    for cell in (Cell(image=image, mask=mask), boxed):
        assert contact_sheet([cell], 1, classes=["a", "b", "c"]).height > plain.height
    one, other = (pixels(contact_sheet([boxed], 1, classes=["a", name, "c"])) for name in ("b", "m"))
    assert (one != other)[: plain.height - 12].any(), "the name of a class is on its box, too"


def test_cells_say_class_shares_and_row() -> None:
    images = np.zeros((2, 3, 4, 4), np.uint8)
    ids = np.array([5, 1234])
    first, second = cells_of({"images": images, "targets": np.array([1, 9]), "ids": ids}, ["ant", "bee"])
    assert (first.name, first.detail) == ("bee", "row 5")
    assert (second.name, second.detail) == ("9", "row 1,234")
    mixed = np.array([[0.25, 0.75], [1, 1]], np.float32)
    names = [cell.name for cell in cells_of({"images": images, "targets": mixed}, ["ant", "bee"])]
    assert names == ["bee 0.75, ant 0.25", "ant, bee"]
    with pytest.raises(ValueError, match="there are no images to show"):
        cells_of({"targets": ids})


@given(st.lists(st.integers(0, 6), max_size=60), st.integers(1, 40), st.integers(0, 3))
def test_the_first_rows_have_as_many_of_each_class_as_can_be(classes: list[int], count: int, seed: int) -> None:
    targets = np.array(classes, np.int64)
    rows = first_to_see(targets, len(targets), count, seed)
    assert len(set(rows.tolist())) == len(rows) == min(count, len(targets))
    shown = targets[rows]
    assert (np.sort(shown) == shown).all()
    counts, stored = np.bincount(shown, minlength=7), np.bincount(targets, minlength=7)
    most = counts.max(initial=0)
    for has, could in zip(counts, stored, strict=True):
        assert has >= min(could, most - 1)
    assert (first_to_see(targets, len(targets), count, seed) == rows).all()


def test_without_classes_rows_are_drawn_and_sorted() -> None:
    rows = first_to_see(None, 1000, 20, 0)
    assert len(set(rows.tolist())) == 20
    assert (np.sort(rows) == rows).all()
    assert (rows != first_to_see(None, 1000, 20, 1)).any()


def test_an_embedded_picture_is_that_picture_and_its_text_is_escaped() -> None:
    image = Image.fromarray(np.random.default_rng(0).integers(0, 256, (4, 5, 3), dtype=np.uint8))
    html = figure(image, 'a "<b>"')
    assert 'alt="a &quot;&lt;b&gt;&quot;"' in html
    data = html.split("base64,")[1].split('"')[0]
    assert (pixels(Image.open(io.BytesIO(base64.b64decode(data)))) == pixels(image)).all()


def test_a_cell_shows_masks_keypoints_and_rotated_boxes_of_its_objects() -> None:
    image = np.full((1, 3, 160, 160), 255, np.uint8)
    fields = {
        "images": image,
        "boxes": np.array([[[10, 10, 60, 60], [0, 0, 0, 0]]], np.float32),
        "labels": np.array([[1, -1]]),
        "counts": np.array([1]),
    }
    plain = pixels(contact_sheet(cells_of(fields), 1))
    more = {
        "rings": np.array([[[0, 3], [-1, 3], [0, 0]]], np.int32),
        "polygons": np.array([[[90, 90], [150, 90], [90, 150], [1, 150], [9, 150], [9, 159]]], np.float32),
    }
    keypoints = np.array([[[[100, 20, 2], [140, 20, 1], [0, 0, 0]], [[0, 0, 0]] * 3]], np.float32)
    corners = np.array([[[[35, 5], [65, 35], [35, 65], [5, 35]], [[0, 0]] * 4]], np.float32)
    runs = {"run_boxes": np.array([[[0, 3]]]), "runs": np.array([[160 * 100 + 100, 20, 160 * 60 - 120]])}
    for added in (more, {"keypoints": keypoints}, {"corners": corners}, runs):
        (cell,) = cells_of({**fields, **added}, skeleton=((0, 1), (1, 2)))
        assert (pixels(contact_sheet([cell], 1)) != plain).any(), added
    (cell,) = cells_of({**fields, **more})
    assert [box for box, _ in cell.outlines] == [0]
    (odd,) = cells_of({**fields, "keypoints": np.zeros((1, 17))})
    assert not len(odd.keypoints)
