"""Late replies on idle connections give no rollout the score of another."""

from __future__ import annotations

import asyncio
from pathlib import Path

from rewardflow.bench.chaos.late_replies import late_replies


def test_late_second_responses_swap_no_scores(tmp_path: Path) -> None:
    tried = asyncio.run(late_replies(3, tmp_path))
    assert tried.count == 192
    assert tried.complaints == ()
