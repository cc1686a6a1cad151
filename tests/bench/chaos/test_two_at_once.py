"""The same run cannot be started a second time while it is under way."""

from __future__ import annotations

import asyncio
from pathlib import Path

from rewardflow.bench.chaos.two_at_once import two_at_once


def test_a_second_start_of_a_run_is_refused_and_pays_nothing(tmp_path: Path) -> None:
    assert asyncio.run(two_at_once(2, tmp_path, count=250)).complaints == ()
