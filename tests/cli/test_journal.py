"""`rewardflow journal` as people and programs use it, on journals that a real writer made."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import sqlite3
import time
from pathlib import Path
from typing import Any

import orjson
import pytest

from rewardflow.cli.journal import add_arguments, run
from rewardflow.errors import InvalidInput, JournalError, RewardflowError
from rewardflow.reward.journal.verdict_journal import Journal, JournalEntry
from rewardflow.types import Reward, Rollout

NOW_S = time.time()
EVIL = "\x1b]0;owned\x07\x1b[31mred\r\u202egnirts [bold]markup[/bold]"


def an_entry(number: int, verdict: Reward, *, run: str = "first", age_days: float = 0, **inputs: Any) -> JournalEntry:
    inputs = {"prompt": "What is 6 * 7?", "response": "42", "ground_truth": "42", "data_source": "sums", **inputs}
    return JournalEntry(
        key=number.to_bytes(16, "big"),
        run=run,
        reward="judge",
        identity="c0ffee",
        rollout=Rollout(group_id=f"q{number}", step=number, **inputs),
        verdict=verdict,
        at_s=NOW_S - age_days * 86_400,
    )


ENTRIES = (
    an_entry(1, Reward(value=0.75, components={"facts": 1.0}, explanation="Right.", attempts=1, cost_usd=0.002)),
    an_entry(2, Reward(kind="timeout", error="no answer within 60 s", attempts=3, latency_s=180.0)),
    an_entry(3, Reward(value=1.0, explanation=f"{EVIL}\nscore: 9"), run="second", age_days=10, response=EVIL),
)


def written(path: Path, *entries: JournalEntry, store: Any = "full") -> Path:
    async def main() -> None:
        journal = Journal(path, run="any", store=store)
        journal.start(asyncio.get_running_loop())
        for entry in entries:
            journal.write(entry, lambda _: None)
        await journal.aclose()

    asyncio.run(main())
    return path


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return written(tmp_path / "journal.db", *ENTRIES)


def call(*arguments: object) -> int:
    parser = argparse.ArgumentParser()
    add_arguments(parser)
    return run(parser.parse_args([*map(str, arguments)]))


def test_ls_shows_one_line_per_verdict_with_its_score_or_kind(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert call("ls", path) == 0
    heading, first, second, third = capsys.readouterr().out.splitlines()
    assert " ".join(heading.split()) == "id time run step group index reward score attempts latency cost"
    assert first.split()[3:] == ["first", "1", "q1", "0", "judge", "0.75", "1", "0.00s", "$0.002"]
    assert second.split()[3:] == ["first", "2", "q2", "0", "judge", "timeout", "3", "180.00s", "$0"]
    assert third.split()[:1] == ["3"]


def test_ls_takes_the_newest_of_a_run_or_of_the_failures(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def ids(*options: object) -> list[int]:
        call("ls", path, "--json", *options)
        return [orjson.loads(line)["id"] for line in capsys.readouterr().out.splitlines()]

    assert ids() == [1, 2, 3]
    assert ids("--limit", 2) == [2, 3]
    assert ids("--run", "first") == [1, 2]
    assert ids("--failed") == [2]
    assert ids("--run", "absent") == []
    with pytest.raises(InvalidInput, match="--limit must be at least 1, got 0"):
        ids("--limit", 0)


def test_ls_failed_has_an_error_column(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert call("ls", path, "--failed") == 0
    heading, line = capsys.readouterr().out.splitlines()
    assert heading.split()[-1] == "error"
    assert line.endswith("no answer within 60 s")


def test_ls_failed_shows_the_place_of_a_user_error_whose_text_is_long(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    place = "(reward.py, line 12, in compute_score)"
    failed = Reward(kind="user_error", error=f"ValueError: {'x' * 1_000} {place}", attempts=1)
    assert call("ls", written(tmp_path / "journal.db", an_entry(1, failed)), "--failed") == 0
    assert capsys.readouterr().out.rstrip().endswith(place)


def test_show_gives_every_field_of_one_verdict(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert call("show", path, 1) == 0
    lines = capsys.readouterr().out.splitlines()
    for line in (
        "score: 0.75",
        "explanation: Right.",
        'components: {"facts":1.0}',
        "prompt: What is 6 * 7?",
        "step: 1",
    ):
        assert line in lines
    with pytest.raises(InvalidInput, match="no verdict 99"):
        call("show", path, 99)


def test_no_text_of_a_policy_or_judge_can_steer_the_terminal_or_pass_for_a_field(
    path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    call("show", path, 3)
    shown = capsys.readouterr().out
    assert all(char.isprintable() or char == "\n" for char in shown)
    assert r"response: \x1b]0;owned\x07\x1b[31mred\r\u202egnirts [bold]markup[/bold]" in shown.splitlines()
    assert "    score: 9" in shown.splitlines()
    assert "score: 9" not in shown.splitlines()


def test_no_name_can_steer_the_terminal_in_ls(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    call("ls", written(tmp_path / "evil.db", an_entry(1, Reward(value=1.0), run=f"{EVIL}\n")))
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 2
    assert all(line.isprintable() for line in lines)


def test_export_writes_what_reward_models_are_trained_on(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = path.with_name("data.jsonl")
    out.write_text("old")
    assert call("export", path, "--out", out) == 0
    assert "wrote 3 verdicts" in capsys.readouterr().out
    records = [orjson.loads(line) for line in out.read_bytes().splitlines()]
    first = records[0]
    assert (first["prompt"], first["messages"], first["response"]) == ("What is 6 * 7?", [], "42")
    assert (first["ground_truth"], first["data_source"], first["score"]) == ("42", "sums", 0.75)
    assert (first["components"], first["explanation"]) == ({"facts": 1.0}, "Right.")
    assert (records[1]["status"], records[1]["score"], records[1]["kind"]) == ("failed", None, "timeout")
    assert records[2]["response"] == EVIL
    assert out.stat().st_mode & 0o777 == 0o600


def test_export_to_standard_output_takes_scored_ones_of_a_run(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    call("export", path, "--out", "-", "--run", "first", "--scored-only")
    assert [orjson.loads(line)["id"] for line in capsys.readouterr().out.splitlines()] == [1]


def test_an_export_that_cannot_be_written_leaves_nothing_behind(path: Path) -> None:
    with pytest.raises(InvalidInput, match=r"absent/data\.jsonl: No such file"):
        call("export", path, "--out", path.parent / "absent" / "data.jsonl")
    (path.parent / "folder").mkdir()
    with pytest.raises(InvalidInput, match="cannot write"):
        call("export", path, "--out", path.parent / "folder")
    assert sorted(name for name in os.listdir(path.parent) if not name.startswith("journal.db")) == ["folder"]


def test_without_stored_texts_an_export_has_their_digests(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = written(tmp_path / "private.db", ENTRIES[0], store="hash")
    call("export", path, "--out", "-")
    record = orjson.loads(capsys.readouterr().out)
    assert "prompt" not in record
    assert record["score"] == 0.75
    assert len(record["digests"]["prompt"]) == 32


def test_vacuum_says_what_it_deleted_and_freed(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert call("vacuum", path) == 0
    assert "deleted 0 verdicts, kept 3; freed" in capsys.readouterr().out
    call("vacuum", path, "--older-than", 7)
    assert "deleted 1 verdicts, kept 2" in capsys.readouterr().out
    with pytest.raises(InvalidInput, match="its runs are"):
        call("vacuum", path, "--keep-runs", "first", "absent")
    with pytest.raises(InvalidInput, match="--older-than"):
        call("vacuum", path, "--older-than", -1)


def test_the_directory_of_a_run_stands_for_its_journal(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    call("ls", path)
    of_file = capsys.readouterr().out
    call("ls", path.parent)
    assert capsys.readouterr().out == of_file
    with pytest.raises(JournalError, match="must be an existing file"):
        call("ls", path.parent.parent)


@pytest.mark.parametrize("command", [("ls",), ("show", 1), ("export", "--out", "-"), ("vacuum",)], ids=lambda c: c[0])
def test_a_missing_journal_is_an_error_and_is_not_created(tmp_path: Path, command: tuple[object, ...]) -> None:
    name, *options = command
    with pytest.raises(JournalError, match=r"absent\.db") as caught:
        call(name, tmp_path / "absent.db", *options)
    assert isinstance(caught.value, RewardflowError)
    assert os.listdir(tmp_path) == []


def test_ls_works_while_a_run_is_writing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    async def main() -> None:
        journal = Journal(tmp_path / "live.db", run="first")
        journal.start(asyncio.get_running_loop())
        saved = asyncio.get_running_loop().create_future()
        journal.write(ENTRIES[0], saved.set_result)
        await saved
        call("ls", tmp_path / "live.db")
        await journal.aclose()

    asyncio.run(main())
    assert "0.75" in capsys.readouterr().out


# ---- check --------------------------------------------------------------------------------------------------------


def test_check_says_what_is_wrong_and_repair_keeps_the_rest(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert call("check", path) == 0
    assert capsys.readouterr().out == f"{path}: 3 verdicts are sound, 0 are broken\n"
    with contextlib.closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("UPDATE verdicts SET verdict = replace(verdict, '0.75', '0.95')")
    assert call("check", path, "--json") == 1
    assert orjson.loads(capsys.readouterr().out)["broken"] == [
        {"id": 1, "why": "its verdict does not match its checksum"}
    ]
    assert call("check", path) == 1
    assert "verdict 1: its verdict does not match its checksum\n" in capsys.readouterr().out
    assert call("check", path, "--repair") == 0
    assert "repaired: kept 2 verdicts, of 1 more the cost alone, and lost 0;" in capsys.readouterr().out
    assert call("check", path, "--repair") == 0
    assert len([name for name in os.listdir(path.parent) if ".broken-" in name]) == 1


def test_check_names_a_damaged_wal_and_repair_keeps_what_is_behind_the_broken_frame(
    path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as connection:
        for verdict in (1, 2):  # two commits, which stay in the WAL
            connection.execute("CREATE TABLE IF NOT EXISTS extra (number)")
            connection.execute("INSERT INTO extra VALUES (?)", (verdict,))
        journal, wal = path.read_bytes(), bytearray(path.with_name(f"{path.name}-wal").read_bytes())
    wal[32 + 24 + 1000] ^= 1
    path.write_bytes(journal)
    path.with_name(f"{path.name}-wal").write_bytes(wal)
    assert call("check", path) == 1
    assert "  WAL: " in (shown := capsys.readouterr().out)
    assert "frame 1 is broken, and SQLite drops it and everything after it" in shown
    assert call("check", path, "--repair") == 0
    assert "repaired: kept 3 verdicts, of 0 more the cost alone, and lost 0;" in capsys.readouterr().out
    assert call("check", path) == 0
