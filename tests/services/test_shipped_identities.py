"""What a journal of version 0.1 holds is paid for: only a reward that gives other verdicts asks for it again."""

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


# Their prompts changed since 0.1, and with them the verdicts: their revision was raised.
RAISED = frozenset(
    {name for name in SHIPPED if "judge" in name or "cascade" in name} | {"listwise", "pairwise", "retrieval"}
)


def answered(name: str, journal: Path, tmp_path: Path) -> tuple[rf.ScoredGroup, int]:
    passages = tmp_path / "passages.jsonl"
    passages.write_text(PASSAGES, "utf-8")

    async def run() -> tuple[rf.ScoredGroup, int]:
        async with rf.RewardAgent(SHIPPED[name](URL, passages), journal=journal, run=name, max_attempts=1) as agent:
            (group,) = await agent.submit(rollouts()).all()
        return group, agent.statistics().calls

    return asyncio.run(run())


@pytest.mark.parametrize("name", [name for name in SHIPPED if name not in RAISED])
def test_a_journal_of_0_1_answers_for_a_shipped_reward(name: str, journal: Path, tmp_path: Path) -> None:
    group, calls = answered(name, journal, tmp_path)
    assert calls == 0
    assert all(reward.cached and reward.value is not None for reward in group.rewards)


@pytest.mark.parametrize("name", sorted(RAISED))
def test_a_journal_of_0_1_does_not_answer_for_a_reward_that_gives_other_verdicts(
    name: str, journal: Path, tmp_path: Path
) -> None:
    group, _ = answered(name, journal, tmp_path)  # nobody listens at the address of the judge
    assert not any(reward.cached for reward in group.rewards)
