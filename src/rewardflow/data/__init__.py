"""Supplies prompts from files, data sets and generated tasks, in an order that can be resumed.

source = open_source(DataSettings(path="train.parquet"), seed=1)
prompts = source.take(128)
"""

from rewardflow.data.cursor import CursorStatistics, PromptCursor
from rewardflow.data.generated_tasks import GeneratedTask
from rewardflow.data.open_prompts import open_prompts, open_source
from rewardflow.data.prompt_set import PromptList, PromptSet

__all__ = [
    "CursorStatistics",
    "GeneratedTask",
    "PromptCursor",
    "PromptList",
    "PromptSet",
    "open_prompts",
    "open_source",
]
