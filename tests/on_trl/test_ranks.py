"""Two ranks of a TRL run, in two processes on CPU: one agent judges for both."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

SCRIPT = Path(__file__).parent / "rank_script.py"


@pytest.fixture(scope="module")
def folder(model: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What both ranks wrote down."""
    folder = tmp_path_factory.mktemp("ranks")
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", str(SCRIPT)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "GLOO_SOCKET_IFNAME": "lo"}
    ended = subprocess.run([*command, model, str(folder)], env=environment, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr[-3000:]
    return folder


def ranks(folder: Path, what: str) -> list[dict[str, Any]]:
    return [json.loads((folder / f"{what}{rank}.json").read_text()) for rank in range(2)]


@pytest.mark.parametrize("what", ["function", "trainer"])
def test_rank_0_judges_for_all_ranks_with_one_agent_and_one_journal(folder: Path, what: str) -> None:
    first, second = ranks(folder, what)
    assert [first["ranks"], first["is_open"], second["is_open"]] == [2, True, False]
    assert first["judged"] == 3 * 4
    assert first["weights"] == pytest.approx(second["weights"], abs=1e-9)
    assert first["error"] == second["error"] == ""


def test_what_stops_the_agent_on_rank_0_ends_training_on_every_rank(folder: Path) -> None:
    first, second = ranks(folder, "failure")
    assert first["error"] == "BudgetExhausted"
    assert second["error"] == "AgentClosed"
