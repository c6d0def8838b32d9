"""Parses steps as one writes them in Python, ``RandomCrop(24), ColorJitter(0.4)``. It calls the steps' classes only."""

from __future__ import annotations

import ast
from typing import Any

from torch import nn

import mmload.augment
from mmload.augment.step import AfterStep, Step
from mmload.errors import UsageError


def steps_of(text: str) -> list[nn.Module]:
    """The steps that a text names, in order.

    Args:
        text: calls of steps of :mod:`mmload.augment` with numbers, strings, lists, tuples and other steps as arguments.

    Raises:
        UsageError: if it is something else, or a step refuses its arguments.
    """
    try:
        body = ast.parse(f"({text},)", mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise UsageError(f"--augment is {text!r}, which is not Python; {_LIKE}") from error
    parts = body.elts if isinstance(body, ast.Tuple) else [body]
    if not parts:
        raise UsageError(f"--augment is {text!r}, which names no step; {_LIKE}")
    steps = []
    for part in parts:
        step = _value(part, text)
        if not isinstance(step, nn.Module):
            raise UsageError(f"--augment is {text!r}, and {ast.unparse(part)} is no step; {_LIKE}")
        steps.append(step)
    return steps


_LIKE = 'write steps of mmload.augment, as in "RandomCrop(24), ColorJitter(0.4, 0.4)"'


def _value(node: ast.expr, text: str) -> Any:
    """A step, a list or tuple of values, or a constant."""
    if isinstance(node, ast.List | ast.Tuple):
        values = [_value(each, text) for each in node.elts]
        return values if isinstance(node, ast.List) else tuple(values)
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
        return _step(node, node.func.id, text)
    try:
        return ast.literal_eval(node)
    except (ValueError, TypeError, RecursionError) as error:
        raise UsageError(
            f"--augment is {text!r}, and {ast.unparse(node)} is no step and no constant; {_LIKE}"
        ) from error


def _step(node: ast.Call, name: str, text: str) -> nn.Module:
    kind = getattr(mmload.augment, name, None) if name in mmload.augment.__all__ else None
    if not isinstance(kind, type) or not issubclass(kind, Step | AfterStep) or kind in (Step, AfterStep):
        raise UsageError(f"--augment is {text!r}, and there is no step {name}; see docs/augment.md for all")
    arguments = [_value(each, text) for each in node.args]
    named = {each.arg: _value(each.value, text) for each in node.keywords if each.arg is not None}
    if len(named) < len(node.keywords):
        raise UsageError(f"--augment is {text!r}: write the arguments out, without **")
    try:
        step: nn.Module = kind(*arguments, **named)
    except (TypeError, ValueError) as error:
        raise UsageError(f"--augment is {text!r}: {name}: {error}") from error
    return step
