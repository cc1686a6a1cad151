"""`rewardflow eval`: measures a model, a checkpoint or an exported folder on validation data.

Always true: the command reports a wrong setting before it loads a model; with `--json` stdout holds one JSON object and
nothing else; every figure that leaves failed verdicts out is shown with their number.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rewardflow.cli.display import dollars, duration, prints_to_stderr, stderr_console, stdout_console
from rewardflow.cli.safe_text import safe
from rewardflow.cli.train.closing_report import write_json
from rewardflow.cli.train.validation_text import number, share, under_way_text
from rewardflow.flow.validation.validation_report import Validated, ValidationFigures, ValidationReport
from rewardflow.runtime.evaluate import (
    Evaluation,
    EvaluationStart,
    MeasuredModel,
    check_evaluation,
    evaluation,
)
from rewardflow.settings.run_file import load_run

if TYPE_CHECKING:
    from rich.console import Console

    from rewardflow.reward.agent_statistics import AgentStatistics
    from rewardflow.shared_agent.remote_calls import ClientStatistics

WELL = 0
NOTHING_SCORED = 3
_LINE_EVERY_S = 5.0


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Generates from the prompts of `validation.data` of a run file and has its reward judge the responses\n"
        "(docs/validation.md). KEY=VALUE changes a setting of the file, such as validation.data.path=test.jsonl.\n"
        "Nothing is trained. Verdicts are kept in a journal of the evaluation's own, so that the same evaluation\n"
        "costs nothing the second time. Exit code 0 when done, 2 for a mistake, 3 if no verdict has a score,\n"
        "130 if interrupted."
    )
    parser.add_argument("run_file", metavar="RUN", help="the settings, a .yaml file")
    parser.add_argument("overrides", nargs="*", default=[], metavar="KEY=VALUE", help="a setting to change")
    parser.add_argument(
        "--checkpoint",
        metavar="WHICH",
        help="`latest` or `best` of the file's run_dir, or the path of a checkpoint, of a run, or of an exported model "
        "(the file's policy.model, untrained)",
    )
    parser.add_argument("--out", metavar="DIR", help="the folder for figures and verdicts (RUN_DIR/eval/NAME)")
    parser.add_argument("--no-probe", action="store_true", help="start without asking the reward about a sample")
    parser.add_argument("--json", action="store_true", help="print the result as one JSON object")


def run(args: argparse.Namespace) -> int:
    settings = load_run(args.run_file, args.overrides)
    start = check_evaluation(settings, args.checkpoint, out=None if args.out is None else Path(args.out))
    model, out = start.model, start.out
    with prints_to_stderr(applies=args.json):
        validated, agent = asyncio.run(_measure(start, probes=not args.no_probe))
    if args.json:
        write_json(_to_json(validated.report, model, agent, out))
    else:
        _show(validated.report, model, agent, out)
    return WELL if validated.report.overall.num_scored else NOTHING_SCORED


async def _measure(start: EvaluationStart, *, probes: bool) -> tuple[Validated, AgentStatistics | ClientStatistics]:
    console = stderr_console()
    console.print(f"loading {safe(_shown(start.model))}", soft_wrap=True)

    def tell(waits_for: str) -> None:
        console.print(safe(waits_for), soft_wrap=True)

    async with evaluation(start, probes=probes, tell=tell) as opened:
        async with _progress(opened, console):
            validated = await opened.measure()
        return validated, opened.agent.statistics()


@contextlib.asynccontextmanager
async def _progress(opened: Evaluation, console: Console) -> AsyncIterator[None]:
    async def watch() -> None:
        while True:
            await asyncio.sleep(_LINE_EVERY_S)
            console.print(under_way_text(opened.measurement.statistics()), soft_wrap=True)

    async with asyncio.TaskGroup() as tasks:
        watching = tasks.create_task(watch())
        try:
            yield
        finally:
            watching.cancel()


def _shown(model: MeasuredModel) -> str:
    return model.policy.model if model.place is None else str(model.place)


def _to_json(
    report: ValidationReport, model: MeasuredModel, agent: AgentStatistics | ClientStatistics, out: Path | None
) -> dict[str, Any]:
    return {
        **report.to_json(),
        "model": _shown(model),
        "calls": agent.calls,
        "out": None if out is None else str(out),
    }


def _show(
    report: ValidationReport, model: MeasuredModel, agent: AgentStatistics | ClientStatistics, out: Path | None
) -> None:
    from rich.table import Table

    console = stdout_console()
    trained = f", after {report.version:,} steps" if model.checkpoint is not None else ""
    console.print(f"{safe(_shown(model))}{trained}", soft_wrap=True)
    components = list(report.overall.component_means)
    whole = _cells(report.overall, components)
    table = Table(box=None, pad_edge=False)
    for i, name in enumerate(_columns(report.overall)):
        table.add_column(name, justify="right" if i else "left", no_wrap=True)
    if len(report.by_source) > 1:
        for source, figures in report.by_source.items():
            table.add_row(safe(source) or "(no data source)", *_cells(figures, components))
    table.add_row("all" if len(report.by_source) > 1 else safe(next(iter(report.by_source))), *whole)
    console.print(table)
    for kind, count in sorted(report.overall.failed.items()):
        console.print(f"{count:,} verdicts failed ({safe(kind)}) and are in no figure", soft_wrap=True)
    cost = f"{dollars(report.overall.cost_usd)} for {agent.calls:,} calls"
    console.print(f"took {duration(report.duration_s)}, {cost}", soft_wrap=True)
    if out is not None:
        console.print(f"responses and verdicts are in {safe(str(out))}", soft_wrap=True)


def _columns(figures: ValidationFigures) -> list[str]:
    ks = [f"pass@{one.k}" for one in figures.pass_at]
    names = list(figures.component_means)
    return ["data", "prompts", "scored", "failed", "score", "passed", *ks, *map(safe, names), "tokens", "cut off"]


def _cells(figures: ValidationFigures, components: Sequence[str]) -> Iterator[str]:
    yield f"{figures.num_prompts:,}"
    yield f"{figures.num_scored:,}"
    yield f"{figures.num_rollouts - figures.num_scored:,}"
    yield number(figures.score_mean)
    yield share(figures.pass_share)
    for one in figures.pass_at:
        yield number(one.value)
    for name in components:
        yield number(figures.component_means.get(name))
    yield number(figures.response_tokens_mean)
    yield share(figures.truncated_share)
