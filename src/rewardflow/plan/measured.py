"""Turns the measurements of a run or a journal into settings of a plan.

Always true: only the totals of steps are read, so that a run of millions of calls is read quickly. Values that were not
measured are left out, for the plan's file or the command line to set. A run's totals count verdicts, including their
retries and hedges; so one planned call represents one verdict, is never retried, and costs as much as a verdict did.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean, median
from typing import Any, Final

from rewardflow.errors import InvalidInput
from rewardflow.observe.histogram import Histogram
from rewardflow.observe.line_file import read_lines
from rewardflow.observe.nesting import read_json
from rewardflow.observe.run_directory import SETTINGS_FILE, RunDirectory, read_steps
from rewardflow.reward.journal.reader import JournalReader
from rewardflow.reward.latency import journal_quantiles

_NUM_QUANTILES: Final = 501
_SOURCE: Final = "reward"
_REPEATED: Final = 1.5  # calls per verdict; more calls mean several rewards


def measured_settings(path: Path) -> dict[str, Any]:
    """Reads a run's directory or a journal."""
    if not path.exists():
        raise InvalidInput(f"a plan can be made from a run directory or a journal, got {path}, which does not exist")
    if path.is_dir():
        return _of_run(RunDirectory.open(path))
    return {"service": {"latency": journal_quantiles(path), "price_usd": _price_of_journal(path)}}


def _price_of_journal(path: Path) -> float:
    """Returns the price of a call: the cost of all verdicts divided by their attempts."""
    with JournalReader(path) as reader:
        rows = [(row.cost_usd, row.attempts) for row in reader.rows()]
    return sum(cost_usd for cost_usd, _ in rows) / max(1, sum(attempts for _, attempts in rows))


def _of_run(run: RunDirectory) -> dict[str, Any]:
    totals = [sources[_SOURCE] for _, sources in sorted(read_steps(run.path).items()) if _SOURCE in sources]
    if not totals:
        raise InvalidInput(f"a run that is planned from must have judged something, got no totals in {run.steps_path}")
    found: dict[str, Any] = {"service": _service(totals), "limits": {"max_attempts": 1}}
    # A step that was trained again after a crash has several lines; the last one counts. Validations are other lines.
    lines = {line["step"]: line for _, line in read_lines(run.metrics_path) if line.get("source", "train") == "train"}
    if lines:
        found["device"] = _device([lines[step] for step in sorted(lines)])
    if (run.path / SETTINGS_FILE).exists():
        settings = _from_settings(run.path / SETTINGS_FILE)
        found["service"] |= settings.pop("service", {})
        if "device" in found:
            found["device"] |= settings.pop("device", {})
        found |= {name: value for name, value in settings.items() if name != "device"}
    return found


def _service(totals: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    latencies = Histogram()
    for one in totals:
        latencies.merge(Histogram.from_json(one["latency_s"]))
    quantiles = [latencies.quantile(i / (_NUM_QUANTILES - 1)) or 0.0 for i in range(_NUM_QUANTILES)]
    verdicts = max(1, sum(one["rollouts"] - one["cached"] for one in totals))
    failed = sum(sum(one["failed"].values()) for one in totals)
    rpm = _learnt_rpm(totals, verdicts)
    return {
        "latency": quantiles,
        "failures": min(1.0, failed / verdicts),
        "price_usd": sum(one["cost_usd"] for one in totals) / verdicts,
        **({} if rpm is None else {"rpm": rpm}),
    }


def _learnt_rpm(totals: Sequence[Mapping[str, Any]], verdicts: int) -> float | None:
    """Returns the verdicts per minute that the learnt rate allows; None if several rewards share the counts."""
    paces: list[tuple[str, float]] = [
        (name, account["limits"]["pace"]["last"])
        for one in totals
        for name, account in one.get("accounts", {}).items()
        if account.get("limits", {}).get("pace", {}).get("last")
    ]
    calls: int = sum(one["calls"] for one in totals)
    if not paces or len({name for name, _ in paces}) > 1 or calls > _REPEATED * verdicts:
        return None
    return median(rpm for _, rpm in paces) * verdicts / max(calls, 1)


def _device(lines: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Returns means over all steps except the first and the last, if there are others."""
    counted = lines[1:-1] or lines

    def mean_s(kind: str, work: str) -> float:
        return fmean(line.get(kind, {}).get(work, 0.0) for line in counted)

    return {
        "generation_s": mean_s("busy_s", "generate"),
        "log_probs_s": mean_s("busy_s", "log_probs"),
        "update_s": mean_s("busy_s", "update"),
        # The loop's work between two steps occupies the device as publishing does.
        "publish_s": mean_s("busy_s", "publish") + mean_s("idle_s", "other"),
    }


def _from_settings(path: Path) -> dict[str, Any]:
    """Reads the batch, the placement and the slots from the run's saved settings."""
    try:
        settings = read_json(path.read_bytes())
        schedule, slots = settings["schedule"], (settings.get("limits") or {}).get("max_concurrency")
        return {
            "prompts": schedule["groups_per_step"],
            "responses": settings["generation"]["group_size"],
            "mini_batches": schedule["mini_batches"],
            "steps": settings["steps"],
            "device": {"placement": schedule["placement"]},
            "service": {"slots": slots} if isinstance(slots, int) else {},
        }
    except (ValueError, KeyError, TypeError) as error:
        raise InvalidInput(f"{path.name} must hold the settings of a training run, got {path}: {error!r}") from error
