"""Generates with a module of transformers, on any device: the one that the trainer updates, or a copy.

Always true: one call generates with one version, because generating and publishing take turns on the device thread;
every requested rollout is yielded once, as soon as it has ended, unless the caller closes the stream; the module is
left in the mode it was in.
"""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

import torch
from torch import Tensor, nn

from rewardflow.errors import InvalidInput
from rewardflow.flow.device_thread import DeviceThread, Emitter
from rewardflow.flow.records import GroupRequest, Sampling
from rewardflow.generate.engines import NamedTensors
from rewardflow.generate.hf.decoding import Decoder, DecodingRow, Response
from rewardflow.generate.hf.grouped_attention import grouped_attention
from rewardflow.generate.hf.key_value_slab import check_cache_fits
from rewardflow.generate.hf.stopping import StopRule
from rewardflow.generate.hf.weight_update import WeightUpdate
from rewardflow.generate.prompt_encoder import PromptEncoder, check_positions
from rewardflow.generate.responses import Ended, EngineStatistics
from rewardflow.policy.load_policy import Policy
from rewardflow.settings.run_settings import GenerationSettings
from rewardflow.types import Rollout

if TYPE_CHECKING:
    from transformers import PreTrainedModel


class HFEngine:
    """An `Engine` on `policy.model`, which is the trainer's own unless `weights` gives the trainer's, or it is fed.

    `autocast` is the trainer's, so that both compute in the same precision.
    """

    def __init__(
        self,
        policy: Policy,
        settings: GenerationSettings,
        *,
        samplings: Sequence[Sampling],
        thread: DeviceThread,
        autocast: torch.dtype | None = None,
        weights: Callable[[], NamedTensors] | None = None,
    ) -> None:
        config = policy.model.config.get_text_config()
        check_cache_fits(policy.model.config)
        check_positions(settings.max_prompt_tokens, samplings, getattr(config, "max_position_embeddings", None))
        self.encoder = PromptEncoder(policy.tokenizer, settings)
        self._policy = policy
        self._rule = StopRule(policy, settings.stop, config.vocab_size)
        self._decoder = Decoder(policy, self._rule, settings.max_sequences, autocast)
        self._thread = thread
        self._autocast = autocast
        self._weights = weights
        self._update = WeightUpdate(policy.model)
        self._version = 0
        self._statistics = EngineStatistics()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None: ...

    def generate(self, requests: Sequence[GroupRequest]) -> AsyncGenerator[Rollout]:
        """Closing it stops before the end: no token is decoded after the present one."""
        wanted = tuple(requests)
        return self._thread.stream(lambda emitter: self._generate(wanted, emitter))

    async def publish(self, version: int) -> None:
        """Waits until nothing is being generated."""
        await self._thread.run(lambda: self._publish(version))

    async def begin_generating(self) -> None:
        """Does nothing: the module that generates is where it always is."""

    async def end_generating(self) -> None:
        """Does nothing, too."""

    async def receive(self, weights: Mapping[str, Tensor]) -> None:
        await self._thread.run(lambda: self._update.put(weights.items()))

    async def answer_sender(self, call: str, info: dict[str, Any]) -> None:
        raise InvalidInput("an engine on transformers has no workers that receive weights by themselves")

    def statistics(self) -> EngineStatistics:
        return self._statistics

    # -- on the device thread --

    def _publish(self, version: int) -> None:
        if self._weights is not None:
            self._update.put(self._weights())
        self._update.end()
        self._version = version

    def _generate(self, requests: Sequence[GroupRequest], emitter: Emitter[Rollout]) -> None:
        started_s = time.perf_counter()
        with _generating(self._policy.model, self._autocast):
            self._rule.to(self._policy.model.device)
            for sampling in dict.fromkeys(request.sampling for request in requests):
                rows = self._rows([request for request in requests if request.sampling == sampling])
                for responses in self._decoder.decode(rows, sampling, lambda: emitter.is_stopped):
                    emitter.emit(*self._rollouts(responses))
                    self._count(responses)
        self._statistics = replace(self._statistics, busy_s=self._statistics.busy_s + time.perf_counter() - started_s)

    def _rows(self, requests: Sequence[GroupRequest]) -> list[DecodingRow]:
        return [
            DecodingRow(request, index, prompt_ids, is_greedy=request.is_baseline(index))
            for request in requests
            for prompt_ids in (self.encoder.encode(request.prompt),)
            for index in range(request.group_size)
        ]

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
    """Generates without dropout and gradients inside."""
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
    """Uses inference mode, in which a small model decodes an eighth faster, unless that would prevent training.

    Weights that FSDP2 gathers in inference mode cannot be trained. Nor can a model with buffers that it made in that
    mode and keeps, such as tables of positions that grow with the text: these are cloned at the end.
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
