"""Holds the records of the flow: a prompt becomes a request, rollouts, a scored group, samples, an update.

Always true: records are frozen. A sample holds its rollout, verdict, advantage and precomputed figures in one record,
so a number cannot end up on another rollout's tokens.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from rewardflow.types import EMPTY, Reward, Rollout

DropReason = Literal["too_few_verdicts", "equal_scores", "no_baseline"]
WhyNot = Literal["failed", "truncated", "too_few_verdicts", "equal_scores", "no_baseline", "baseline", "not_needed"]

GREEDY = "greedy"  # key in a rollout's extra_info, for groups with a baseline: whether this rollout is the baseline
TRUNCATED = "truncated"  # key in a rollout's extra_info: only the limit of tokens ended the response


@dataclass(frozen=True, slots=True, kw_only=True)
class Prompt:
    """One task of the data set. `uid` names it there; the same prompt may come again in another epoch."""

    uid: str
    messages: Sequence[Mapping[str, Any]] = ()
    text: str = ""  # the raw prompt, for models without a chat template; used if `messages` is empty
    ground_truth: Any = None
    data_source: str = ""
    extra_info: Mapping[str, Any] = EMPTY


@dataclass(frozen=True, slots=True, kw_only=True)
class Sampling:
    """How the responses to a request are sampled; training and validation have one each.

    `top_k=0` and `top_p=1.0` leave the distribution whole; `top_k=1` takes the likeliest token.
    """

    seed: int = 0  # the random numbers of a rollout follow from it, the group's number and the rollout's index
    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    max_response_tokens: int = 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupRequest:
    """A request for `group_size` rollouts of one prompt. `number` counts groups over the whole run and seeds sampling.

    With a baseline, the generator decodes the last rollout greedily. The agent judges it like the others, the
    advantages compare the others with it, and the trainer never trains on it. Validation groups count their numbers
    separately; their `prefix` keeps their ids apart from those of training.
    """

    number: int
    step: int
    prompt: Prompt
    group_size: int
    sampling: Sampling = Sampling()
    has_baseline: bool = False
    prefix: str = ""

    @property
    def group_id(self) -> str:
        return f"{self.prefix}{self.number}"

    def is_baseline(self, index: int) -> bool:
        return self.has_baseline and index == self.group_size - 1

    def extra_info_of(self, index: int) -> Mapping[str, Any]:
        info = self.prompt.extra_info
        return {**info, GREEDY: self.is_baseline(index)} if self.has_baseline else info


@dataclass(frozen=True, slots=True, kw_only=True)
class Precomputed:
    """Log-probs and values of one rollout's sampled tokens, computed by the trainer before it trains on them.

    The flow only passes them on, in the trainer's own format. All but `values` are log-probs.
    """

    old: Any = None  # under the weights before the step's first update
    reference: Any = None
    behaviour: Any = None  # under the weights that generated, if the trainer computed them instead of the engine
    values: Any = None  # the critic's value at each token, before the step's first update


@dataclass(frozen=True, slots=True, kw_only=True)
class PreparedRollout:
    """A rollout with its precomputed log-probs and values."""

    rollout: Rollout
    precomputed: Precomputed


@dataclass(frozen=True, slots=True, kw_only=True)
class SavedStep:
    """A step that was generated but not trained. A resumed run continues it; its verdicts are in the journal."""

    step: int
    requests: tuple[GroupRequest, ...]
    rollouts: tuple[PreparedRollout, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Boundary:
    """A run's position after it published a step and before it admits the next one: no work is half done.

    `validations` are the earlier versions whose verdicts are incomplete; `step` of each is the version.
    """

    next_step: int
    open_steps: tuple[SavedStep, ...] = ()
    validations: tuple[SavedStep, ...] = ()


PrecomputedOf = Callable[[Rollout], Precomputed]


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """One rollout, ready to train on. A failed or masked one stays in its group and has no weight in any sum.

    The others of its group are compared with a masked one, and not with a failed one, whose advantage is 0.
    """

    rollout: Rollout
    reward: Reward
    advantage: Any  # a number, one number per sampled token, or another form that the trainer understands
    precomputed: Precomputed
    is_masked: bool = False

    @property
    def is_scored(self) -> bool:
        return self.reward.value is not None

    @property
    def why_not(self) -> WhyNot | None:
        """Says why the sample is not trained on; None if it is."""
        if not self.is_scored:
            return "failed"
        return "truncated" if self.is_masked else None


@dataclass(frozen=True, slots=True, kw_only=True)
class JudgedRollout:
    """A rollout with its verdict, and why the flow did not train on it; `why_not` is None if it did.

    `failed`: the verdict has no number; `truncated`: the response was cut off, and such are masked;
    `too_few_verdicts`, `equal_scores`, `no_baseline`: the flow dropped the group; `baseline`: the rest of the group was
    compared with this rollout; `not_needed`: the group was a reserve, and other groups had already filled the step.
    """

    rollout: Rollout
    reward: Reward
    advantage: Any = None
    why_not: WhyNot | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class MicroBatch:
    """The samples of one forward and backward pass. With several ranks, the last one of an update reduces gradients."""

    step: int
    mini_batch: int
    samples: tuple[Sample, ...]
    is_last: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class UpdateReport:
    """The result of one optimizer step. `metrics`, by name, are sums over its samples, already divided.

    `by_staleness` holds, for each staleness among the samples, the metrics that the trainer computes separately for
    it. The loop sets `mini_batch` and `epoch`.
    """

    num_sequences: int
    num_tokens: int
    grad_norm: float
    lr: float
    metrics: Mapping[str, float] = field(default_factory=dict)
    by_staleness: Mapping[int, Mapping[str, float]] = field(default_factory=dict)
    mini_batch: int = 0
    epoch: int = 0


def num_sampled_tokens(rollout: Rollout) -> int:
    """Counts without a Python loop: responses may have thousands of tokens, and a step thousands of responses."""
    mask = rollout.response_mask
    if mask is None:
        return 0
    return mask.tobytes().count(1) if isinstance(mask, array) and mask.itemsize == 1 else sum(mask)


def is_truncated(rollout: Rollout) -> bool:
    return bool(rollout.extra_info.get(TRUNCATED))


def num_tokens(rollout: Rollout) -> int:
    """Counts prompt and response tokens, which is the length of a forward pass."""
    return len(rollout.token_ids or ())
