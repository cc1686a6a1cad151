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


class GroupNames:
    """Names a group by its prompt, and by how many groups of its step had that prompt before it."""

    def __init__(self) -> None:
        self._step: int | None = None
        self._seen: Counter[str] = Counter()
        self._lock = threading.Lock()

    def name(self, step: int | None, prompt: Any) -> str:
        """Names the next group. Names count from the start again when the step changes; without steps, never."""
        digest = hashlib.blake2b(canonical(prompt), digest_size=8).hexdigest()
        with self._lock:
            if step != self._step:
                self._step = step
                self._seen.clear()
            number = self._seen[digest]
            self._seen[digest] += 1
        return f"{digest}-{number}"
