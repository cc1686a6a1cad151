"""Generates tasks without files: each prompt comes from a seed and a number.

Always true: prompt i depends only on (task, num_digits, seed, i), so any prompt can be generated at any time, on any
machine; different numbers give independent draws.

    copy_digits   "407="   answer "407"
    copy_numbers  "40 ="   answer "40": 1 to `num_digits` digits, each count equally likely, and spaces up to that width
    arithmetic    "3+4="   answer "7": addition of two numbers of at most `num_digits` digits
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Literal, get_args

from rewardflow.data.prompt_set import Fingerprint
from rewardflow.errors import InvalidInput
from rewardflow.flow.records import Prompt
from rewardflow.settings.rules import at_least

TaskName = Literal["copy_digits", "copy_numbers", "arithmetic"]


@dataclass(frozen=True, slots=True, kw_only=True)
class GeneratedTask:
    """An endless `PromptSet`, or its first `size` prompts."""

    task: TaskName
    num_digits: int = 3
    seed: int = 0
    size: int | None = None

    def __post_init__(self) -> None:
        if self.task not in get_args(TaskName):
            raise InvalidInput(f"task must be one of {', '.join(get_args(TaskName))}, got {self.task!r}")
        at_least("num_digits", self.num_digits, 1)
        if self.size is not None:
            at_least("size", self.size, 1)

    @property
    def fingerprint(self) -> Fingerprint:
        return {"task": self.task, "num_digits": self.num_digits, "task_seed": self.seed, "rows": self.size}

    def __getitem__(self, index: int) -> Prompt:
        if index < 0 or (self.size is not None and index >= self.size):
            raise IndexError(f"there is no prompt {index} of {self.size}")
        text, answer = self._question(index)
        return Prompt(uid=str(index), text=text, ground_truth=answer, data_source=self.task)

    def _question(self, index: int) -> tuple[str, str]:
        if self.task != "arithmetic":
            digits = str(self._number(index, "digits")).zfill(self.num_digits)
            if self.task == "copy_numbers":
                digits = digits[: 1 + self._number(index, "length") % self.num_digits]
            return f"{digits:<{self.num_digits}}=", digits
        left, right = self._number(index, "left"), self._number(index, "right")
        return f"{left}+{right}=", str(left + right)

    def _number(self, index: int, part: str) -> int:
        """Draws a number of at most `num_digits` digits, each equally likely."""
        key = f"{self.task}/{self.num_digits}/{self.seed}/{index}/{part}".encode()
        # Half a byte would suffice for a digit; the extra bytes make the bias of the remainder immeasurably small.
        drawn = hashlib.shake_256(key).digest(self.num_digits + 16)
        num_choices: int = 10**self.num_digits
        return int.from_bytes(drawn, "big") % num_choices
