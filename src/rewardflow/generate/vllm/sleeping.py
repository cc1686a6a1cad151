"""Gives the engine's GPU memory back while the trainer needs it, and takes it again.

Always true: what is awake is not woken again, which vLLM's allocator cannot do; requests are scheduled only while all
of the engine is awake.
"""

from __future__ import annotations

from typing import Any, Literal

Part = Literal["weights", "kv_cache"]  # as vLLM names them


class Sleeping:
    """`llm` is vLLM's AsyncLLM, which is awake at first. Weights sleep in the host's memory; keys and values go."""

    def __init__(self, llm: Any) -> None:
        self._llm = llm
        self._asleep: frozenset[Part] = frozenset()

    async def fall_asleep(self) -> None:
        """Requests that are still running are aborted."""
        await self._llm.sleep(level=1)
        self._asleep = frozenset(("weights", "kv_cache"))

    async def wake(self, *parts: Part) -> None:
        if due := [part for part in parts if part in self._asleep]:
            await self._llm.wake_up(due)
            self._asleep = self._asleep.difference(due)
