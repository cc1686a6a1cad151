"""Predicts the demo's step times with the planner, from the device's work without a judge.

Always true: the prediction uses times that were measured while no call was running, so it holds on a quiet machine
whatever else used this one during the runs.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from rewardflow.flow.reports import StepReport
from rewardflow.flow.schedule import Schedule
from rewardflow.plan.named_schedules import SYNCHRONOUS, min_steps
from rewardflow.plan.planner import make_plan
from rewardflow.plan.settings import DeviceSettings, PlanSettings, ServiceSettings
from rewardflow.reward.latency import LONGEST_S, SHORTEST_S

OVERLAPPED = "pipeline_one_step"


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceWork:
    """Seconds of the device's work in one step."""

    generation_s: float
    log_probs_s: float
    update_s: float
    publish_s: float

    @classmethod
    def of(cls, step: StepReport) -> DeviceWork:
        busy_s = step.usage.busy_s
        return cls(
            generation_s=busy_s.get("generate", 0.0),
            log_probs_s=busy_s.get("log_probs", 0.0),
            update_s=busy_s.get("update", 0.0),
            publish_s=busy_s.get("publish", 0.0),
        )

    @property
    def compute_s(self) -> float:
        return self.generation_s + self.log_probs_s + self.update_s + self.publish_s


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpectedSteps:
    """The planner's step times for the demo's workload."""

    synchronous_s: float
    overlapped_s: float

    @property
    def saved_share(self) -> float:
        return 1 - self.overlapped_s / self.synchronous_s

    def to_json(self) -> dict[str, Any]:
        return {"synchronous_s": self.synchronous_s, "overlapped_s": self.overlapped_s}


def expected_steps(
    alone: DeviceWork, schedule: Schedule, group_size: int, *, slots: int, scale: float, seed: int
) -> ExpectedSteps:
    steps = min_steps(OVERLAPPED) + 4
    settings = PlanSettings(
        prompts=schedule.groups_per_step,
        responses=group_size,
        mini_batches=schedule.mini_batches,
        micro_batches=1,
        device=DeviceSettings(
            generation_s=alone.generation_s,
            log_probs_s=alone.log_probs_s,
            update_s=alone.update_s,
            publish_s=alone.publish_s,
        ),
        service=ServiceSettings(slots=slots, latency=f"uniform:{SHORTEST_S * scale},{LONGEST_S * scale}"),
        steps=steps,
        simulated_steps=steps,
        schedules=(SYNCHRONOUS, OVERLAPPED),
        seed=seed,
    )
    by_name = {row.schedule: row.step_s for row in make_plan(settings).rows}
    return ExpectedSteps(synchronous_s=by_name[SYNCHRONOUS], overlapped_s=by_name[OVERLAPPED])
