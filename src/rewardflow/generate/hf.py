"""Generates with the very module that the trainer updates, through transformers, on any device.

Always true: one call generates with one version, because generating and publishing take turns on the device thread;
every rollout asked for is given once, as soon as it has ended, unless the caller stops listening; the module is left
in the mode it was in.
"""

from __future__ import annotations

import time
from array import array
from collections.abc import AsyncGenerator, Iterator, Mapping, Sequence
from contextlib import aclosing, contextmanager, nullcontext
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from rewardflow.config.tree import GenerationSettings
from rewardflow.device_thread import DeviceThread, Emitter
from rewardflow.errors import InvalidInput
from rewardflow.flow.records import GroupRequest
from rewardflow.generate.decoding import Decoder, Response, Row
from rewardflow.generate.grouped_attention import grouped_attention
from rewardflow.generate.key_value_slab import check_cache_fits
from rewardflow.generate.prompts import PromptEncoder
from rewardflow.generate.stopping import StopRule
from rewardflow.policy.loading import Policy
from rewardflow.types import Rollout

if TYPE_CHECKING:
    from transformers import PreTrainedModel


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineStatistics:
    """Since the start. `busy_s` is the time the device thread spent generating."""

    num_rollouts: int = 0
    num_response_tokens: int = 0
    num_truncated: int = 0
    busy_s: float = 0.0


class HFEngine:
    """A `Generator` of the flow. `autocast` is the trainer's, so that both compute in the same precision."""

    def __init__(
        self,
        policy: Policy,
        settings: GenerationSettings,
        *,
        seed: int,
        thread: DeviceThread,
        autocast: torch.dtype | None = None,
    ) -> None:
        config = policy.model.config.get_text_config()
        check_cache_fits(policy.model.config)
        _check_positions(settings, getattr(config, "max_position_embeddings", None))
        self.encoder = PromptEncoder(policy.tokenizer, settings)
        self._policy = policy
        self._rule = StopRule(policy, settings.stop, config.vocab_size)
        self._decoder = Decoder(policy, settings, seed, self._rule)
        self._thread = thread
        self._autocast = autocast
        self._version = 0
        self._statistics = EngineStatistics()

    async def generate(self, requests: Sequence[GroupRequest]) -> AsyncGenerator[Rollout]:
        """Close it to stop before the end: no token is decoded after the one that is under way."""
        wanted = tuple(requests)
        rollouts: AsyncGenerator[Rollout] = self._thread.stream(lambda emitter: self._generate(wanted, emitter))
        async with aclosing(rollouts):
            async for rollout in rollouts:
                yield rollout

    async def publish(self, version: int) -> None:
        """The module is the trainer's own, so the weights are there; this waits until nothing is being generated."""
        await self._thread.run(lambda: setattr(self, "_version", version))

    def statistics(self) -> EngineStatistics:
        return self._statistics

    # -- on the device thread --

    def _generate(self, requests: Sequence[GroupRequest], emitter: Emitter[Rollout]) -> None:
        started_s = time.perf_counter()
        rows = [
            Row(request, index, prompt_ids, is_greedy=request.is_baseline(index))
            for request in requests
            for prompt_ids in (self.encoder.encode(request.prompt),)
            for index in range(request.group_size)
        ]
        with _generating(self._policy.model, self._autocast):
            self._rule.to(self._policy.model.device)
            for responses in self._decoder.decode(rows, lambda: emitter.is_stopped):
                emitter.emit(*self._rollouts(responses))
                self._count(responses)
        self._statistics = replace(self._statistics, busy_s=self._statistics.busy_s + time.perf_counter() - started_s)

    def _rollouts(self, responses: Sequence[Response]) -> Iterator[Rollout]:
        texts = self._policy.tokenizer.batch_decode(
            [response.token_ids for response in responses], skip_special_tokens=True
        )
        for response, text in zip(responses, texts, strict=True):
            yield _rollout(response, text, self._version)

    def _count(self, responses: Sequence[Response]) -> None:
        before = self._statistics
        self._statistics = replace(
            before,
            num_rollouts=before.num_rollouts + len(responses),
            num_response_tokens=before.num_response_tokens + sum(len(one.token_ids) for one in responses),
            num_truncated=before.num_truncated + sum(one.is_truncated for one in responses),
        )


def _rollout(response: Response, text: str, version: int) -> Rollout:
    """`extra_info` says `truncated: True` of a response that was cut off, and nothing of others; see also `info_of`."""
    row, request = response.row, response.row.request
    prompt = request.prompt
    num_prompt, num_response = len(row.prompt_ids), len(response.token_ids)
    extra_info: Mapping[str, Any] = request.info_of(row.index)
    return Rollout(
        group_id=request.group_id,
        index=row.index,
        group_size=request.group_size,
        step=request.step,
        prompt=prompt.text,
        messages=prompt.messages,
        response=text,
        ground_truth=prompt.ground_truth,
        data_source=prompt.data_source,
        extra_info={**extra_info, "truncated": True} if response.is_truncated else extra_info,
        token_ids=array("i", (*row.prompt_ids, *response.token_ids)),
        response_mask=array("b", bytes(num_prompt) + b"\1" * num_response),
        log_probs=array("f", (*(0.0,) * num_prompt, *response.log_probs)),
        policy_version=version,
    )


@contextmanager
def _generating(model: PreTrainedModel, autocast: torch.dtype | None) -> Iterator[None]:
    """Without dropout and gradients."""
    was_training = model.training
    model.train(False)
    try:
        precision = nullcontext() if autocast is None else torch.autocast(model.device.type, autocast)
        with _without_gradients(model), precision, grouped_attention(model):
            yield
    finally:
        model.train(was_training)


@contextmanager
def _without_gradients(model: PreTrainedModel) -> Iterator[None]:
    """In inference mode, where a small model decodes an eighth faster, as far as the model can still be trained.

    Weights that FSDP2 gathers in it could not be; nor could buffers that a model makes in it and keeps, such as tables
    of positions that grow with the text, so these are made anew.
    """
    if any(type(weight) is not nn.Parameter for weight in model.parameters()):
        with torch.no_grad():
            yield
        return
    try:
        with torch.inference_mode():
            yield
    finally:
        for module in model.modules():
            for name, buffer in module._buffers.items():
                if buffer is not None and buffer.is_inference():
                    module._buffers[name] = buffer.clone()


def _check_positions(settings: GenerationSettings, max_positions: int | None) -> None:
    needed = settings.max_prompt_tokens + settings.max_response_tokens
    if max_positions is not None and needed > max_positions:
        raise InvalidInput(
            "generation.max_prompt_tokens and max_response_tokens together must not exceed the positions the model "
            f"knows, got {settings.max_prompt_tokens} + {settings.max_response_tokens} for {max_positions}"
        )
