"""`rewardflow train`: trains as one file of settings says and shows the progress.

Always true: a mistake in the settings is reported before torch is imported; Ctrl-C and SIGTERM end the run in order,
saved if it can be (`stop_signals`); `--check` starts nothing. If a run ends early and can be resumed, the command names
the step at which it would start; after an interrupt that is the last line.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from rewardflow.checkpoint.manifest import Checkpoint
from rewardflow.cli.command_run import INTERRUPTED, MANY_FAILED
from rewardflow.cli.display import prints_to_stderr, stderr_console
from rewardflow.cli.safe_text import safe
from rewardflow.cli.train.closing_report import TrainOutcome, report_outcome, report_plan, report_preflight, write_json
from rewardflow.cli.train.live_view import TrainView
from rewardflow.cli.train.printed_config import print_config
from rewardflow.cli.train.stop_signals import StopSignals
from rewardflow.errors import InvalidInput
from rewardflow.observe.run_directory import METRICS_FILE, RUN_FILE
from rewardflow.runtime.memory_plan import plan_memory
from rewardflow.runtime.open_run import open_run
from rewardflow.runtime.preflight import preflight
from rewardflow.runtime.prepare import RunStart, check_installed, check_start, store_of
from rewardflow.runtime.records.validation_records import is_measuring
from rewardflow.runtime.run_agent import spent_usd
from rewardflow.settings.json_schema import json_schema
from rewardflow.settings.run_file import load_run_with_origins
from rewardflow.settings.run_settings import RunSettings

if TYPE_CHECKING:
    from rich.console import Console

WELL = 0
SAMPLE_FAILED = 3
TOO_LITTLE_MEMORY = 4
_GIB = 2**30


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Reads the settings of a run (docs/configuration.md) and trains. KEY=VALUE changes a setting of the file,\n"
        "such as trainer.lr=1e-5. The command asks the reward about one sample before it loads anything, so that a\n"
        "judge that is down shows in seconds. Ctrl-C or SIGTERM lets the current step end, saves the run and leaves;\n"
        "a second one leaves now. --resume goes on with a run that was stopped or killed (docs/resume.md); SIGUSR1\n"
        "makes a run save itself after the step that is under way. Exit code 0 when done or when the\n"
        "checkpoint.max_hours are up, 2 for a mistake, 3 if the sample of --check has no score or if more verdicts\n"
        "failed than failures.max_share, 4 if the memory of --check --memory is too little, 130 if interrupted."
    )
    parser.add_argument("run_file", nargs="?", metavar="RUN", help="the settings, a .yaml file")
    parser.add_argument("overrides", nargs="*", default=[], metavar="KEY=VALUE", help="a setting to change")
    parser.add_argument("--check", action="store_true", help="say what the run would need and cost, and start nothing")
    parser.add_argument(
        "--memory",
        type=float,
        metavar="GIB",
        help="with --check: plan each phase on devices with this much memory, and ask neither cluster nor reward",
    )
    parser.add_argument("--resume", action="store_true", help="go on with the run in run_dir, from its last checkpoint")
    parser.add_argument(
        "--print-config", action="store_true", help="print every setting as resolved, and where its value comes from"
    )
    parser.add_argument("--schema", action="store_true", help="print the JSON schema of a run file, for editors")
    parser.add_argument("--no-probe", action="store_true", help="start without asking the reward about a sample")
    parser.add_argument("--json", action="store_true", help="print the result as one JSON object")


def run(args: argparse.Namespace) -> int:
    if args.schema:
        write_json(json_schema())
        return WELL
    if args.run_file is None:
        raise InvalidInput("train needs a file of settings, as in `rewardflow train run.yaml`, got none")
    if args.check and args.no_probe:
        raise InvalidInput("--no-probe cannot go with --check, which asks the reward about a sample")
    if args.memory is not None and not (args.check and args.memory > 0):
        raise InvalidInput(f"--memory goes with --check and is more than 0 GiB, got --memory {args.memory:g}")
    loaded = load_run_with_origins(args.run_file, args.overrides)
    settings = loaded.settings
    if args.print_config:
        print_config(loaded, file=args.run_file, as_json=args.json)
        return WELL
    if args.memory is not None:
        return plan(settings, int(args.memory * _GIB), as_json=args.json)
    start = check_start(settings, resume=args.resume)
    checkpoint = start.checkpoint
    if checkpoint is not None and checkpoint.step >= settings.steps and not is_measuring(settings, checkpoint):
        return _finished(checkpoint, settings, as_json=args.json)
    if args.check:
        return check(start, as_json=args.json)
    if _is_ctrl_c_off():
        told = "Ctrl-C is switched off, because this process was started in the background; SIGTERM ends the run"
        stderr_console().print(told, soft_wrap=True)
    if args.resume:
        stderr_console().print(_where_from(checkpoint, settings), soft_wrap=True)
    return train(start, probes=not args.no_probe, as_json=args.json)


def check(start: RunStart, *, as_json: bool) -> int:
    with prints_to_stderr(applies=as_json):
        found = asyncio.run(preflight(start))
    report_preflight(found, as_json=as_json)
    if found.problem is None:
        return WELL
    stderr_console().print(f"the reward failed on a sample: {safe(found.problem)}", soft_wrap=True)
    return SAMPLE_FAILED


def plan(settings: RunSettings, device_bytes: int, *, as_json: bool) -> int:
    check_installed()
    found = plan_memory(settings, device_bytes)
    report_plan(found, as_json=as_json)
    return WELL if found.fits else TOO_LITTLE_MEMORY


def _where_from(checkpoint: Checkpoint | None, settings: RunSettings) -> str:
    if checkpoint is not None:
        return f"going on with step {checkpoint.step:,} of {settings.steps:,}, from {safe(str(checkpoint.path))}"
    run_dir = safe(str(settings.run_dir))
    return f"there is no checkpoint in {run_dir}: starting from the beginning, with the verdicts of its journal"


def _finished(checkpoint: Checkpoint, settings: RunSettings, *, as_json: bool) -> int:
    wanted = "steps are" if checkpoint.step > settings.steps else f"of {settings.steps:,} steps are"
    message = (
        f"the run in {safe(str(settings.run_dir))} is finished: {checkpoint.step:,} {wanted} "
        f"trained, and the model is in {safe(str(checkpoint.path))} (rewardflow export writes it for transformers)"
    )
    stderr_console().print(message, soft_wrap=True)
    if as_json:
        write_json({"steps": 0, "trained": checkpoint.step})
    return WELL


def train(start: RunStart, *, probes: bool, as_json: bool) -> int:
    settings, console = start.settings, stderr_console()
    view = TrainView(settings.steps, console)
    signals = StopSignals(
        # A terminal shows whole words, a file a whole line.
        tell=lambda text: console.print(text, soft_wrap=not console.is_terminal),
        leave=lambda: _leave(settings, console),
    )
    try:
        with prints_to_stderr(applies=as_json):
            outcome = asyncio.run(_train(start, view, console, signals, probes=probes))
    except (KeyboardInterrupt, asyncio.CancelledError):
        _say_what_is_kept(view, settings, console)
        raise KeyboardInterrupt(_interrupted(settings)) from None
    except BaseException:
        _say_what_is_kept(view, settings, console, where=_where_resumed(settings))
        raise
    finally:
        signals.closed()
    report_outcome(outcome, as_json=as_json)
    return _exit_code(outcome, settings, console)


def _exit_code(outcome: TrainOutcome, settings: RunSettings, console: Console) -> int:
    """Says why the run ended early or is not well, and returns the exit code."""
    share, most = outcome.totals.failed_share, settings.failures.max_share
    if share > most:
        message = f"{share:.0%} of the verdicts failed, more than failures.max_share={most:g}: exit code {MANY_FAILED}"
        console.print(message, soft_wrap=True)
    why = ""
    match outcome.stopped_by:
        case "signal":
            sys.stderr.write(f"rewardflow: {_interrupted(settings)}\n")
            return INTERRUPTED
        case "max_hours":
            why = f"checkpoint.max_hours={settings.checkpoint.max_hours:g} are up"
        case "audit":
            why = "the audit raised an alarm (audit.on_alarm=stop): the run ends"
    if why:
        goes_on = f"before step {outcome.num_trained:,} of {settings.steps:,}: the same command with --resume goes on"
        console.print(f"{why} {goes_on}", soft_wrap=True)
    return MANY_FAILED if share > most else WELL


def _say_what_is_kept(view: TrainView, settings: RunSettings, console: Console, *, where: str = "") -> None:
    if view.totals.num_steps:
        kept = "" if settings.run_dir is None else f"; metrics are in {safe(str(_metrics(settings)))}"
        trained = f"stopped after {view.num_trained:,} of {settings.steps:,} steps"
        console.print(f"{trained}{kept}{where and '; '}{where}", soft_wrap=True)


def _where_resumed(settings: RunSettings) -> str:
    """Names the step at which `--resume` starts; empty if there is nothing to resume."""
    if settings.run_dir is None or not (Path(settings.run_dir) / RUN_FILE).exists():
        return ""
    saved = store_of(settings).all()
    if saved:
        return f"--resume starts at step {saved[-1].step:,} of {settings.steps:,}"
    return "no step was saved: --resume starts at step 0, with the verdicts of the journal"


def _interrupted(settings: RunSettings) -> str:
    where = _where_resumed(settings)
    return f"interrupted; {where}" if where else "interrupted"


def _leave(settings: RunSettings, console: Console) -> NoReturn:
    """Ends the process without waiting for anything, from any thread; shows the cursor that a live view hid."""
    with contextlib.suppress(Exception):
        console.show_cursor()
        sys.stderr.write(f"\nrewardflow: {safe(_interrupted(settings))}\n")
        sys.stderr.flush()
    os._exit(INTERRUPTED)


def _is_ctrl_c_off() -> bool:
    """Whether SIGINT does not reach this process: `command_run` blocks it if a shell made it ignored."""
    return signal.SIGINT in signal.pthread_sigmask(signal.SIG_BLOCK, ())


async def _train(
    start: RunStart, view: TrainView, console: Console, signals: StopSignals, *, probes: bool
) -> TrainOutcome:
    with signals.handled():
        return await _train_handled(start, view, console, signals, probes=probes)


async def _train_handled(
    start: RunStart, view: TrainView, console: Console, signals: StopSignals, *, probes: bool
) -> TrainOutcome:
    settings = start.settings
    asking = "asking the reward about a sample, then " if probes else ""
    console.print(f"{asking}loading {safe(settings.policy.model)}", soft_wrap=True)

    def tell(waits_for: str) -> None:
        console.print(safe(waits_for), soft_wrap=True)

    async with open_run(
        settings, tell=tell, on_step=view.add, on_validation=view.add_validation, probes=probes, start=start
    ) as run:
        async with view.shown(run):
            with signals.saving(run):
                num_trained = await run.train()
        statistics = run.agent.statistics()
        stopped_by = None if run.checkpointer is None else run.checkpointer.statistics().stopped_by
    return TrainOutcome(
        totals=view.totals,
        num_steps=settings.steps,
        num_trained=num_trained,
        calls=statistics.calls,
        cost_usd=spent_usd(statistics),
        metrics=_metrics(settings),
        validations=tuple(sorted(view.validations, key=lambda report: report.version)),
        is_resumed=start.resumes,
        stopped_by=stopped_by,
        run_dir=None if settings.run_dir is None else Path(settings.run_dir),
    )


def _metrics(settings: RunSettings) -> Path | None:
    return None if settings.run_dir is None else Path(settings.run_dir) / METRICS_FILE
