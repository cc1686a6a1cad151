"""A sample of verl's as the job's agent judges it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import rewardflow.clock
from rewardflow.adapters.verl.sample_judge import SampleJudge
from rewardflow.types import Reward, Rollout

FIELDS: dict[str, Any] = {"uid": "u", "session_id": 1, "global_steps": 3, "topic": "sums"}


class Words:
    """A tokenizer of three words and a special token."""

    def decode(self, ids: Sequence[int], *, skip_special_tokens: bool) -> str:
        assert skip_special_tokens
        return " ".join(("", "one", "two", "three")[token] for token in ids if token)


class Counting:
    """An agent that scores the number of words."""

    needs_groups = False

    async def score(self, rollout: Rollout) -> Reward:
        if not rollout.response:
            return Reward(kind="unparsable", error="no word")
        return Reward(value=float(len(rollout.response.split())), extras={"num_words": len(rollout.response.split())})


def judged(response_ids: list[int], **own: Any) -> tuple[Rollout, Reward]:
    config = {
        "rewardflow": own,
        "data": {"reward_fn_key": "topic"},
        "actor_rollout_ref": {"rollout": {"n": 4}},
        "reward": {},
        "trainer": {"project_name": "p", "experiment_name": "e", "default_local_dir": "d"},
    }
    judge = SampleJudge(config, Words(), Counting())

    async def ask() -> tuple[Rollout, Reward]:
        rollout = await judge.rollout(FIELDS, prompt_ids=[1, 0], response_ids=response_ids)
        return rollout, await judge.verdict(rollout)

    return rewardflow.clock.run(ask())


def test_the_judge_sees_texts_without_special_tokens_and_the_place_of_the_sample() -> None:
    rollout, reward = judged([2, 3, 0])
    assert (rollout.prompt, rollout.response, rollout.data_source) == ("one", "two three", "sums")
    assert (rollout.group_id, rollout.index, rollout.group_size, rollout.step) == ("u", 1, 4, 3)
    assert (reward.value, dict(reward.extras)) == (2.0, {"num_words": 2})


def test_an_overlong_response_loses_a_part_and_validation_goes_by_the_judges_own_score() -> None:
    _, reward = judged([1, 2, 3, 0], overlong={"limit": 4, "buffer": 2, "penalty": 0.5})
    assert reward.value == 3.0 - 0.5
    assert dict(reward.extras) == {"acc": 3.0, "num_words": 3, "overlong_reward": -0.5}


def test_a_failed_verdict_has_no_penalty_and_stays_failed() -> None:
    _, reward = judged([0, 0, 0, 0], overlong={"limit": 4, "buffer": 2})
    assert (reward.value, reward.kind) == (None, "unparsable")
