"""Trains a model with a contender's batches and measures how long its steps wait for data.

The device is synchronized before each request of a batch and after each step, so the time between them is only the wait
for data.
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
        images: number of images trained on.
        seconds: the duration.
        waited: seconds of these in which the step waited for data.
        steps: number of steps.
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
        """The share of the time spent waiting for data, in [0, 1]."""
        return self.waited / self.seconds


class Trainer:
    """A model with its optimizer: SGD with momentum, cross entropy; bfloat16 autocast on CUDA, else float32.

    Args:
        model: the name of a torchvision classification model.
        task: defines the shape of the batches and the number of classes.
    """

    def __init__(self, model: str, task: Task) -> None:
        self._device = task.device
        self._model = make_model(model, max(2, task.classes)).to(task.device).train()
        self._optimizer = torch.optim.SGD(self._model.parameters(), lr=1e-3, momentum=0.9)

    def run(self, contender: Contender, most: float) -> TrainSample:
        """Train for ``most`` seconds over several epochs: at least two steps, and no further step that would end later.

        The first step is not measured: it allocates memory, selects kernels, and fills queues.

        Raises:
            MmloadError: if the contender yields no batch.
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
        """Run one step, and a second one if the first took less than a second.

        Returns:
            Measured or extrapolated seconds of two steps.

        Raises:
            MmloadError: if the contender yields no batch.
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
        """One step: the number of images in its batch, and the seconds that it waited for them."""
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
    """A generator of the batches of epoch after epoch.

    Raises:
        MmloadError: if an epoch has no batch.
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
        UsageError: if the model is unknown; the message lists similar names.
    """
    from torchvision import models

    known = models.list_models(module=models)
    if name not in known:
        close = difflib.get_close_matches(name, known) or ["resnet18", "resnet50", "vit_b_16"]
        raise UsageError(f"--train is {name!r}, which torchvision has not; use a model such as {', '.join(close)}")
    with warnings.catch_warnings():  # two models warn about their initialization, which is irrelevant here
        warnings.simplefilter("ignore", FutureWarning)
        made: nn.Module = models.get_model(name, weights=None, num_classes=count)
    return made


def check_model(name: str, task: Task) -> None:
    """Check that the model accepts the task's images, on torch's ``meta`` device: nothing is computed.

    Raises:
        UsageError: if it does not, or not every image of the dataset has a class.
    """
    if not task.labeled:
        raise UsageError(f"--train needs one class for each image, which split {task.split!r} does not have")
    with torch.device("meta"):
        try:
            model = make_model(name, max(2, task.classes)).train()
            _scores(model(torch.empty(task.shape)))
        except NotImplementedError:  # the RegNets compute with their weights when they are created
            return
        except UsageError:
            raise
        except (RuntimeError, ValueError, AssertionError, MmloadError) as error:
            why = str(error).splitlines()[0]
            raise UsageError(f"--train {name} does not take images of {list(task.shape[1:])}: {why}") from error


def _scores(output: Any) -> Tensor:
    """The scores of a model's output: some models also return those of auxiliary heads."""
    scores = output if isinstance(output, Tensor) else getattr(output, "logits", None)
    if not isinstance(scores, Tensor):
        raise MmloadError(f"the model gives {type(output).__name__}, not scores")
    return scores
