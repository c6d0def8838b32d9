"""scripts/budgets counts statements, and fails above a budget."""

from __future__ import annotations

from pathlib import Path

import pytest
from conftest import script

MODULE = '"""Says what it is."""\nimport os\n\n\ndef area(width):\n    """Returns it."""\n    return width * width\n'


@pytest.mark.parametrize(("line", "status"), [("store = 2", 0), ("store = 1", 1), ("", 1)])
def test_budgets_room_of_two_statements_fails_above_its_budget(tmp_path: Path, line: str, status: int) -> None:
    (tmp_path / "mmload" / "store").mkdir(parents=True)
    (tmp_path / "mmload" / "store" / "rows.py").write_text(MODULE)
    (tmp_path / "scripts").mkdir()
    folders = '[folders]\nmmload = 2\n"scripts+benchmarks" = 0\n'
    (tmp_path / "scripts" / "budgets.toml").write_text(f"[rooms]\n{line}\n{folders}")
    with script("budgets") as budgets:
        assert budgets.main(tmp_path) == status
