"""`rewardflow bench algorithms`: measures whether every algorithm learns.

The tiny model, from random weights, learns to copy digits, once with each choice of advantage, loss, correction, KL and
aggregation. The benchmark reads the choices from their definitions, so that a new choice is a new row.

Always true: a row is the common base with only the changes that it names, and trains on as many rollouts a step as any
other row; a step has several updates, so that clipping has an effect, and rollouts are one step old, so that
corrections have an effect.
"""

from __future__ import annotations

import asyncio
import time
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from statistics import fmean
from typing import Any, Literal, get_args, get_type_hints

from rewardflow.bench.benchmark_row import BenchmarkRow
from rewardflow.bench.learning.copying_runs import copying_settings, grade
from rewardflow.bench.learning.target_reward import WINDOW
from rewardflow.flow.records import GREEDY
from rewardflow.reward.agent import RewardAgent
from rewardflow.runtime.local import embedded
from rewardflow.settings.algorithm_needs import ADVANTAGES
from rewardflow.settings.copying_run import ALGORITHM, CRITIC, TRAINER
from rewardflow.settings.run_settings import (
    Aggregation,
    AlgorithmSettings,
    CriticSettings,
    LossKlEstimator,
    RejectBy,
    RunSettings,
    WeighBy,
)
from rewardflow.types import Reward, Rollout

JudgedBy = Literal["exact", "pass_at_k"]

SEEDS = (0,)
STEPS = 200
ROLLOUTS_PER_STEP = 512
GROUP_SIZE = 16
BAR = ">= 0.9"
_NUM_DIGITS = 2
_TRAINER = replace(TRAINER, lr=1e-3, lr_schedule="cosine", min_lr_share=0.0)
_SCHEDULE = "one_step"
# An entropy bonus competes with the advantages. Advantages that are divided by a spread are about 1 in size, and the
# base's bonus suits them; undivided ones are as small as the differences between scores.
_UNDIVIDED_BONUS = 0.02
_UNDIVIDED = frozenset(("rloo", "opo", "gpg", "remax"))
# Without siblings or a critic an advantage depends more on the prompt than on the answer: the policy learns the digits
# of some prompts late, and still needs entropy then.
_WHOLE_BATCH_BONUS = 0.2
_WHOLE_BATCH = "reinforce_plus_plus"
# Only one answer of a group has an advantage, and none if two share the best score, while all have the bonus.
_BEST_OF_GROUP_BONUS = 0.001
_BEST_OF_GROUP = "grpo_passk"
# Four updates move a token's probability by about this much while the policy learns fast. A narrower range leaves out
# the tokens that have just become likely, and some prompts never learn theirs.
_KEPT_RATIOS = (0.2, 5.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Variant:
    """One row: the settings that differ from the base."""

    changes: Mapping[str, Any] = field(default_factory=dict)  # of `algorithm`

    @property
    def judged_by(self) -> JudgedBy:
        return "pass_at_k" if self.changes.get("advantage") == _BEST_OF_GROUP else "exact"

    @property
    def name(self) -> str:
        changes = dict(self.changes)
        if self.group_size != GROUP_SIZE:
            changes["group_size"] = self.group_size
        if self.schedule != _SCHEDULE:
            changes["schedule"] = self.schedule
        if self.critic != CRITIC:
            changes["critic.lr"] = self.critic.lr
        return ", ".join(f"{key}={value}" for key, value in changes.items()) or "base"

    @property
    def algorithm(self) -> AlgorithmSettings:
        return replace(ALGORITHM, **self.changes)

    @property
    def group_size(self) -> int:
        """One response a prompt for advantages over the whole batch: other prompts teach more than siblings."""
        kind = self.algorithm.kind
        return GROUP_SIZE if kind.compares_group or kind.greedy else 1

    @property
    def schedule(self) -> str:
        """On-policy for advantages against a greedy response, which beats most samples: their mean is below 0.

        Under the policy that sampled, this common part cancels out; under a later policy it biases the update.
        """
        return "synchronous" if self.algorithm.kind.greedy else _SCHEDULE

    @property
    def patience(self) -> int:
        """The factor on the number of steps: one greedy response is a noisier baseline than the mean of a group."""
        return 2 if self.algorithm.kind.greedy else 1

    @property
    def critic(self) -> CriticSettings:
        """A critic from random weights that learns as fast as the policy, if the row's advantage needs one."""
        is_used = self.algorithm.kind.critic
        return replace(CRITIC, lr=_TRAINER.lr, lr_schedule=_TRAINER.lr_schedule) if is_used else CRITIC

    def settings(self, *, seed: int, steps: int, rollouts_per_step: int) -> RunSettings:
        return copying_settings(
            self.schedule,
            seed=seed,
            steps=steps,
            groups_per_step=rollouts_per_step // self.group_size,
            group_size=self.group_size,
            num_digits=_NUM_DIGITS,
            algorithm=self.algorithm,
            trainer=_TRAINER,
            critic=self.critic,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class AlgorithmFigures:
    """The results of one run. `pass_at_k` is the share of prompts with at least one right answer in the group."""

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
    """Yields the base first: `grpo` divided by the group's spread, with the loss `ppo`."""
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
            if name == _BEST_OF_GROUP:
                changes["entropy_coef"] = _BEST_OF_GROUP_BONUS
            elif name == _WHOLE_BATCH:
                changes["entropy_coef"] = _WHOLE_BATCH_BONUS
            elif name in _UNDIVIDED or scale == "none":
                changes["entropy_coef"] = _UNDIVIDED_BONUS
            yield Variant(changes=changes)


def _losses() -> Iterator[Variant]:
    for loss in _others(get_type_hints(AlgorithmSettings)["loss"], "loss"):
        yield Variant(changes={"loss": loss})
    yield Variant(changes={"ratio_to": "behaviour"})
    yield Variant(changes={"mask_truncated": True})
    for unit in get_args(WeighBy):
        yield Variant(changes={"behaviour_weights": unit})
    yield Variant(changes={"behaviour_weights": "token", "behaviour": "trainer", "above_cap": "truncate"})
    for unit in get_args(RejectBy):
        yield Variant(changes={"reject": unit, "reject_outside": _KEPT_RATIOS})


def _distances() -> Iterator[Variant]:
    for estimator in get_args(LossKlEstimator):
        yield Variant(changes={"kl_coef": 0.01, "kl_estimator": estimator})
    yield Variant(changes={"reward_kl_coef": 0.01})
    yield Variant(changes={"reward_kl_coef": 0.01, "reward_kl_target": 1.0})


def _others(choices: Any, setting: str) -> Sequence[str]:
    """Returns all choices but the base's."""
    return [choice for choice in get_args(choices) if choice != getattr(AlgorithmSettings(), setting)]


def run_algorithm_benchmarks(
    *, quick: bool = False, seeds: Sequence[int] = SEEDS, steps: int = STEPS
) -> Iterator[AlgorithmFigures]:
    """Yields figures as they are measured; `quick` runs only the base and every advantage."""
    for variant in [Variant(), *_advantages()] if quick else variants():
        for seed in seeds:
            yield measure(variant, seed=seed, steps=steps * variant.patience)


def measure(variant: Variant, *, seed: int, steps: int, rollouts_per_step: int = ROLLOUTS_PER_STEP) -> AlgorithmFigures:
    rule = GradedRule()
    began_s = time.perf_counter()
    asyncio.run(_train(variant.settings(seed=seed, steps=steps, rollouts_per_step=rollouts_per_step), rule))
    last = [grades for step, grades in sorted(rule.grades.items()) if step >= steps - WINDOW]
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
    """Scores without delay, and records for each step and group which sampled answers were right."""

    def __init__(self) -> None:
        self.grades: defaultdict[int, defaultdict[str, list[bool]]] = defaultdict(lambda: defaultdict(list))

    async def compute_score(self, rollout: Rollout) -> Reward:
        reward = grade(rollout)
        if not rollout.extra_info.get(GREEDY):  # a baseline for the others, not a sample
            self.grades[rollout.step][rollout.group_id].append(reward.components["exact"] == 1.0)
        return reward


async def _train(settings: RunSettings, rule: GradedRule) -> None:
    async with embedded(settings, agent=RewardAgent(rule, max_concurrency=256)) as run:
        await run.train()


def report_of(figures: Iterable[AlgorithmFigures]) -> dict[str, Any]:
    """Returns the whole benchmark as one JSON object."""
    every = list(figures)
    return {"algorithms": [one.to_json() for one in every], "rows": [row.to_json() for row in rows_of(every)]}


def rows_of(figures: Iterable[AlgorithmFigures]) -> Iterator[BenchmarkRow]:
    """Yields rows for the table as the figures come."""
    for one in figures:
        judged = {"exact": "right of the last", "pass_at_k": "prompts with a right answer, of the last"}[one.judged_by]
        yield BenchmarkRow(
            name=f"{one.name}, seed {one.seed}, {one.steps} steps, {one.seconds:.0f} s: {judged}",
            value=getattr(one, one.judged_by),
            unit="",
            bar=BAR,
        )
