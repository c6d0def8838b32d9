"""The GPU's kernel as Triton's interpreter runs it, on CPU tensors."""

from __future__ import annotations

import importlib
import sys
from functools import cache
from types import ModuleType

import pytest

NAME = "mmload.render.gpu_kernels"


@cache
def interpreted() -> ModuleType:
    """The module, beside the one that compiles."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TRITON_INTERPRET", "1")
        patch.delitem(sys.modules, NAME, raising=False)
        module = importlib.import_module(NAME)
    sys.modules.pop(NAME, None)
    return module
