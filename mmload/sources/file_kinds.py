"""Names what a file is by its first bytes, where neither an image nor an annotation can be read from it.

It names only contents that are never right there, so that a damaged annotation is not called by another name.
"""

from __future__ import annotations

_SIGNATURES: tuple[tuple[int, bytes, str], ...] = (
    (0, b"version https://git-lfs.github.com/", "a Git LFS pointer: run git lfs pull"),
    (0, b"/annex/objects/", "a git-annex pointer: run git annex get"),
    (0, b"<!doctype html", "a web page (HTML): download the file again"),
    (0, b"<html", "a web page (HTML): download the file again"),
    (0, b"<svg", "an SVG drawing: render it to PNG"),
    (0, b"<error>", "an error message of object storage (XML): download the file again"),
    (0, b"%pdf-", "a PDF document: render it to PNG"),
    (0, b"%!ps", "a PostScript file: render it to PNG"),
    (0, b"pk\3\4", "a ZIP archive, such as an Office document or NumPy's .npz: unpack it"),
    (0, b"rar!\x1a", "a RAR archive: unpack it"),
    (0, b"7z\xbc\xaf", "a 7-Zip archive: unpack it"),
    (0, b"\x1f\x8b", "a gzip archive: unpack it"),
    (0, b"\xfd7zxz", "an xz archive: unpack it"),
    (0, b"\x28\xb5\x2f\xfd", "a Zstandard archive: unpack it"),
    (0, b"bzh91ay&sy", "a bzip2 archive: unpack it"),
    (257, b"ustar", "a tar archive: unpack it"),
    (0, b"8bps", "a Photoshop document: export it as PNG or JPEG"),
    (0, b"\x93numpy", "a NumPy array (.npy): read it with a source of kind python"),
    (0, b"\x89hdf", "an HDF5 file: read it with a source of kind python"),
    (0, b"par1", "a Parquet file: read it with a source of kind python"),
    (0, b"\xd0\xcf\x11\xe0", "an Office document: export it"),
    (128, b"dicm", "a DICOM image: convert it to 8-bit PNG"),
    (0, b"\x76\x2f\x31\x01", "an OpenEXR image: convert it to 8-bit PNG"),
    (0, b"#?radiance", "a Radiance HDR image: convert it to 8-bit PNG"),
    (0, b"\xff\x0a", "a JPEG XL image: convert it, e.g. with djxl"),
    (4, b"jxl \r\n\x87\n", "a JPEG XL image: convert it, e.g. with djxl"),
    *(
        (4, b"ftyp" + brand, "a HEIC photograph: convert it to JPEG, e.g. with ImageMagick")
        for brand in (b"hei", b"hev", b"mif1", b"msf1")
    ),
    *(
        (4, b"ftyp" + brand, "an AVIF image, which this Pillow cannot read: convert it to JPEG, e.g. with ImageMagick")
        for brand in (b"avif", b"avis")
    ),
    (4, b"ftypcrx", "a raw photograph (CR3): develop it to JPEG"),
    (4, b"ftyp", "a video (MP4 or QuickTime): extract the frames that you need, e.g. with ffmpeg"),
    (8, b"avi list", "a video (AVI): extract the frames that you need, e.g. with ffmpeg"),
    (0, bytes(64), "nothing but zeros, as of a copy that failed: download the file again"),
    (0, b"\x1a\x45\xdf\xa3", "a video (Matroska or WebM): extract the frames that you need, e.g. with ffmpeg"),
)
"""Place, bytes in lower case, and name with advice; the first one that a file has is its own."""


def describe_content(first: bytes) -> str | None:
    """Returns what a file is and what to do about it, by its first bytes (512 suffice); None if that is unknown."""
    start = first[:512].removeprefix(b"\xef\xbb\xbf").lower()
    text = start.lstrip()
    if text.startswith(b"<?xml"):
        text = text[text.find(b"?>") + 2 :].lstrip()
    found = (name for place, signature, name in _SIGNATURES if (start if place else text).startswith(signature, place))
    return next(found, None)
