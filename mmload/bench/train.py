"""Trains a model with a contender's batches and measures how long its steps wait for data.

The device is synchronized before each request of a batch and after each step, so the time between them is the wait for
data alone.
"""

from __future__ import annotations

import difflib
import time
import warnings
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from mmload.bench.contenders import Contender
from mmload.bench.task import Task
from mmload.errors import MmloadError, UsageError


@dataclass(frozen=True, kw_only=True)
class TrainSample:
    """One measured turn of training.

    Attributes:
        images: that were trained on.
        seconds: that it took.
        waited: of these, seconds in which the step waited for data.
        steps: how many.
    """

    images: int
    seconds: float
    waited: float
    steps: int

    @property
    def rate(self) -> float:
        """Images per second."""
        return self.images / self.seconds

    @property
    def share(self) -> float:
        """The share of the time that was waited for data, in [0, 1]."""
        return self.waited / self.seconds


class Trainer:
    """A model with its optimizer: SGD with momentum, cross entropy; on CUDA with bfloat16 autocast, else float32.

    Args:
        model: a torchvision classification model's name.
        task: what batches look like, and how many classes there are.
    """

    def __init__(self, model: str, task: Task) -> None:
        self._device = task.device
        self._model = make_model(model, max(2, task.classes)).to(task.device).train()
        self._optimizer = torch.optim.SGD(self._model.parameters(), lr=1e-3, momentum=0.9)

    def run(self, contender: Contender, most: float) -> TrainSample:
        """Train for ``most`` seconds, epoch after epoch: two steps at least, and none more that would end later.

        The first is not counted: it allocates, chooses kernels, and fills queues.

        Raises:
            MmloadError: if the contender gives no batch.
        """
        last = time.perf_counter() + most
        with closing(endless(contender)) as batches:
            self._turn(batches)
            began = now = time.perf_counter()
            images = steps = 0
            waited = 0.0
            while not steps or now + (now - began) / steps < last:
                count, wait = self._turn(batches)
                images, steps, waited = images + count, steps + 1, waited + wait
                now = time.perf_counter()
        return TrainSample(images=images, seconds=now - began, waited=waited, steps=steps)

    def try_steps(self, contender: Contender) -> float:
        """Make a step, and a second one if the first took less than a second.

        Returns:
            Seconds that the two take, or would take.

        Raises:
            MmloadError: if the contender gives no batch.
        """
        began = time.perf_counter()
        with closing(endless(contender)) as batches:
            self._turn(batches)
            first = time.perf_counter() - began
            if first >= 1:
                return 2 * first
            self._turn(batches)
        return time.perf_counter() - began

    def _turn(self, batches: Any) -> tuple[int, float]:
        """One step: the images of its batch, and the seconds it waited for them."""
        asked = time.perf_counter()
        images, labels = next(batches)
        self._wait_for_device()
        waited = time.perf_counter() - asked
        self._step(images, labels)
        self._wait_for_device()
        return len(images), waited

    def _step(self, images: Tensor, labels: Tensor) -> None:
        if images.dtype == torch.uint8:
            images = images.float() / 255
        with torch.autocast(self._device, torch.bfloat16, enabled=self._device == "cuda"):
            loss = nn.functional.cross_entropy(_scores(self._model(images)), labels)
        self._optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]  # torch has none
        self._optimizer.step()

    def _wait_for_device(self) -> None:
        if self._device == "cuda":
            torch.cuda.synchronize()


def endless(contender: Contender) -> Any:
    """Batches of epoch after epoch, a generator.

    Raises:
        MmloadError: if an epoch has none.
    """
    while True:
        gave_batch = False
        batches: Iterator[tuple[Tensor, Tensor]] = contender.epoch()
        for batch in batches:
            gave_batch = True
            yield batch
        if not gave_batch:
            raise MmloadError("an epoch gave no batch")


def make_model(name: str, count: int) -> nn.Module:
    """A torchvision classification model with fresh weights.

    Raises:
        UsageError: if there is none of that name; close ones are named.
    """
    from torchvision import models

    known = models.list_models(module=models)
    if name not in known:
        close = difflib.get_close_matches(name, known) or ["resnet18", "resnet50", "vit_b_16"]
        raise UsageError(f"--train is {name!r}, which torchvision has not; use a model such as {', '.join(close)}")
    with warnings.catch_warnings():  # two models warn of how their weights start, which does not matter here
        warnings.simplefilter("ignore", FutureWarning)
        made: nn.Module = models.get_model(name, weights=None, num_classes=count)
    return made


def check_model(name: str, task: Task) -> None:
    """Whether the model takes the task's images, found out on torch's ``meta`` device: nothing is computed.

    Raises:
        UsageError: if it does not, or the dataset has no class for each image.
    """
    if not task.labeled:
        raise UsageError(f"--train needs one class for each image, which split {task.split!r} does not have")
    with torch.device("meta"):
        try:
            model = make_model(name, max(2, task.classes)).train()
            _scores(model(torch.empty(task.shape)))
        except NotImplementedError:  # the RegNets compute with their weights when they are made
            return
        except UsageError:
            raise
        except (RuntimeError, ValueError, AssertionError, MmloadError) as error:
            why = str(error).splitlines()[0]
            raise UsageError(f"--train {name} does not take images of {list(task.shape[1:])}: {why}") from error


def _scores(output: Any) -> Tensor:
    """The scores of a model's output: some models give those of auxiliary heads as well."""
    scores = output if isinstance(output, Tensor) else getattr(output, "logits", None)
    if not isinstance(scores, Tensor):
        raise MmloadError(f"the model gives {type(output).__name__}, not scores")
    return scores
