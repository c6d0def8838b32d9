"""Names what a file is by its first bytes, where neither an image nor an annotation can be read from it.

It names only contents that are never right there, so that a damaged annotation is not called by another name.
"""

from __future__ import annotations

_AGAIN = "download the file again"
_UNPACK = "unpack it"
_FRAMES = "extract the frames that you need, e.g. with ffmpeg"
_TO_JPEG = "convert it to JPEG, e.g. with ImageMagick"
_RENDER = "render it to PNG"

_SIGNATURES: tuple[tuple[int, bytes, str, str], ...] = (
    (0, b"version https://git-lfs.github.com/", "a Git LFS pointer", "run git lfs pull"),
    (0, b"/annex/objects/", "a git-annex pointer", "run git annex get"),
    (0, b"<!doctype html", "a web page (HTML)", _AGAIN),
    (0, b"<html", "a web page (HTML)", _AGAIN),
    (0, b"<svg", "an SVG drawing", _RENDER),
    (0, b"<error>", "an error message of object storage (XML)", _AGAIN),
    (0, b"%pdf-", "a PDF document", _RENDER),
    (0, b"%!ps", "a PostScript file", _RENDER),
    (0, b"pk\3\4", "a ZIP archive, such as an Office document or NumPy's .npz", _UNPACK),
    (0, b"rar!\x1a", "a RAR archive", _UNPACK),
    (0, b"7z\xbc\xaf", "a 7-Zip archive", _UNPACK),
    (0, b"\x1f\x8b", "a gzip archive", _UNPACK),
    (0, b"\xfd7zxz", "an xz archive", _UNPACK),
    (0, b"\x28\xb5\x2f\xfd", "a Zstandard archive", _UNPACK),
    (0, b"bzh91ay&sy", "a bzip2 archive", _UNPACK),
    (257, b"ustar", "a tar archive", _UNPACK),
    (0, b"8bps", "a Photoshop document", "export it as PNG or JPEG"),
    (0, b"\x93numpy", "a NumPy array (.npy)", "read it with a source of kind python"),
    (0, b"\x89hdf", "an HDF5 file", "read it with a source of kind python"),
    (0, b"par1", "a Parquet file", "read it with a source of kind python"),
    (0, b"\xd0\xcf\x11\xe0", "an Office document", "export it"),
    (128, b"dicm", "a DICOM image", "convert it to 8-bit PNG"),
    (0, b"\x76\x2f\x31\x01", "an OpenEXR image", "convert it to 8-bit PNG"),
    (0, b"#?radiance", "a Radiance HDR image", "convert it to 8-bit PNG"),
    (0, b"\xff\x0a", "a JPEG XL image", "convert it, e.g. with djxl"),
    (4, b"jxl \r\n\x87\n", "a JPEG XL image", "convert it, e.g. with djxl"),
    *((4, b"ftyp" + brand, "a HEIC photograph", _TO_JPEG) for brand in (b"hei", b"hev", b"mif1", b"msf1")),
    *((4, b"ftyp" + brand, "an AVIF image, which this Pillow cannot read", _TO_JPEG) for brand in (b"avif", b"avis")),
    (4, b"ftypcrx", "a raw photograph (CR3)", "develop it to JPEG"),
    (4, b"ftyp", "a video (MP4 or QuickTime)", _FRAMES),
    (8, b"avi list", "a video (AVI)", _FRAMES),
    (0, b"\x1a\x45\xdf\xa3", "a video (Matroska or WebM)", _FRAMES),
)
"""Place, bytes in lower case, name and advice; the first one that a file has is its own."""

_LONGEST = 512


def describe_content(first: bytes) -> str | None:
    """Returns what a file is and what to do about it, by its first bytes (512 suffice); None if that is unknown."""
    start = first[:_LONGEST].removeprefix(b"\xef\xbb\xbf").lower()
    if start and not start.strip(b"\0"):
        return f"nothing but zeros, as of a copy that failed: {_AGAIN}"
    text = start.lstrip()
    if text.startswith(b"<?xml"):
        text = text[text.find(b"?>") + 2 :].lstrip()
    for place, signature, name, advice in _SIGNATURES:
        if (start if place else text).startswith(signature, place):
            return f"{name}: {advice}"
    return None
