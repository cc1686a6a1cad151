"""Whether every algorithm learns: `rewardflow bench algorithms`.

The tiny model, from random weights, learns to copy digits, once with each choice of advantage, loss, correction, KL and
aggregation. What there is to choose is read from where it is defined, so that a new choice is a new row.

Always true: a row is the common base with the changes that it names, and nothing else; rollouts are one step old, so
that corrections have something to correct, and a step has several updates, so that clips have something to clip.
"""

from __future__ import annotations

import asyncio
import time
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from statistics import fmean
from typing import Any, Literal, get_args, get_type_hints

from rewardflow.bench.learning import GROUPS_PER_STEP, LAST_STEPS, copying_settings, grade
from rewardflow.bench.rows import Row
from rewardflow.config.algorithms import ADVANTAGES
from rewardflow.config.tree import Aggregation, AlgorithmSettings, KlEstimator, RejectBy, RunSettings, WeighBy
from rewardflow.reward.agent import RewardAgent
from rewardflow.runtime.embedded import embedded
from rewardflow.types import Reward, Rollout

JudgedBy = Literal["exact", "pass_at_k"]

SEEDS = (0,)
STEPS = 240
BAR = ">= 0.9"
_NUM_DIGITS = 2
_SCHEDULE = "one_step"
# A bonus for entropy competes with advantages. Divided by their spread these are about 1 in size; undivided they are
# as large as scores differ, and all of a group but its best have none with `grpo_passk`.
_UNDIVIDED_BONUS = 0.03
_UNDIVIDED = frozenset(("grpo_passk", "rloo", "opo", "gpg", "remax"))


@dataclass(frozen=True, slots=True, kw_only=True)
class Variant:
    """One row: what is set otherwise than in the base."""

    changes: Mapping[str, Any] = field(default_factory=dict)  # of `algorithm`
    judged_by: JudgedBy = "exact"

    @property
    def name(self) -> str:
        return ", ".join(f"{key}={value}" for key, value in self.changes.items()) or "base"

    def settings(self, *, seed: int, steps: int, groups_per_step: int) -> RunSettings:
        base = copying_settings(
            _SCHEDULE, seed=seed, steps=steps, groups_per_step=groups_per_step, num_digits=_NUM_DIGITS
        )
        return replace(base, algorithm=replace(base.algorithm, **self.changes))


@dataclass(frozen=True, slots=True, kw_only=True)
class AlgorithmFigures:
    """How one run ended. `pass_at_k`: the share of prompts to which one answer of the group was right."""

    name: str
    judged_by: JudgedBy
    seed: int
    steps: int
    exact: float
    pass_at_k: float
    seconds: float

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def variants() -> Iterator[Variant]:
    """The base first: `grpo` divided by the group's spread, with the loss `ppo`."""
    yield Variant()
    yield from _advantages()
    yield from _losses()
    yield from _distances()
    for aggregation in _others(Aggregation, "aggregation"):
        yield Variant(changes={"aggregation": aggregation})


def _advantages() -> Iterator[Variant]:
    default = AlgorithmSettings()
    for name, kind in ADVANTAGES.items():
        scales = get_args(get_type_hints(AlgorithmSettings)["scale"]) if kind.takes_scale else (default.scale,)
        for scale in scales:
            chosen = {"advantage": name, "scale": scale}
            changes: dict[str, Any] = {key: value for key, value in chosen.items() if value != getattr(default, key)}
            if not changes:
                continue
            if name in _UNDIVIDED or scale == "none":
                changes["entropy_coef"] = _UNDIVIDED_BONUS
            yield Variant(changes=changes, judged_by="pass_at_k" if name == "grpo_passk" else "exact")


def _losses() -> Iterator[Variant]:
    for loss in _others(get_type_hints(AlgorithmSettings)["loss"], "loss"):
        yield Variant(changes={"loss": loss})
    for unit in get_args(WeighBy):
        yield Variant(changes={"behaviour_weights": unit})
    yield Variant(changes={"behaviour_weights": "token", "behaviour": "trainer", "above_cap": "truncate"})
    for unit in get_args(RejectBy):
        yield Variant(changes={"reject": unit})


def _distances() -> Iterator[Variant]:
    for estimator in get_args(KlEstimator):
        yield Variant(changes={"kl_coef": 0.01, "kl_estimator": estimator})
    yield Variant(changes={"reward_kl_coef": 0.01})
    yield Variant(changes={"reward_kl_coef": 0.01, "reward_kl_target": 1.0})


def _others(choices: Any, setting: str) -> Sequence[str]:
    """All but the one that the base has."""
    return [choice for choice in get_args(choices) if choice != getattr(AlgorithmSettings(), setting)]


def run_algorithm_benchmarks(
    *, quick: bool = False, seeds: Sequence[int] = SEEDS, steps: int = STEPS
) -> Iterator[AlgorithmFigures]:
    """Figures as they are measured. Quick: the base and every advantage."""
    for variant in [Variant(), *_advantages()] if quick else variants():
        for seed in seeds:
            yield measure(variant, seed=seed, steps=steps)


def measure(variant: Variant, *, seed: int, steps: int, groups_per_step: int = GROUPS_PER_STEP) -> AlgorithmFigures:
    rule = GradedRule()
    began_s = time.perf_counter()
    asyncio.run(_train(variant.settings(seed=seed, steps=steps, groups_per_step=groups_per_step), rule))
    last = [grades for step, grades in sorted(rule.grades.items()) if step >= steps - LAST_STEPS]
    return AlgorithmFigures(
        name=variant.name,
        judged_by=variant.judged_by,
        seed=seed,
        steps=steps,
        exact=fmean(is_right for step in last for group in step.values() for is_right in group),
        pass_at_k=fmean(any(group) for step in last for group in step.values()),
        seconds=time.perf_counter() - began_s,
    )


class GradedRule:
    """Scores at once, and remembers which answers of which group of which step were right."""

    def __init__(self) -> None:
        self.grades: defaultdict[int, defaultdict[str, list[bool]]] = defaultdict(lambda: defaultdict(list))

    async def compute_score(self, rollout: Rollout) -> Reward:
        reward = grade(rollout)
        self.grades[rollout.step][rollout.group_id].append(reward.components["exact"] == 1.0)
        return reward


async def _train(settings: RunSettings, rule: GradedRule) -> None:
    async with embedded(settings, agent=RewardAgent(rule, max_concurrency=256)) as run:
        await run.train()


def report_of(figures: Iterable[AlgorithmFigures]) -> dict[str, Any]:
    """The whole benchmark as one JSON object."""
    every = list(figures)
    return {"algorithms": [one.to_json() for one in every], "rows": [row.to_json() for row in rows_of(every)]}


def rows_of(figures: Iterable[AlgorithmFigures]) -> Iterator[Row]:
    """Rows for the table, as the figures come."""
    for one in figures:
        judged = {"exact": "right of the last", "pass_at_k": "prompts with a right answer, of the last"}[one.judged_by]
        yield Row(
            name=f"{one.name}, seed {one.seed}, {one.steps} steps, {one.seconds:.0f} s: {judged}",
            value=getattr(one, one.judged_by),
            unit="",
            bar=BAR,
        )
