"""What a journal of version 0.1 holds is paid for: moving or rewording a shipped reward asks for none of it again."""

from __future__ import annotations

import asyncio
import sqlite3
from pathlib import Path

import pytest
from shipped_rewards import PASSAGES, SHIPPED, URL, rollouts

import rewardflow as rf

WRITTEN = Path(__file__).with_name("journal_of_0_1.sql")


@pytest.fixture
def journal(tmp_path: Path) -> Path:
    path = tmp_path / "journal.db"
    with sqlite3.connect(path) as connection:
        connection.executescript(WRITTEN.read_text("utf-8"))
    connection.close()
    return path


@pytest.mark.parametrize("name", SHIPPED)
def test_a_journal_of_0_1_answers_for_a_shipped_reward(name: str, journal: Path, tmp_path: Path) -> None:
    passages = tmp_path / "passages.jsonl"
    passages.write_text(PASSAGES, "utf-8")

    async def run() -> tuple[rf.ScoredGroup, int]:
        async with rf.RewardAgent(SHIPPED[name](URL, passages), journal=journal, run=name, max_attempts=1) as agent:
            (group,) = await agent.submit(rollouts()).all()
        return group, agent.statistics().calls

    group, calls = asyncio.run(run())
    assert calls == 0
    assert all(reward.cached and reward.value is not None for reward in group.rewards)
