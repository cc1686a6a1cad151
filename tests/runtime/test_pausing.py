"""A run waits while its file PAUSED exists."""

from __future__ import annotations

import asyncio
from pathlib import Path

from rewardflow import clock
from rewardflow.runtime.pausing import PauseFile


def test_a_run_waits_until_the_file_is_removed_and_not_without_one(tmp_path: Path) -> None:
    async def run() -> tuple[float, float]:
        pause, loop = PauseFile(tmp_path / "PAUSED"), asyncio.get_running_loop()
        await pause.wait_until_removed(lambda: False)
        began_s = loop.time()
        pause.begin("the judge changed")
        assert "the judge changed" in pause.path.read_text()
        loop.call_later(100.0, pause.path.unlink)
        await pause.wait_until_removed(lambda: False)
        return began_s, loop.time()

    began_s, ended_s = clock.run(run())
    assert began_s == 0.0
    assert 100.0 <= ended_s <= 101.0


def test_a_run_that_is_to_end_waits_no_longer(tmp_path: Path) -> None:
    async def run() -> float:
        pause, loop = PauseFile(tmp_path / "PAUSED"), asyncio.get_running_loop()
        pause.begin("the judge changed")
        await pause.wait_until_removed(lambda: loop.time() >= 7.0)
        return loop.time()

    assert 7.0 <= clock.run(run()) <= 8.0
    assert (tmp_path / "PAUSED").exists()
