"""The format rule: tags that a response must have.

Always true: the explanation for a malformed response names its first problem.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from rewardflow.errors import InvalidInput
from rewardflow.reward.journal.identity import FrozenIdentity
from rewardflow.services.rules.rule import Worth, shown
from rewardflow.types import Reward, Rollout


@dataclass(frozen=True, slots=True, kw_only=True)
class Format(Worth):
    """Requires each tag opened and closed exactly once, in this order, none inside another, none empty.

    `opened_in_prompt` is for chat templates that end with the first opening tag, so that the response lacks it.
    """

    frozen_identity: ClassVar = FrozenIdentity(
        "rewardflow.reward.services.rules.tags:Format", "d2e43df66e22430143ae0a439941257a"
    )

    tags: str | Sequence[str] = ("think", "answer")
    text_outside: bool = False
    opened_in_prompt: bool = False

    is_quick: ClassVar[bool] = True

    def __post_init__(self) -> None:
        tags = (self.tags,) if isinstance(self.tags, str) else tuple(self.tags)
        object.__setattr__(self, "tags", tags)
        if not tags or len(set(tags)) != len(tags) or not all(re.fullmatch(r"[\w:.-]+", tag) for tag in tags):
            raise InvalidInput(f"tags must be one or more distinct names without brackets, got {list(tags)}")

    def compute_score(self, rollout: Rollout) -> Reward:
        text = f"<{self.tags[0]}>{rollout.response}" if self.opened_in_prompt else rollout.response
        problem = self._problem(text)
        return self._reward(problem is None, problem or f"{', '.join(self.tags)}: each once, in order")

    def decide(self, rollout: Rollout) -> Reward | None:
        return self.compute_score(rollout)

    def _problem(self, text: str) -> str | None:
        end = 0
        for tag in self.tags:
            opening, closing = f"<{tag}>", f"</{tag}>"
            for mark in (opening, closing):
                if (count := text.count(mark)) != 1:
                    return f"{mark} must be there once, found {count} times"
            start, stop = text.index(opening), text.index(closing)
            if start < end:
                return f"{opening} must come after what is before it in {', '.join(self.tags)}"
            if stop < start:
                return f"{closing} comes before {opening}"
            if not self.text_outside and text[end:start].strip():
                return f"text before {opening}: {shown(text[end:start].strip())}"
            if not text[start + len(opening) : stop].strip():
                return f"{opening} is empty"
            end = stop + len(closing)
        if not self.text_outside and text[end:].strip():
            return f"text after </{self.tags[-1]}>: {shown(text[end:].strip())}"
        return None
