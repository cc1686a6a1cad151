"""Generates with the very module that the trainer updates, through transformers, on any device.

Always true: one call generates with one version, because generating and publishing take turns on the device thread;
every rollout asked for is given once, as soon as it has ended, unless the caller stops listening; the module is left
in the mode it was in.
"""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, Iterator, Sequence
from contextlib import aclosing, contextmanager, nullcontext
from dataclasses import replace
from typing import TYPE_CHECKING

import torch
from torch import nn

from rewardflow.flow.device_thread import DeviceThread, Emitter
from rewardflow.flow.records import GroupRequest
from rewardflow.generate.hf.decoding import Decoder, DecodingRow, Response
from rewardflow.generate.hf.grouped_attention import grouped_attention
from rewardflow.generate.hf.key_value_slab import check_cache_fits
from rewardflow.generate.hf.stopping import StopRule
from rewardflow.generate.prompt_encoder import PromptEncoder, check_positions
from rewardflow.generate.responses import Ended, EngineStatistics
from rewardflow.policy.load_policy import Policy
from rewardflow.settings.run_settings import GenerationSettings
from rewardflow.types import Rollout

if TYPE_CHECKING:
    from transformers import PreTrainedModel


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
        check_positions(settings, getattr(config, "max_position_embeddings", None))
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
            DecodingRow(request, index, prompt_ids, is_greedy=request.is_baseline(index))
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
            yield Ended(
                request=response.row.request,
                index=response.row.index,
                prompt_ids=response.row.prompt_ids,
                token_ids=response.token_ids,
                log_probs=response.log_probs,
                is_truncated=response.is_truncated,
                text=text,
            ).to_rollout(self._version)

    def _count(self, responses: Sequence[Response]) -> None:
        for one in responses:
            self._statistics = self._statistics.plus(len(one.token_ids), is_truncated=one.is_truncated)


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
