"""Downloads a public dataset with torchvision's own downloaders and checksums, only if a recipe says ``download``."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from pathlib import Path

from mmload.errors import SourceError


def download_cifar(name: str, root: Path) -> None:
    """Fetches ``CIFAR10`` or ``CIFAR100`` into ``root``; unpickles nothing of it.

    Raises:
        SourceError: if it cannot be fetched or is not what torchvision expects.
    """
    from torchvision.datasets import cifar
    from torchvision.datasets.utils import download_and_extract_archive

    edition = getattr(cifar, name)
    _guard(
        lambda: download_and_extract_archive(edition.url, str(root), filename=edition.filename, md5=edition.tgz_md5),
        f"{name} from {edition.url}",
    )


def download_voc(year: str, image_set: str, root: Path) -> None:
    """Fetches the PASCAL VOC archive of a year (2007 to 2012) that has this image set into ``root``.

    Raises:
        SourceError: if there is no such archive, or as :func:`download_cifar`.
    """
    from torchvision.datasets import VOCDetection

    _guard(
        lambda: VOCDetection(str(root), year=year, image_set=image_set, download=True),
        f"PASCAL VOC {year} {image_set}",
    )


def _guard(fetch: Callable[[], object], what: str) -> None:
    try:
        with warnings.catch_warnings():
            # Python 3.12 and 3.13 warn of how torchvision unpacks; the archive's checksum was right.
            warnings.simplefilter("ignore", DeprecationWarning)
            fetch()
    except (OSError, RuntimeError, ValueError) as error:
        raise SourceError(f"cannot download {what} ({error}); fetch it by hand and give its folder") from error
