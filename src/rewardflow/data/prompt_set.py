"""Defines sets of prompts by number, with a fingerprint of their content.

Always true: the uid of prompt i is str(i); equal fingerprints mean equal prompts at equal numbers, wherever the files
are.
"""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Mapping, Sequence
from typing import Protocol

from rewardflow.errors import InvalidInput
from rewardflow.flow.records import Prompt
from rewardflow.reward.journal.canonical import canonical

Fingerprint = Mapping[str, str | int | bool | None]


class PromptSet(Protocol):
    """Numbered prompts, which a cursor goes through."""

    @property
    def size(self) -> int | None:
        """The number of prompts; None if the set is endless."""

    @property
    def fingerprint(self) -> Fingerprint:
        """Plain values by name, so that a message can say how two sets differ."""

    def __getitem__(self, index: int, /) -> Prompt: ...


class PromptList:
    """Prompts in memory."""

    def __init__(self, prompts: Sequence[Prompt]) -> None:
        if not prompts:
            raise InvalidInput("a set of prompts must have at least one, got none")
        odd = next((i for i, prompt in enumerate(prompts) if prompt.uid != str(i)), None)
        if odd is not None:
            raise InvalidInput(f"the uid of prompt {odd} must be {str(odd)!r}, got {prompts[odd].uid!r}")
        self._prompts = prompts

    @property
    def size(self) -> int:
        return len(self._prompts)

    @functools.cached_property
    def fingerprint(self) -> Fingerprint:
        digest = hashlib.sha256()
        for prompt in self._prompts:
            parts = (list(prompt.messages), prompt.text, prompt.ground_truth, prompt.data_source)
            digest.update(canonical([*parts, dict(prompt.extra_info)]) + b"\n")
        return {"rows": self.size, "content": digest.hexdigest()[:16]}

    def __getitem__(self, index: int) -> Prompt:
        return self._prompts[index]
