"""The files under examples/ are ones that the commands take."""

from __future__ import annotations

from pathlib import Path

import pytest

from rewardflow.settings.run_file import load_run

EXAMPLES = Path(__file__).resolve().parents[1] / "examples"
RUNS = sorted(EXAMPLES.glob("*/run.yaml"))


def test_there_are_runs_among_the_examples() -> None:
    assert RUNS


@pytest.mark.parametrize("path", RUNS, ids=lambda path: path.parent.name)
def test_a_run_file_has_no_mistakes(path: Path) -> None:
    assert load_run(path).steps > 0
