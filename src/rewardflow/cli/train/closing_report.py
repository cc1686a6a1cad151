"""The closing report of `rewardflow train`: the figures of a run, or the findings of `--check`.

Always true: with `--json` stdout holds one JSON object and nothing else; text from models and files cannot control the
terminal.
"""

from __future__ import annotations

import shlex
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import orjson

from rewardflow.checkpoint.store import CheckpointStore
from rewardflow.cli.display import dollars, duration, stdout_console, three_columns
from rewardflow.cli.safe_text import printable, safe, shortened
from rewardflow.cli.train.live_view import CURVE_WIDTH, SHOWN_FROM_S, reward_curve
from rewardflow.cli.train.totals import TrainTotals
from rewardflow.cli.train.validation_text import number, validation_text
from rewardflow.flow.validation.validation_report import ValidationReport
from rewardflow.observe.run_directory import CHECKPOINTS_FOLDER, JOURNAL_FILE
from rewardflow.reward.journal.reader import JournalReader
from rewardflow.settings.device_defaults import PASS_TOKENS_KEY

if TYPE_CHECKING:
    from rewardflow.runtime.checkpointing import StopReason
    from rewardflow.runtime.memory_estimate import MemoryEstimate
    from rewardflow.runtime.memory_plan import MemoryPlan
    from rewardflow.runtime.preflight import Preflight

Row = tuple[str, str, str]

_GIB, _MIB = 2**30, 2**20
MAX_ERROR_CHARS = 400


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainOutcome:
    """A run that has ended."""

    totals: TrainTotals
    num_steps: int  # of the whole run, as its settings say
    num_trained: int  # of these, with those before it was resumed
    calls: int  # of this session
    cost_usd: float  # of the run, in all of its sessions
    metrics: Path | None
    validations: tuple[ValidationReport, ...] = ()  # by version
    is_resumed: bool = False
    stopped_by: StopReason | None = None  # why it ended before its last step
    run_dir: Path | None = None

    @property
    def checkpoint(self) -> Path | None:
        """The latest checkpoint of the run."""
        found = [] if self.run_dir is None else CheckpointStore(self.run_dir / CHECKPOINTS_FOLDER).all()
        return found[-1].path if found else None

    def first_failures(self) -> dict[str, int]:
        """Returns the number of the first failed verdict of each kind in the run's journal, if there is one."""
        journal = None if self.run_dir is None else self.run_dir / JOURNAL_FILE
        if journal is None or not self.totals.failed or not journal.is_file():
            return {}
        with JournalReader(journal) as reader:
            found = {kind: reader.first_failure(kind) for kind in self.totals.failed}
        return {kind: number for kind, number in found.items() if number is not None}

    def to_json(self) -> dict[str, Any]:
        metrics = None if self.metrics is None else str(self.metrics)
        return {
            **self.totals.to_json(),
            "trained": self.num_trained,
            "calls": self.calls,
            "cost_usd": self.cost_usd,
            "metrics": metrics,
            "checkpoint": None if self.checkpoint is None else str(self.checkpoint),
            "first_failures": self.first_failures(),
            "stopped_by": self.stopped_by,
            "validations": [report.to_metrics_json() for report in self.validations],
        }


def report_outcome(outcome: TrainOutcome, *, as_json: bool) -> None:
    if as_json:
        write_json(outcome.to_json())
    else:
        console = stdout_console()
        console.print(three_columns(_outcome_rows(outcome, ascii_only=console.options.ascii_only)))


def report_preflight(preflight: Preflight, *, as_json: bool) -> None:
    if as_json:
        write_json(preflight.to_json())
    else:
        stdout_console().print(
            three_columns([*_sample_rows(preflight), *_device_rows(preflight), *_memory_rows(preflight.memory)])
        )


def report_plan(plan: MemoryPlan, *, as_json: bool) -> None:
    if as_json:
        write_json(plan.to_json())
    else:
        stdout_console().print(three_columns(_plan_rows(plan)))


def write_json(data: Mapping[str, Any]) -> None:
    sys.stdout.write(orjson.dumps(data, option=orjson.OPT_INDENT_2).decode() + "\n")


# ---- a run --------------------------------------------------------------------------------------------------------


def _outcome_rows(outcome: TrainOutcome, *, ascii_only: bool) -> Iterator[Row]:
    totals = outcome.totals
    before = outcome.num_trained - totals.num_steps
    resumed = f", after {before:,} before it was resumed" if before else ""
    yield "steps", f"{totals.num_steps:,}", f"of {outcome.num_steps:,}, in {duration(totals.duration_s)}{resumed}"
    if totals.mean_step_s is not None:
        yield "step time", duration(totals.mean_step_s), "in the mean"
    if totals.busy_share is not None:
        yield "device", f"{totals.busy_share:.0%}", f"busy ({_seconds_by(totals.busy_s)})"
        yield "", f"{1 - totals.busy_share:.0%}", f"idle, waiting for ({_seconds_by(totals.idle_s)})"
    yield "reward time", duration(totals.exposed_s), "exposed: the device waited for verdicts"
    yield "", duration(totals.hidden_s), "hidden: it had other work meanwhile"
    if totals.scores:
        curve = reward_curve(totals.scores, CURVE_WIDTH, ascii_only=ascii_only)
        yield "score", f"{totals.scores[-1]:.3g}", f"in the last step, {totals.scores[0]:.3g} in the first  {curve}"
    for report in outcome.validations[-1:]:
        yield "validation", number(report.overall.score_mean), validation_text(report)
    yield "verdicts", f"{totals.num_scored:,}", "scored"
    yield from _failure_rows(outcome)
    for reason, count in totals.dropped.most_common():
        yield "dropped", f"{count:,}", f"groups: {safe(reason.replace('_', ' '))}"
    if totals.staleness_max is not None:
        yield "staleness", str(totals.staleness_max), "at most"
    for warning in totals.warnings:
        yield "warning", "", safe(warning)
    calls = f"{outcome.calls:,} calls"
    yield "cost", dollars(outcome.cost_usd), f"of the run, {calls} of it now" if outcome.is_resumed else f"for {calls}"
    if outcome.checkpoint is not None:
        yield "checkpoint", "", safe(str(outcome.checkpoint))
    if outcome.metrics is not None:
        yield "metrics", "", safe(str(outcome.metrics))
    if outcome.run_dir is not None:
        yield "report", "", f"rewardflow report {safe(shlex.quote(str(outcome.run_dir)))}"


def _failure_rows(outcome: TrainOutcome) -> Iterator[Row]:
    """Yields each kind of failure with its first error, and the command that shows everything about that verdict."""
    first = outcome.first_failures()
    for kind, count in outcome.totals.failed.most_common():
        error = shortened(printable(outcome.totals.first_errors.get(kind, "")), MAX_ERROR_CHARS)
        yield "", f"{count:,}", safe(f"failed: {kind}{error and ': '}{error}")
        if kind in first:
            journal = shlex.quote(str(Path(str(outcome.run_dir)) / JOURNAL_FILE))
            yield "", "", f"rewardflow journal show {safe(journal)} {first[kind]}"


def _seconds_by(seconds: Mapping[str, float]) -> str:
    return ", ".join(
        f"{safe(name)} {duration(spent_s)}" for name, spent_s in seconds.items() if spent_s >= SHOWN_FROM_S
    )


# ---- --check ------------------------------------------------------------------------------------------------------


def _sample_rows(preflight: Preflight) -> Iterator[Row]:
    sample, calls, prompts = preflight.sample, preflight.calls, preflight.prompts
    if preflight.problem is None:
        scores = ", ".join(f"{reward.value:.3g}" for reward in sample.rewards if reward.value is not None)
        yield "sample", scores, f"after {duration(sample.elapsed_s)}, for {safe(repr(sample.rollouts[0].response))}"
    else:
        yield "sample", "FAILED", safe(preflight.problem)
    size = "no end" if prompts.num_prompts is None else f"{prompts.num_prompts:,}"
    fits = "all fit" if not prompts.num_too_long else f"{prompts.num_too_long:,} are too long and left out"
    yield "prompts", size, f"{prompts.num_read:,} read: {fits}"
    more = f", at most {calls.most_a_step:,} with reserves" if calls.most_a_step > calls.a_step else ""
    yield "calls", f"{calls.a_step:,}", f"a step{more}"
    if calls.validation:
        yield "", f"{calls.validation:,}", "for all validations"
    yield "", f"{calls.a_run:,}", "for the run"
    yield "correction", safe(preflight.correction.name), safe(preflight.correction.reason)
    if preflight.cost is None and preflight.problem is not None:
        yield "cost", "unknown", "the sample has no score"
    elif preflight.cost is None:
        yield "cost", "unknown", "no price is known: the reward reports none, and limits.call_cost_usd is not set"
    elif preflight.cost.a_verdict_usd == 0:
        yield "cost", dollars(0), "by the reward's own prices"
    else:
        yield "cost", dollars(preflight.cost.a_step_usd), "a step, if each verdict costs what the sample did"
        yield "", dollars(preflight.cost.a_run_usd), "for the run"
        if (step := preflight.cost.capped_at_step) is not None and preflight.cost.cap_usd is not None:
            ends = f"at most (limits.max_cost_usd): the run would end in step {step:,}"
            yield "", dollars(preflight.cost.cap_usd), ends


def _device_rows(preflight: Preflight) -> Iterator[Row]:
    if preflight.device_kind == "accelerator":
        yield from _chosen_rows(preflight.device_defaults, preflight.pass_fits_bytes)


def _chosen_rows(chosen: Mapping[str, Any], pass_fits_bytes: int | None) -> Iterator[Row]:
    """Says what the settings leave to an accelerator, and what they get."""
    label = "device"
    for name, value in chosen.items():
        shown = str(value).lower() if isinstance(value, bool | str) else f"{value:,}"
        yield label, shown, f"{name}, {_why_chosen(name, pass_fits_bytes)}"
        label = ""


def _why_chosen(name: str, pass_fits_bytes: int | None) -> str:
    if name != PASS_TOKENS_KEY:
        return "the default on an accelerator"
    if pass_fits_bytes is None:
        return "the default on an accelerator, not fitted to its memory"
    return f"fitted to {_size(pass_fits_bytes)}"


def _memory_rows(memory: MemoryEstimate) -> Iterator[Row]:
    yield "model", f"{memory.num_parameters:,}", f"parameters{_trained(memory)}, on {memory.device}"
    yield "memory", _size(memory.weights), "weights"
    parts = (
        (memory.gradients, "gradients"),
        (memory.optimizer, "Adam's state"),
        (memory.reference, "reference model"),
        (memory.critic, "critic, with Adam's state"),
        (memory.critic_gradients, "the critic's gradients"),
        (memory.generator_copy, "the generator's copy of the weights"),
        (memory.key_values, "keys and values of the responses that are generated together"),
        (memory.logits, "logits of a micro-batch, with their gradients"),
    )
    for size, name in parts:
        if size:
            yield "", _size(size), name
    has = "" if memory.device_bytes is None else f"; {memory.device} has {_size(memory.device_bytes)}"
    warning = ", which is TOO LITTLE" if memory.fits is False else ""
    yield "", _size(memory.at_once), f"at once, without activations{has}{warning}"


def _plan_rows(plan: MemoryPlan) -> Iterator[Row]:
    of = "one rank" if plan.num_ranks == 1 else f"each of {plan.num_ranks} ranks"
    yield "model", f"{plan.num_parameters:,}", f"parameters{_trained(plan)}; the most memory of each phase, on {of}"
    for phase in plan.phases:
        kinds = sorted(phase.by_kind.items(), key=lambda entry: -entry[1])
        told = ", ".join(f"{kind.replace('_', ' and ')} {_size(size)}" for kind, size in kinds if size >= _MIB)
        yield phase.name, _size(phase.num_bytes), f"{told}{' (calculated)' if phase.is_calculated else ''}"
    yield from _chosen_rows(plan.chosen, plan.device_bytes if plan.is_measured else None)
    for note in plan.notes:
        yield "note", "", note
    verdict = "fits" if plan.fits else "TOO LITTLE"
    yield "memory", _size(plan.device_bytes), f"{verdict}; allocator, kernels and context need 1 to 2 GiB more"
    for change in plan.advice:
        yield "", "", change


def _trained(of: MemoryEstimate | MemoryPlan) -> str:
    """Says how many parameters train, where these are not the model's own."""
    return "" if of.num_trained == of.num_parameters else f", {of.num_trained:,} of adapters train"


def _size(num_bytes: int) -> str:
    return f"{num_bytes / _GIB:,.1f} GiB" if num_bytes >= _GIB else f"{num_bytes / _MIB:,.1f} MiB"
