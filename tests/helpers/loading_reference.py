"""What loading must give, said plainly: rows changed one at a time by torchvision.

Of mmload it takes the draws of each step, which it reads from the step's own description, and nothing that reads rows,
composes steps or renders pixels. Steps that change levels, warp, choose or give random sizes are held against
torchvision's elsewhere: a batch of them has to be what the same collate makes of its rows one by one.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from loading_expected import Expected, Fields
from loading_steps import Halved, blends, is_alone, transformed
from torch import Tensor
from torchvision import tv_tensors
from torchvision.transforms import InterpolationMode
from torchvision.transforms.v2 import functional as F

from mmload import augment
from mmload.augment.boxes import BoxRule
from mmload.augment.collate import Collate
from mmload.augment.draws import Draws, batch_of_epoch, beta
from mmload.augment.mix import MixChoice, MixStep
from mmload.augment.step import Step
from mmload.batch import make_batch
from mmload.render.plan import Plan
from mmload.render.plan_parts import Padding


def collated(collate: Collate, rows: Fields, seeds: Tensor, epoch: int) -> Expected:
    """The batch that a collate makes of stored rows in an epoch."""
    if is_alone(collate):
        return collated_alone(collate, rows, seeds, epoch)
    made = Expected(dict(rows))
    if rows["images"].dtype != torch.uint8:
        made.unit = made.unit / 255
    samples = [_sample(rows, k) for k in range(len(seeds))]
    at = _floats_from(collate)
    for place, step in enumerate(collate.steps):
        if place == at and collate.dtype != torch.uint8 and not isinstance(step, augment.Normalize):
            _to_floats(samples, made)
        ids = rows.get("ids")
        draws = Draws(seeds.numpy(), place, epoch=epoch, ids=None if ids is None else ids.numpy())
        _apply(step.at_epoch(epoch) if isinstance(step, Step) else step, samples, made, draws, collate)
    if collate.dtype != torch.uint8:
        _to_floats(samples, made)
    made.fields["images"] = torch.stack([sample["images"].as_subclass(Tensor) for sample in samples]).to(collate.dtype)
    if "masks" in rows:
        made.fields["masks"] = torch.stack([sample["masks"].as_subclass(Tensor) for sample in samples])
    if "boxes" in rows:
        made.fields |= _packed(rows, samples, collate.box_rule)
    return made


def _sample(rows: Fields, k: int) -> dict[str, Any]:
    """Row ``k`` as torchvision takes it."""
    sample: dict[str, Any] = {"images": tv_tensors.Image(rows["images"][k])}
    if "masks" in rows:
        sample["masks"] = tv_tensors.Mask(rows["masks"][k])
    if "boxes" in rows:
        size = rows["images"].shape[-2], rows["images"].shape[-1]
        real = rows["boxes"][k, : int(rows["counts"][k])]
        sample["boxes"] = tv_tensors.BoundingBoxes(real, format="XYXY", canvas_size=size)
        _begin_trail(sample)
        sample["labels"] = rows["labels"][k, : len(real)]
    return sample


def _floats_from(collate: Collate) -> int:
    """Before which step images become floats: Normalize, MixUp, or holes that only MixUp or nothing follows."""
    steps = list(collate.steps)
    for at, step in enumerate(steps):
        if isinstance(step, augment.Normalize | Halved) or blends(step):
            return at
        if isinstance(step, augment.RandomErasing):
            after = [later for later in steps[at:] if not isinstance(later, augment.RandomErasing)]
            if not after or isinstance(after[0], Halved) or blends(after[0]):
                return at
    return len(steps)


def _to_floats(samples: list[dict[str, Any]], made: Expected) -> None:
    """Levels as floats from 0 to 1."""
    if samples[0]["images"].dtype == torch.uint8:
        made.unit = made.unit / 255
        for sample in samples:
            sample["images"] = tv_tensors.Image(sample["images"].to(torch.float32) * np.float32(1 / 255))


def _apply(step: Any, samples: list[dict[str, Any]], made: Expected, draws: Draws, collate: Collate) -> None:
    """One step on all samples."""
    if isinstance(step, MixStep):
        _mixed(step, samples, made, draws)
        return
    if isinstance(step, augment.PerSample):
        for sample, key in zip(samples, draws.bits(1)[:, 0].tolist(), strict=True):
            _transform(step.module, sample, key, collate.box_rule)
        return
    if isinstance(step, Halved):
        for sample in samples:
            sample["images"] = tv_tensors.Image(sample["images"] * 0.5)
        return
    if isinstance(step, augment.ColorJitter):
        factors = step.draw(draws)
        for k, sample in enumerate(samples):
            sample["images"] = _jittered(sample["images"], step, factors, k)
        made.slack = 4 * made.slack + 4 if made.slack else 1
        return
    if isinstance(step, augment.Normalize):
        made.rounded = made.rounded or samples[0]["images"].dtype != torch.uint8
        made.unit = (
            made.unit / torch.tensor(step.std, dtype=torch.float64).view(-1, 1, 1) / (1 if made.unit.min() < 1 else 255)
        )
    shape: Any = tuple(samples[0]["images"].shape)
    plan = step.describe(Plan.unchanged(len(samples), shape, 255.0), draws)
    for k, sample in enumerate(samples):
        if "boxes" in sample:
            _see_cuts(step, plan, k, sample)
        for name in ("images", "masks", "boxes", "frame"):
            if name in sample:
                sample[name] = _moved(step, plan, k, "boxes" if name == "frame" else name, sample[name])
    smooth = isinstance(step, augment.RandomResizedCrop | augment.Resize) and step.interpolation in (
        "bilinear",
        "bicubic",
    )
    made.slack += smooth or isinstance(step, augment.RandomGrayscale)


def _moved(step: Any, plan: Plan, k: int, name: str, item: Any) -> Any:
    """One image, mask or sample's boxes after a step whose draws are in ``plan``."""
    match step:
        case augment.RandomCrop():
            left, top, right, bottom = _borders(step, item)
            fill = step.mask_fill if name == "masks" else list(step.fill)
            mode = step.padding_mode if name != "boxes" else "constant"
            return F.crop(
                _padded(item, (left, top, right, bottom), fill, mode),
                int(plan.top[k]) + top,
                int(plan.left[k]) + left,
                *step.size,
            )
        case augment.CenterCrop():
            rows, cols = (max(0, want - have) for want, have in zip(step.size, F.get_size(item), strict=True))
            fill = Padding().mask_fill if name == "masks" else 0
            borders = [cols // 2, rows // 2, cols - cols // 2, rows - rows // 2]
            return F.center_crop(F.pad(item, borders, fill) if rows or cols else item, list(step.size))
        case augment.RandomResizedCrop():
            window = (int(plan.top[k]), int(plan.left[k]), int(plan.rows[k]), int(plan.cols[k]))
            if name == "images":
                return _of_size(F.crop(item, *window), list(step.size), step)
            return F.resized_crop(item, *window, list(step.size), InterpolationMode(step.interpolation), step.antialias)
        case augment.Resize():
            size = [step.size] if isinstance(step.size, int) else step.size and list(step.size)
            return F.resize(item, size, max_size=step.max_size) if name == "boxes" else _of_size(item, size, step)
        case augment.RandomHorizontalFlip() | augment.AlternatingHorizontalFlip():
            return F.horizontal_flip(item) if plan.flip_x[k] else item
        case augment.RandomVerticalFlip():
            return F.vertical_flip(item) if plan.flip_y[k] else item
    return _colored(step, plan, k, item) if name == "images" else item


def _of_size(item: Any, size: Any, step: Any) -> Any:
    """An image or mask in another size; masks by one of the nearest pixels, whatever torchvision's version does."""
    mode = (
        step.interpolation if isinstance(item, tv_tensors.Image) or step.interpolation == "nearest-exact" else "nearest"
    )
    pixels = item.as_subclass(Tensor).view(-1, *F.get_size(item))
    wanted = F.get_size(F.resize(pixels[:1], size, max_size=getattr(step, "max_size", None), antialias=True))
    smooth = mode in ("bilinear", "bicubic")
    whole = pixels.dtype == torch.uint8 and smooth and wanted == [1, 1]  # torch 2.15 fails at some of those
    pixels = pixels.float() if whole else pixels
    if wanted[1] == 1 and smooth and pixels.is_floating_point():  # torch 2.15 gives columns of floats one value
        turned = F.resize(
            pixels.mT.clone(memory_format=torch.contiguous_format),
            wanted[::-1],
            InterpolationMode(mode),
            antialias=step.antialias,
        )
        made = turned.mT
    else:
        made = F.resize(pixels, wanted, InterpolationMode(mode), antialias=step.antialias)
    made = made.clamp(0, 255).round().to(torch.uint8) if whole else made
    return tv_tensors.wrap(made.reshape(*item.shape[:-2], *wanted), like=item)


def _see_cuts(step: Any, plan: Plan, k: int, sample: dict[str, Any]) -> None:
    """What a crop cuts off a sample's image and boxes, and how much each box shows after it."""

    def inside(boxes: Any) -> Any:
        if isinstance(step, augment.RandomResizedCrop):
            return F.crop(boxes, *(int(one[k]) for one in (plan.top, plan.left, plan.rows, plan.cols)))
        return _moved(step, plan, k, "boxes", boxes)

    if isinstance(step, augment.RandomResizedCrop | augment.RandomCrop | augment.CenterCrop):
        boxes, frame = sample["boxes"], sample["frame"]
        sample["cropped"] = sample["cropped"] or bool(_lost(frame, inside(frame)))
        sample["cut"] = sample["cut"] | _lost(boxes, inside(boxes))
        share = _area(inside(boxes)) / _area(boxes).clamp(1e-9)
        sample["shares"] = sample["shares"] * torch.where(_area(boxes) > 0, share, 0)


def _lost(before: Tensor, after: Tensor) -> Tensor:
    """Whether sides of boxes became shorter, by more than rounding."""
    sides = [(boxes[:, 2:] - boxes[:, :2]).as_subclass(Tensor) for boxes in (before, after)]
    return (sides[0] - sides[1] > 1e-3).any(1)


def _area(boxes: Tensor) -> Tensor:
    return (boxes[:, 2:] - boxes[:, :2]).as_subclass(Tensor).double().clamp(min=0).prod(1)


def _borders(step: augment.RandomCrop, item: Any) -> tuple[int, int, int, int]:
    """Left, top, right and bottom of what RandomCrop pads, with what is missing on both sides."""
    left, top, right, bottom = step.padding
    height, width = F.get_size(item)
    rows = max(0, step.size[0] - height - top - bottom) if step.pad_if_needed else 0
    cols = max(0, step.size[1] - width - left - right) if step.pad_if_needed else 0
    return left + cols, top + rows, right + cols, bottom + rows


def _padded(item: Any, borders: tuple[int, int, int, int], fill: Any, mode: str) -> Any:
    """An item with borders; numpy mirrors, as torchvision cannot do so more than once."""
    left, top, right, bottom = borders
    if mode == "constant" or not any(borders):
        return F.pad(item, list(borders), fill) if any(borders) else item
    pads = [(0, 0)] * (item.dim() - 2) + [(top, bottom), (left, right)]
    return tv_tensors.wrap(torch.from_numpy(np.pad(item.numpy(), pads, mode=mode)), like=item)


def _colored(step: Any, plan: Plan, k: int, image: Any) -> Any:
    """An image after a step that leaves pixels where they are."""
    match step:
        case augment.Normalize():
            peak = 255 if image.dtype == torch.uint8 else 1
            mean, std = (torch.tensor(numbers).view(-1, 1, 1) for numbers in (step.mean, step.std))
            return tv_tensors.Image((image.to(torch.float32) - mean * peak) * (1 / (std * peak)))
        case augment.RandomGrayscale():
            return F.rgb_to_grayscale(image, len(image)) if plan.gray[k] else image
        case augment.RandomErasing():
            (hole,) = plan.holes
            corner = int(hole.top[k]), int(hole.left[k]), int(hole.height[k]), int(hole.width[k])
            value = torch.tensor(hole.value).to(image.dtype)[:, None, None]
            return F.erase(image, *corner, value) if corner[2] else image
    raise TypeError(f"{type(step).__name__} has no plain answer")


def _jittered(image: Any, step: augment.ColorJitter, factors: Any, k: int) -> Any:
    """torchvision's four adjustments with the factors and the order that were drawn."""
    adjust = (F.adjust_brightness, F.adjust_contrast, F.adjust_saturation, F.adjust_hue)
    for which in factors.order[k].tolist():
        if step.ranges[which] is not None:
            image = adjust[which](image, float(factors.values[k, which]))
    return image


def _mixed(step: Any, samples: list[dict[str, Any]], made: Expected, draws: Draws) -> None:
    """Images, masks and targets with those of the sample before."""
    images = torch.stack([sample["images"].as_subclass(Tensor) for sample in samples])
    before, area = images.roll(1, 0), images.shape[-1] * images.shape[-2]
    kept = torch.ones(len(samples))
    mixed = images.clone()
    if blends(step):
        mixed, before = mixed.double(), before.double()
        made.rounded = True
    drawn = _mixes(step, len(samples), draws, images.shape[-2], images.shape[-1])
    for k, (share, (x1, y1, x2, y2)) in enumerate(drawn):
        if share != 1:
            mixed[k] = mixed[k] * share + before[k] * (1 - share)
        mixed[k, :, y1:y2, x1:x2] = before[k, :, y1:y2, x1:x2]
        kept[k] = share * (1 - (x2 - x1) * (y2 - y1) / area)
    masks: list[Any] = [sample.get("masks") for sample in samples]
    for k, (sample, image) in enumerate(zip(samples, mixed, strict=True)):
        sample["images"] = tv_tensors.Image(image)
        if masks[k] is not None:
            x1, y1, x2, y2 = drawn[k][1]
            mask = masks[k].as_subclass(Tensor).clone()
            mask[y1:y2, x1:x2] = masks[k - 1].as_subclass(Tensor)[y1:y2, x1:x2]
            sample["masks"] = tv_tensors.Mask(mask)
    soft = made.fields.get("targets")
    if soft is None:
        return
    soft = torch.nn.functional.one_hot(soft, step.num_classes).float() if soft.ndim == 1 else soft
    made.fields["targets"] = soft * kept[:, None] + soft.roll(1, 0) * (1 - kept[:, None])


def _mixes(step: Any, count: int, draws: Draws, height: int, width: int) -> list[tuple[float, list[int]]]:
    """Of each sample the share that it keeps, and the box that is pasted into it."""
    mine = draws
    if step.per == "batch":
        mine = Draws(np.repeat(draws._seeds[:1], count), draws._place)
    if isinstance(step, MixChoice):
        parts = [_mixes(one, count, draws.branch(place), height, width) for place, one in enumerate(step.transforms)]
        return [parts[place][k] for k, place in enumerate(mine.weighted(step.p).tolist())]
    if isinstance(step, augment.MixUp):
        applied = mine.chance(step.p)
        shares = np.where(applied, beta(mine, step.alpha), 1.0).astype(np.float32).tolist()
        return [(share, [0, 0, 0, 0]) for share in shares]
    return [(1.0, box) for box in step.boxes(mine, height, width).tolist()]


def _transform(module: Any, sample: dict[str, Any], key: int, rule: BoxRule) -> None:
    """A sample after a transform of torchvision's, which sees the boxes that stay so far and drops none by itself."""
    if "boxes" not in sample:
        sample |= transformed(module, sample, key)
        return
    _judge(sample, rule)
    before = sample["boxes"].as_subclass(Tensor)
    sample |= transformed(module, sample, key)
    _begin_trail(sample)
    boxes = sample["boxes"].as_subclass(Tensor)
    _keep(sample, _large(boxes, rule) | (boxes == before).all(1))


def _begin_trail(sample: dict[str, Any]) -> None:
    """Nothing is cut off yet: the frame is the image's, and every box is whole."""
    height, width = F.get_size(sample["images"])
    sample["frame"] = tv_tensors.wrap(torch.tensor([[0.0, 0.0, width, height]]), like=sample["boxes"])
    sample["shares"] = torch.ones(len(sample["boxes"]), dtype=torch.float64)
    sample["cut"], sample["cropped"] = torch.zeros(len(sample["boxes"]), dtype=torch.bool), False


def _judge(sample: dict[str, Any], rule: BoxRule) -> None:
    """Drop the boxes that no longer show enough, where something of them or of the image was cut off."""
    sample["boxes"] = F.clamp_bounding_boxes(sample["boxes"])
    enough = _large(sample["boxes"].as_subclass(Tensor), rule) & (sample["shares"] >= rule.min_visible)
    _keep(sample, enough | ~(sample["cut"] | sample["cropped"]))
    _begin_trail(sample)


def _large(boxes: Tensor, rule: BoxRule) -> Tensor:
    return (boxes[:, 2:] - boxes[:, :2] >= max(rule.min_size, 1e-6)).all(1)


def _keep(sample: dict[str, Any], stays: Tensor) -> None:
    """Only these boxes, with what belongs to them."""
    sample["boxes"] = tv_tensors.wrap(sample["boxes"].as_subclass(Tensor)[stays], like=sample["boxes"])
    sample |= {name: sample[name][stays] for name in ("labels", "shares", "cut")}


def _packed(rows: Fields, samples: list[dict[str, Any]], rule: BoxRule) -> Fields:
    """The boxes that are left, in their order, and what belongs to them."""
    packed = {"boxes": torch.zeros_like(rows["boxes"]), "labels": torch.full_like(rows["labels"], -1)}
    packed["counts"] = torch.zeros_like(rows["counts"])
    for k, sample in enumerate(samples):
        _judge(sample, rule)
        count = packed["counts"][k] = len(sample["boxes"])
        packed["boxes"][k, :count] = sample["boxes"].as_subclass(Tensor)
        packed["labels"][k, :count] = sample["labels"]
    return packed


def collated_alone(collate: Collate, rows: Fields, seeds: torch.Tensor, epoch: int) -> Expected:
    """The batch of stored rows, each made by itself."""
    others = {name: value for name, value in rows.items() if name not in ("ids", "seeds")}
    ids = rows.get("ids", torch.arange(len(seeds)))  # bare images have none
    parts: list[Fields] = []
    with batch_of_epoch(epoch):
        for k in range(len(seeds)):
            row = {name: value[k : k + 1] for name, value in others.items()}
            batch = collate(make_batch(row, 1, seeds=seeds[k : k + 1], ids=ids[k : k + 1]))
            extra = {} if batch.extra is None else dict(batch.extra.items())
            parts.append({name: extra[name] if name in extra else getattr(batch, name) for name in others})
    return Expected(dict(rows) | {name: torch.cat([part[name] for part in parts]) for name in others})
