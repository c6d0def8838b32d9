"""Builds a sample of a source's images in a temporary folder, to estimate the gain of a build.

Returns the folder of links to the chosen images (balanced over the classes where possible), the dataset built
from them, and an :class:`Estimate` for all images. The source is only read.
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from mmload.bench.cold import Coldness, files_below, make_cold
from mmload.builder.pipeline import build
from mmload.builder.recipe import BuildRecipe, square
from mmload.builder.source_splits import splits_of
from mmload.errors import UsageError, counted
from mmload.runtime.byte_sizes import bytes_text
from mmload.sources import SourceSplit
from mmload.sources.imagefolder import ImageFolderSplit

SIZE = 256
_CIFAR = {"cifar-10-batches-py": "cifar10", "cifar-100-python": "cifar100"}


@dataclass(frozen=True, kw_only=True)
class Estimate:
    """Estimated cost of building a whole source.

    Attributes:
        images: in all splits.
        sampled: how many of these the sample has.
        seconds: time to build all, at the sample's rate.
        bytes: size of all rows.
        cold: the result of evicting the sampled files before the build; None: they were not evicted.
    """

    images: int
    sampled: int
    seconds: float
    bytes: int
    cold: Coldness | None = None

    def sentence(self) -> str:
        """The estimate in words."""
        cache = "read cold" if self.cold is not None and self.cold.proven else "with their files in memory"
        rate = self.images / self.seconds
        return (
            f"Building all {counted(self.images, 'image')} would take about {span(self.seconds)} and "
            f"{bytes_text(self.bytes)}: {self.sampled:,} of them were built at {rate:,.0f} images/s, {cache}."
        )


@dataclass(frozen=True, kw_only=True)
class Sampled:
    """A sample and the dataset built from it.

    Attributes:
        dataset: the folder of the store.
        source: the folder that it was built from.
        estimate: of the whole build.
    """

    dataset: Path
    source: Path
    estimate: Estimate


def build_sample(
    root: Path, work: Path, *, split: str | None, images: int, side: int | None, threads: int | None, cold: bool
) -> Sampled:
    """Build a sample of a source.

    Args:
        root: an ImageFolder, or the folder with CIFAR's batches.
        work: an empty folder for the sample and its dataset.
        split: which split to sample; None: the first.
        images: upper bound on the size of the sample.
        side: pixels of a side of the stored square; None: 256 for an ImageFolder, the original size for CIFAR.
        threads: for decoding.
        cold: evict the sampled files before they are built.

    Raises:
        UsageError: if there is no such split.
        SourceError: if the folder is not a source.
    """
    kind = kind_of(root)
    if kind == "imagefolder":
        side = side or SIZE
    transforms = square(side) if side else ()
    options = {"allow_outside": True}  # the links that are created here are removed again
    splits = splits_of(BuildRecipe(kind=kind, root=root, out=work, options=options, transforms=transforms))
    name = split or next(iter(splits))
    if name not in splits:
        raise UsageError(f"{root} has no split {name!r}; it has {', '.join(splits)}")
    source = root
    if kind == "imagefolder":
        source = work / "source"
        linked(splits[name], name, images, source)
    coldness = make_cold(files_below([source])) if cold else None
    recipe = BuildRecipe(kind=kind, root=source, out=work / "dataset", options=options, transforms=transforms)
    report = build(recipe, threads=threads)
    record = next(iter(report.manifest.splits.values()))
    row_bytes = sum(spec.row_bytes for spec in record.fields.values())
    count = sum(len(each) for each in splits.values())
    estimate = Estimate(
        images=count,
        sampled=report.built,
        seconds=report.seconds * count / report.built,
        bytes=row_bytes * count,
        cold=coldness,
    )
    return Sampled(dataset=work / "dataset", source=source, estimate=estimate)


def kind_of(root: Path) -> str:
    """The kind of a folder's source: CIFAR if it contains CIFAR's batches, else an ImageFolder."""
    return next((kind for folder, kind in _CIFAR.items() if (root / folder).is_dir()), "imagefolder")


def linked(split: SourceSplit, name: str, images: int, root: Path) -> None:
    """Create an ImageFolder of links to a sample: ``root/name/class/000012_file.jpg``. Copies if links are impossible.

    Raises:
        UsageError: if the split does not consist of image files in class folders.
    """
    if not isinstance(split, ImageFolderSplit):
        raise UsageError("a sample can be taken of image files in class folders only")
    classes: dict[int, list[int]] = {}
    for index, file in enumerate(split.files):
        classes.setdefault(file.target, []).append(index)
    for index in balanced(classes, images):
        file = split.files[index]
        original = (split.root / file.name).resolve()
        folder = root / name / split.classes[file.target]
        folder.mkdir(parents=True, exist_ok=True)
        link = folder / f"{index:08d}_{Path(file.name).name}"
        try:
            link.symlink_to(original)
        except OSError:  # on Windows most users may not create links
            shutil.copyfile(original, link)


def balanced(classes: Mapping[int, Sequence[int]], most: int) -> list[int]:
    """At most ``most`` indices, equally many per class, spread evenly over each class; small classes completely.

    Args:
        classes: class -> indices in order.
        most: upper bound on the total.
    """
    counts = dict.fromkeys(classes, 0)
    left = min(most, sum(map(len, classes.values())))
    while left:
        open_ = [target for target, indices in classes.items() if counts[target] < len(indices)]
        share = max(1, left // len(open_))
        for target in open_[:left]:
            more = min(share, len(classes[target]) - counts[target], left)
            counts[target] += more
            left -= more
    chosen: list[int] = []
    for target, indices in classes.items():
        chosen += [indices[number * len(indices) // counts[target]] for number in range(counts[target])]
    return sorted(chosen)


def span(seconds: float) -> str:
    """``8 s``, ``27 min``, ``3.2 hours``."""
    if seconds < 90:
        return f"{max(1, round(seconds))} s"
    return f"{seconds / 60:,.0f} min" if seconds < 5400 else f"{seconds / 3600:,.1f} hours"
