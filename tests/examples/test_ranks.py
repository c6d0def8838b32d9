"""examples/ranks.py under torchrun: losses do not depend on the number of ranks, and a dead rank ends the others."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from conftest import build_splits
from forked_program import Program, run_program
from waiting import until

EXAMPLE = Path(__file__).parents[2] / "examples" / "ranks.py"
TORCHRUN = [sys.executable, "-m", "torch.distributed.run", "--standalone"]

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(sys.platform != "linux", reason="kills processes that it finds in /proc"),
]


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """27 training rows, which no number of ranks here divides, and 9 for evaluation."""
    return build_splits(tmp_path_factory.mktemp("ranks"), per_class=(9, 3))


def words_for(built: Path, *more: object) -> list[str]:
    return [str(built), "--batch-size", "8", "--crop", "32", *map(str, more)]


def torchrun(ranks: int, *words: str) -> list[str]:
    """Run the example to its end; its lines."""
    command = [*TORCHRUN, "--nproc-per-node", str(ranks), str(EXAMPLE), *words]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=200, check=False)
    assert ended.returncode == 0, ended.stderr
    return ended.stdout.splitlines()


def numbers(lines: list[str]) -> torch.Tensor:
    return torch.tensor([float(line.split()[-1]) for line in lines])


def test_one_rank_and_one_that_goes_on_with_what_two_began_have_the_same_losses(built: Path, tmp_path: Path) -> None:
    alone = run_program(EXAMPLE.read_text(), *words_for(built, "--epochs", 3)).stdout.splitlines()
    kept = tmp_path / "kept.pt"
    two = torchrun(2, *words_for(built, "--epochs", 3, "--stop-after", 4, "--checkpoint", kept))
    one = run_program(EXAMPLE.read_text(), *words_for(built, "--epochs", 3, "--checkpoint", kept)).stdout.splitlines()
    assert len(two) == 5  # three steps, an accuracy, and a step of the second epoch
    assert len(alone) == 3 * 4
    assert [line.split()[:3] for line in alone] == [line.split()[:3] for line in two + one]
    torch.testing.assert_close(numbers(two + one), numbers(alone), rtol=1e-4, atol=1e-5)


def test_a_rank_that_dies_ends_the_others_with_a_message(built: Path) -> None:
    command = [*TORCHRUN, "--nproc-per-node", "2", str(EXAMPLE)]
    with subprocess.Popen(
        [*command, *words_for(built, "--epochs", 100_000)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as running:
        assert "loss" in running.stdout.readline()
        ranks = {children_rank(pid): pid for pid in children_of(running.pid)}
        os.kill(ranks[1], signal.SIGKILL)
        _, said = running.communicate(timeout=120)
        assert running.returncode == 1
    assert re.search(r"rank +: 1 .*\n.*exitcode +: -9", said)
    until(lambda: not any(Path(f"/proc/{pid}").exists() for pid in ranks.values()))


def children_of(parent: int) -> list[int]:
    listed = Path(f"/proc/{parent}/task").glob("*/children")
    return [int(pid) for path in listed for pid in path.read_text().split()]


def children_rank(pid: int) -> int:
    variables = dict(part.split("=", 1) for part in Path(f"/proc/{pid}/environ").read_text().split("\0") if "=" in part)
    return int(variables.get("RANK", -1))


ROWS = """
import json, sys, torch, mmload
torch.distributed.init_process_group("gloo", init_method="file://" + sys.argv[2], rank=int(sys.argv[3]), world_size=4)
found = {}
for tail in ("exact", "pad", "drop"):
    with mmload.Loader(mmload.open(sys.argv[1])["train"], batch_size=3, shuffle=True, tail=tail, threads=1) as loader:
        found[tail] = [[row for batch in loader for row in batch.ids.tolist()] for epoch in range(2)]
print(json.dumps(found))
torch.distributed.destroy_process_group()
"""


def test_four_ranks_read_every_row_once_whatever_is_left_at_the_tail(built: Path, tmp_path: Path) -> None:
    ranks = [Program(ROWS, [built, tmp_path / "meet", rank]) for rank in range(4)]
    ended = [rank.ended() for rank in ranks]
    assert [rank.returncode for rank in ended] == [0] * 4, ended
    dealt = [json.loads(rank.stdout) for rank in ended]
    for epoch in range(2):
        rows = {tail: [one[tail][epoch] for one in dealt] for tail in ("exact", "pad", "drop")}
        assert sorted(sum(rows["exact"], [])) == list(range(27))
        assert [len(part) for part in rows["exact"]] == [7, 7, 7, 6]
        assert [len(part) for part in rows["pad"]] == [7] * 4
        assert set(sum(rows["pad"], [])) == set(range(27))
        assert [len(part) for part in rows["drop"]] == [6] * 4
        assert len(set(sum(rows["drop"], []))) == 24
