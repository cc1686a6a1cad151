"""How long a step of one of verl's own modes waited for verdicts."""

from __future__ import annotations

from rewardflow.adapters.verl.accounting.group_report import GroupReport, JudgedSample
from rewardflow.adapters.verl.own_modes.sampled_step import SampledStep
from rewardflow.types import Reward

TAG = {"min_global_steps": 2, "response_len": 7}


def group(uid: str, *rewards: Reward) -> GroupReport:
    verdicts = tuple(JudgedSample(index=index, reward=reward) for index, reward in enumerate(rewards))
    return GroupReport(uid=uid, step=3, size=len(rewards), verdicts=verdicts)


def test_waiting_is_exposed_as_far_as_everything_was_generated() -> None:
    step = SampledStep(3, group_size=2)
    step.waited(2.0, generated_for_s=None)  # the device was generating
    step.waited(2.0, generated_for_s=0.5)  # until half a second ago
    step.waited(2.0, generated_for_s=9.0)
    step.sampled(6.5, [TAG])
    metrics = step.metrics(outstanding_s=6.0)
    assert metrics["rewardflow/exposed_s"] == metrics["rewardflow/idle_s/reward"] == 2.5
    assert metrics["rewardflow/busy_s/generate"] == 4.0
    assert metrics["rewardflow/hidden_s"] == 3.5


def test_devices_that_only_train_are_idle_while_others_generate() -> None:
    step = SampledStep(3, group_size=2, is_colocated=False)
    step.sampled(4.0, [TAG])
    metrics = step.metrics(outstanding_s=1.0)
    assert metrics["rewardflow/idle_s/generation"] == 4.0
    assert "rewardflow/busy_s/generate" not in metrics


def test_every_group_that_leaves_is_counted_once_and_verdicts_by_outcome() -> None:
    step = SampledStep(3, group_size=2)
    step.left([group("a", Reward(value=1.0), Reward(kind="timeout", error="late"))])
    step.left([group("b", Reward(kind="user_error", error="broke"))], dropped="too_few_verdicts")
    step.left([group("c")], dropped="evicted_by_verl")
    step.sampled(1.0, [TAG])
    metrics = step.metrics(outstanding_s=0.0)
    assert metrics["rewardflow/groups/trained"] == 1
    assert metrics["rewardflow/groups/dropped/too_few_verdicts"] == 1
    assert metrics["rewardflow/groups/dropped/evicted_by_verl"] == 1
    assert metrics["rewardflow/verdicts/scored"] == 1
    assert metrics["rewardflow/verdicts/failed"] == 2
    assert metrics["rewardflow/verdicts/failed/timeout"] == 1
    assert metrics["rewardflow/rollouts/not_generated"] == 3
    assert metrics["rewardflow/staleness/max"] == 0
