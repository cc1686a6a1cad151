"""A vLLM engine with a policy that has opinions, and what to compare it with."""

from __future__ import annotations

import asyncio
import copy
from collections.abc import Coroutine, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
from torch import Tensor

from rewardflow.flow.device_thread import DeviceThread
from rewardflow.flow.records import GroupRequest, Prompt, Sampling
from rewardflow.generate.vllm.engine import VllmEngine
from rewardflow.policy.load_policy import Policy, load_policy
from rewardflow.settings.run_settings import GenerationSettings, PolicySettings, VllmSettings
from rewardflow.types import Rollout

T = TypeVar("T")

HIDDEN = 128  # the narrowest heads that vLLM's attention on a CPU knows have 32 numbers each
TEXTS = ("12+3=", "7=", "abcdefghijk>", "0 0 0 0 0 0 0 0 0 0=", "55*5=", "Z>")
SAMPLING = Sampling(max_response_tokens=200)
LONG_TEXT = "0123456789" * 35  # several blocks of the prefix cache


def opinionated(seed: int) -> Policy:
    """With random weights as they come, every token would be about as probable as any other."""
    policy = load_policy(PolicySettings(tiny_hidden=HIDDEN), seed=seed)
    with torch.no_grad():
        for parameter in policy.model.parameters():
            if parameter.ndim == 2:
                parameter *= 5
    return policy


@dataclass(frozen=True, slots=True)
class EngineAtWork:
    """All tests use the engine on the loop it was started on. The version goes up for the whole file."""

    engine: VllmEngine
    policy: Policy
    versions: Iterator[int]
    runner: asyncio.Runner

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        return self.runner.run(work)

    def generate(self, asked: Sequence[GroupRequest]) -> list[Rollout]:
        """In the order in which they ended."""

        async def run() -> list[Rollout]:
            return [rollout async for rollout in self.engine.generate(asked)]

        return self.run(run())

    async def give_weights_of(self, seed: int) -> int:
        """The policy becomes another one, and is published."""
        with torch.no_grad():
            self.policy.model.load_state_dict(opinionated(seed).model.state_dict())
        version = next(self.versions)
        await self.engine.publish(version)
        return version

    def frozen_policy(self) -> Policy:
        return Policy(copy.deepcopy(self.policy.model), self.policy.tokenizer)


@contextmanager
def engine_at_work(sampling: Sampling = SAMPLING, **fields: Any) -> Iterator[EngineAtWork]:
    vllm = {name: fields.pop(name) for name in ("transfer", "sleep") if name in fields}
    policy = opinionated(seed=1)
    settings = GenerationSettings(**{"engine": "vllm", "max_prompt_tokens": 400, "max_sequences": 64, **fields})
    with asyncio.Runner() as runner, DeviceThread("test") as thread:
        engine = VllmEngine(
            policy,
            settings,
            VllmSettings(eager=True, kv_cache_gb=0.3, **vllm),
            samplings=[sampling],
            thread=thread,
            dtype=torch.float32,
        )
        runner.run(engine.__aenter__())
        try:
            yield EngineAtWork(engine, policy, iter(range(1, 1000)), runner)
        finally:
            runner.run(engine.__aexit__(None, None, None))


def requests(
    *texts: str, group_size: int = 3, first: int = 0, has_baseline: bool = False, sampling: Sampling = SAMPLING
) -> list[GroupRequest]:
    return [
        GroupRequest(
            number=first + i,
            step=4,
            prompt=Prompt(uid=f"p{i}", text=text),
            group_size=group_size,
            sampling=sampling,
            has_baseline=has_baseline,
        )
        for i, text in enumerate(texts)
    ]


def response_ids(rollout: Rollout) -> list[int]:
    assert rollout.token_ids is not None
    assert rollout.response_mask is not None
    return [token for token, is_response in zip(rollout.token_ids, rollout.response_mask, strict=True) if is_response]


def by_place(rollouts: Sequence[Rollout]) -> dict[tuple[str, int], list[int]]:
    """The responses' tokens."""
    return {(rollout.group_id, rollout.index): response_ids(rollout) for rollout in rollouts}


def log_probs_of(policy: Policy, rollout: Rollout, temperature: float = 1.0) -> Tensor:
    """Of every token, by a plain forward pass; 0 for the prompt's."""
    assert rollout.token_ids is not None
    assert rollout.response_mask is not None
    tokens = torch.tensor([list(rollout.token_ids)])
    policy.model.eval()
    with torch.no_grad():
        whole = (policy.model(tokens).logits[0, :-1].float() / temperature).log_softmax(-1)
    told = whole.gather(-1, tokens[0, 1:, None]).squeeze(-1) * torch.tensor(list(rollout.response_mask)[1:])
    return torch.cat([torch.zeros(1), told])


def assert_log_probs(policy: Policy, rollout: Rollout, temperature: float = 1.0) -> None:
    assert rollout.log_probs is not None
    told = torch.tensor(list(rollout.log_probs))
    assert torch.allclose(told, log_probs_of(policy, rollout, temperature), atol=1e-5, rtol=0)
