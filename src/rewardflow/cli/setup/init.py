"""`rewardflow init`: writes the files of a new run, for a chosen kind of reward.

Always true: nothing that exists is overwritten; all files are written or none. Without a terminal the command asks
nothing.
"""

from __future__ import annotations

import argparse
import os
import shlex
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import cast

from rewardflow.cli.display import stderr_console, stdout_console
from rewardflow.cli.safe_text import safe
from rewardflow.cli.setup.starter_files import CASES, Case, starter_files
from rewardflow.errors import InvalidInput

MOCK_MODEL, MOCK_URL = "mock-judge", "http://127.0.0.1:8077/v1"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Writes run.yaml with a reward to begin from: your own function, an LLM judge, or a rule plus a judge.\n"
        "On a terminal the command asks for what no flag says. Judges are set up for the mock judge, which needs no\n"
        "account; --model, --url and --key-env name a real one."
    )
    parser.add_argument("folder", nargs="?", default=".", metavar="FOLDER", help="where to write (the current folder)")
    parser.add_argument("--case", choices=list(CASES), help="the kind of reward")
    parser.add_argument("--model", metavar="NAME", help="the judge's model (mock-judge)")
    parser.add_argument("--url", metavar="URL", help=f"the judge's address ({MOCK_URL})")
    parser.add_argument("--key-env", metavar="NAME", help="the environment variable that holds the judge's key")


def run(args: argparse.Namespace) -> int:
    folder = Path(args.folder)
    case = cast("Case", args.case) if args.case is not None else _asked_case()
    if case == "function" and (args.model or args.url or args.key_env):
        raise InvalidInput("--model, --url and --key-env are about a judge, which --case function does not have")
    files = starter_files(case, model=args.model or MOCK_MODEL, url=args.url or MOCK_URL, key_env=args.key_env)
    _write(folder, files)
    missing_key = args.key_env if args.key_env and not os.environ.get(args.key_env) else None
    _say_what_next(folder, files, needs_mock=case != "function" and args.url is None, missing_key=missing_key)
    return 0


def _asked_case() -> Case:
    if not sys.stdin.isatty():
        raise InvalidInput(f"--case must be one of {', '.join(CASES)}, got none")
    console = stderr_console()
    console.print("What scores a response?")
    for number, (name, text) in enumerate(CASES.items(), start=1):
        console.print(f"  {number}  {text} ({name})")
    while True:
        answer = console.input("number [1]: ").strip() or "1"
        if answer in CASES:
            return cast("Case", answer)
        if answer.isdecimal() and 1 <= int(answer) <= len(CASES):
            return list(CASES)[int(answer) - 1]


def _write(folder: Path, files: Mapping[str, str]) -> None:
    existing = [name for name in files if (folder / name).exists()]
    if existing:
        raise InvalidInput(f"init overwrites nothing, and {folder} already has {', '.join(existing)}")
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        (folder / name).write_text(text, "utf-8")


def _say_what_next(folder: Path, files: Mapping[str, str], *, needs_mock: bool, missing_key: str | None) -> None:
    console = stdout_console()
    console.print(f"wrote {safe(', '.join(str(folder / name) for name in files))}", soft_wrap=True)
    console.print("\nnext:")
    run_file = safe(shlex.quote(str(folder / "run.yaml")))
    if needs_mock:
        console.print("  rewardflow mock-judge --port 8077 --scores graded   # in another terminal")
    if missing_key is not None:
        console.print(f"  export {safe(missing_key)}=...   # the judge's key, which is not set yet", soft_wrap=True)
    console.print(f"  rewardflow train {run_file} --check", soft_wrap=True)
    console.print(f"  rewardflow train {run_file}", soft_wrap=True)
