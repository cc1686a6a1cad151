"""Says in words which correction for stale rollouts a run takes, and why.

Always true: the words follow from the settings alone; figures that they point to are in docs/benchmarks.md.
"""

from __future__ import annotations

from dataclasses import dataclass

from rewardflow.settings.run_settings import AlgorithmSettings, RunSettings
from rewardflow.settings.sections.generation import ENGINES

_SHOWN_IN = "docs/benchmarks.md, Learning"


@dataclass(frozen=True, slots=True, kw_only=True)
class ChosenCorrection:
    name: str
    reason: str


def chosen_correction(settings: RunSettings) -> ChosenCorrection:
    """Describes the run's correction, `none` included."""
    algorithm, staleness = settings.algorithm, settings.schedule.max_staleness
    names = list(_names(algorithm))
    if names:
        return ChosenCorrection(name=", ".join(names), reason="set in algorithm")
    if staleness:
        age = f"rollouts are up to {staleness} step{'s' * (staleness > 1)} old"
        found = "every correction tried learnt later"
        if staleness > 1:
            found = "no correction tried was better, and more than 1 step makes learning slower"
        return ChosenCorrection(name="none", reason=f"{age}; {found} ({_SHOWN_IN})")
    if not ENGINES[settings.generation.engine].computes_as_trainer:
        return ChosenCorrection(
            name="none", reason="rollouts are of the weights that train; engine_diff_mean says how the engine's differ"
        )
    return ChosenCorrection(name="none", reason="rollouts are of the weights that train")


def _names(algorithm: AlgorithmSettings) -> list[str]:
    names = []
    if algorithm.ratio_to == "behaviour":
        names.append("ratio to the policy that generated")
    if algorithm.weigh_by is not None:
        cap = algorithm.behaviour_weight_cap
        bound = "" if cap is None else f" up to {cap:g}, above it {algorithm.above_cap.replace('_', ' ')}"
        names.append(f"weights by {algorithm.weigh_by}{bound}")
    if algorithm.reject is not None:
        low, high = algorithm.reject_outside
        names.append(f"rejection by {algorithm.reject} outside {low:g} to {high:g}")
    return names
