"""`rewardflow journal`: lists, shows and exports the verdicts of a run, checks and repairs the file, and shrinks it.

Always true: text from policies and judges cannot control the terminal: `ls` and `show` escape every control character.
`ls`, `show`, `export` and `check` open the journal read-only and work while a run writes to it; `check --repair` and
`vacuum` need it alone.
"""

from __future__ import annotations

import argparse
import dataclasses
import shutil
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import IO, Any

from rewardflow.answers.plain_json import json_text
from rewardflow.cli.safe_text import printable, shortened
from rewardflow.errors import InvalidInput
from rewardflow.observe.private_file import replacing
from rewardflow.observe.run_directory import JOURNAL_FILE
from rewardflow.reward.journal.integrity import JournalCheck, check_journal
from rewardflow.reward.journal.repair import RepairResult, repair_journal
from rewardflow.reward.journal.verdict_journal import JournalReader, JournalRow, vacuum

DAY_S = 86_400.0
MAX_CELL = 40
MAX_ERROR = 400
MAX_PROBLEMS = 20
BROKEN = 1
_PATH_HELP = "the journal, or the directory of a run that keeps its own"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    commands = parser.add_subparsers(dest="journal_command", required=True, metavar="COMMAND")

    ls = commands.add_parser("ls", help="list verdicts, one line each, the newest last")
    ls.add_argument("path", metavar="PATH", type=_journal, help=_PATH_HELP)
    ls.add_argument("--run", dest="only_run", metavar="R", help="only this run's verdicts")
    ls.add_argument("--failed", action="store_true", help="only failed verdicts, with their errors")
    ls.add_argument("--limit", type=int, default=50, metavar="N", help="at most the newest N (50)")
    ls.add_argument("--json", action="store_true", help="one JSON object per line")

    show = commands.add_parser("show", help="show everything about one verdict")
    show.add_argument("path", metavar="PATH", type=_journal, help=_PATH_HELP)
    show.add_argument("id", type=int, metavar="ID", help="as `ls` shows it")

    export = commands.add_parser(
        "export", help="write verdicts with their inputs as JSON lines, to train or evaluate on"
    )
    export.add_argument("path", metavar="PATH", type=_journal, help=_PATH_HELP)
    export.add_argument("--out", required=True, metavar="FILE.jsonl", help="the file to replace; - for standard output")
    export.add_argument("--run", dest="only_run", metavar="R", help="only this run's verdicts")
    export.add_argument("--scored-only", action="store_true", help="leave failed verdicts out")

    check = commands.add_parser("check", help="say what is broken in the file; exit code 1 if anything is")
    check.add_argument("path", metavar="PATH", type=_journal, help=_PATH_HELP)
    check.add_argument(
        "--repair", action="store_true", help="keep what is sound in a new file, and the old file beside it"
    )
    check.add_argument("--json", action="store_true", help="print what was found as one JSON object")

    shrink = commands.add_parser("vacuum", help="delete the verdicts that the options name, and shrink the file")
    shrink.add_argument("path", metavar="PATH", type=_journal, help=_PATH_HELP)
    shrink.add_argument("--keep-runs", nargs="+", default=[], metavar="R", help="delete no verdict of these runs")
    shrink.add_argument("--older-than", type=float, metavar="DAYS", help="delete only verdicts older than this")


def _journal(path: str) -> str:
    """Returns the journal of a run's directory; any other path as it is."""
    inside = Path(path) / JOURNAL_FILE
    return str(inside) if inside.is_file() else path


def run(args: argparse.Namespace) -> int:
    match args.journal_command:
        case "ls":
            _ls(args)
        case "show":
            _show(args)
        case "export":
            _export(args)
        case "check":
            return _check(args)
        case "vacuum":
            _vacuum(args)
    return 0


# ---- ls -----------------------------------------------------------------------------------------------------------

_HEADINGS = ("id", "time", "run", "step", "group", "index", "reward", "score", "attempts", "latency", "cost")
_FAILED_HEADINGS = ("id", "step", "group", "index", "kind", "attempts")


def _ls(args: argparse.Namespace) -> None:
    if args.limit < 1:
        raise InvalidInput(f"--limit must be at least 1, got {args.limit}")
    with JournalReader(args.path) as reader:
        rows = reader.newest(args.limit, run=args.only_run, failed_only=args.failed)
    if args.json:
        sys.stdout.writelines(_json_line(_summary(row)) for row in rows)
    else:
        if args.failed:
            sys.stdout.writelines(_failures(rows))
        else:
            sys.stdout.writelines(_table([_HEADINGS, *(_cells(row) for row in rows)]))


def _cells(row: JournalRow) -> tuple[str, ...]:
    return (
        str(row.id),
        _local_time(row.at_s),
        row.run,
        str(row.step),
        row.group_id,
        str(row.index),
        row.reward,
        f"{row.value:g}" if row.value is not None else str(row.kind),
        str(row.attempts),
        f"{row.latency_s:.2f}s",
        f"${row.cost_usd:.4g}",
    )


def _failures(rows: Sequence[JournalRow]) -> Iterator[str]:
    """Yields a table that leaves most of a line to the error; a terminal cuts what does not fit."""
    cells = [
        (str(row.id), str(row.step), row.group_id, str(row.index), str(row.kind), str(row.attempts)) for row in rows
    ]
    lines = [line.rstrip("\n") for line in _table([_FAILED_HEADINGS, *cells])]
    left = max(map(len, lines))
    width = shutil.get_terminal_size().columns if sys.stdout.isatty() else left + 2 + MAX_ERROR
    room = max(width - left - 2, MAX_CELL // 2)
    for line, error in zip(lines, ("error", *map(_error_of, rows)), strict=True):
        yield f"{line.ljust(left)}  {shortened(printable(error), room)}".rstrip() + "\n"


def _error_of(row: JournalRow) -> str:
    """Returns why a verdict failed; empty if it did not, or if only a digest of the text was kept."""
    return str(row.verdict.get("error") or "") if row.value is None else ""


def _table(lines: Sequence[Sequence[str]]) -> Iterator[str]:
    cells = [[shortened(printable(cell), MAX_CELL) for cell in line] for line in lines]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    for line in cells:
        yield "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip() + "\n"


def _local_time(at_s: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(at_s))


# ---- show ---------------------------------------------------------------------------------------------------------


def _show(args: argparse.Namespace) -> None:
    with JournalReader(args.path) as reader:
        row = reader.row(args.id)
    if row is None:
        raise InvalidInput(f"there is no verdict {args.id} in {args.path}")
    fields = {**_record(row), "time": _local_time(row.at_s), "key": row.key.hex()}
    sys.stdout.writelines(_shown(name, value) for name, value in fields.items())


def _shown(name: str, value: object) -> str:
    """Indents all lines of a text but the first, so that no text can look like another field."""
    text = value if isinstance(value, str) else json_text(value)
    first, *others = printable(text, keep="\n\t").split("\n")
    return f"{name}: {first}\n" + "".join(f"    {line}\n" for line in others)


# ---- export -------------------------------------------------------------------------------------------------------


def _export(args: argparse.Namespace) -> None:
    with JournalReader(args.path) as reader:
        lines = (_json_line(_record(row)) for row in reader.rows(run=args.only_run, scored_only=args.scored_only))
        if args.out == "-":
            sys.stdout.writelines(lines)
            return
        num_lines = _write_whole(Path(args.out), lines)
    sys.stdout.write(f"wrote {num_lines} verdicts to {printable(args.out)}\n")


def _write_whole(path: Path, lines: Iterable[str]) -> int:
    """Replaces the file at once, so that other programs never see half of it. Mode 0600, as private as the journal."""
    try:
        with replacing(path) as file:
            return _write_counted(file, lines)
    except OSError as error:
        raise InvalidInput(f"cannot write {path}: {error.strerror}") from error


def _write_counted(file: IO[bytes], lines: Iterable[str]) -> int:
    num_lines = 0
    for line in lines:
        file.write(line.encode())
        num_lines += 1
    return num_lines


# ---- check --------------------------------------------------------------------------------------------------------


def _check(args: argparse.Namespace) -> int:
    found = check_journal(args.path)
    sys.stdout.writelines([_json_line(dataclasses.asdict(found))] if args.json else _shown_check(args.path, found))
    if found.is_sound or not args.repair:
        return 0 if found.is_sound else BROKEN
    repaired = repair_journal(args.path)
    if not args.json:
        sys.stdout.writelines(_shown_repair(repaired))
    return 0


def _shown_check(path: str, found: JournalCheck) -> Iterator[str]:
    unchecked = f" ({found.rows_without_checksum} have no checksum)" if found.rows_without_checksum else ""
    yield f"{printable(path)}: {found.rows} verdicts are sound{unchecked}, {len(found.broken)} are broken\n"
    if found.wal_problem is not None:
        yield f"  WAL: {printable(found.wal_problem)}\n"
    yield from (f"  verdict {row.id}: {row.why}\n" for row in found.broken[:MAX_PROBLEMS])
    if len(found.broken) > MAX_PROBLEMS:
        yield f"  and {len(found.broken) - MAX_PROBLEMS} more\n"
    yield from (f"  reservations: {printable(problem)}\n" for problem in found.reservation_problems[:MAX_PROBLEMS])
    yield from (f"  SQLite: {printable(problem)}\n" for problem in found.page_problems[:MAX_PROBLEMS])
    if not found.is_sound:
        yield "broken verdicts are asked for again; `rewardflow journal check PATH --repair` keeps the rest\n"


def _shown_repair(repaired: RepairResult) -> Iterator[str]:
    yield (
        f"repaired: kept {repaired.rows_kept} verdicts, of {repaired.costs_kept} more the cost alone, and lost "
        f"{repaired.rows_lost}; the broken file is {printable(str(repaired.broken_file))}\n"
    )
    if repaired.costs_restored:
        yield f"{repaired.costs_restored} costs that were changed are again what was written\n"
    for name in repaired.tables_cut_short:
        yield f"rows of the table {printable(name)} were broken and are lost\n"
    if repaired.pages_lost:
        yield f"what the WAL held last of {repaired.pages_lost} pages was broken and is lost\n"
    if repaired.rows_lost or repaired.tables_cut_short or repaired.pages_lost:
        yield "what was lost may have cost money, which a cap no longer counts\n"


# ---- vacuum -------------------------------------------------------------------------------------------------------


def _vacuum(args: argparse.Namespace) -> None:
    if args.older_than is not None and not args.older_than >= 0:
        raise InvalidInput(f"--older-than must be a number of days of at least 0, got {args.older_than:g}")
    older_than_s = None if args.older_than is None else args.older_than * DAY_S
    result = vacuum(args.path, keep_runs=args.keep_runs, older_than_s=older_than_s)
    freed = result.bytes_before - result.bytes_after
    sys.stdout.write(
        f"deleted {result.rows_deleted} verdicts, kept {result.rows_left}; "
        f"freed {freed / 1e6:.1f} MB, now {result.bytes_after / 1e6:.1f} MB\n"
    )


# ---- records ------------------------------------------------------------------------------------------------------


def _summary(row: JournalRow) -> dict[str, Any]:
    return {
        "id": row.id,
        "at_s": row.at_s,
        "run": row.run,
        "step": row.step,
        "group_id": row.group_id,
        "index": row.index,
        "reward": row.reward,
        "status": "failed" if row.value is None else "scored",
        "score": row.value,
        "kind": row.kind,
        "error": _error_of(row) or None,
        "attempts": row.attempts,
        "latency_s": row.latency_s,
        "cost_usd": row.cost_usd,
        "tokens": row.tokens,
    }


def _record(row: JournalRow) -> dict[str, Any]:
    """Returns one flat record. Under `store: hash` it has no texts; equal `digests` mean equal texts."""
    inputs, verdict = dict(row.rollout), dict(row.verdict)
    digests = {**inputs.pop("digests", {}), **verdict.pop("digests", {})}
    del verdict["value"]  # the summary has it as `score`
    record = {**_summary(row), "identity": row.identity, **inputs, **verdict}
    return {**record, "digests": digests} if digests else record


def _json_line(record: dict[str, Any]) -> str:
    return json_text(record) + "\n"
