"""ReMax as a run, and KL in the reward with one update a step."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from killed_run import settings_of, train, verdicts_in
from tiny_run import calls_in, settings_in

from rewardflow.flow.records import MicroBatch
from rewardflow.flow.reports import StepReport
from rewardflow.flow.schedule import Schedule
from rewardflow.runtime.local import embedded
from rewardflow.runtime.preflight import plan_calls
from rewardflow.settings.run_settings import AlgorithmSettings, RunSettings

torch.set_num_threads(1)

REMAX = AlgorithmSettings(advantage="remax")


class Cut(Exception):
    """The run ends here."""


def trained(settings: RunSettings) -> tuple[list[MicroBatch], list[StepReport]]:
    """What was trained on, and what the steps were like."""
    batches: list[MicroBatch] = []
    reports: list[StepReport] = []

    async def main() -> None:
        async with embedded(settings, on_step=reports.append, probes=False) as run:
            inner = run.trainer.forward_backward

            async def noting(batch: MicroBatch) -> None:
                batches.append(batch)
                await inner(batch)

            run.trainer.forward_backward = noting  # type: ignore[method-assign]
            await run.train()

    asyncio.run(main())
    return batches, reports


def test_each_group_is_judged_with_one_greedy_response_more_and_trained_without_it(tmp_path: Path) -> None:
    settings = settings_in(tmp_path, steps=2, algorithm=REMAX)
    batches, reports = trained(settings)
    assert len(calls_in(tmp_path)) == 2 * plan_calls(settings, ("rollout",)).a_step == 2 * 4 * 5
    samples = [sample for batch in batches for sample in batch.samples]
    assert len(samples) == 2 * 4 * 4
    assert {sample.rollout.index for sample in samples} == {0, 1, 2, 3}
    assert all(sample.rollout.extra_info["greedy"] is False for sample in samples)
    for report in reports:
        assert report.num_scored == 20
        assert report.baseline_score_mean is not None
        own = [
            s.reward.value for b in batches if b.step == report.step for s in b.samples if s.reward.value is not None
        ]
        assert report.score_mean == pytest.approx(sum(own) / len(own))


def test_what_is_sampled_does_not_depend_on_the_greedy_response(tmp_path: Path) -> None:
    found = []
    for algorithm in (REMAX, AlgorithmSettings()):
        batches, _ = trained(settings_in(tmp_path, steps=1, algorithm=algorithm))
        found.append({(s.rollout.group_id, s.rollout.index): s.rollout.response for b in batches for s in b.samples})
    assert found[0] == found[1]


def test_a_greedy_run_goes_on_as_it_would_have(tmp_path: Path) -> None:
    def settings_for(folder: Path) -> RunSettings:
        return settings_of(folder, steps=5, algorithm=replace(REMAX, reward_kl_coef=0.05))

    def cut(report: StepReport) -> None:
        if report.step == 3:
            raise Cut

    expected = asyncio.run(train(settings_for(tmp_path / "whole")))
    with pytest.raises(Cut):
        asyncio.run(train(settings_for(tmp_path / "broken"), on_step=cut))
    found = asyncio.run(train(settings_for(tmp_path / "broken"), resume=True))
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-6)
    whole, broken = verdicts_in(tmp_path / "whole"), verdicts_in(tmp_path / "broken")
    both = whole.keys() & broken.keys()  # a call that no longer mattered may have been ended before its verdict
    assert {place: whole[place] for place in both} == {place: broken[place] for place in both}
    assert {index for _, _, index in both} == set(range(5))


@pytest.mark.parametrize("stream", ["batch", "micro_batch"])
def test_kl_in_the_reward_takes_old_log_probs_where_a_step_has_one_update(tmp_path: Path, stream: Any) -> None:
    settings = settings_in(
        tmp_path,
        steps=2,
        schedule=Schedule(groups_per_step=4, stream=stream),
        algorithm=AlgorithmSettings(reward_kl_coef=0.1),
        run_dir=tmp_path / "run",
    )
    batches, _ = trained(settings)
    samples = [sample for batch in batches for sample in batch.samples]
    assert all(sample.precomputed.old is not None for sample in samples)
    lines = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text("utf-8").splitlines()]
    assert all("log_probs" in line["busy_s"] for line in lines)
    assert lines[0]["reward_kl_mean"] == pytest.approx(0.0, abs=1e-6)  # the policy is still the reference
    assert lines[1]["reward_kl_mean"] != 0.0
    assert {line["reward_kl_coef"] for line in lines} == {0.1}
