"""The README against the tree: what it names exists, and no module is left out."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("module", sorted(path.name for path in (ROOT / "mmload").rglob("*.py")))
def test_every_module_has_its_line(module: str) -> None:
    assert module in README


def test_every_document_and_script_named_exists() -> None:
    documents = re.findall(r"docs/([\w/.]+\.md)", README)
    assert documents
    for document in documents:
        assert (ROOT / "docs" / document).is_file(), document
    for script in re.findall(r"\./(scripts/\w+)", README):
        assert (ROOT / script).is_file(), script
