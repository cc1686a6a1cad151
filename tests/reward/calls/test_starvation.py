"""Waiting for a core is told apart from the thread's own work and sleep."""

from __future__ import annotations

import sys
import time
from pathlib import Path

import pytest

from rewardflow.reward.calls.starvation import Starvation


def test_the_time_without_a_core_counts_from_the_last_look(tmp_path: Path) -> None:
    file = tmp_path / "schedstat"
    file.write_text("700000000 5000000000 12\n")
    starvation = Starvation(file)
    starvation.look(100.0)
    file.write_text("800000000 6500000000 14\n")
    assert starvation.waited_s() == pytest.approx(1.5)
    starvation.look(100.05)  # too soon for another look: the count goes on
    assert starvation.waited_s() == pytest.approx(1.5)
    starvation.look(102.0)
    assert starvation.waited_s() == 0.0


@pytest.mark.parametrize("text", ["", "1", "a b c", None])
def test_a_system_that_does_not_tell_counts_as_never_busy(tmp_path: Path, text: str | None) -> None:
    if text is not None:
        (tmp_path / "schedstat").write_text(text)
    starvation = Starvation(tmp_path / "schedstat")
    starvation.look(1.0)
    assert starvation.waited_s() == 0.0


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux counts it")
def test_a_thread_that_sleeps_waits_for_no_core_meanwhile() -> None:
    starvation = Starvation()
    began_s = time.perf_counter()
    starvation.look(began_s)
    time.sleep(0.05)  # real time is the subject: the system counts it
    assert 0.0 <= starvation.waited_s() <= time.perf_counter() - began_s - 0.05
