"""The settings of sampling rollouts, and of vLLM."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from rewardflow.errors import InvalidInput
from rewardflow.settings.rules import at_least, check_choices, within

EngineName = Literal["hf", "vllm"]


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineTraits:
    """What the rules of the settings must know about an engine.

    `log_probs_of_cut`: it returns log-probs of the whole distribution also where top-k or top-p cut it and the
    temperature is not 1. `computes_as_trainer`: it runs the trainer's own model, so its log-probs are the trainer's.
    """

    log_probs_of_cut: bool
    computes_as_trainer: bool


# The implementation of each is `rewardflow.generate.<name>.factory`.
ENGINES: Mapping[EngineName, EngineTraits] = {
    "hf": EngineTraits(log_probs_of_cut=True, computes_as_trainer=True),
    "vllm": EngineTraits(log_probs_of_cut=False, computes_as_trainer=False),
}

WeightTransfer = Literal["shared_memory", "ipc", "nccl", "reload"]


# Arguments of `apply_chat_template` that are not the template's: they say what it returns, or cut it.
_TEMPLATE_CALL = frozenset(
    (
        *("conversation", "messages", "tokenize", "add_generation_prompt", "continue_final_message"),
        *("padding", "truncation", "max_length", "tokenizer_kwargs"),
        *("return_tensors", "return_dict", "return_assistant_tokens_mask"),
    )
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatSettings:
    """How prompts go through the chat template. The reward sees prompts as the data has them."""

    wrap_text: bool = False  # a prompt of text becomes the user's message; false: the model sees the text as it is
    system: str | None = None  # the system's message before a text that is wrapped
    instruction: str | None = None  # follows the text in the user's message, after an empty line
    arguments: Mapping[str, Any] = field(default_factory=dict)  # for the template, such as `enable_thinking: false`

    def __post_init__(self) -> None:
        given = [name for name in ("system", "instruction") if getattr(self, name) is not None]
        if given and not self.wrap_text:
            raise InvalidInput(f"{' and '.join(given)} are for wrap_text=true, got wrap_text=false")
        taken = _TEMPLATE_CALL & self.arguments.keys()
        if taken:
            raise InvalidInput(f"arguments must not set what rewardflow sets itself, got {', '.join(sorted(taken))}")


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerationSettings:
    """How rollouts are sampled. `top_k=0` and `top_p=1.0` keep the whole distribution."""

    engine: EngineName = "hf"  # transformers, or vLLM in a separate process
    group_size: int = 8  # rollouts per prompt
    temperature: float = 1.0  # sampling temperature
    top_p: float = 1.0  # sample from the likeliest tokens whose probabilities add up to this
    top_k: int = 0  # sample from this many of the likeliest tokens; 0: all tokens
    max_prompt_tokens: int = 1024  # longer prompts are overlong
    max_response_tokens: int = 1024  # longer responses are cut off
    overlong_prompts: Literal["filter", "truncate", "error"] = "error"  # skip them, keep their end, or stop
    max_sequences: int = 256  # sequences decoded together
    stop: Sequence[str] = ()  # texts that end a response, besides the end token
    chat: ChatSettings = ChatSettings()

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
    """How vLLM runs, for `generation.engine: vllm`; vllm.md says which settings suit which machine."""

    # how new weights reach the engine: through this machine's memory; within the GPU that trainer and engine share;
    # from GPU to GPU; or through memory as well, but with vLLM's `reload_weights`
    transfer: WeightTransfer = "shared_memory"
    tensor_parallel: int = 1  # GPUs that share one model
    devices: Sequence[int] = ()  # the engine's GPUs; empty: the first ones, or those that Ray assigns
    # share of each GPU's memory for weights and KV cache; null: 0.9, or 0.45 if the trainer uses the same GPU
    memory_share: float | None = None
    kv_cache_gb: float | None = None  # size of the KV cache; null: what `memory_share` leaves. A CPU engine needs it
    eager: bool = False  # do not compile or capture graphs: starts sooner, generates slower
    sleep: bool = False  # free the GPU's memory during training
    arguments: Mapping[str, Any] = field(default_factory=dict)  # more arguments of vLLM's AsyncEngineArgs

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
