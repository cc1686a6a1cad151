"""What each estimator of advantages needs and cannot have, without the mathematics.

Always true: `ADVANTAGES` has every choice of `algorithm.advantage`; settings are checked against it, and the table of
docs/algorithms.md is written from it. The estimators themselves are in `rewardflow.algo.estimators`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, get_args

from rewardflow.flow.schedule import Stream

Needs = Literal["group", "mini_batch", "batch"]

# `stream` waits for at least as much as the advantages need.
STREAMS: Mapping[Needs, tuple[Stream, ...]] = {
    "group": get_args(Stream),
    "mini_batch": ("batch", "mini_batch"),
    "batch": ("batch",),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class AdvantageKind:
    """`why_batch` says what it takes from the whole batch, `greedy` and `critic` what a run adds to feed it."""

    formula: str
    when_failed: str  # what failed verdicts change beyond getting 0
    compares_group: bool = True  # so that groups need two rollouts
    takes_scale: bool = False
    takes_discount: bool = False
    takes_whiten: bool = False  # so that `whiten: false` takes `why_batch` away
    why_batch: str = ""
    greedy: bool = False  # each group gets one more rollout, decoded greedily: its baseline
    critic: bool = False  # a critic learns the value of each token, and `lam` says how far to trust it

    @property
    def needs(self) -> Needs:
        """With the default settings; `scale: batch` and a KL target need the batch as well."""
        return "batch" if self.why_batch else "group"


ADVANTAGES: Mapping[str, AdvantageKind] = {
    "grpo": AdvantageKind(
        formula="(s - mean of the group) / spread",
        when_failed="no part in mean and spread",
        takes_scale=True,
        takes_discount=True,
    ),
    "grpo_passk": AdvantageKind(
        formula="for the best of the group (s - second best) / spread, for the others 0",
        when_failed="cannot be best or second, no part in the spread",
        takes_scale=True,
    ),
    "rloo": AdvantageKind(
        formula="s - mean of the others of the group",
        when_failed="no part in the others' means",
    ),
    "opo": AdvantageKind(
        formula="s - mean of the group, weighted by response length",
        when_failed="neither score nor length in the mean",
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
