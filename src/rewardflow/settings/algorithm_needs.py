"""Lists what each estimator of advantages needs and which settings it takes, without its mathematics.

Always true: `ADVANTAGES` has every choice of `algorithm.advantage`. The checks of settings and the table of
docs/algorithms.md use it. The estimators themselves are in `rewardflow.algo.estimators`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, get_args

from rewardflow.flow.schedule import Stream

Needs = Literal["group", "mini_batch", "batch"]

# The values of `schedule.stream` that wait for at least as much as the advantages need.
STREAMS: Mapping[Needs, tuple[Stream, ...]] = {
    "group": get_args(Stream),
    "mini_batch": ("batch", "mini_batch"),
    "batch": ("batch",),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class AdvantageKind:
    """One estimator. `why_batch` says what it needs of the whole batch; `greedy` and `critic` say what a run adds."""

    formula: str
    when_failed: str  # the effect of failed verdicts, beyond their own advantage of 0
    compares_group: bool = True  # then a group needs at least two rollouts
    takes_components: bool = False  # then each component of the reward can have an advantage of its own
    takes_scale: bool = False
    takes_discount: bool = False
    takes_whiten: bool = False  # then `whiten: false` removes the need for the whole batch
    why_batch: str = ""
    greedy: bool = False  # each group gets one more rollout, decoded greedily, as its baseline
    critic: bool = False  # a critic learns the value of each token; `lam` says how much to trust it

    @property
    def needs(self) -> Needs:
        """What it needs with default settings; `scale: batch` and a KL target also need the batch."""
        return "batch" if self.why_batch else "group"


ADVANTAGES: Mapping[str, AdvantageKind] = {
    "grpo": AdvantageKind(
        formula="(s - mean of the group) / spread",
        when_failed="no part in mean and spread",
        takes_components=True,
        takes_scale=True,
        takes_discount=True,
    ),
    "grpo_passk": AdvantageKind(
        formula="for the best of the group (s - second best) / spread, for the others 0",
        when_failed="cannot be best or second, no part in the spread",
        takes_components=True,
        takes_scale=True,
    ),
    "rloo": AdvantageKind(
        formula="s - mean of the others of the group",
        when_failed="no part in the others' means",
        takes_components=True,
    ),
    "opo": AdvantageKind(
        formula="s - mean of the group, weighted by response length",
        when_failed="neither score nor length in the mean",
        takes_components=True,
    ),
    "gpg": AdvantageKind(
        formula="(s - mean of the group) x rollouts of the batch / those with s other than 0",
        when_failed="no part in the mean, in neither count",
        why_batch="counts the scores of the whole batch that are not 0",
    ),
    "reinforce_plus_plus": AdvantageKind(
        formula="return of each token, whitened over the tokens of the batch",
        when_failed="its tokens are in neither mean nor spread",
        compares_group=False,
        takes_discount=True,
        why_batch="whitens over the tokens of the whole batch",
    ),
    "reinforce_plus_plus_baseline": AdvantageKind(
        formula="s - mean of the group, whitened over the tokens of the batch",
        when_failed="no part in the group's mean; its tokens are in neither mean nor spread",
        why_batch="whitens over the tokens of the whole batch",
    ),
    "remax": AdvantageKind(
        formula="s - score of the greedy response, which each group has besides",
        when_failed="without the greedy response's verdict the group is dropped",
        compares_group=False,
        greedy=True,
    ),
    "gae": AdvantageKind(
        formula="generalized advantage against a critic's values, whitened over the tokens of the batch",
        when_failed="its tokens are in neither mean nor spread",
        compares_group=False,
        takes_discount=True,
        takes_whiten=True,
        why_batch="whitens over the tokens of the whole batch",
        critic=True,
    ),
}
