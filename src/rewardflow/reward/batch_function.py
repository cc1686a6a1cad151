"""An agent as a plain function over lists, for trainers that know only functions, such as TRL's.

Always true: the function returns one number for each completion, in order, and a failure is never a made-up number. It
can be pickled, and its copy opens an agent of its own. On several ranks of a trainer there is one agent: a server that
is named by an address, or else on rank 0. A run that is started again finds its saved verdicts.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import os
import re
import sys
import threading
from collections.abc import Mapping, Sequence
from typing import Any

from rewardflow.errors import AgentClosed, InvalidInput
from rewardflow.reward.agent import RewardAgent
from rewardflow.reward.background_agent import BackgroundAgent, BatchAgent
from rewardflow.reward.group_names import GroupNames
from rewardflow.reward.ticket import Ticket
from rewardflow.reward.trainer_ranks import TrainerRanks, trainer_ranks
from rewardflow.types import Reward, Rollout

SERVER_ENV = "REWARDFLOW_URL"
_FIRST_TRL = (1, 6)  # older ones add up a None of their only function as 0

Row = tuple[Any, Any, dict[str, Any]]  # a prompt, a completion, and the values of its columns


class BatchFunction:
    """An agent as a plain function over lists.

    `function(prompts=..., completions=..., ground_truth=[...], ...)` returns one number for each completion, in order.
    A failed verdict becomes `failed` (None by default, which TRL leaves out of its sums from release 1.6 on). Every
    other keyword that is a list as long as the completions is a column: the reward gets `ground_truth` and
    `data_source` under those names, and the rest in `extra_info`. Completions may be texts or chat messages. With
    `group_size=n`, each n consecutive completions are one group. The first call opens the agent unless it is open;
    `close()` closes what it opened.

    TRL passes `trainer_state`; others may pass `step=n`. Step, prompt and place in the group are what identifies a
    completion in the journal. When TRL calls it on several ranks, rank 0 judges for all of them.

    `server` is the address of a `rewardflow serve` that judges instead of this process, by default what the environment
    variable REWARDFLOW_URL says. Rewards and limits are then those of the server; the run's name is the agent's.
    """

    def __init__(self, agent: RewardAgent, *, group_size: int, failed: float | None, server: str | None = None) -> None:
        if group_size < 1:
            raise InvalidInput(f"group_size must be at least 1, got group_size={group_size}")
        self.__name__ = agent.name
        self.group_size = group_size
        self._agent = agent
        self._failed = failed
        self._server = server
        self._background: BackgroundAgent | None = None
        self._lock = threading.Lock()
        self._names = GroupNames()
        self._ranks: TrainerRanks | None = None

    def __reduce__(self) -> tuple[Any, ...]:
        return _make, (self._agent, self.group_size, self._failed, self._server)

    def __call__(
        self,
        prompts: Sequence[Any] | None = None,
        completions: Sequence[Any] = (),
        **columns: Any,
    ) -> list[float | None]:
        step = _step_of(columns)
        on_all_ranks = "trainer_state" in columns
        pending = self.submit(prompts, completions, columns, step=step, on_all_ranks=on_all_ranks)
        return self.numbers(pending.wait())

    def submit(
        self,
        prompts: Sequence[Any] | None,
        completions: Sequence[Any],
        columns: Mapping[str, Any],
        *,
        step: int | None = None,
        group_size: int | None = None,
        on_all_ranks: bool = False,
    ) -> PendingBatch:
        """Starts judging a batch and returns at once. `on_all_ranks`: every rank of the trainer makes this call."""
        rows = _rows(prompts, completions, columns)
        size = group_size or self.group_size
        if on_all_ranks and self._ranks is None:
            self._ranks = trainer_ranks()
        ranks = self._ranks if on_all_ranks else None
        if ranks is None:
            return PendingBatch(self._submit(rows, step, size))
        parts = ranks.gather(rows)
        if not ranks.is_first:
            return PendingBatch(None, ranks)
        try:
            ticket = self._submit([row for part in parts for row in part], step, size)
        except BaseException as error:  # the other ranks wait for it with this one's verdicts
            return PendingBatch(error, ranks)
        return PendingBatch(ticket, ranks, [len(part) for part in parts])

    def numbers(self, rewards: Sequence[Reward]) -> list[float | None]:
        if self._failed is None and any(reward.value is None for reward in rewards):
            _check_that_trl_knows_none()
        return [self._failed if reward.value is None else reward.value for reward in rewards]

    def close(self) -> None:
        if self._background is not None:
            self._background.close()

    def _submit(self, rows: Sequence[Row], step: int | None, size: int) -> Ticket:
        if len(rows) % size:
            raise InvalidInput(
                f"the number of completions must be a multiple of group_size, got {len(rows)} and {size}"
            )
        rollouts = []
        for start in range(0, len(rows), size):
            name = self._names.name(step, rows[start][0])
            group = rows[start : start + size]
            rollouts += [_rollout(name, i, size, row, step or 0, start // size) for i, row in enumerate(group)]
        return self._open().submit(rollouts)

    def _open(self) -> BatchAgent:
        """Returns what judges: the agent if it is open, else what the first call opened."""
        with self._lock:
            if self._background is None and self._agent.is_open:
                return self._agent
            if self._background is None:
                address = self._server or os.environ.get(SERVER_ENV)
                self._background = BackgroundAgent(
                    self._agent if not address else _client(address, self._agent.settings.run)
                )
            return self._background.agent


def _client(address: str, run: str) -> BatchAgent:
    """Servers lie above the agent, which knows them by name alone and imports them only here."""
    client: BatchAgent = importlib.import_module("rewardflow.serve").connect(address, run=run)
    return client


def _make(agent: RewardAgent, group_size: int, failed: float | None, server: str | None) -> BatchFunction:
    return BatchFunction(agent, group_size=group_size, failed=failed, server=server)


class PendingBatch:
    """A batch that is being judged. `wait` returns its verdicts; on several ranks, all must call it."""

    def __init__(
        self, judged_by: Ticket | BaseException | None, ranks: TrainerRanks | None = None, counts: Sequence[int] = ()
    ) -> None:
        """`judged_by`: None where another rank judges; an error where that failed to begin."""
        self._judged_by = judged_by
        self._ranks = ranks
        self._counts = counts

    def wait(self) -> list[Reward]:
        """Waits for the last verdict; returns one for each completion of this process, in order."""
        if self._ranks is None:
            return _verdicts(self._judged_by)
        if not self._ranks.is_first:
            return _received(self._ranks.scatter(None))
        try:
            verdicts = _verdicts(self._judged_by)
        except BaseException as error:
            self._ranks.scatter([f"{type(error).__name__}: {error}"] * self._ranks.size)
            raise
        ends = [sum(self._counts[: i + 1]) for i in range(self._ranks.size)]
        parts = [verdicts[end - count : end] for end, count in zip(ends, self._counts, strict=True)]
        return _received(self._ranks.scatter(parts))

    def cancel(self) -> None:
        """Ends the calls that nobody will wait for; a verdict that was paid for is in the journal."""
        if isinstance(self._judged_by, Ticket):
            try:
                self._judged_by.cancel()
            except AgentClosed:
                return  # its calls have ended


def _verdicts(judged_by: Ticket | BaseException | None) -> list[Reward]:
    if isinstance(judged_by, BaseException):
        raise judged_by
    assert judged_by is not None
    return [reward for group in judged_by.wait() for reward in group.rewards]


def _received(message: list[Reward] | str) -> list[Reward]:
    if isinstance(message, str):
        raise AgentClosed(f"the agent on rank 0, which judges for all ranks, has stopped: {message}")
    return message


def _step_of(columns: dict[str, Any]) -> int | None:
    """Returns the training step: `step`, unless it is a column of the data, or what TRL's `trainer_state` says."""
    if isinstance(columns.get("step"), int):
        return int(columns.pop("step"))
    step = getattr(columns.get("trainer_state"), "global_step", None)
    return step if isinstance(step, int) else None


def _rows(prompts: Sequence[Any] | None, completions: Sequence[Any], columns: Mapping[str, Any]) -> list[Row]:
    count = len(completions)
    if prompts is not None and len(prompts) != count:
        raise InvalidInput(f"prompts and completions must match, got {len(prompts)} and {count}")
    lists = {name: column for name, column in columns.items() if _is_column(column)}
    for name, column in lists.items():
        if len(column) != count:
            raise InvalidInput(f"{name} must have one value for each of {count} completions, got {len(column)}")
    return [
        (
            "" if prompts is None else prompts[i],
            completions[i],
            {name: column[i] for name, column in lists.items()},
        )
        for i in range(count)
    ]


def _is_column(value: Any) -> bool:
    """Whether the value is a list, array, tensor or series, and not a text, a mapping or a single value."""
    return hasattr(value, "__len__") and hasattr(value, "__getitem__") and not isinstance(value, str | bytes | Mapping)


def _rollout(group_id: str, index: int, size: int, row: Row, step: int, position: int) -> Rollout:
    prompt, completion, values = row
    is_chat = not isinstance(prompt, str)
    extra_info = {name: value for name, value in values.items() if name not in ("ground_truth", "data_source")}
    return Rollout(
        group_id=group_id,
        index=index,
        group_size=size,
        prompt="" if is_chat else prompt,
        messages=prompt if is_chat else (),
        response=_text_of(completion),
        ground_truth=values.get("ground_truth"),
        data_source=values.get("data_source", ""),
        extra_info=extra_info,
        step=step,
        position=position,
    )


def _text_of(completion: Any) -> str:
    """Returns the completion's text, or the text of its last chat message."""
    if isinstance(completion, str):
        return completion
    if isinstance(completion, Sequence) and completion and isinstance(completion[-1], Mapping):
        return str(completion[-1].get("content", ""))
    raise InvalidInput(f"a completion must be a text or a list of chat messages, got {type(completion).__name__}")


def _check_that_trl_knows_none() -> None:
    """Raises `InvalidInput` inside a TRL that would train on a failed verdict as a 0."""
    if "trl" not in sys.modules:
        return
    version = importlib.metadata.version("trl")
    if tuple(map(int, re.findall(r"\d+", version)[:2])) < _FIRST_TRL:
        raise InvalidInput(
            f"a failed verdict must not train, and TRL {version} counts None as 0: use trl 1.6 or later, or give "
            "failures a number of your own (failed=...)"
        )
