"""What whole photographs are held to: their JPEGs, and their crops against torchvision's of the photographs.

A JPEG row has to be the JPEG of the right pixels, bit for bit, as Pillow writes it; what that loses is told. Windows of
resized crops, as shares of the photograph, have to be distributed as torchvision's on the source's own images. The same
windows in a square of the middle, as other builds store it, are told beside them.
"""

from __future__ import annotations

import io
import math
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import PIL.Image
import torch
from torch import Tensor, nn
from torchvision.transforms.v2 import functional as F

from mmload.augment import RandomResizedCrop
from mmload.augment.collate import Collate
from mmload.augment.draws import Draws
from mmload.interop.torchvision import equivalent_of
from mmload.parity.draws import Shape, run_seeds
from mmload.parity.reference import Reference
from mmload.parity.statistics import kolmogorov_smirnov
from mmload.parity.verdict import Verdict
from mmload.render.plan import Plan
from mmload.render.torch_sampling import Window, windows
from mmload.runtime.regular_files import read_regular
from mmload.store.dataset import Split
from mmload.store.whole_rows import JPEG

_KEEP_ASPECT = ("Shrink", "Resize", "Grayscale", "RGB")
_MEASURES = ("share of the area", "width over height", "center across", "center down")
_CROSSING = 2.0  # pixels of a stored row that rounding may move what is measured by

Sizes = npt.NDArray[np.int64]


def stored_row(split: Split, row: int) -> dict[str, Tensor]:
    """The fields of a row; images and masks that have a size of their own as their pixels."""
    number = torch.tensor([row])
    return {
        name: (split.reader.sized(name).tensors(number) if spec.own_sizes else split.reader.gather(name, number))[0]
        for name, spec in split.fields.items()
    }


def shape_of(split: Split) -> Shape:
    """(C, H, W) of a split's images; of whole photographs the size that most have."""
    spec = split.fields["images"]
    if not spec.own_sizes:
        channels, height, width = spec.shape
        return channels, height, width
    ((height, width), _) = Counter(map(tuple, split.reader.sized("images").index.sizes.tolist())).most_common(1)[0]
    return spec.channels, int(height), int(width)


def jpeg_expected(split: Split, row: int, reference: Reference, store: Mapping[str, Any]) -> Tensor | None:
    """The pixels of the JPEG that a row should be, uint8 [C, H, W]; None: rows are pixels.

    Args:
        split: the row's.
        row: its index.
        reference: with the pixels before they are encoded.
        store: the recipe's ``[store]``.
    """
    if not split.fields["images"].own_sizes or reference.images is None:
        return None
    reader = split.reader.sized("images")
    if reader.index.encodings[row] != JPEG:
        return None
    if store["encode"] == "source" and _is_file(reader.encoded(row).tobytes(), reference.file):
        return reference.images
    file = io.BytesIO()
    picture: PIL.Image.Image = F.to_pil_image(reference.images)
    picture.save(file, "JPEG", quality=int(store["quality"]), subsampling="4:2:0")
    with PIL.Image.open(file) as image:
        return F.pil_to_tensor(image)  # type: ignore[no-any-return]  # torchvision is untyped here


def loss_verdicts(split: str, quality: int, ratios: Mapping[str, list[float]]) -> list[Verdict]:
    """What JPEGs lose, by kind of file.

    Args:
        split: its name.
        quality: of the JPEGs.
        ratios: kind -> the PSNR of each row in dB.
    """
    found = []
    for kind, each in sorted(ratios.items()):
        lossy = [one for one in each if math.isfinite(one)]
        text = f"all {len(each):,} rows are the source's own JPEGs"
        numbers: dict[str, float | int | str] = {"rows": len(each), "lossy": len(lossy)}
        if lossy:
            mean, least = sum(lossy) / len(lossy), min(lossy)
            text = f"JPEGs of quality {quality}: PSNR {mean:.1f} dB on average, {least:.1f} dB at least"
            numbers |= {"psnr_mean": mean, "psnr_least": least}
        found.append(Verdict(part=split, name=f"loss of {kind}", state="note", text=text, numbers=numbers))
    return found


def check_photographs(
    collates: Mapping[str, Collate], split: Split, recipe: Mapping[str, Any], *, seed: int, draws: int, alpha: float
) -> list[Verdict]:
    """Compare the windows of resized crops with torchvision's on the source's images.

    Args:
        collates: keyed by name; those that begin with a resized crop are compared.
        split: of whole photographs.
        recipe: the recipe in the manifest; if its transforms cut or distort images, nothing is compared.
        seed: of the run.
        draws: number of windows.
        alpha: probability that a correct store fails, besides what the rounding of rows to pixels adds.
    """
    sources = split.source(slice(None))
    steps = [spec["step"] for spec in recipe["transforms"]]
    plain = all(step in _KEEP_ASPECT for step in steps) and not any(
        isinstance(spec.get("size"), list | tuple) for spec in recipe["transforms"]
    )
    if not plain or any(source.size is None for source in sources):
        return []
    stored: Sizes = split.reader.sized("images").index.sizes.astype(np.int64)
    photographs = np.array([source.size for source in sources], np.int64)
    rotated = (photographs[:, 0] > photographs[:, 1]) != (stored[:, 0] > stored[:, 1])
    photographs[rotated] = photographs[rotated][:, ::-1]  # as the file says, and turned when it was decoded
    first = {name: next(iter(each.steps), None) for name, each in collates.items()}
    resized = {name: step for name, step in first.items() if isinstance(step, RandomResizedCrop)}
    limit = _limit(draws, alpha / max(1, len(resized) * len(_MEASURES)), float(np.median(stored.min(1))))
    rows = np.arange(draws) % len(split)
    found = []
    for name, step in resized.items():
        ours, squares, theirs = _three(step, stored[rows], photographs[rows], len(split), seed)
        for measure, one, square, other in zip(_MEASURES, ours.T, squares.T, theirs.T, strict=True):
            apart, away = (kolmogorov_smirnov(each, other).statistic for each in (one, square))
            text = f"{apart:.3f} from torchvision's of the photographs, limit {limit:.3f}; in stored squares {away:.3f}"
            found.append(
                Verdict(
                    part="load",
                    name=f"{name} of the photograph, {measure}",
                    state="pass" if apart <= limit else "fail",
                    text=text,
                    numbers={"draws": draws, "distance": apart, "limit": limit, "distance_in_squares": away},
                )
            )
    return found


def _is_file(data: bytes, file: str) -> bool:
    """Whether a row is a file's own bytes."""
    try:
        return read_regular(Path(file)) == data
    except OSError:
        return False


def _limit(draws: int, alpha: float, side: float) -> float:
    """The distance of two samples' distributions by chance, and by rounding on rows with such a short side."""
    return math.sqrt(-math.log(alpha / 2) / 2) * math.sqrt(2 / draws) + _CROSSING / side


def _three(
    step: nn.Module, stored: Sizes, photographs: Sizes, rows: int, seed: int
) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64], npt.NDArray[np.float64]]:
    """The measures [N, 4] of windows: in rows of their own sizes, in squares of the middle, by torchvision.

    Args:
        step: a resized crop.
        stored: of each draw, int64 [N, 2].
        photographs: of each draw, int64 [N, 2].
        rows: of the split.
        seed: of the run.
    """
    count, make = len(stored), equivalent_of(step)
    draws = Draws(run_seeds(rows, count, seed), 0, epoch=0, ids=torch.arange(count) % rows)
    described: Any = step
    whole = windows(described.describe(Plan.of_sizes(torch.from_numpy(stored), 3), draws))
    side = int(np.median(stored.min(1)))
    square = windows(described.describe(Plan.of(count, (3, side, side), 255.0, torch.device("cpu")), draws))
    sizes = photographs.tolist()
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        params = [make.make_params([torch.empty((1, *size), device="meta")]) for size in sizes]
    theirs = [Window(each["top"], each["left"], each["height"], each["width"], 0, 0, ()) for each in params]
    frames = [((0.0, 0.0), (height / h, width / w)) for (height, width), (h, w) in zip(sizes, stored, strict=True)]
    middles = [
        (((height - min(height, width)) / 2, (width - min(height, width)) / 2), (min(height, width) / side,) * 2)
        for height, width in sizes
    ]
    none = [((0.0, 0.0), (1.0, 1.0))] * count
    return tuple(  # type: ignore[return-value]  # three of them
        np.array([_measures(*one) for one in zip(each, frame, sizes, strict=True)], np.float64)
        for each, frame in ((whole, frames), (square, middles), (theirs, none))
    )


def _measures(
    at: Window, frame: tuple[tuple[float, float], tuple[float, ...]], size: list[int]
) -> tuple[float, float, float, float]:
    """Share of the area, width over height, center across and down, of a window within a frame of a photograph."""
    (top, left), (down, across) = frame
    rows, cols = at.rows * down, at.cols * across
    x, y = left + at.left * across + cols / 2, top + at.top * down + rows / 2
    return rows * cols / (size[0] * size[1]), cols / rows, x / size[1], y / size[0]
