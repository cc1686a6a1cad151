"""Five thousand calls to a judge that misbehaves in every way at once: right verdicts, or honest failures."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

import pytest

import rewardflow as rf
from rewardflow.mock_judge import MockJudge, MockJudgeSettings
from rewardflow.reward.agent_statistics import AgentStatistics
from rewardflow.services import Criterion, LLMJudge

NUM_CALLS = 5_000
FAULTS = {
    "429": 0.05,
    "500": 0.03,
    "hang": 0.01,
    "reset": 0.01,
    "malformed_body": 0.005,
    "malformed_verdict": 0.005,
    "wrong_schema": 0.01,
    "nan": 0.01,
}
CRITERIA = (Criterion("correctness", weight=3.0), Criterion("clarity", low=1, high=5), Criterion("brevity", low=0.0))
KINDS: Mapping[str, frozenset[str]] = {  # what an attempt fails of, by the kind of failure it is told as
    "rate_limited": frozenset({"429"}),
    "timeout": frozenset({"hang"}),
    "service": frozenset({"500", "reset"}),
    "unparsable": frozenset({"malformed_body", "malformed_verdict", "wrong_schema", "nan"}),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    judge: LLMJudge
    mock: MockJudge
    rollouts: list[rf.Rollout]
    groups: list[rf.ScoredGroup]
    agent: AgentStatistics

    @property
    def rewards(self) -> list[rf.Reward]:
        return [reward for group in self.groups for reward in group.rewards]

    @property
    def num_sent_twice(self) -> int:
        """By the HTTP client, which cannot tell a reset from a connection that was closed for being idle."""
        return self.mock.statistics().calls - self.agent.calls


async def score_all(num_calls: int = NUM_CALLS, *, max_attempts: int = 3) -> Run:
    settings = MockJudgeSettings(seed=5, latency="uniform:1,40", scale=0.001, faults=FAULTS, hang_s=60_000.0)
    rollouts = [
        rf.Rollout(group_id=str(i // 5), index=i % 5, group_size=5, prompt=f"What is {i} + 1?", response=str(i + 1))
        for i in range(num_calls)
    ]
    async with MockJudge(settings) as mock:
        judge = LLMJudge(model="m", base_urls=[mock.base_url], criteria=CRITERIA)
        # These 429s come by chance and not of a rate, so there is no rate to be learnt from them.
        async with rf.RewardAgent(
            judge, max_concurrency=256, rpm=None, timeout_s=10.0, backoff_s=0.02, max_attempts=max_attempts
        ) as agent:
            groups = await agent.submit(rollouts).all()
            return Run(judge=judge, mock=mock, rollouts=rollouts, groups=groups, agent=agent.statistics())


@pytest.fixture(scope="module")
def run() -> Run:
    """One run for all tests: it is the same to each of them, and takes a while."""
    return asyncio.run(score_all())


def test_every_rollout_has_one_verdict(run: Run) -> None:
    assert [rollout for group in run.groups for rollout in group.rollouts] == run.rollouts
    assert len(run.rewards) == NUM_CALLS


def test_every_score_is_what_the_judge_gave(run: Run) -> None:
    for reward in run.rewards:
        if reward.is_scored:
            assert reward.query is not None
            given = run.mock.verdict_of(reward.query, run.judge.rubric.schema)
            assert reward.extras["scores"] == {criterion.name: given[criterion.name] for criterion in CRITERIA}
            assert reward.explanation == given["reason"]


def test_every_value_is_the_weighted_mean_of_the_scores_on_0_to_1(run: Run) -> None:
    for reward in run.rewards:
        if reward.is_scored:
            assert reward.query is not None
            correctness = run.mock.score_of(reward.query, "correctness", 0, 10, whole=True) / 10
            clarity = (run.mock.score_of(reward.query, "clarity", 1, 5, whole=True) - 1) / 4
            brevity = run.mock.score_of(reward.query, "brevity", 0, 10) / 10
            assert reward.components == {"correctness": correctness, "clarity": clarity, "brevity": brevity}
            assert reward.value == pytest.approx((3 * correctness + clarity + brevity) / 5, abs=1e-12)


def test_every_failure_has_no_value_and_tells_a_reason_that_the_judge_gave_cause_for(run: Run) -> None:
    for reward in run.rewards:
        if not reward.is_scored:
            assert reward.value is None
            assert reward.kind in KINDS
            assert reward.error
            assert reward.attempts >= 3


def test_with_a_single_attempt_every_fault_fails_one_verdict_with_its_reason() -> None:
    run = asyncio.run(score_all(1_000, max_attempts=1))
    met = run.mock.statistics().outcomes
    failed = Counter(reward.kind for reward in run.rewards if not reward.is_scored)
    assert failed == {
        "timeout": met["hang"],
        "service": met["500"] + met["reset"] - run.num_sent_twice,
        "unparsable": sum(met[fault] for fault in KINDS["unparsable"]),
    }  # and none is rate_limited: a 429 uses up no attempt
    assert met["429"] > 0


def test_under_half_a_percent_fail_with_three_attempts(run: Run) -> None:
    assert sum(not reward.is_scored for reward in run.rewards) < 0.005 * NUM_CALLS


def test_every_fault_of_the_judge_was_met_and_told_as_what_it_was(run: Run) -> None:
    met = run.mock.statistics().outcomes
    assert set(met) == {*FAULTS, "answered"}
    told = run.agent.accounts[0].outcomes
    for kind, faults in KINDS.items():
        hidden = run.num_sent_twice if kind == "service" else 0
        assert told[kind] + hidden == sum(met[fault] for fault in faults)
    assert told["scored"] == met["answered"] == sum(reward.is_scored for reward in run.rewards)


def test_every_attempt_is_one_call_but_for_those_on_connections_that_looked_closed(run: Run) -> None:
    sent = run.mock.statistics()
    assert sent.calls == sum(sent.outcomes.values())
    assert sum(reward.attempts for reward in run.rewards) == run.agent.calls
    assert 0 <= run.num_sent_twice <= sent.outcomes["reset"]
