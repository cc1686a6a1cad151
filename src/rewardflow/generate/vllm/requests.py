"""What a rollout asks of vLLM, and what vLLM's answer says.

Always true: the seed of a rollout is a function of the run's seed, its group's number and its index; log-probs are
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
from rewardflow.settings.run_settings import GenerationSettings
from rewardflow.types import Rollout

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

_LARGEST_SEED = 0x7FFF_FFFF_FFFF_FFFF  # that vLLM takes


@dataclass(frozen=True, slots=True)
class Asked:
    """One rollout to come."""

    request: GroupRequest
    index: int
    prompt_ids: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Completion:
    """A response, and the version that sampled each of its tokens."""

    ended: Ended
    versions: Sequence[int]

    def to_rollout(self) -> Rollout:
        oldest = min(self.versions)
        return self.ended.to_rollout(oldest, None if max(self.versions) == oldest else self.versions)


class Sampling:
    """`eos_ids` end a response beside the stop strings, whatever the files of the model say."""

    def __init__(self, settings: GenerationSettings, *, seed: int, eos_ids: Set[int]) -> None:
        self._settings = settings
        self._seed = seed
        self._eos_ids = sorted(eos_ids)

    def parameters(self, asked: Asked) -> Any:
        """vLLM's SamplingParams."""
        from vllm import SamplingParams
        from vllm.sampling_params import RequestOutputKind

        settings = self._settings
        is_greedy = asked.request.is_baseline(asked.index)
        return SamplingParams(
            n=1,  # requests of several rollouts would end together
            output_kind=RequestOutputKind.FINAL_ONLY,
            temperature=0.0 if is_greedy else settings.temperature,
            top_p=1.0 if is_greedy else settings.top_p,
            top_k=0 if is_greedy else settings.top_k,
            seed=self.seed_of(asked),
            max_tokens=settings.max_response_tokens,
            stop=list(settings.stop),
            stop_token_ids=self._eos_ids,
            ignore_eos=True,  # the list above has them all
            logprobs=0,  # of the sampled token alone
            flat_logprobs=True,
            detokenize=bool(settings.stop),  # the text of a response is decoded here, from all of its tokens
        )

    def seed_of(self, asked: Asked) -> int:
        stream = random_streams(self._seed, [asked.request.number], [asked.index])
        return int(stream[0].item()) & _LARGEST_SEED

    def answer(self, asked: Asked, completion: Any, tokenizer: PreTrainedTokenizerBase) -> Completion:
        """`completion` is vLLM's CompletionOutput."""
        if completion.finish_reason not in ("stop", "length"):
            raise FlowError(
                f"vLLM must end a response at a stop or at its length, got {completion.finish_reason} for rollout "
                f"{asked.index} of group {asked.request.group_id}"
            )
        token_ids = list(completion.token_ids)
        ended = Ended(
            request=asked.request,
            index=asked.index,
            prompt_ids=asked.prompt_ids,
            token_ids=token_ids,
            log_probs=_log_probs(asked, completion.logprobs, token_ids),
            is_truncated=completion.finish_reason == "length",
            text=str(tokenizer.decode(token_ids, skip_special_tokens=True)),
        )
        return Completion(ended, _versions(asked, completion.weight_versions, len(token_ids)))


def _log_probs(asked: Asked, told: Any, token_ids: Sequence[int]) -> list[float]:
    """`told` is vLLM's FlatLogprobs, which has an entry for each token."""
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
    """`spans` are vLLM's WeightVersionSpans, one after another."""
    versions = [int(span.version) for span in spans or () for _ in range(span.start, span.end)]
    if not versions or len(versions) != num_tokens:
        raise FlowError(
            f"vLLM must tell the version of each of {num_tokens} tokens, got {len(versions)} for group "
            f"{asked.request.group_id}"
        )
    return versions
