"""A rollout engine for verl on CPU: transformers in a Ray actor, one request at a time, as on one device.

For tests only. An abort ends the current request with the tokens that it has, as in vLLM, and verl's client continues
from there later.
"""

from __future__ import annotations

import asyncio
import math
import os
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import ray
import torch
from verl.workers.rollout.base import BaseRollout
from verl.workers.rollout.replica import RolloutReplica, TokenOutput
from verl_cpu_pace import pace_s, random_tokens
from verl_cpu_spans import recorded


def server_name(replica: int, model: str = "") -> str:
    """Returns the actor's name. `model` is empty for the policy."""
    return f"transformers_cpu_{replica}{model}"


class TransformersServer:
    def __init__(self, path: str, max_tokens: int) -> None:
        from transformers import AutoModelForCausalLM

        torch.set_num_threads(1)
        self._model = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32).eval()
        self._max_tokens = max_tokens
        self._version: int | None = None
        self._device = ThreadPoolExecutor(max_workers=1)
        self._may_generate = asyncio.Event()
        self._may_generate.set()

    async def generate(
        self, prompt_ids: list[int], sampling_params: dict[str, Any], request_id: str, **_: Any
    ) -> TokenOutput:
        await self._may_generate.wait()
        if sampling_params.get("prompt_logprobs") is not None:
            return await asyncio.get_running_loop().run_in_executor(self._device, self._judged_tokens, list(prompt_ids))
        temperature = float(sampling_params.get("temperature", 1.0))
        limit = int(sampling_params.get("max_tokens") or self._max_tokens)
        loop = asyncio.get_running_loop()
        tokens, log_probs, is_whole = await loop.run_in_executor(
            self._device, self._decode, list(prompt_ids), temperature, limit
        )
        return TokenOutput(
            token_ids=tokens,
            log_probs=log_probs if sampling_params.get("logprobs") else None,
            stop_reason="completed" if is_whole else "aborted",
            extra_fields={"global_steps": self._version},
        )

    def _judged_tokens(self, ids: list[int]) -> TokenOutput:
        """Returns each token's log-prob under this model, as verl asks a teacher: one place early, and 0 at the end."""
        with torch.no_grad():
            log_probs = torch.log_softmax(self._model(input_ids=torch.tensor([ids])).logits[0].float(), -1)
        found = [float(log_probs[place, token]) for place, token in enumerate(ids[1:])]
        columns = {
            "prompt_ids": [[token] for token in (*ids[1:], 0)],
            "prompt_logprobs": [[one] for one in (*found, 0.0)],
        }
        return TokenOutput(token_ids=[ids[-1]], stop_reason="completed", extra_fields=columns)

    def _decode(self, ids: list[int], temperature: float, limit: int) -> tuple[list[int], list[float], bool]:
        with recorded("generate"), torch.no_grad():
            return self._at_a_pace(limit) if pace_s() else self._tokens(ids, temperature, limit)

    def _at_a_pace(self, limit: int) -> tuple[list[int], list[float], bool]:
        vocabulary = self._model.config.vocab_size
        source, tokens = random_tokens(vocabulary), list[int]()
        while len(tokens) < limit and self._may_generate.is_set():
            tokens.append(next(source))
        return tokens, [-math.log(vocabulary)] * len(tokens), len(tokens) == limit

    def _tokens(self, ids: list[int], temperature: float, limit: int) -> tuple[list[int], list[float], bool]:
        tokens: list[int] = []
        log_probs: list[float] = []
        cache, current = None, torch.tensor([ids])
        while len(tokens) < limit:
            if not self._may_generate.is_set():
                return tokens, log_probs, False
            output = self._model(input_ids=current, past_key_values=cache, use_cache=True)
            cache = output.past_key_values
            distribution = torch.log_softmax(output.logits[0, -1].float() / max(temperature, 1e-5), -1)
            greedy = temperature <= 0
            token = int(distribution.argmax()) if greedy else int(torch.multinomial(distribution.exp(), 1))
            tokens.append(token)
            log_probs.append(float(distribution[token]))
            if token == self._model.config.eos_token_id:
                break
            current = torch.tensor([[token]])
        return tokens, log_probs, True

    async def load(self, state: dict[str, torch.Tensor], version: int | None) -> None:
        def load() -> None:
            with recorded("publish", version):
                self._model.load_state_dict(state, strict=False)

        await asyncio.get_running_loop().run_in_executor(self._device, load)
        self._version = version

    async def abort_all_requests(self, reject_request: bool = False) -> dict[str, Any]:
        self._may_generate.clear()
        return {"aborted_count": 0, "request_ids": []}

    async def resume_generation(self) -> None:
        self._may_generate.set()

    async def set_global_steps(self, version: int) -> None:
        self._version = version

    async def wake_up(self, tags: Any = None) -> None: ...

    async def sleep(self) -> None: ...

    async def clear_kv_cache(self) -> None: ...

    async def release_kv_cache(self) -> None: ...

    async def resume_kv_cache(self) -> None: ...

    async def start_profile(self, **_: Any) -> None: ...

    async def stop_profile(self) -> None: ...


class TransformersReplica(RolloutReplica):
    async def launch_servers(self) -> None:
        name = server_name(self.replica_rank, "_teacher" if self.is_teacher_model else "")
        server = ray.remote(TransformersServer).options(name=name, max_concurrency=1000, num_cpus=0)
        handle = server.remote(self.model_config.path, self.config.response_length)
        self.servers = [handle]
        self._server_handle = handle
        self._server_address = name

    async def sleep(self) -> None: ...


class TransformersRollout(BaseRollout):
    """Sends a training process's weights to the server. Only the first process of a replica sends."""

    def __init__(self, config: Any, model_config: Any, device_mesh: Any, replica_rank: int = -1) -> None:
        super().__init__(config, model_config, device_mesh)
        self._replica, place = divmod(int(os.environ["RANK"]), config.tensor_model_parallel_size)
        self._is_first = place == 0

    async def resume(self, tags: Any) -> None: ...

    async def release(self) -> None: ...

    async def update_weights(
        self, weights: Iterable[tuple[str, torch.Tensor]], global_steps: int | None = None, **_: Any
    ) -> None:
        state = {name: tensor.detach().to("cpu", torch.float32).clone() for name, tensor in weights}
        if self._is_first:
            await ray.get_actor(server_name(self._replica)).load.remote(state, global_steps)
