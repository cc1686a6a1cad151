"""Opens the prompts that the settings name.

Always true: mistakes in the data raise an error here, before anything is generated.
"""

from __future__ import annotations

from collections.abc import Callable

from rewardflow.data.columns import Columns, prompts_of
from rewardflow.data.cursor import PromptCursor
from rewardflow.data.generated_tasks import GeneratedTask
from rewardflow.data.prompt_set import PromptList, PromptSet
from rewardflow.data.table import Table, read_dataset, read_file
from rewardflow.flow.records import Prompt
from rewardflow.settings.run_settings import DataSettings


def open_source(settings: DataSettings, *, seed: int = 0, keep: Callable[[Prompt], bool] | None = None) -> PromptCursor:
    """Returns a source of prompts in the order of the seed; it leaves out those for which `keep` is false."""
    return PromptCursor(open_prompts(settings, seed=seed), seed=seed, shuffle=settings.shuffle, keep=keep)


def open_prompts(settings: DataSettings, *, seed: int = 0) -> PromptSet:
    """Returns the prompts by number; only generated tasks use `seed`."""
    if settings.task is not None:
        return GeneratedTask(task=settings.task, num_digits=settings.num_digits, seed=seed, size=settings.limit)
    columns = Columns(prompt=settings.prompt_column, answer=settings.answer_column)
    return PromptList(prompts_of(_table(settings), columns))


def _table(settings: DataSettings) -> Table:
    if settings.path is not None:
        return read_file(settings.path, limit=settings.limit)
    return read_dataset(settings.dataset or "", settings.split, limit=settings.limit)
