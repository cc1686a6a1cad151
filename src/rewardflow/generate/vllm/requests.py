"""Turns a rollout that is asked for into vLLM's sampling parameters, and vLLM's answer into a rollout.

Always true: the seed of a rollout is a function of the sampling's seed, its group's number and its index; log-probs are
those of the whole distribution at the temperature of sampling, but for greedy rollouts, which nobody trains on.
"""

from __future__ import annotations

import math
from collections.abc import Sequence, Set
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from rewardflow.errors import FlowError, InvalidInput
from rewardflow.flow.records import GroupRequest
from rewardflow.generate.hf.sampling import random_streams
from rewardflow.generate.responses import Ended
from rewardflow.types import Rollout

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

_LARGEST_SEED = 0x7FFF_FFFF_FFFF_FFFF  # that vLLM takes


@dataclass(frozen=True, slots=True)
class Asked:
    """One rollout that is asked for."""

    request: GroupRequest
    index: int
    prompt_ids: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class VllmCompletion:
    """A response, and the version of the weights that sampled each of its tokens."""

    ended: Ended
    versions: Sequence[int]

    def to_rollout(self) -> Rollout:
        oldest = min(self.versions)
        return self.ended.to_rollout(oldest, None if max(self.versions) == oldest else self.versions)


def sampling_parameters(asked: Asked, *, stop: Sequence[str], eos_ids: Set[int]) -> Any:
    """Returns vLLM's SamplingParams.

    `eos_ids` end a response beside the stop strings, whatever the files of the model say.
    """
    from vllm import SamplingParams
    from vllm.sampling_params import RequestOutputKind

    sampling = asked.request.sampling
    is_greedy = asked.request.is_baseline(asked.index)
    return SamplingParams(
        n=1,  # requests of several rollouts would end together
        output_kind=RequestOutputKind.FINAL_ONLY,
        temperature=0.0 if is_greedy else sampling.temperature,
        top_p=1.0 if is_greedy else sampling.top_p,
        top_k=0 if is_greedy else sampling.top_k,
        seed=seed_of(asked),
        max_tokens=sampling.max_response_tokens,
        stop=list(stop),
        stop_token_ids=sorted(eos_ids),
        ignore_eos=True,  # the list above has them all
        logprobs=0,  # of the sampled token alone
        flat_logprobs=True,
        detokenize=bool(stop),  # the text of a response is decoded here, from all of its tokens
    )


def seed_of(asked: Asked) -> int:
    stream = random_streams(asked.request.sampling.seed, [asked.request.number], [asked.index])
    return int(stream[0].item()) & _LARGEST_SEED


def completion_of(asked: Asked, output: Any, tokenizer: PreTrainedTokenizerBase) -> VllmCompletion:
    """Reads `output`, which is vLLM's CompletionOutput."""
    if output.finish_reason not in ("stop", "length"):
        raise FlowError(
            f"vLLM must end a response at a stop or at its length, got {output.finish_reason} for rollout "
            f"{asked.index} of group {asked.request.group_id}"
        )
    token_ids = list(output.token_ids)
    ended = Ended(
        request=asked.request,
        index=asked.index,
        prompt_ids=asked.prompt_ids,
        token_ids=token_ids,
        log_probs=_log_probs(asked, output.logprobs, token_ids),
        is_truncated=output.finish_reason == "length",
        text=str(tokenizer.decode(token_ids, skip_special_tokens=True)),
    )
    return VllmCompletion(ended, _versions(asked, output.weight_versions, len(token_ids)))


def _log_probs(asked: Asked, told: Any, token_ids: Sequence[int]) -> list[float]:
    """Checks `told`, which is vLLM's FlatLogprobs and has an entry for each token."""
    if told is None or list(told.token_ids) != list(token_ids):
        raise FlowError(
            f"vLLM must tell a log-prob of each sampled token, got others for group {asked.request.group_id}"
        )
    log_probs = list(told.logprobs)
    if not all(map(math.isfinite, log_probs)):
        raise InvalidInput(
            "the policy's logits must be finite, got NaN or infinity for a token of group "
            f"{asked.request.group_id}; its weights have most likely diverged"
        )
    return log_probs


def _versions(asked: Asked, spans: Any, num_tokens: int) -> list[int]:
    """Expands `spans`, which are vLLM's WeightVersionSpans, one after another."""
    versions = [int(span.version) for span in spans or () for _ in range(span.start, span.end)]
    if not versions or len(versions) != num_tokens:
        raise FlowError(
            f"vLLM must tell the version of each of {num_tokens} tokens, got {len(versions)} for group "
            f"{asked.request.group_id}"
        )
    return versions
