"""Asks the training judge about the same few answers again and again, to notice that it changed in mid-run.

Always true: nothing is trained on these verdicts, and no step waits for them. They go through the run's own agent, so
its limits and its cap hold for them. The set is the first groups of the first step; with the scores of the start it is
kept in `judge_probes.json`, so that a resumed run compares with the same start, unless the run keeps no texts.
"""

from __future__ import annotations

import json
import logging
import secrets
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, Protocol

from rewardflow.errors import AgentHalted
from rewardflow.flow.records import JudgedRollout
from rewardflow.judging.judge_change import JudgeChangeTest, ProbingResult
from rewardflow.judging.run_rollouts import PROBE_SOURCE
from rewardflow.observe.private_file import write_private
from rewardflow.settings.sections.audit import AuditSettings
from rewardflow.types import Rollout

logger = logging.getLogger(__name__)

_VERSION = 1
_TEXTS = (
    "group_id",
    "prompt",
    "messages",
    "response",
    "ground_truth",
    "data_source",
    "extra_info",
    "index",
    "group_size",
)

Scores = Sequence[float | None]


class ProbedAgent(Protocol):
    """What this needs of an agent: a ticket for some rollouts."""

    def open(self, *, due_step: int | None = None, source: str = ...) -> Any: ...


class JudgeProbes:
    """The probes of one run. `alarmed` is called with what happened when the judge changed."""

    def __init__(
        self,
        settings: AuditSettings,
        agent: ProbedAgent,
        path: Path,
        *,
        planned_steps: int,
        keeps_texts: bool,
        alarmed: Callable[[str], None],
    ) -> None:
        self._settings = settings
        self._agent = agent
        self._path = path
        self._keeps_texts = keeps_texts
        self._alarmed = alarmed
        every = settings.probe_every
        self._planned_probings = 0 if every is None else planned_steps // every
        self._rollouts: tuple[Rollout, ...] = ()
        self._rounds: list[Scores] = []
        self._probings: list[dict[str, Any]] = []
        self._last_step: int | None = None
        self._has_ended = every is None
        self._read()

    def is_due(self, step: int, trained: Sequence[JudgedRollout]) -> bool:
        """Whether to call `probe` after this step; chooses the set if there is none."""
        every = self._settings.probe_every
        if self._has_ended or every is None:
            return False
        if not self._rollouts:
            self._rollouts = _first_groups(trained, self._settings.probes)
        is_due = bool(self._rollouts) and (self._last_step is None or step >= self._last_step + every)
        if is_due:
            self._last_step = step
        return is_due

    async def probe(self, step: int) -> None:
        """Scores the set: twice at the start, later once."""
        try:
            if len(self._rounds) < 2:
                await self._begin(step)
                return
            scores = await self._scores(step, "again")
        except AgentHalted:
            self._has_ended = True  # the run ends with it, and says why
            return
        if self._has_ended:
            return
        test = JudgeChangeTest(*self._rounds, alpha=self._settings.alpha, planned_probings=self._planned_probings)
        result = test.compare(scores)
        if result is not None:
            self._probings.append({"step": step, **asdict(result)})
            self._write()
            if result.is_alarm:
                self._has_ended = True  # once is enough: every later probing would say the same
                self._alarmed(_said(step, result))

    async def _begin(self, step: int) -> None:
        """Scores the set twice. If that gives nothing to compare with, the next probing is a beginning too."""
        rounds = [await self._scores(step, name) for name in ("first", "second")]
        if any(None not in both for both in zip(*rounds, strict=True)):
            self._rounds = rounds
            self._write()
        elif not self._has_ended:
            logger.warning(
                "the judge could not be probed at step %d: none of %d fixed answers has two scores; the next try comes "
                "%d steps later",
                step,
                len(self._rollouts),
                self._settings.probe_every,
            )

    async def _scores(self, step: int, name: str) -> Scores:
        asked = f"{PROBE_SOURCE}-{step}-{name}-{secrets.token_hex(4)}"  # never in the journal: it must be asked anew
        with self._agent.open(due_step=step, source=PROBE_SOURCE) as ticket:
            for rollout in self._rollouts:
                place = f"{asked}/{rollout.group_id}"
                ticket.submit(replace(rollout, group_id=place, step=step))
        found = {
            (group.rollouts[0].group_id.partition("/")[2], rollout.index): reward
            for group in await ticket.all()
            for rollout, reward in zip(group.rollouts, group.rewards, strict=True)
        }
        if any(reward.cached for reward in found.values()):
            logger.warning("the judge is not probed: its verdicts come from the journal; set reuse: sample")
            self._has_ended = True
        return [found[rollout.group_id, rollout.index].value for rollout in self._rollouts]

    # -- the file --

    def _read(self) -> None:
        if self._path.exists():
            kept = json.loads(self._path.read_bytes())
            self._rollouts = tuple(Rollout(**one) for one in kept["rollouts"])
            self._rounds = kept["rounds"] if self._rollouts else []
            self._probings = kept["probings"]
            if self._rounds and self._probings:
                self._last_step = self._probings[-1]["step"]
            elif self._rounds:
                self._last_step = kept["step"]
            self._has_ended = self._has_ended or any(one["is_alarm"] for one in self._probings)

    def _write(self) -> None:
        kept = [_texts_of(one) for one in self._rollouts] if self._keeps_texts else []
        data = {
            "v": _VERSION,
            "step": self._last_step,
            "rollouts": kept,
            "rounds": self._rounds,
            "probings": self._probings,
        }
        write_private(self._path, json.dumps(data, default=str).encode())


def _first_groups(trained: Sequence[JudgedRollout], count: int) -> tuple[Rollout, ...]:
    """Returns whole groups, at least `count` rollouts if there are as many; numbered without gaps."""
    groups: defaultdict[str, list[Rollout]] = defaultdict(list)
    for one in trained:
        groups[one.rollout.group_id].append(one.rollout)
    chosen: list[Rollout] = []
    for members in groups.values():
        if len(chosen) < count:
            chosen += (
                replace(member, index=place, group_size=len(members), token_ids=None, log_probs=None)
                for place, member in enumerate(sorted(members, key=lambda one: one.index))
            )
    return tuple(chosen)


def _texts_of(rollout: Rollout) -> Mapping[str, Any]:
    found = {name: getattr(rollout, name) for name in _TEXTS}
    return {name: dict(value) if isinstance(value, Mapping) else value for name, value in found.items()}


def _said(step: int, result: ProbingResult) -> str:
    return (
        f"the training judge changed before step {step}: of {result.told} fixed answers that could tell, "
        f"{result.moved} have moved away from their scores at the start (mean {result.mean_before:.3f}, now "
        f"{result.mean_now:.3f}; p = {result.p_value:.1e})"
    )
