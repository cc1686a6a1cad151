"""What travels through the flow: a prompt becomes a request, rollouts, a scored group, samples, an update.

Always true: records are frozen, and what belongs together travels together: a sample has its rollout, its verdict, its
advantage and what was taken of its tokens, so nothing can be put on another's tokens.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from rewardflow.types import EMPTY, Reward, Rollout

DropReason = Literal["too_few_verdicts", "equal_scores", "no_baseline"]
WhyNot = Literal["failed", "too_few_verdicts", "equal_scores", "no_baseline", "baseline", "not_needed"]

GREEDY = "greedy"  # in the extra_info of every rollout of a group with a baseline: whether it is the baseline


@dataclass(frozen=True, slots=True, kw_only=True)
class Prompt:
    """One task of the data set. `uid` names it there; the same prompt may come again in another epoch."""

    uid: str
    messages: Sequence[Mapping[str, Any]] = ()
    text: str = ""  # the prompt as it is, for models without a chat template; used where there are no messages
    ground_truth: Any = None
    data_source: str = ""
    extra_info: Mapping[str, Any] = EMPTY


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupRequest:
    """Ask for `group_size` rollouts of one prompt. `number` counts groups over the whole run and seeds the sampling.

    With a baseline the last of them is decoded greedily: it is judged like the others, which are compared with it, and
    never trained on. A `prefix` keeps groups apart that are asked for besides training: they have numbers of their own.
    """

    number: int
    step: int
    prompt: Prompt
    group_size: int
    has_baseline: bool = False
    prefix: str = ""

    @property
    def group_id(self) -> str:
        return f"{self.prefix}{self.number}"

    def is_baseline(self, index: int) -> bool:
        return self.has_baseline and index == self.group_size - 1

    def info_of(self, index: int) -> Mapping[str, Any]:
        """The `extra_info` of a rollout."""
        info = self.prompt.extra_info
        return {**info, GREEDY: self.is_baseline(index)} if self.has_baseline else info


@dataclass(frozen=True, slots=True, kw_only=True)
class Taken:
    """What was taken of one rollout's sampled tokens before it is trained, as the trainer keeps it.

    The flow only carries it. All but `values` are log-probs.
    """

    old: Any = None  # under the weights before the step's first update
    reference: Any = None
    behaviour: Any = None  # under the weights that generated, if the trainer took them and not the engine
    values: Any = None  # what a critic expects at each token, before the step's first update


@dataclass(frozen=True, slots=True, kw_only=True)
class LookedAt:
    """A rollout with what was taken of it."""

    rollout: Rollout
    taken: Taken


@dataclass(frozen=True, slots=True, kw_only=True)
class SavedStep:
    """A step that was generated and not trained, for a resumed run to go on with. Its verdicts are in the journal."""

    step: int
    requests: tuple[GroupRequest, ...]
    rollouts: tuple[LookedAt, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Boundary:
    """Where a run stands when a step was published and the next is not admitted: nothing is half done.

    `validations` are earlier versions, by their number, whose verdicts are not all in.
    """

    next_step: int
    open_steps: tuple[SavedStep, ...] = ()
    validations: tuple[SavedStep, ...] = ()


TakenOf = Callable[[Rollout], Taken]


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """One rollout, ready to train on. A failed one stays in its place, with advantage 0 and no weight anywhere."""

    rollout: Rollout
    reward: Reward
    advantage: Any  # a number, one for each token of the response, or what else the trainer understands
    taken: Taken

    @property
    def is_scored(self) -> bool:
        return self.reward.value is not None


@dataclass(frozen=True, slots=True, kw_only=True)
class JudgedRollout:
    """What became of a rollout that has its verdict. `why_not` is None if it was trained.

    `failed`: its verdict has no number; `too_few_verdicts`, `equal_scores`, `no_baseline`: its group was dropped;
    `baseline`: the others of its group were compared with it; `not_needed`: its group was a reserve whose place was
    taken.
    """

    rollout: Rollout
    reward: Reward
    advantage: Any = None
    why_not: WhyNot | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class MicroBatch:
    """One forward and backward. With several ranks, gradients are reduced after the last one of an update."""

    step: int
    mini_batch: int
    samples: tuple[Sample, ...]
    is_last: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class UpdateReport:
    """What one optimizer step did: sums over its samples, already divided; `metrics` by name.

    `by_staleness` has, for each staleness among the samples, the metrics that are known apart for it. The loop says
    which mini-batch of which epoch it was.
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
    """Without a loop in Python: responses may have thousands of tokens, and a step thousands of responses."""
    mask = rollout.response_mask
    if mask is None:
        return 0
    return mask.tobytes().count(1) if isinstance(mask, array) and mask.itemsize == 1 else sum(mask)


def num_tokens(rollout: Rollout) -> int:
    """Prompt and response; what a forward pass has to look at."""
    return len(rollout.token_ids or ())
