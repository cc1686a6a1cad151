"""The table of commands: what `rewardflow --help` says of each, and which module holds it.

Always true: this module imports no command. A command's module has `add_arguments(parser)` and `run(args)`, and is
loaded when somebody uses that command.
"""

from __future__ import annotations

from typing import NamedTuple


class Command(NamedTuple):  # importing dataclasses would take longer than all of `--help`'s modules
    """One command of the command line."""

    name: str
    module: str
    help: str
    example: str


COMMANDS = (
    Command(
        "init",
        "rewardflow.cli.setup.init",
        "write the files of a new run: your own function, an LLM judge, or a rule plus a judge",
        "rewardflow init first-run --case judge",
    ),
    Command(
        "demo",
        "rewardflow.cli.demo.command",
        "watch a tiny model learn from a slow judge, with and without waiting for it; needs no account and no GPU",
        "rewardflow demo --steps 40",
    ),
    Command(
        "score",
        "rewardflow.cli.score.command",
        "judge a file of answers with a reward and write the verdicts beside them",
        "rewardflow score answers.jsonl --reward judge.yaml --out verdicts.jsonl",
    ),
    Command(
        "train",
        "rewardflow.cli.train.command",
        "train a policy with a reward, as one file of settings says",
        "rewardflow train run.yaml --check trainer.lr=1e-5",
    ),
    Command(
        "plan",
        "rewardflow.cli.plan",
        "say what each schedule would take and cost, by simulating it",
        "rewardflow plan examples/original.yaml service.slots=512 --html plan.html",
    ),
    Command(
        "agent",
        "rewardflow.cli.agent",
        "start, look at and stop the reward agent that several training runs share on Ray",
        "rewardflow agent start judge.yaml --rpm 600 --env OPENAI_API_KEY",
    ),
    Command(
        "serve",
        "rewardflow.cli.serve",
        "serve verdicts over HTTP to any trainer, with one set of limits, caps and a journal for all of them",
        "rewardflow serve judge.yaml --port 8078 --journal verdicts.db",
    ),
    Command(
        "eval",
        "rewardflow.cli.evaluate",
        "measure a model or a checkpoint on validation data",
        "rewardflow eval run.yaml --checkpoint best",
    ),
    Command(
        "verl",
        "rewardflow.cli.verl",
        "train with verl, rewardflow scoring and scheduling",
        "rewardflow verl data.train_files=train.parquet --dry-run",
    ),
    Command(
        "export",
        "rewardflow.cli.export",
        "write the model of a run or checkpoint as transformers loads it",
        "rewardflow export runs/digits digits-model --dtype bfloat16",
    ),
    Command(
        "report",
        "rewardflow.cli.report.command",
        "show a run as one HTML page: time, rewards, calls, cost, failures, rollouts",
        "rewardflow report runs/digits --trace digits.trace.json",
    ),
    Command(
        "watch",
        "rewardflow.cli.report.watching",
        "serve the pages of all runs in a folder, current while the runs go on",
        "rewardflow watch runs",
    ),
    Command(
        "judge",
        "rewardflow.cli.judge.command",
        "test judges on labelled answers: agreement, calibration, biases, attacks, latency and cost",
        "rewardflow judge test judge.yaml other.yaml labels.jsonl --out judges.html",
    ),
    Command(
        "rejudge",
        "rewardflow.cli.judge.rejudge",
        "judge the rollouts of a run with another judge, and say what would have changed",
        "rewardflow rejudge runs/digits --reward other.yaml --groups 200",
    ),
    Command(
        "journal",
        "rewardflow.cli.journal",
        "list, show, export and shrink the verdicts that a run has paid for",
        "rewardflow journal ls run.db --failed",
    ),
    Command(
        "mock-judge",
        "rewardflow.cli.mock_judge",
        "serve a made-up judge on this machine, as slow and faulty as asked; OpenAI-compatible",
        "rewardflow mock-judge --scores graded --latency lognormal:1,0.5 --faults 500=0.03",
    ),
    Command(
        "convert",
        "rewardflow.cli.setup.convert",
        "write a data set in verl's layout, for training",
        "rewardflow convert gsm8k train.jsonl train.parquet",
    ),
    Command(
        "chaos",
        "rewardflow.cli.chaos",
        "try to break what docs/reliability.md promises: a hostile server, kills, a full disk, random budgets",
        "rewardflow chaos --only mixed-answers --seed 7",
    ),
    Command(
        "bench",
        "rewardflow.cli.bench",
        "measure what the agent, a call to a judge and a schedule cost, and how close they come to their bounds",
        "rewardflow bench agent --quick",
    ),
    Command(
        "completion",
        "rewardflow.cli.setup.completion",
        "print a script that completes commands, options and settings in bash, zsh or fish",
        "rewardflow completion bash",
    ),
)
