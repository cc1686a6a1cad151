"""Computes the floors of a step: lower bounds of its time under any schedule.

Always true: each floor is the time that one resource needs for a step if it never waits, without retries. In the long
run no step is shorter than the highest floor; at the start it may be, because some verdicts are ready in advance.
"""

from __future__ import annotations

from dataclasses import dataclass
from statistics import fmean
from typing import Literal

from rewardflow.plan.settings import PlanSettings

Binding = Literal["compute", "service_slots", "rate_limit", "tail"]

_NUM_DRAWS = 10_000
_AT_FLOOR = 1.03  # a step this close to its floor is at the floor; the rest is chance
_EXPLAINS = 0.75  # a resource that needs this share of the exposed time explains the waiting


@dataclass(frozen=True, slots=True, kw_only=True)
class Floors:
    """The lower bounds of a step's time, one per resource."""

    compute_s: float  # work of the device; with two devices, of the busier one
    slots_s: float  # latency of all calls, spread over all slots
    rate_s: float  # all calls, at the rate that the service allows

    @property
    def floor_s(self) -> float:
        return max(self.compute_s, self.slots_s, self.rate_s)

    @property
    def highest(self) -> Binding:
        if self.floor_s == self.compute_s:
            return "compute"
        return "service_slots" if self.slots_s >= self.rate_s else "rate_limit"

    def binding(self, *, step_s: float, exposed_s: float, slots_are_full: bool) -> Binding:
        """Returns the resource that limits the step. Slots limit it only if a call waited for one."""
        if step_s <= _AT_FLOOR * self.floor_s:
            return "tail" if self.highest == "service_slots" and not slots_are_full else self.highest
        if exposed_s <= (_AT_FLOOR - 1) * step_s:
            return "compute"
        slots_s = self.slots_s if slots_are_full else 0.0
        if max(slots_s, self.rate_s) < _EXPLAINS * exposed_s:
            return "tail"
        return "service_slots" if slots_s >= self.rate_s else "rate_limit"

    def to_json(self) -> dict[str, float]:
        return {"compute_s": self.compute_s, "slots_s": self.slots_s, "rate_s": self.rate_s}


def floors_of(settings: PlanSettings) -> Floors:
    service, calls = settings.service, settings.calls_per_step
    return Floors(
        compute_s=_compute_s(settings),
        slots_s=calls * mean_latency_s(settings) / service.slots,
        rate_s=max(
            0.0 if service.rpm is None else calls * 60.0 / service.rpm,
            0.0 if service.tpm is None else calls * service.tokens * 60.0 / service.tpm,
        ),
    )


def mean_latency_s(settings: PlanSettings) -> float:
    latency = settings.service.latency_function()
    return fmean(latency((number + 0.5) / _NUM_DRAWS) for number in range(_NUM_DRAWS))


def _compute_s(settings: PlanSettings) -> float:
    device = settings.device
    training_s = device.log_probs_s + device.update_s + settings.mini_batches * device.optimizer_s
    if device.placement == "separate":
        return max(device.generation_s, training_s) + device.publish_s
    return device.generation_s + training_s + device.publish_s
