"""verl as a yardstick, with and without verl.

What may import verl does so in an interpreter of its own: verl brings torch and Ray into the process.
"""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

from rewardflow.bench.verl_loop import verl_verdicts_per_s

SOURCE = Path(__file__).resolve().parents[2] / "src"
CODE = """
import sys
from rewardflow.bench.verl_loop import verl_verdicts_per_s
rate = verl_verdicts_per_s(count=50)
sys.stdout.write(f"{rate} {'ray' in sys.modules and sys.modules['ray'].is_initialized()}")
"""

with_verl = pytest.mark.skipif(importlib.util.find_spec("verl") is None, reason="verl is not installed")
without_verl = pytest.mark.skipif(importlib.util.find_spec("verl") is not None, reason="verl is installed")


def measure(*paths: Path) -> tuple[str, str]:
    """What a fresh interpreter that looks for packages here first writes, and what it logs."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, (*paths, SOURCE)))}
    result = subprocess.run([sys.executable, "-c", CODE], env=environment, capture_output=True, text=True, check=True)
    return result.stdout, result.stderr


@without_verl
def test_without_verl_there_is_no_figure_and_no_warning(caplog: pytest.LogCaptureFixture) -> None:
    assert verl_verdicts_per_s(count=1) is None
    assert caplog.records == []


@pytest.mark.parametrize("source", ["", "raise RuntimeError('no driver')"])
def test_a_verl_without_the_known_reward_loop_gives_a_warning_instead_of_a_figure(source: str, tmp_path: Path) -> None:
    (tmp_path / "verl").mkdir()
    (tmp_path / "verl" / "__init__.py").write_text(source, "utf-8")
    output, log = measure(tmp_path)
    assert output == "None False"
    assert "its reward loop is not the one known here" in log


@with_verl
def test_verl_scores_every_rollout_without_starting_ray_or_writing_to_standard_output() -> None:
    rate, ray_runs = measure()[0].split(" ")
    assert float(rate) > 0
    assert ray_runs == "False"
