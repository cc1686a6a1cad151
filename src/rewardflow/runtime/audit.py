"""Audits a run while it trains: a second judge scores a random share of the rollouts, and a test compares both.

Always true: nothing is trained on an audit's verdict, and no step waits for one. An audit that fails, for want of
money, of a service or of a disk, ends itself with one warning, and not the run. Which rollouts are audited follows from
their place, so that a resumed run audits the same and pays for none twice. `audit.jsonl` has a line for each audited
step, and for each step whose answers name a new model, whether it is audited or not; of a step the last line counts.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Self, cast

from rewardflow.errors import RewardflowError
from rewardflow.flow.records import JudgedRollout
from rewardflow.judging.divergence import AuditedStep, Divergence, DivergenceTest, Moments
from rewardflow.observe.line_file import LineFile, read_lines
from rewardflow.observe.run_directory import AUDIT_FILE, AUDIT_JOURNAL_FILE
from rewardflow.reward.agent import RewardAgent
from rewardflow.reward.ticket import Ticket
from rewardflow.runtime.judge_probes import JudgeProbes
from rewardflow.services.reward_file import load_reward_file
from rewardflow.settings.sections.audit import AuditSettings
from rewardflow.types import Reward

logger = logging.getLogger(__name__)

_VERSION = 1
_NOT_TRAINED = ("baseline", "not_needed")
_ANSWERED_BY = "answered_by"


@dataclass(frozen=True, slots=True)
class _Audited:
    """A rollout as the auditing judge sees it, and the score that the run trained on."""

    place: tuple[int, str, int]
    score: float


class AuditMonitor:
    """The audit of one run: `async with` it, and pass `audit` the rollouts of each step."""

    def __init__(
        self,
        settings: AuditSettings,
        run_dir: Path,
        *,
        planned_steps: int,
        next_step: int = 0,
        on_alarm: Callable[[str], None] | None = None,
        probes: JudgeProbes | None = None,
    ) -> None:
        """`on_alarm` is called with what happened, unless the settings say `warn`; `probes` look at the judge."""
        self._settings = settings
        loaded = load_reward_file(settings.reward)
        options = {"journal": run_dir / AUDIT_JOURNAL_FILE, "run": "audit", **loaded.options}
        self._agent = RewardAgent(loaded.parts, **cast("Any", options))
        self._test = DivergenceTest(alpha=settings.alpha, planned_steps=planned_steps)
        self._on_alarm = on_alarm
        self._probes = probes
        self._has_ended = False
        self._has_told_of_failures = False
        self._tasks = asyncio.TaskGroup()
        path = run_dir / AUDIT_FILE
        lines = [line for line in audit_lines(path) if line["step"] < next_step]
        self._models = {model for line in lines for model in line.get(_ANSWERED_BY, {})}
        for line in _since_last_alarm(lines):
            self._test.add(_step_of(line))
        self._file: LineFile[Mapping[str, Any]] = LineFile(path, dict)

    async def __aenter__(self) -> Self:
        await self._agent.__aenter__()
        await self._tasks.__aenter__()
        return self

    async def __aexit__(self, *error: Any) -> None:
        """Waits for audits that are out, unless the run failed."""
        try:
            await self._tasks.__aexit__(*error)
        finally:
            try:
                await self._agent.__aexit__(*error)
            except RewardflowError as failed:
                self._end("with the run, and some of its verdicts may be lost", failed)
            await asyncio.to_thread(self._file.close)

    def audit(self, step: int, judged: Iterable[JudgedRollout]) -> None:
        """Submits the step's share to the auditing judge, and returns at once."""
        trained = [one for one in judged if one.reward.is_scored and one.why_not not in _NOT_TRAINED]
        answered_by = self._notice_models(step, trained)
        if self._probes is not None and self._probes.is_due(step, trained):
            self._tasks.create_task(self._probe(step, self._probes))
        chosen = [one for one in trained if _draw(one.rollout.place) < self._settings.share]
        if not chosen or self._has_ended:
            return
        rollouts = [
            replace(
                one.rollout,
                group_id=f"{one.rollout.group_id}/{one.rollout.index}",
                index=0,
                group_size=1,
                token_ids=None,
                log_probs=None,
            )
            for one in chosen
        ]
        audited = [
            _Audited(rollout.place, one.reward.value)
            for rollout, one in zip(rollouts, chosen, strict=True)
            if one.reward.value is not None
        ]
        try:
            ticket = self._agent.submit(rollouts)
        except RewardflowError as failed:
            self._end(f"at step {step}, and the run goes on", failed)
        else:
            self._tasks.create_task(self._receive(step, audited, ticket, answered_by))

    async def _receive(
        self, step: int, audited: Sequence[_Audited], ticket: Ticket, answered_by: Mapping[str, int]
    ) -> None:
        try:
            groups = await ticket.all()
        except RewardflowError as failed:
            self._end(f"at step {step}, and the run goes on", failed)
            return
        found = {group.rollouts[0].place: group.rewards[0].value for group in groups}
        pairs = [(one.score, value) for one in audited if (value := found.get(one.place)) is not None]
        if not pairs:
            self._tell_of_failures(step, [group.rewards[0] for group in groups])
        line = AuditedStep(step, Moments.of(score for score, _ in pairs), Moments.of(value for _, value in pairs))
        alarm = self._test.add(line)
        self._file.append(_line_of(line, alarm, answered_by, len(audited) - len(pairs)))
        if alarm is not None:
            self.alarm(str(alarm))

    async def _probe(self, step: int, probes: JudgeProbes) -> None:
        try:
            await probes.probe(step)
        except (RewardflowError, OSError) as failed:
            logger.warning("the probes of the judge end at step %d, and the run goes on: %s", step, failed)
            self._probes = None

    def _end(self, when: str, why: RewardflowError) -> None:
        if not self._has_ended:
            logger.warning("the audit ends %s: %s", when, why)
        self._has_ended = True

    def _tell_of_failures(self, step: int, rewards: Sequence[Reward]) -> None:
        """Says once that a step has no score of the audit: a run whose audit always fails is not audited."""
        if not self._has_told_of_failures:
            self._has_told_of_failures = True
            why = next((reward.error for reward in rewards if reward.error), "no reason is known")
            logger.warning(
                "AUDIT: step %d has no score of the audit: all of its %d verdicts failed: %s", step, len(rewards), why
            )

    def alarm(self, what: str) -> None:
        """Logs what happened, and does what `on_alarm` of the settings says."""
        logger.warning("AUDIT: %s", what)
        if self._settings.on_alarm != "warn" and self._on_alarm is not None:
            end = "ends; --resume goes on with it" if self._settings.on_alarm == "stop" else "waits"
            logger.warning("AUDIT: the run saves a checkpoint after this step and %s", end)
            self._on_alarm(what)

    def _notice_models(self, step: int, judged: Sequence[JudgedRollout]) -> dict[str, int]:
        """Warns when answers name a model that no earlier step's answers named, and writes it down at once."""
        named = Counter(model for one in judged for model in _models_of(one.reward))
        unknown = sorted(set(named) - self._models)
        if unknown and self._models:
            logger.warning(
                "AUDIT: the training judge changed at step %d: its answers name %s, and named %s before",
                step,
                ", ".join(unknown),
                ", ".join(sorted(self._models)),
            )
        if unknown:
            self._file.append(_line_of(AuditedStep(step, Moments(), Moments()), None, named, 0))
        self._models |= set(named)
        return dict(named)


def _models_of(reward: Reward) -> set[str]:
    """Returns the models that answered for a verdict: those of all judges of a weighted sum, and of all votes."""
    found: set[str] = set()
    for name, value in reward.extras.items():
        if name.rpartition("/")[2] == _ANSWERED_BY:
            models = value if isinstance(value, list | tuple) else (value,)
            found |= {model for model in models if isinstance(model, str) and model}
    return found


def audit_lines(path: Path) -> list[dict[str, Any]]:
    """Returns the last line of each step, in order."""
    if not path.exists():
        return []
    by_step = {line["step"]: line for _, line in read_lines(path)}
    return [by_step[step] for step in sorted(by_step)]


def _since_last_alarm(lines: Sequence[dict[str, Any]]) -> Sequence[dict[str, Any]]:
    """Returns the lines that the test of a resumed run begins with: after an alarm it begins anew."""
    alarmed = [place for place, line in enumerate(lines) if line.get("alarm")]
    return lines[alarmed[-1] + 1 :] if alarmed else lines


def _line_of(
    audited: AuditedStep, alarm: Divergence | None, answered_by: Mapping[str, int], num_failed: int
) -> dict[str, Any]:
    return {
        "v": _VERSION,
        "step": audited.step,
        "rollouts": audited.training.count,
        "failed": num_failed,
        "training_sum": audited.training.sum,
        "training_squares": audited.training.squares,
        "audit_sum": audited.audit.sum,
        "audit_squares": audited.audit.squares,
        _ANSWERED_BY: dict(answered_by),
        "alarm": None if alarm is None else alarm.to_json(),
    }


def _step_of(line: Mapping[str, Any]) -> AuditedStep:
    count = int(line["rollouts"])
    return AuditedStep(
        int(line["step"]),
        Moments(count, float(line["training_sum"]), float(line["training_squares"])),
        Moments(count, float(line["audit_sum"]), float(line["audit_squares"])),
    )


def _draw(place: tuple[int, str, int]) -> float:
    text = "\0".join(map(str, place)).encode("utf-8", "surrogatepass")
    return int.from_bytes(hashlib.blake2b(text, digest_size=8).digest(), "big") / 2.0**64
