"""A run waits while its file PAUSED exists."""

from __future__ import annotations

import asyncio
from pathlib import Path

from rewardflow import clock
from rewardflow.runtime.pausing import PauseFile


def test_a_run_waits_until_the_file_is_removed_and_not_without_one(tmp_path: Path) -> None:
    async def run() -> tuple[float, float]:
        pause, loop = PauseFile(tmp_path / "PAUSED"), asyncio.get_running_loop()
        await pause.wait_until_removed()
        began_s = loop.time()
        pause.begin("the judge changed")
        assert "the judge changed" in pause.path.read_text()
        loop.call_later(100.0, pause.path.unlink)
        await pause.wait_until_removed()
        return began_s, loop.time()

    began_s, ended_s = clock.run(run())
    assert began_s == 0.0
    assert 100.0 <= ended_s <= 101.0
