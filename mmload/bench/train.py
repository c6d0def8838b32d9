"""The models that a bench trains, and a step of their training."""

from __future__ import annotations

import difflib
import warnings
from typing import Any

import torch
from torch import Tensor, nn

from mmload.bench.task import Task
from mmload.errors import MmloadError, UsageError

SMALL = "small"
"""Name of a small network whose step takes milliseconds, most of them for Python and kernel launches."""

_LAYERS, _WIDTH = 24, 16


class Trainer:
    """A model with its optimizer: SGD with momentum, cross entropy; bfloat16 autocast on CUDA, else float32."""

    def __init__(self, model: str, task: Task) -> None:
        self._device = task.device
        self._model = make_model(model, max(2, task.classes)).to(task.device).train()
        self._optimizer = torch.optim.SGD(self._model.parameters(), lr=1e-3, momentum=0.9)
        # On busy cores torch's threads wait for each other: the small network's steps of 2 ms took up to 1,700.
        self._threads = 1 if model == SMALL else torch.get_num_threads()

    def step(self, images: Tensor, labels: Tensor) -> None:
        """Runs one step of training."""
        before = torch.get_num_threads()
        torch.set_num_threads(self._threads)
        if images.dtype == torch.uint8:
            images = images.float() / 255
        with torch.autocast(self._device, torch.bfloat16, enabled=self._device == "cuda"):
            loss = nn.functional.cross_entropy(_scores(self._model(images)), labels)
        self._optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]  # torch has none
        self._optimizer.step()
        torch.set_num_threads(before)


def make_model(name: str, count: int) -> nn.Module:
    """Returns a torchvision classification model, or :data:`SMALL`, with fresh weights.

    Raises:
        UsageError: if the model is unknown; the message lists similar names.
    """
    if name == SMALL:
        return _Small(count)
    from torchvision import models

    known = models.list_models(module=models)
    if name not in known:
        close = difflib.get_close_matches(name, known) or ["resnet18", "resnet50", "vit_b_16"]
        raise UsageError(
            f"--train is {name!r}, which torchvision has not; use a model such as {', '.join(close)}, or {SMALL}"
        )
    with warnings.catch_warnings():  # two models warn about their initialization, which is irrelevant here
        warnings.simplefilter("ignore", FutureWarning)
        made: nn.Module = models.get_model(name, weights=None, num_classes=count)
    return made


class _Small(nn.Module):
    """Classifier of a few pixels of each image, with layers that scale and shift 16 values and apply tanh."""

    def __init__(self, count: int) -> None:
        super().__init__()
        self._first, self._last = nn.Linear(3, _WIDTH), nn.Linear(_WIDTH, count)
        self._scales = nn.ParameterList(torch.ones(_WIDTH) for _ in range(_LAYERS))
        self._shifts = nn.ParameterList(torch.zeros(_WIDTH) for _ in range(_LAYERS))

    def forward(self, images: Tensor) -> Tensor:
        values = self._first(images[:, :, ::32, ::32].mean((2, 3)))
        for scale, shift in zip(self._scales, self._shifts, strict=True):
            values = torch.tanh(values * scale + shift)
        scores: Tensor = self._last(values)
        return scores


def check_model(name: str, task: Task) -> None:
    """Checks that the model accepts the task's images, by one of zeros.

    Raises:
        UsageError: if it does not, or not every image of the dataset has a class.
    """
    if not task.labeled:
        raise UsageError(f"--train needs one class for each image, which split {task.split!r} does not have")
    model = make_model(name, max(2, task.classes)).eval()
    try:
        with torch.no_grad():
            _scores(model(torch.zeros(1, *task.shape[1:])))
    except (RuntimeError, ValueError, AssertionError, MmloadError) as error:
        why = str(error).splitlines()[0]
        raise UsageError(f"--train {name} does not take images of {list(task.shape[1:])}: {why}") from error


def _scores(output: Any) -> Tensor:
    """Returns the scores of a model's output: some models also return those of auxiliary heads."""
    scores = getattr(output, "logits", output)
    if not isinstance(scores, Tensor):
        raise MmloadError(f"the model gives {type(output).__name__}, not scores")
    return scores
