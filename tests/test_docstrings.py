"""Public methods have a docstring, their own or that of the base class or the protocol that declares them."""

from __future__ import annotations

import ast
import importlib
import inspect
from collections.abc import Iterator

from test_rooms import modules


def classes() -> Iterator[tuple[type, set[str]]]:
    """The public classes of the package, each with the public methods and properties that it defines itself."""
    for name, path in modules().items():
        try:
            module = importlib.import_module(name)
        except ImportError:  # of a package that is not installed, such as Ray
            continue
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                names = {one.name for one in node.body if isinstance(one, ast.FunctionDef)}
                yield getattr(module, node.name), {name for name in names if not name.startswith("_")}


def test_every_public_method_is_documented_here_or_where_it_is_declared() -> None:
    every = list(classes())
    protocols = {kind: names for kind, names in every if getattr(kind, "_is_protocol", False)}
    missing = []
    for kind, names in every:
        declared = [methods for one, methods in protocols.items() if one is not kind and methods <= set(dir(kind))]
        own = names.difference(*declared)
        missing += [f"{kind.__qualname__}.{name}" for name in own if not inspect.getdoc(getattr(kind, name))]
    assert not missing
