"""How rollouts are sampled, and how vLLM runs where it samples them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from rewardflow.errors import InvalidInput
from rewardflow.settings.rules import at_least, check_choices, within

WeightTransfer = Literal["shared_memory", "ipc", "nccl", "reload"]


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerationSettings:
    """How rollouts are sampled. `top_k=0` and `top_p=1.0` leave the distribution whole."""

    engine: Literal["hf", "vllm"] = "hf"  # what generates: transformers, or vLLM in a process of its own
    group_size: int = 8  # rollouts of each prompt
    temperature: float = 1.0  # of sampling
    top_p: float = 1.0  # sample from the likeliest tokens that have this probability together
    top_k: int = 0  # sample from this many of the likeliest tokens; 0: from all
    max_prompt_tokens: int = 1024  # longer prompts are overlong
    max_response_tokens: int = 1024  # a response is cut there
    overlong_prompts: Literal["filter", "truncate", "error"] = "error"  # leave them out, keep their end, or stop
    max_sequences: int = 256  # decoded together
    stop: Sequence[str] = ()  # texts that end a response, beside the end token

    def __post_init__(self) -> None:
        check_choices(self)
        for name in ("group_size", "max_prompt_tokens", "max_response_tokens", "max_sequences"):
            at_least(name, getattr(self, name), 1)
        at_least("top_k", self.top_k, 0)
        if any(text == "" for text in self.stop):
            raise InvalidInput(f"stop must not hold an empty text, which every response ends in, got {list(self.stop)}")
        within("top_p", self.top_p, 0.0, 1.0, low_open=True)
        within("temperature", self.temperature, 0.0, math.inf, low_open=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class VllmSettings:
    """How vLLM runs, for `generation.engine: vllm`; vllm.md says which of them fit which machine."""

    # how new weights reach the engine: through this machine's memory; on the GPU that trainer and engine share;
    # from GPU to GPU; or as `shared_memory` does, but by vLLM's `reload_weights`
    transfer: WeightTransfer = "shared_memory"
    tensor_parallel: int = 1  # GPUs that hold one model together
    devices: Sequence[int] = ()  # the GPUs of the engine; empty: the first ones, or those that Ray gives
    # of each GPU's memory for weights, keys and values; null: 0.9, or 0.45 where the trainer is on it as well
    memory_share: float | None = None
    kv_cache_gb: float | None = None  # for keys and values; null: what `memory_share` leaves. A CPU engine needs it
    eager: bool = False  # neither compile nor capture graphs: starts sooner, generates slower
    sleep: bool = False  # give the GPU's memory back while training
    arguments: Mapping[str, Any] = field(default_factory=dict)  # further ones of vLLM's AsyncEngineArgs

    def __post_init__(self) -> None:
        check_choices(self)
        at_least("tensor_parallel", self.tensor_parallel, 1)
        for device in self.devices:
            at_least("devices", device, 0)
        if self.devices and len(self.devices) != self.tensor_parallel:
            raise InvalidInput(
                f"devices must be as many as tensor_parallel, got devices={list(self.devices)}, "
                f"tensor_parallel={self.tensor_parallel}"
            )
        if self.memory_share is not None:
            within("memory_share", self.memory_share, 0.0, 1.0, low_open=True)
        if self.kv_cache_gb is not None:
            within("kv_cache_gb", self.kv_cache_gb, 0.0, math.inf, low_open=True)
