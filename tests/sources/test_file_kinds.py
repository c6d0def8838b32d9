"""Files that are something else than their names say: an error of one line says what they are."""

from __future__ import annotations

import io
import json
from pathlib import Path

import numpy as np
import pytest
from encoding import NOISE, decoded, encoded
from PIL import Image

from mmload.errors import SampleError, SourceError
from mmload.sources import find_splits
from mmload.sources.decode import FORMATS, Decoder, describe_content
from mmload.sources.voc import parse_annotation

POINTER = b"version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 12345\n"
PAGE = b"\xef\xbb\xbf\n<!DOCTYPE html>\n<html><body>404</body></html>"
DENIED = b'<?xml version="1.0" encoding="UTF-8"?>\n<Error><Code>AccessDenied</Code></Error>'


def archive() -> bytes:
    file = io.BytesIO()
    np.savez(file, a=NOISE)
    return file.getvalue()


def array() -> bytes:
    file = io.BytesIO()
    np.save(file, NOISE)
    return file.getvalue()


KINDS = {
    "Git LFS": POINTER,
    "web page": PAGE,
    "object storage": DENIED,
    "SVG": b'<?xml version="1.0"?>\n<svg xmlns="http://www.w3.org/2000/svg"/>',
    "HEIC": b"\0\0\0\x18ftypheic\0\0\0\0mif1heic" + bytes(99),
    "MP4": b"\0\0\0\x20ftypisom\0\0\2\0isomiso2" + bytes(99),
    "PDF": b"%PDF-1.7\n" + bytes(99),
    "ZIP": archive(),
    "NumPy": array(),
    "Photoshop": b"8BPS\0\1" + bytes(99),
    "tar": b"a.jpg".ljust(257, b"\0") + b"ustar\x0000" + bytes(99),
    "zeros": bytes(999),
    "DICOM": bytes(128) + b"DICM" + bytes(99),
}


@pytest.mark.parametrize("name", KINDS)
def test_decoder_of_another_kind_of_file_says_which(name: str) -> None:
    with pytest.raises(ValueError, match=f"not an image in any format that mmload reads: it is .*{name}"):
        decoded(KINDS[name])


def test_decoder_of_a_text_shows_its_begin() -> None:
    with pytest.raises(ValueError, match='it is text that begins with \'{"error": "no such key"}\''):
        decoded(b'{"error":\n "no such key"}')
    with pytest.raises(ValueError, match="reads$"):
        decoded(b"\x01\x02\x03 nothing known")


@pytest.mark.parametrize("kind", [kind for kind in FORMATS if kind not in ("DIB", "TGA")])
def test_describe_content_of_an_image_or_an_annotation_returns_none(kind: str) -> None:
    data = encoded(Image.fromarray(NOISE), kind)
    if kind != "AVIF":  # named only where Pillow cannot read it
        assert describe_content(data) is None
    for text in (b"", b'{"images": []}', b"<annotation/>", b"<?xml version='1.0'?><annotation>", b"0 0.5 0.5 1 1\n"):
        assert describe_content(text) is None


@pytest.mark.parametrize(("content", "what"), [(POINTER, "git lfs pull"), (PAGE, "web page"), (archive(), "ZIP")])
def test_annotation_files_of_another_kind_are_called_by_it(tmp_path: Path, content: bytes, what: str) -> None:
    (tmp_path / "images").mkdir()
    (tmp_path / "annotations").mkdir()
    Image.fromarray(NOISE).save(tmp_path / "images" / "a.png")
    files = {"coco": "annotations/instances_train.json", "yolo": "data.yaml", "list": "list.csv"}
    for kind, file in files.items():
        (tmp_path / file).write_bytes(content)
        options = {"file": file} if kind == "list" else {}
        with pytest.raises(SourceError, match=f"{file} is .*{what}"):
            find_splits(kind, tmp_path, Decoder(), options)
    with pytest.raises(ValueError, match=what):
        parse_annotation(content)


def test_labels_of_another_kind_are_an_error_of_their_image(tmp_path: Path) -> None:
    for folder in ("images", "labels"):
        (tmp_path / folder).mkdir()
    Image.fromarray(NOISE).save(tmp_path / "images" / "a.png")
    (tmp_path / "labels" / "a.txt").write_bytes(POINTER)
    (tmp_path / "data.yaml").write_text(f"train: images\nnames: {json.dumps(['cat'])}\n")
    split = find_splits("yolo", tmp_path, Decoder(), {})["train"]
    with pytest.raises(SampleError, match=r"labels/a\.txt, it is a Git LFS pointer"):
        split.read(0)
