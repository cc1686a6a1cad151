"""Training is the same update whatever is overlapped: real model, real loop, failures, KL and clipping active.

Each run trains the tiny policy with an agent whose delays are drawn anew; scores and failures depend on the answer.
"""

import asyncio
from typing import Any

import pytest
import torch
from tiny_run import erratic_agent

from rewardflow.flow.reports import StepReport
from rewardflow.flow.schedule import Schedule
from rewardflow.runtime.local import embedded
from rewardflow.settings.run_settings import (
    AlgorithmSettings,
    DataSettings,
    GenerationSettings,
    RunSettings,
    TrainerSettings,
)

STEPS = 5


def settings(schedule: Schedule, **algorithm: Any) -> RunSettings:
    return RunSettings(
        reward="rule.py:compute_score",
        data=DataSettings(task="copy_digits"),
        schedule=schedule,
        steps=STEPS,
        generation=GenerationSettings(group_size=4, max_prompt_tokens=16, max_response_tokens=6),
        algorithm=AlgorithmSettings(kl_coef=0.05, **algorithm),
        # A large rate and a small range, so that ratios leave it; a small norm, so that gradients are cut.
        trainer=TrainerSettings(lr=3e-3, max_grad_norm=0.05, micro_batch_tokens=120, threads=1),
    )


class Trained:
    """What came of a run: the weights, the gradient of its first update, and what its steps were like."""

    def __init__(self) -> None:
        self.weights: list[torch.Tensor] = []
        self.first_gradient: torch.Tensor | None = None
        self.reports: list[StepReport] = []

    @property
    def flat(self) -> torch.Tensor:
        return torch.cat([weight.flatten() for weight in self.weights]).double()


def train(run_settings: RunSettings, delay_seed: int, steps: int = STEPS) -> Trained:
    trained = Trained()

    async def main() -> None:
        async with embedded(run_settings, agent=erratic_agent(delay_seed), on_step=trained.reports.append) as run:

            def keep_gradient(optimizer: torch.optim.Optimizer, *_: Any) -> None:
                if trained.first_gradient is None:
                    gradients = [p.grad for group in optimizer.param_groups for p in group["params"]]
                    trained.first_gradient = torch.cat([g.flatten() for g in gradients if g is not None]).double()

            run.trainer.optimizer.register_step_pre_hook(keep_gradient)
            await run.flow.run(steps=steps)
            trained.weights = [parameter.detach().clone() for parameter in run.policy.model.parameters()]

    asyncio.run(main())
    return trained


@pytest.mark.parametrize("loss", ["ppo", "decoupled"])
def test_with_a_fixed_order_the_weights_are_bit_equal_for_every_stream_and_any_delays(loss: Any) -> None:
    schedule = Schedule(groups_per_step=8, mini_batches=2, order="fixed")
    runs = [
        train(settings(schedule.changed(stream=stream), loss=loss), delay_seed)
        for delay_seed, stream in enumerate(("batch", "mini_batch", "micro_batch"))
    ]
    for other in runs[1:]:
        assert all(torch.equal(one, two) for one, two in zip(runs[0].weights, other.weights, strict=True))
    reports = runs[0].reports
    assert sum(sum(report.failed.values()) for report in reports) > 0
    assert any(report.metrics["clipped_low"] + report.metrics["clipped_high"] > 0 for report in reports)
    assert all(update.grad_norm > 0.05 for report in reports for update in report.updates if update.num_sequences)
    assert any(report.metrics["kl"] > 0 for report in reports)


@pytest.mark.parametrize("aggregation", ["token_mean", "seq_mean_token_sum", "seq_mean_token_mean", "fixed_length"])
def test_streaming_gradients_in_the_order_of_completion_is_the_synchronous_update(aggregation: Any) -> None:
    schedule = Schedule(groups_per_step=8, mini_batches=1, order="completion")
    one = train(settings(schedule, aggregation=aggregation), 0, steps=1)
    other = train(settings(schedule.changed(stream="micro_batch"), aggregation=aggregation), 7, steps=1)
    start = train(settings(schedule, aggregation=aggregation), 0, steps=0)
    assert one.first_gradient is not None
    assert other.first_gradient is not None
    error = (one.first_gradient - other.first_gradient).norm() / one.first_gradient.norm()
    assert error <= 1e-5
    assert (one.flat - other.flat).norm() <= 1e-4 * (one.flat - start.flat).norm()
    assert (one.flat - start.flat).norm() > 0


def test_a_different_update_would_be_noticed() -> None:
    schedule = Schedule(groups_per_step=8, mini_batches=2, order="fixed")
    one = train(settings(schedule), 0)
    other = train(settings(schedule, dual_clip=1.01, clip_high=0.01), 0)
    assert not all(torch.equal(mine, theirs) for mine, theirs in zip(one.weights, other.weights, strict=True))
