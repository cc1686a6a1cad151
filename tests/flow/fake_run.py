"""A run of the flow with fakes on a clock that jumps, judges for it, and schedules to draw from."""

import asyncio
import random
from collections import Counter
from collections.abc import Callable
from typing import Any

from hypothesis import strategies as st

from rewardflow import clock
from rewardflow.flow.fakes import CentredScores, FakeGenerator, FakePrompts, FakeTrainer
from rewardflow.flow.flow_parts import FlowParts
from rewardflow.flow.records import Boundary, JudgedRollout
from rewardflow.flow.reports import StepReport
from rewardflow.flow.run import Flow
from rewardflow.flow.schedule import Schedule
from rewardflow.observe.events import EventList
from rewardflow.reward.agent import RewardAgent

Judge = Callable[..., Any]


class FakeRun:
    """One run of the flow with fakes, and its reports, rollouts and events."""

    def __init__(self, schedule: Schedule, judge: Judge, *, group_size: int = 4, **others: Any) -> None:
        self.schedule = schedule
        self.judge = judge
        self.group_size = group_size
        self.prompts = FakePrompts()
        self.generator = others.pop("generator", None) or FakeGenerator(rollout_s=0.1)
        self.trainer = others.pop("trainer", None) or FakeTrainer(
            forward_backward_s=0.05, log_probs_s=0.01, optim_s=0.3
        )
        self.slots = others.pop("slots", 64)
        self.others = others
        self.reports: list[StepReport] = []
        self.judged: dict[int, list[JudgedRollout]] = {}
        self.events = EventList()
        self.calls_left_out = 0
        self.start = Boundary(next_step=0)
        self.at_boundary: Any = None

    def run(self, steps: int = 4, **agent_settings: Any) -> "FakeRun":
        async def main() -> None:
            options = {"max_concurrency": self.slots, "timeout_s": None, "max_attempts": 1, **agent_settings}
            async with RewardAgent(self.judge, **options) as agent:
                parts = FlowParts(
                    schedule=self.schedule,
                    prompts=self.prompts,
                    generator=self.generator,
                    agent=agent,
                    trainer=self.trainer,
                    advantages=self.others.pop("advantages", CentredScores()),
                    group_size=self.group_size,
                    **{"micro_batch_tokens": 60, **self.others},
                )
                flow = Flow(
                    parts,
                    on_step=self.reports.append,
                    on_rollouts=lambda step, judged: self.judged.update({step: list(judged)}),
                    at_boundary=self.at_boundary,
                    sink=self.events,
                )
                await flow.run(steps=steps, start=self.start)
                self.calls_left_out = agent.statistics().in_flight

        clock.run(main())
        return self

    def trained(self) -> list[tuple[int, str]]:
        return [(batch.step, s.rollout.response) for batch in self.trainer.batches for s in batch.samples]

    def trained_prompts(self) -> Counter[str]:
        return Counter(s.rollout.prompt for b in self.trainer.batches for s in b.samples if s.rollout.index == 0)


def judge_of(seed: int, *, slow: Callable[[int], bool] = lambda _: False, failing: float = 0.0) -> Judge:
    """Returns a judge whose scores and delays depend only on the seed and the answer."""

    async def compute_score(data_source: str, solution_str: str, ground_truth: str) -> float:
        chance = random.Random(f"{seed} {solution_str}")
        await asyncio.sleep(chance.uniform(1, 40) * (20 if slow(int(ground_truth)) else 1))
        if chance.random() < failing:
            raise ValueError("no verdict")
        return chance.random()

    return compute_score


SCHEDULES = st.builds(
    lambda minis, size, **others: Schedule(groups_per_step=minis * size, mini_batches=minis, **others),
    st.integers(1, 4),
    st.integers(1, 3),
    stream=st.sampled_from(["batch", "mini_batch", "micro_batch"]),
    max_staleness=st.integers(0, 3),
    order=st.sampled_from(["completion", "fixed"]),
    placement=st.sampled_from(["colocated", "separate"]),
    refill=st.integers(0, 3),
)
