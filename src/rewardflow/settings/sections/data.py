"""The settings of prompts.

Always true: prompts come from exactly one source.
"""

from __future__ import annotations

from dataclasses import dataclass
from os import PathLike
from typing import Literal

from rewardflow.errors import InvalidInput
from rewardflow.settings.rules import at_least, check_choices


@dataclass(frozen=True, slots=True, kw_only=True)
class DataSettings:
    """The source of prompts: exactly one of `task` (generated), `path` (a file) and `dataset` (Hugging Face)."""

    task: Literal["copy_digits", "copy_numbers", "arithmetic"] | None = None  # generated prompts, which need no file
    path: str | PathLike[str] | None = None  # a file of prompts, .jsonl or .parquet
    dataset: str | None = None  # a data set of the Hugging Face hub; add `:configuration` if it has several
    split: str = "train"  # of `dataset`
    prompt_column: str | None = None  # null: `prompt`, `messages` or `question`, the first that exists
    answer_column: str | None = None  # null: `ground_truth`, `reward_model.ground_truth` or `answer`, if one exists
    shuffle: bool = True  # shuffle each epoch anew; `seed` fixes the orders
    limit: int | None = None  # use only this many rows, from the start
    num_digits: int = 3  # digits of the numbers in generated tasks

    def __post_init__(self) -> None:
        check_choices(self)
        given = [name for name in ("task", "path", "dataset") if getattr(self, name) is not None]
        if len(given) != 1:
            raise InvalidInput(f"exactly one of task, path and dataset must be given, got {', '.join(given) or 'none'}")
        at_least("num_digits", self.num_digits, 1)
        if self.limit is not None:
            at_least("limit", self.limit, 1)
