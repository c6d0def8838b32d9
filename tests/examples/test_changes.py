"""Changes of other projects' training scripts: each runs on this version, and gives what the script's loop unpacks.

Their code is not in this repository: docs/clients.md lists the scripts and their versions.
"""

from __future__ import annotations

import subprocess
import sys
import textwrap
from argparse import Namespace
from pathlib import Path
from typing import Any

import change_scripts
import pytest
import torch
import torchvision
from conftest import build_splits
from devkits import voc_dataset

import mmload
from mmload.augment import ColorJitter, RandAugment, RandomApply

PAGE = Path(__file__).parents[2] / "docs" / "clients.md"
NAMES = sorted(path.stem for path in change_scripts.CLIENTS.glob("*.toml"))


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Train and val of three classes, 40 x 40."""
    return build_splits(tmp_path_factory.mktemp("clients"))


def lines_of(name: str, number: int) -> str:
    """The lines that a change puts in, as a module's."""
    return textwrap.dedent(change_scripts.change_of(name)["replace"][number]["by"])


def ran(name: str, *numbers: int, **given: Any) -> dict[str, Any]:
    """What replacements define, run one after the other where ``given`` is defined."""
    space: dict[str, Any] = {"torch": torch, "torchvision": torchvision, **given}
    for number in numbers:
        exec(compile(lines_of(name, number), f"{name}.toml", "exec"), space)
    return space


@pytest.mark.parametrize("name", NAMES)
def test_a_change_names_its_script_and_replaces_separate_lines(name: str) -> None:
    change = change_scripts.change_of(name)
    assert set(change["upstream"]) == {"repository", "path", "commit", "blob", "license"}
    assert all(len(change["upstream"][key]) == 40 for key in ("commit", "blob"))
    place = change["upstream"]["repository"].removeprefix("https://github.com/")
    row = f"| `{name}.toml` | {place} `{change['upstream']['path']}` | `{change['upstream']['commit'][:7]}` |"
    assert row in PAGE.read_text(encoding="utf-8")
    places = [change_scripts.apply().places_of(each) for each in change["replace"]]
    assert all(after <= first for (_, after), (first, _) in zip(places, places[1:], strict=False))


def test_lines_are_replaced_in_that_version_only(tmp_path: Path) -> None:
    apply = change_scripts.apply()
    script = b"one\ntwo\nthree\nfour\n"
    assert apply.blob_of(b"") == "e69de29bb2d1d6434b8b29ae775ad8c2e48c5391"  # what git says of an empty file
    upstream = {"repository": "R", "path": "P", "commit": "C", "blob": apply.blob_of(script), "license": "L"}
    change = {"upstream": upstream, "replace": [{"after": 1, "by": "new\n"}, {"lines": [2, 3], "by": "2\n3\n3a\n"}]}
    first, how, rest = apply.changed(script, change).split("\n", 2)
    assert rest == "one\nnew\n2\n3\n3a\nfour\n"
    assert change["upstream"]["commit"] in first
    assert "To edit another version by hand" in how
    with pytest.raises(ValueError, match="another version of P: its git blob is .*take it from R at commit C"):
        apply.changed(script + b"five\n", change)
    (tmp_path / "main.py").write_bytes(script)
    done = subprocess.run(
        [sys.executable, change_scripts.CLIENTS / "change.py", change_scripts.path_of("imagenet_main"), "main.py"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
    )
    assert (done.returncode, done.stdout) == (1, "")
    assert "another version of imagenet/main.py" in done.stderr


def test_imagenet_main(photos: Path) -> None:
    args = Namespace(data=str(photos), batch_size=4)
    space = ran("imagenet_main", 0, 1, args=args)
    for images, target in space["train_loader"]:
        assert images.shape[1:] == (3, 224, 224)
        assert len(images) == len(target)
    val = space["val_loader"]
    assert (len(val.sampler), len(val.dataset)) == (6, 6)
    rest = torch.utils.data.Subset(val.dataset, range(4, 6))
    more = ran("imagenet_main", 0, 2, args=args, val_loader=val, aux_val_dataset=rest)["aux_val_loader"]
    assert [len(target) for _, target in more] == [2]
    space["train_sampler"].set_epoch(5)
    assert space["train_loader"].epoch == 5


def classification(photos: Path, **arguments: Any) -> Namespace:
    published: dict[str, Any] = {
        "data_path": str(photos),
        "batch_size": 4,
        "interpolation": "bilinear",
        "ra_magnitude": 9,
        "augmix_severity": 3,
        "random_erase": 0.1,
        "train_crop_size": 16,
        "val_crop_size": 24,
        "val_resize_size": 28,
        "auto_augment": None,
        "distributed": False,
    }
    return Namespace(**published | arguments)


def test_torchvision_classification(photos: Path) -> None:
    space = ran("torchvision_classification", 0, 1, 2, args=classification(photos), mixup_cutmix=None)
    assert (space["num_classes"], len(space["data_loader_test"].dataset)) == (3, 6)
    shapes = [next(iter(space[name]))[0].shape for name in ("data_loader", "data_loader_test")]
    assert shapes == [(4, 3, 16, 16), (4, 3, 24, 24)]


def test_torchvision_classification_mixes_as_torchvision_and_takes_its_policies(photos: Path) -> None:
    args = classification(photos, auto_augment="imagenet")
    mixup = torchvision.transforms.v2.MixUp(num_classes=3)
    space = ran("torchvision_classification", 0, 1, 2, args=args, mixup_cutmix=mixup)
    assert "AutoAugment" in repr(space["data_loader"].collate)
    space["data_loader"].collate = mmload.Collate()  # its steps are compared elsewhere; compiling them takes seconds
    assert next(iter(space["data_loader"]))[1].shape == (4, 3)


def test_torchvision_detection(tmp_path: Path) -> None:
    args = Namespace(data_path=str(voc_dataset(tmp_path, "detection")), batch_size=2, data_augmentation="hflip")
    args.use_copypaste = False
    space = ran("torchvision_detection", 0, 1, 2, args=args)
    ((images, targets),) = space["data_loader"]
    assert [image.shape for image in images] == [(3, 64, 64)] * 2
    assert sorted(target["image_id"] for target in targets) == [0, 1]
    image, target = space["dataset_test"][1]
    assert (image.shape, image.dtype, target["image_id"]) == ((3, 64, 64), torch.float32, 1)
    assert target["iscrowd"].tolist() == [0, 1]
    assert target["labels"].tolist() == [12, 8]  # dog and cat of VOC's twenty, after the background
    assert target["area"].shape == (2,)
    args.data_augmentation = "lsj"
    with pytest.raises(ValueError, match="got lsj"):
        ran("torchvision_detection", 0, 1, 2, args=args)


def test_torchvision_segmentation(tmp_path: Path) -> None:
    args = Namespace(data_path=str(voc_dataset(tmp_path, "segmentation")), batch_size=2)
    space = ran("torchvision_segmentation", 0, 1, args=args)
    assert space["num_classes"] == 21
    ((images, masks),) = space["data_loader"]
    assert (images.shape, masks.shape, masks.dtype) == ((2, 3, 480, 480), (2, 480, 480), torch.int64)
    assert set(masks.unique().tolist()) <= {15, 255}
    assert [len(images) for images, _ in space["data_loader_test"]] == [1, 1]


def timm_arguments(photos: Path, **arguments: Any) -> Namespace:
    off = ("aa", "aug_repeats", "aug_splits", "grayscale_prob", "gaussian_blur_prob", "naflex_loader", "no_aug")
    more = ("train_img_sizes", "color_jitter_prob", "epoch_repeats", "class_map", "validation_batch_size")
    published = dict.fromkeys(off + more)
    published |= {"data_dir": str(photos), "train_split": "train", "val_split": "val", "batch_size": 4, "seed": 1}
    published |= {"remode": "pixel", "recount": 1, "reprob": 0.2, "scale": None, "ratio": None, "hflip": 0.5}
    return Namespace(**published | {"vflip": 0.0, "color_jitter": 0} | arguments)


@pytest.mark.slow
def test_timm_train(photos: Path) -> None:
    config = {"input_size": (3, 24, 24), "mean": (0.5,) * 3, "std": (0.2,) * 3, "interpolation": "bicubic"}
    given = {"device": torch.device("cpu"), "data_config": config | {"crop_pct": 0.9}, "train_interpolation": "random"}
    space = ran("timm_train", 0, 1, 2, 3, 4, args=timm_arguments(photos), **given)
    for loader, batches in ((space["loader_train"], 1), (space["loader_eval"], 2)):
        assert hasattr(loader.batch_sampler, "set_epoch")  # timm's train.py asks it before the sampler
        shapes = [(images.shape[1:], len(images) == len(target)) for images, target in loader]
        assert shapes == [((3, 24, 24), True)] * batches


class Parser:
    """Stands in for timm's parser."""

    def error(self, message: str) -> None:
        raise SystemExit(message)


@pytest.mark.parametrize(
    ("aa", "steps", "jitter"),
    [
        (None, [], 0.4),
        ("rand-m9-mstd0.5-inc1", ["RandomApply", "RandomApply"], 0),
        ("rand-m7-n1-p0.3-inc1", ["RandomApply"], 0),
        ("augmix-m5-w4", ["AugMix"], 0),
        ("original-mstd0.5", ["AutoAugment"], 0),
        ("3a", ["RandomChoice"], 0.4),
    ],
)
def test_timm_train_policy_becomes_its_steps(photos: Path, aa: str, steps: list[str], jitter: float) -> None:
    config = {"input_size": (3, 24, 24), "mean": (0.485, 0.456, 0.406), "std": (0.2,) * 3}
    given = {"device": torch.device("cpu"), "data_config": config, "train_interpolation": "bilinear"}
    arguments = timm_arguments(photos, aa=aa, color_jitter=0.4)
    space = ran("timm_train", 0, 1, 2, 3, args=arguments, parser=Parser(), **given)
    made = list(space["loader_train"].collate.steps)
    assert [type(step).__name__ for step in made[3:-3]] == steps
    assert repr(made[-3]) == repr(ColorJitter(*(jitter,) * 3))
    if aa == "rand-m9-mstd0.5-inc1":
        one = RandAugment(1, 27, 31, interpolation="bilinear", fill=(124.0, 116.0, 104.0))
        assert repr(made[3]) == repr(RandomApply([one], p=0.5))


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        ({"aug_repeats": 3}, r"\['aug_repeats'\]"),
        ({"aa": "rand-m9-mstd0.5"}, "--aa rand-m9-mstd0.5; give rand-mM"),
        ({"aa": "rand-m9-inc1-tweights"}, "tweights"),
        ({"aa": "augmix-d2"}, "augmix-d2"),
        ({"aa": "originalr"}, "originalr"),
    ],
)
def test_timm_train_refuses_what_it_would_leave_out(photos: Path, arguments: dict[str, Any], named: str) -> None:
    with pytest.raises(SystemExit, match=f"not with mmload: .*{named}"):
        ran("timm_train", 0, 1, 2, args=timm_arguments(photos, **arguments), parser=Parser())
