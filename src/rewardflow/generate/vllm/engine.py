"""Generates with vLLM's asynchronous engine, whose weights follow the trainer's.

Always true: one request of vLLM is one rollout, which is yielded the moment it has ended; every token is stamped with
the version that sampled it; what a request still needs after new weights is computed with them alone, because no key or
value of the old ones survives; closing the stream of rollouts aborts the requests. Requests are scheduled only while
all of the engine is awake.

An update that fails leaves weights that are no version: the engine stays paused then, and the error ends the run.
"""

from __future__ import annotations

import asyncio
import itertools
import tempfile
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import ExitStack, aclosing, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from rewardflow.clock import hold
from rewardflow.errors import FlowError, InvalidInput
from rewardflow.flow.device_thread import DeviceThread
from rewardflow.flow.records import GroupRequest, Sampling
from rewardflow.generate.engines import NamedTensors
from rewardflow.generate.hf.stopping import check_stop_strings
from rewardflow.generate.prompt_encoder import PromptEncoder, check_positions
from rewardflow.generate.responses import EngineStatistics
from rewardflow.generate.vllm.as_completed import as_completed
from rewardflow.generate.vllm.requests import Asked, completion_of, sampling_parameters
from rewardflow.generate.vllm.saved_form import SavedForm
from rewardflow.generate.vllm.senders import (
    BlockingClient,
    DirectWeights,
    PushedWeights,
    WeightSender,
    open_receiver,
    open_sender,
)
from rewardflow.generate.vllm.sleeping import Sleep
from rewardflow.generate.vllm.starting import check_installed, engine_arguments, import_vllm, start, write_outline
from rewardflow.generate.vllm.weight_source import ModelWeights
from rewardflow.policy.accelerator import release_cached_memory
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
    sleep: Sleep
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
    """An `Engine`.

    `weights` gives what is published, by the names that `policy.model` has; without it those are the model's own, which
    is the trainer's then. `thread` is the trainer's: weights are read there, where nobody changes them meanwhile.
    `is_fed`: the trainer is elsewhere, so nothing is read here, the model may be an outline, and `receive` is called
    with every piece of a version before `publish`, also of the first.

    `samplings` are all that requests will have; the first one's log-probs are trained on. `dtype` is what vLLM computes
    in. `is_colocated`: the trainer uses the same devices. `engines_here` share this machine's memory.
    """

    def __init__(
        self,
        policy: Policy,
        settings: GenerationSettings,
        vllm: VllmSettings,
        *,
        samplings: Sequence[Sampling],
        thread: DeviceThread,
        dtype: torch.dtype,
        is_colocated: bool = True,
        weights: Callable[[], NamedTensors] | None = None,
        is_fed: bool = False,
        engines_here: int = 1,
    ) -> None:
        check_installed()
        config = policy.model.config.get_text_config()
        check_positions(settings.max_prompt_tokens, samplings, getattr(config, "max_position_embeddings", None))
        check_stop_strings(settings.stop)
        self.encoder = PromptEncoder(policy.tokenizer, settings)
        self._policy = policy
        self._settings = settings
        self._vllm = vllm
        self._thread = thread
        self._dtype = dtype
        self._is_colocated = is_colocated
        self._is_fed = is_fed
        self._engines_here = engines_here
        self._given_weights = weights
        self._samplings = tuple(samplings)
        self._running: _Running | None = None
        self._numbers = itertools.count()
        self._updating = asyncio.Lock()
        self._statistics = EngineStatistics()

    async def __aenter__(self) -> Self:
        loop = asyncio.get_running_loop()
        try:
            await self._thread.run(lambda: import_vllm(self._vllm))
            await self._thread.run(lambda: self._start(loop))
            if self._vllm.sleep:
                await self._open().sleep.start_asleep()
            elif not self._is_fed:
                await self._send(0)
        except BaseException:
            await self._thread.run(self._stop)
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self._thread.run(self._stop)

    async def generate(self, requests: Sequence[GroupRequest]) -> AsyncGenerator[Rollout]:
        """Closing it stops before the end: the requests that are still running are aborted."""
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
                self._open().sleep.awake() if self._vllm.sleep else nullcontext(),
                aclosing(as_completed([self._rollout(one) for one in asked])) as rollouts,
            ):
                async for rollout in rollouts:
                    yield rollout
        busy_s = self._statistics.busy_s + loop.time() - started_s
        self._statistics = replace(self._statistics, busy_s=busy_s)

    async def begin_generating(self) -> None:
        if self._vllm.sleep:
            await self._open().sleep.begin_use()

    async def end_generating(self) -> None:
        if self._vllm.sleep:
            await self._open().sleep.end_use()

    async def publish(self, version: int) -> None:
        """Pauses requests in flight, which then go on under the new weights. An engine that sleeps gets them later."""
        running = self._open()
        async with self._updating:
            if self._vllm.sleep:  # nothing is in flight, and `generate` wakes the engine
                running.client.version = version
                await running.sleep.renew()
            else:
                await self._pause()
                await self._send(version)
                await running.llm.resume_generation()

    async def receive(self, weights: Mapping[str, Tensor]) -> None:
        """Takes a part of the next version, by the names that the model has. Requests in flight wait from here on."""
        receiver = self._open().receiver
        async with self._updating:  # several pieces may arrive together
            if not receiver.is_under_way:
                await self._pause()
            await self._thread.run(lambda: receiver.put(weights))

    async def answer_sender(self, call: str, info: dict[str, Any]) -> None:
        """Prepares vLLM's workers for weights that the trainer sends to them itself."""
        if call == "start":
            await self._pause()
        await self._thread.run(lambda: self._open().direct.answer(call, info))

    def statistics(self) -> EngineStatistics:
        return self._statistics

    @property
    def num_unfinished(self) -> int:
        """The requests that vLLM has not ended."""
        return int(self._open().llm.output_processor.get_num_unfinished_requests())

    # -- requests --

    async def _rollout(self, asked: Asked) -> Rollout:
        from vllm.v1.engine.exceptions import EngineDeadError, EngineGenerateError

        request_id = f"{asked.request.group_id}.{asked.index}.{next(self._numbers)}"
        parameters = sampling_parameters(asked, stop=self._settings.stop, eos_ids=self._policy.eos_ids)
        answers = self._open().llm.generate({"prompt_token_ids": list(asked.prompt_ids)}, parameters, request_id)
        try:
            async with aclosing(answers):
                (output,) = [one async for one in answers]  # there is one, at the end
        except (EngineDeadError, EngineGenerateError) as error:
            raise FlowError(f"vLLM must stay alive while it generates, got {error}; its own log says why") from error
        completion = completion_of(asked, output.outputs[0], self._policy.tokenizer)
        ended = completion.ended
        self._statistics = self._statistics.plus(len(ended.token_ids), is_truncated=ended.is_truncated)
        return completion.to_rollout()

    # -- weights --

    async def _pause(self) -> None:
        await self._open().llm.pause_generation(mode="keep", clear_cache=False)

    async def _send_again(self) -> None:
        await self._send(self._open().client.version)

    async def _give_back(self) -> None:
        await self._thread.run(release_cached_memory)

    async def _send(self, version: int) -> None:
        """Drops keys and values of the old weights, also of waiting requests. vLLM schedules nothing meanwhile."""
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
                samplings=self._samplings,
                dtype=self._dtype,
                is_colocated=self._is_colocated,
            )
            llm = start(arguments)
            opened.callback(llm.shutdown)
            client = BlockingClient(llm, loop)
            sender = self._open_sender(client)
            opened.callback(sender.shutdown)
            sleep = Sleep(llm, give_back=self._give_back, send_again=self._send_again)
            self._running = _Running(llm, sleep, client, sender, opened.pop_all())

    def _open_sender(self, client: BlockingClient) -> WeightSender:
        model = self._policy.model
        if self._is_fed:
            return open_receiver(self._vllm, client, SavedForm(model, self._dtype), num_writers=self._engines_here)
        weights = ModelWeights(model, self._dtype, self._given_weights)
        return open_sender(self._vllm, client, weights, num_writers=self._engines_here)

    def _stop(self) -> None:
        running, self._running = self._running, None
        if running is not None:
            running.closing.close()
