"""The rooms of the package: imports run one way only, drawn from the sources."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cache
from graphlib import TopologicalSorter
from pathlib import Path

import mmload

PACKAGE = Path(mmload.__file__).parent

ROOMS = (
    "lazy",
    "errors",
    "records",
    "pictures",
    "batch",
    "runtime",
    "store",
    "remote",
    "render",
    "augment",
    "presets",
    "sources",
    "builder",
    "loader",
    "interop",
    "export",
    "bench",
    "parity",
    "view",
    "cli",
    "__main__",
)
"""In the order of the flow: a room imports only rooms before it. docs/architecture.md says what each is for."""

APART = {("builder", "loader"), ("loader", "builder"), ("bench", "parity"), ("parity", "bench")}
"""Rooms that know nothing of each other."""


def modules() -> dict[str, Path]:
    """Dotted name -> file of every module of the package."""
    names = {}
    for path in sorted(PACKAGE.rglob("*.py")):
        parts = path.relative_to(PACKAGE.parent).with_suffix("").parts
        names[".".join(parts).removesuffix(".__init__")] = path
    return names


@cache
def imports() -> frozenset[tuple[str, str]]:
    """(importing module, imported module) for every import of the package by itself, lazy ones included."""
    return frozenset(_imports())


def _imports() -> Iterator[tuple[str, str]]:
    known = modules()
    for name, path in known.items():
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Import):
                yield from ((name, alias.name) for alias in node.names if alias.name.split(".")[0] == "mmload")
            elif isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "mmload":
                for alias in node.names:
                    whole = f"{node.module}.{alias.name}"
                    yield name, whole if whole in known else str(node.module)


def room(module: str) -> str | None:
    """The room a module is in; None for the package itself, which is the door to them all."""
    return module.split(".")[1] if "." in module else None


def test_every_module_is_in_a_room() -> None:
    assert {room(name) for name in modules()} - {None} == set(ROOMS)


def test_a_room_imports_only_rooms_before_it() -> None:
    wrong = []
    for importer, imported in imports():
        own, other = room(importer), room(imported)
        if own is None or other is None or own == other:
            continue
        if ROOMS.index(other) > ROOMS.index(own) or (own, other) in APART:
            wrong.append(f"{importer} imports {imported}")
    assert not wrong


def test_no_modules_import_each_other_in_a_circle() -> None:
    graph: dict[str, set[str]] = {}
    for importer, imported in imports():
        if importer != imported and "." in importer:
            graph.setdefault(importer, set()).add(imported)
    TopologicalSorter(graph).prepare()


def drawing() -> str:
    """Each room and the rooms that it imports, a line each."""
    arrows: dict[str, set[str]] = {name: set() for name in ROOMS}
    for importer, imported in imports():
        own, other = room(importer), room(imported)
        if own is not None and other is not None and own != other:
            arrows[own].add(other)
    width = max(map(len, ROOMS))
    lines = (f"{name:<{width}} -> {', '.join(sorted(arrows[name], key=ROOMS.index))}" for name in ROOMS)
    return "\n".join(line.removesuffix(" -> ").rstrip() for line in lines)


if __name__ == "__main__":
    print(drawing())
