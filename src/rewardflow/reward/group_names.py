"""Names groups of completions that come without names, the same way in every start of a run.

Always true: two groups of one step never have the same name, although prompts repeat; a run that is started again and
meets the same prompts in a step gives their groups the names that they had.
"""

from __future__ import annotations

import hashlib
import threading
from collections import Counter
from typing import Any

from rewardflow.reward.journal.canonical import canonical

_STEPS_KEPT = 4  # those that a trainer may have calls of at the same time, and one that was evaluated


class GroupNames:
    """Names a group by its prompt, and by how many groups of its step had that prompt before it."""

    def __init__(self) -> None:
        self._seen: dict[int | None, Counter[str]] = {}
        self._lock = threading.Lock()

    def name(self, step: int | None, prompt: Any) -> str:
        """Names the next group. Steps may take turns, such as a training step and the evaluation before it."""
        digest = hashlib.blake2b(canonical(prompt), digest_size=8).hexdigest()
        with self._lock:
            seen = self._seen.pop(step, None) or Counter()
            self._seen[step] = seen
            if len(self._seen) > _STEPS_KEPT:
                del self._seen[next(iter(self._seen))]
            number = seen[digest]
            seen[digest] += 1
        return f"{digest}-{number}"
