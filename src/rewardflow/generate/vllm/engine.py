"""Generates with vLLM's asynchronous engine, whose weights follow the trainer's.

Always true: one request is one rollout, which is given the moment it has ended; every token is stamped with the version
that sampled it; what a request still needs after new weights is computed with them alone, because no key or value of
the old ones survives; whoever stops listening stops the requests.

An update that fails leaves weights that are no version: the engine stays paused then, and the error ends the run.
"""

from __future__ import annotations

import asyncio
import itertools
import tempfile
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping, Sequence
from contextlib import ExitStack, aclosing, asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from rewardflow.clock import hold
from rewardflow.errors import FlowError, InvalidInput
from rewardflow.flow.device_thread import DeviceThread
from rewardflow.flow.records import GroupRequest
from rewardflow.generate.hf.stopping import check_stop_strings
from rewardflow.generate.prompt_encoder import PromptEncoder, check_positions
from rewardflow.generate.responses import EngineStatistics
from rewardflow.generate.vllm.as_completed import as_they_end
from rewardflow.generate.vllm.requests import Asked, Sampling
from rewardflow.generate.vllm.saved_form import SavedForm
from rewardflow.generate.vllm.senders import (
    BlockingClient,
    DirectCall,
    DirectWeights,
    PushedWeights,
    WeightSender,
    open_receiver,
    open_sender,
)
from rewardflow.generate.vllm.sleeping import Sleeping
from rewardflow.generate.vllm.starting import check_installed, engine_arguments, import_vllm, start, write_outline
from rewardflow.generate.vllm.weight_source import ModelWeights, NamedTensors
from rewardflow.policy.load_policy import Policy
from rewardflow.settings.run_settings import GenerationSettings, VllmSettings
from rewardflow.types import Rollout

if TYPE_CHECKING:
    import torch
    from torch import Tensor


@dataclass(frozen=True, slots=True)
class _Running:
    """What exists between start and stop. `llm` is vLLM's AsyncLLM."""

    llm: Any
    sleeping: Sleeping
    client: BlockingClient
    sender: WeightSender
    closing: ExitStack

    @property
    def receiver(self) -> PushedWeights:
        if not isinstance(self.sender, PushedWeights):
            raise InvalidInput("only an engine whose trainer is elsewhere is given weights, got one that takes them")
        return self.sender

    @property
    def direct(self) -> DirectWeights:
        if not isinstance(self.sender, DirectWeights):
            raise InvalidInput("only vllm.transfer=nccl sends to vLLM's workers from elsewhere, got another")
        return self.sender


class VllmEngine:
    """A `Generator` of the flow, to be entered first.

    `weights` gives what is published, by the names that `policy.model` has; without it those are the model's own, which
    is the trainer's then. `thread` is the trainer's: weights are read there, where nobody changes them meanwhile.
    `is_fed`: the trainer is elsewhere, so nothing is read here, the model may be an outline, and `receive` is called
    with every piece of a version before `publish`, also of the first.

    `dtype` is what vLLM computes in. `is_colocated`: the trainer uses the same devices. `longest_response`: the most
    tokens that anybody will ask for who shares the engine.
    """

    def __init__(
        self,
        policy: Policy,
        settings: GenerationSettings,
        vllm: VllmSettings,
        *,
        seed: int,
        thread: DeviceThread,
        dtype: torch.dtype,
        is_colocated: bool = True,
        longest_response: int | None = None,
        weights: Callable[[], NamedTensors] | None = None,
        is_fed: bool = False,
    ) -> None:
        check_installed()
        check_positions(settings, getattr(policy.model.config.get_text_config(), "max_position_embeddings", None))
        check_stop_strings(settings.stop)
        self.encoder = PromptEncoder(policy.tokenizer, settings)
        self._policy = policy
        self._settings = settings
        self._vllm = vllm
        self._thread = thread
        self._dtype = dtype
        self._is_colocated = is_colocated
        self._is_fed = is_fed
        self._given_weights = weights
        self._max_tokens = settings.max_prompt_tokens + max(settings.max_response_tokens, longest_response or 0)
        self._sampling = Sampling(settings, seed=seed, eos_ids=policy.eos_ids)
        self._running: _Running | None = None
        self._numbers = itertools.count()
        self._updating = asyncio.Lock()
        self._statistics = EngineStatistics()

    async def __aenter__(self) -> Self:
        loop = asyncio.get_running_loop()
        try:
            await self._thread.run(lambda: import_vllm(self._vllm))
            await self._thread.run(lambda: self._start(loop))
            if not self._is_fed:
                await self._send(0)
            if self._vllm.sleep:
                await self._open().sleeping.fall_asleep()
        except BaseException:
            await self._thread.run(self._stop)
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self._thread.run(self._stop)

    def generate(self, requests: Sequence[GroupRequest]) -> AsyncGenerator[Rollout]:
        """Close it to stop before the end: the requests that are still running are aborted."""
        return self.sample(requests, self._sampling)

    def sharing(self, settings: GenerationSettings, *, seed: int) -> SharedEngine:
        """A generator with a sampling of its own on the same weights."""
        return SharedEngine(self, Sampling(settings, seed=seed, eos_ids=self._policy.eos_ids))

    async def sample(self, requests: Sequence[GroupRequest], sampling: Sampling) -> AsyncGenerator[Rollout]:
        loop = asyncio.get_running_loop()
        started_s = loop.time()
        asked = [
            Asked(request, index, prompt_ids)
            for request in requests
            for prompt_ids in (self.encoder.encode(request.prompt),)
            for index in range(request.group_size)
        ]
        with hold(loop):
            async with (
                self._awake(),
                aclosing(as_they_end([self._rollout(one, sampling) for one in asked])) as rollouts,
            ):
                async for rollout in rollouts:
                    yield rollout
        busy_s = self._statistics.busy_s + loop.time() - started_s
        self._statistics = replace(self._statistics, busy_s=busy_s)

    async def publish(self, version: int) -> None:
        """Requests in flight wait, and then go on under the new weights."""
        running = self._open()
        async with self._updating:
            if self._vllm.sleep:  # nothing is in flight, and `generate` wakes the rest
                await running.sleeping.wake("weights")
                await self._send(version)
            else:
                await self._pause()
                await self._send(version)
                await running.llm.resume_generation()

    async def receive(self, piece: Mapping[str, Tensor]) -> None:
        """A part of the next version, by the names that the model has. Requests in flight wait from here on."""
        receiver = self._open().receiver
        if not receiver.is_under_way:
            await self._pause()
        await self._thread.run(lambda: receiver.put(piece))

    async def direct(self, call: DirectCall, info: dict[str, Any]) -> None:
        """The same, where the trainer sends to vLLM's workers itself."""
        if call == "start":
            await self._pause()
        await self._thread.run(lambda: self._open().direct.answer(call, info))

    def statistics(self) -> EngineStatistics:
        return self._statistics

    @property
    def num_unfinished(self) -> int:
        """Requests that vLLM has not ended."""
        return int(self._open().llm.output_processor.get_num_unfinished_requests())

    # -- requests --

    async def _rollout(self, asked: Asked, sampling: Sampling) -> Rollout:
        from vllm.v1.engine.exceptions import EngineDeadError, EngineGenerateError

        request_id = f"{asked.request.group_id}.{asked.index}.{next(self._numbers)}"
        answers = self._open().llm.generate(
            {"prompt_token_ids": list(asked.prompt_ids)}, sampling.parameters(asked), request_id
        )
        try:
            async with aclosing(answers):
                (output,) = [one async for one in answers]  # there is one, at the end
        except (EngineDeadError, EngineGenerateError) as error:
            raise FlowError(f"vLLM must stay alive while it generates, got {error}; its own log says why") from error
        answer = sampling.answer(asked, output.outputs[0], self._policy.tokenizer)
        self._statistics = self._statistics.plus(len(answer.ended.token_ids), is_truncated=answer.ended.is_truncated)
        return answer.to_rollout()

    @asynccontextmanager
    async def _awake(self) -> AsyncIterator[None]:
        if not self._vllm.sleep:
            yield
            return
        sleeping = self._open().sleeping
        await sleeping.wake("weights", "kv_cache")
        try:
            yield
        finally:
            await sleeping.fall_asleep()

    # -- weights --

    async def _pause(self) -> None:
        await self._open().llm.pause_generation(mode="keep", clear_cache=False)

    async def _send(self, version: int) -> None:
        """Nothing is scheduled meanwhile. Keys and values of the old weights go, those of waiting requests too."""
        running = self._open()
        running.client.version = version
        await self._thread.run(running.sender.send_weights)
        if not await running.llm.reset_prefix_cache(reset_running_requests=True):
            raise FlowError(f"vLLM must forget what it computed with older weights, but kept it at version {version}")

    def _open(self) -> _Running:
        if self._running is None:
            raise InvalidInput("the vLLM engine must be entered before it generates")
        return self._running

    # -- on the device thread --

    def _start(self, loop: asyncio.AbstractEventLoop) -> None:
        with ExitStack() as opened:
            outline = Path(opened.enter_context(tempfile.TemporaryDirectory(prefix="rewardflow-vllm-")))
            write_outline(self._policy, outline)
            arguments = engine_arguments(
                self._settings,
                self._vllm,
                folder=outline,
                max_tokens=self._max_tokens,
                dtype=self._dtype,
                is_colocated=self._is_colocated,
            )
            llm = start(arguments)
            opened.callback(llm.shutdown)
            client = BlockingClient(llm, loop)
            sender = self._open_sender(client)
            opened.callback(sender.shutdown)
            self._running = _Running(llm, Sleeping(llm), client, sender, opened.pop_all())

    def _open_sender(self, client: BlockingClient) -> WeightSender:
        model = self._policy.model
        if self._is_fed:
            return open_receiver(self._vllm, client, SavedForm(model, self._dtype))
        return open_sender(self._vllm, client, ModelWeights(model, self._dtype, self._given_weights))

    def _stop(self) -> None:
        running, self._running = self._running, None
        if running is not None:
            running.closing.close()


class SharedEngine:
    """Asks an engine in its own way. The weights are the engine's, and so it is the engine to which they are given."""

    def __init__(self, engine: VllmEngine, sampling: Sampling) -> None:
        self._engine = engine
        self._sampling = sampling

    def generate(self, requests: Sequence[GroupRequest]) -> AsyncGenerator[Rollout]:
        return self._engine.sample(requests, self._sampling)

    async def publish(self, version: int) -> None:
        """The engine has this version already, or the rollouts would say so."""
