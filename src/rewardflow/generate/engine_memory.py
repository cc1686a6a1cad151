"""The memory of an engine on each of its devices, counted from the shapes of the model.

Always true: nothing is loaded. What the engine computes with beside weights, keys and values is not counted.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineMemory:
    """Bytes on one device of an engine that has weights of its own."""

    reserved: int  # all that it takes while it generates
    weights: int
    key_values: int  # the least it starts with: those of the longest sequence
    buffers: int  # of the trainer, on the same device, in which it sends weights
    sleeps: bool  # it gives back what it reserves while the trainer computes

    @property
    def needed(self) -> int:
        return self.weights + self.key_values

    @property
    def short(self) -> int:
        """The bytes that what it reserves lacks; 0 if it can start."""
        return max(0, self.needed - self.reserved)

    @property
    def in_update(self) -> int:
        """What it holds while the trainer computes."""
        return 0 if self.sleeps else self.reserved

    @property
    def in_publish(self) -> int:
        """What it holds while it is sent weights, for which it wakes without its keys and values."""
        return self.weights if self.sleeps else self.reserved


def key_value_bytes(config: Any, num_tokens: int, num_bytes: int, *, num_parts: int = 1) -> int:
    """Returns the size of keys and values of `num_bytes` a number, on one of `num_parts` devices that share the heads.

    `config` is transformers' configuration of the text model.
    """
    num_heads = getattr(config, "num_key_value_heads", None) or config.num_attention_heads
    head_size = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    size: int = 2 * config.num_hidden_layers * max(1, num_heads // num_parts) * head_size * num_bytes * num_tokens
    return size
