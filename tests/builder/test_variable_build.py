"""Builds of variable-size images: what is stored, that bytes do not depend on how, and what is refused."""

from __future__ import annotations

import io
import shutil
from pathlib import Path

import numpy as np
import pytest
import simplejpeg
import torch
from building import make_pictures
from conftest import complaint, contents, mmload
from PIL import Image

import mmload as package
from mmload.builder.pipeline import build
from mmload.builder.recipe import BuildRecipe, VariableLayout, from_mapping
from mmload.builder.shard_job import is_raw
from mmload.builder.verify import compare, repair, verify
from mmload.errors import DamagedError, RecipeError, SampleError
from mmload.records import FieldSpec
from mmload.sources.decode import Decoder
from mmload.store.dataset import Split
from mmload.store.row_reader import read_rows


@pytest.fixture(scope="module")
def pictures(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """15 noisy JPEGs and PNGs of 12 to 40 pixels. Read-only."""
    return make_pictures(tmp_path_factory.mktemp("source") / "photos")


def recipe(root: Path, out: Path, size: int | None = 24, **more: object) -> BuildRecipe:
    options = {key: more.pop(key) for key in ("encode", "quality", "raw_share") if key in more}
    transforms = () if size is None else ({"step": "Shrink", "size": size},)
    settings = {"kind": "imagefolder", "shard_bytes": 8000, "transforms": transforms, **more}
    return BuildRecipe(root=root, out=out, variable_layout=VariableLayout(**options), **settings)  # type: ignore[arg-type]


def built(root: Path, out: Path, **more: object) -> Split:
    build(recipe(root, out, **more), threads=2)
    return package.open(out)["train"]


def stored(split: Split, row: int) -> bytes:
    """The bytes of a row, as they are stored."""
    data: bytes = read_rows(split.reader.field("images"), np.array([row])).bytes.tobytes()
    return data


def shrunk(data: bytes, size: int) -> np.ndarray:
    """What torchvision makes of a file, [C, H, W]."""
    from torchvision.transforms import v2

    pixels = torch.from_numpy(Decoder()(data))
    if min(pixels.shape[1:]) > size:
        pixels = v2.functional.resize(pixels, [size], antialias=True)
    return pixels.numpy()


@pytest.mark.parametrize("size", [24, None])
def test_raw_rows_are_the_photographs_shrunk_by_torchvision(pictures: Path, tmp_path: Path, size: int | None) -> None:
    split = built(pictures, tmp_path / "out", size=size)
    assert len(split) == 15
    assert len(split.record.shards) > 1
    for row in range(15):
        source = split.source(row)
        expected = shrunk((pictures / source.id).read_bytes(), size or 10**6)
        assert (split[row].images.numpy() == expected).all()
        assert source.size == tuple(Decoder()((pictures / source.id).read_bytes()).shape[1:])
    pixels = torch.cat([split[row].images.flatten(1) for row in range(15)], 1).double() / 255
    assert torch.allclose(torch.tensor(split.mean, dtype=torch.float64), pixels.mean(1), atol=1e-9)
    assert torch.allclose(torch.tensor(split.std, dtype=torch.float64), pixels.std(1, correction=0), atol=1e-9)
    assert split.record.class_counts == (5, 5, 5)


def test_jpeg_rows_are_encoded_with_a_restart_marker_a_line(pictures: Path, tmp_path: Path) -> None:
    split, raw = built(pictures, tmp_path / "out", encode="jpeg", quality=95), built(pictures, tmp_path / "raw")
    for row in range(15):
        data = stored(split, row)
        picture = Image.fromarray(raw[row].images.permute(1, 2, 0).numpy())
        expected = io.BytesIO()
        picture.save(expected, "JPEG", quality=95, subsampling="4:2:0", restart_marker_rows=1)
        assert data == expected.getvalue()
        assert (split[row].images.permute(1, 2, 0).numpy() == simplejpeg.decode_jpeg(data)).all()
    assert (split.mean, split.std) == (raw.mean, raw.std)


def test_the_sources_own_jpegs_are_stored_where_nothing_changes_them(pictures: Path, tmp_path: Path) -> None:
    split, other = built(pictures, tmp_path / "out", encode="source"), built(pictures, tmp_path / "jpeg", encode="jpeg")
    kept = 0
    for row in range(15):
        name, size = split.source(row)
        data = stored(split, row)
        own = (pictures / name).read_bytes()
        if name.endswith("jpg") and min(size or ()) <= 24:
            kept += 1
            assert data == own
        else:
            assert data == stored(other, row) != own
    assert 0 < kept < 8


def test_a_jpeg_that_only_pillow_reads_is_encoded_again(pictures: Path, tmp_path: Path) -> None:
    """A row's bytes are decoded by libjpeg alone, and it refuses what has junk before its markers."""
    source = shutil.copytree(pictures, tmp_path / "photos")
    name = source / "class0/0.jpg"
    with Image.open(name) as picture:
        picture.convert("CMYK").save(name, quality=90)
    split = built(source, tmp_path / "out", size=None, encode="source")
    row = split.row_of("class0/0.jpg")
    assert stored(split, row) != name.read_bytes()
    decoded = Decoder()(name.read_bytes()).astype(int)
    assert np.abs(split[row].images.numpy() - decoded).mean() < 12
    turned = built(source, tmp_path / "turned", size=None, encode="source", decode={"exif_orient": True})
    assert stored(turned, 2) != (source / turned.source(2).id).read_bytes()


def test_mixed_rows_are_pixels_or_jpegs_by_a_hash_of_their_id(pictures: Path, tmp_path: Path) -> None:
    split = built(pictures, tmp_path / "out", encode="mixed", raw_share=0.4)
    raw, jpeg = built(pictures, tmp_path / "raw"), built(pictures, tmp_path / "jpeg", encode="jpeg")
    found = []
    for row in range(15):
        pixels = is_raw(split.source(row).id, 0.4)
        found.append(pixels)
        assert torch.equal(split[row].images, (raw if pixels else jpeg)[row].images)
    assert len(set(found)) == 2
    share = sum(is_raw(f"{number}.jpg", 0.25) for number in range(20_000)) / 20_000
    assert abs(share - 0.25) < 0.01


@pytest.mark.parametrize("ways", [(5, 1), pytest.param((1, 2), marks=pytest.mark.slow)], ids=["threads", "processes"])
def test_bytes_do_not_depend_on_threads_or_processes(pictures: Path, tmp_path: Path, ways: tuple[int, int]) -> None:
    for name, (threads, processes) in {"one": (1, 1), "many": ways}.items():
        build(recipe(pictures, tmp_path / name, encode="mixed", shuffle_seed=3), threads=threads, processes=processes)
    one = contents(tmp_path / "one")
    assert one == contents(tmp_path / "many")
    assert any(name.endswith("images.encodings.memmap") for name in one)


@pytest.mark.parametrize("encode", ["raw", "mixed"])
def test_verify_compare_and_repair(pictures: Path, tmp_path: Path, encode: str) -> None:
    out = tmp_path / "out"
    split = built(pictures, out, encode=encode)
    whole = contents(out)
    assert verify(out) == compare(out, pictures) == []
    shards = len(split.record.shards)
    for name in ("images.bytes", "images.offsets", "images.sizes", "targets"):
        file = out / f"train/{shards - 1:06d}/{name}.memmap"
        body = bytearray(file.read_bytes())
        body[-3] ^= 4
        file.write_bytes(body)
        assert [fault.file for fault in verify(out)] == [file.relative_to(out).as_posix()]
        if name in ("images.offsets", "images.sizes"):
            with pytest.raises(DamagedError):
                compare(out, pictures)
        else:
            (fault,) = compare(out, pictures)
            assert f"{name.split('.')[0]} of row {len(split) - 1} differs from" in fault.reason
        repair(out, pictures)
        assert contents(out) == whole
    shutil.rmtree(out / "train/000000")
    repair(out, pictures)
    assert contents(out) == whole


def folder_of(tmp_path: Path, **images: Image.Image) -> Path:
    """An ImageFolder of one class of these PNGs."""
    (tmp_path / "photos/a").mkdir(parents=True)
    for name, image in images.items():
        image.save(tmp_path / f"photos/a/{name}.png")
    return tmp_path / "photos"


@pytest.mark.parametrize(("height", "width"), [(1, 9000), (9000, 3), (1, 1), (700, 2), (30_000, 20)])
@pytest.mark.parametrize("encode", ["raw", "jpeg"])
def test_odd_shapes(tmp_path: Path, height: int, width: int, encode: str) -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (height, width, 3), dtype=np.uint8)
    source = folder_of(tmp_path, odd=Image.fromarray(pixels))
    image = built(source, tmp_path / "out", encode=encode, size=2)[0].images.numpy()
    expected = shrunk((source / "a/odd.png").read_bytes(), 2)
    assert image.shape == expected.shape
    assert encode == "jpeg" or (image == expected).all()


def test_what_is_too_long_for_a_jpeg(tmp_path: Path) -> None:
    source = folder_of(tmp_path, long=Image.new("L", (65_600, 1)), short=Image.new("L", (65, 10)))
    made = recipe(source, tmp_path / "out", encode="jpeg")
    with pytest.raises(SampleError, match="long.png: it is 65600 x 1, and a JPEG has at most 65,500 pixels a side"):
        build(made)
    build(made, on_error="skip")
    assert [len(package.open(made.out)["train"]), verify(made.out)] == [1, []]
    assert built(source, tmp_path / "raw")[0].images.shape == (3, 1, 65_600)


def test_the_command_builds_and_the_recipe_comes_back(pictures: Path, tmp_path: Path) -> None:
    out, original, toml = tmp_path / "out", tmp_path / "original", tmp_path / "recipe.toml"
    words = ["--layout", "variable", "--size", 24, "--encode", "mixed", "--quality", 80, "--raw-share", 0.5]
    done = mmload("build", "imagefolder", pictures, out, *words)
    assert done.returncode == 0, done.stderr
    kept = package.open(out).manifest.recipe
    store = {"shard_size": 2**30, "layout": "variable", "encode": "mixed", "quality": 80, "raw_share": 0.5}
    assert (kept["store"], kept["transforms"]) == (store, [{"step": "Shrink", "size": 24}])
    assert from_mapping(kept).resolved() == kept
    toml.write_text(
        '[source]\nkind = "imagefolder"\n[store]\nlayout = "variable"\nencode = "mixed"\nquality = 80\n'
        "raw_share = 0.5\n"
        '[[transforms]]\nstep = "Shrink"\nsize = 24\n'
    )
    assert "nothing to do" in mmload("build", "--config", toml, pictures, out).stdout
    done = mmload("build", "imagefolder", pictures, original, "--layout", "variable", "--size", "original")
    assert done.returncode == 0, done.stderr
    assert package.open(original).manifest.recipe["transforms"] == []


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--encode", "jpeg"], "encode is given without layout"),
        (["--size", "original"], "--size is original, and rows have one size"),
        (["--size", "big"], "--size is 'big'; use pixels"),
        (["--layout", "square"], "layout is 'square'; use 'variable'"),
        (["--layout", "variable", "--encode", "png"], "encode is 'png'; use one of jpeg, mixed, raw, source"),
        (["--layout", "variable", "--quality", 90], "quality is given, and encode is 'raw'"),
        (
            ["--layout", "variable", "--encode", "jpeg", "--quality", 101],
            "quality is 101; use an integer from 1 to 100",
        ),
        (["--layout", "variable", "--encode", "jpeg", "--raw-share", 0.5], "raw_share is given, and encode is 'jpeg'"),
        (["--layout", "variable", "--encode", "mixed", "--raw-share", 1], "raw_share is 1.0; use a number between"),
        (["--layout", "variable", "--size", 0], "--size is 0; use pixels"),
    ],
)
def test_variable_build_invalid_options_raise(
    pictures: Path, tmp_path: Path, words: list[object], message: str
) -> None:
    assert message in complaint(mmload("build", "imagefolder", pictures, tmp_path / "out", *words), 2)


@pytest.mark.parametrize(
    ("name", "spec", "message"),
    [
        ("features", FieldSpec(dtype="uint8", shape=(3, 4, 4)), "the samples have no images"),
        ("images", FieldSpec(dtype="float32", shape=(3, 4, 4)), "the samples have float32"),
        (
            "images",
            FieldSpec(dtype="uint8", shape=(4, 5, 5)),
            "cannot store images: .*, a JPEG has 1 or 3 channels; try --encode raw",
        ),
    ],
)
def test_layouts_of_samples_without_images(name: str, spec: FieldSpec, message: str) -> None:
    with pytest.raises(RecipeError, match=message):
        VariableLayout(encode="jpeg").fields({name: spec})
