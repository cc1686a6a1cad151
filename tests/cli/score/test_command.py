"""`rewardflow score`: a file of answers in, a file of verdicts out."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sqlite3
import subprocess
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from rewardflow.cli.main import main
from rewardflow.cli.score.closing_report import Distribution
from rewardflow.mock_judge import MockJudge, MockJudgeSettings
from rewardflow.reward.journal.journal_lock import lock_run

ROOT = Path(__file__).resolve().parents[3]

REWARD = '''
import pathlib
import rewardflow as rf

CALLS = pathlib.Path(__file__).with_name("calls.txt")


async def judge(response, ground_truth=None):
    """Scores what the response says; each call costs a cent and is written down."""
    with CALLS.open("a") as file:
        file.write(response + "\\n")
    rf.report_usage(cost_usd=0.01, tokens=100)
    if response == "fail":
        raise rf.ServiceError("the judge is out of order", retryable=False)
    score = float(response)
    return {"score": score, "components": {"half": score / 2}, "explanation": "as it says", "seen": ground_truth}


async def talkative(response):
    raise ValueError("begins; " + "word " * 29 + "ends")


async def down(response):
    raise rf.ServiceError("nobody at home")


def prints(response):
    print("what", response, "is worth")
    return 0.5


class Ranking:
    async def score_group(self, rollouts):
        return [rollout.index / rollout.group_size for rollout in rollouts]


class Lenient:
    """Every failure is worth 0, by the choice of whoever wrote this."""

    async def compute_score(self, response):
        return await judge(response)

    def post_process_scores(self, scores):
        return [0.0 if score != score else score for score in scores]
'''


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "reward.py").write_text(REWARD)
    return tmp_path


def answers(*rows: Any) -> None:
    """Texts as they are, numbers as responses, everything else as JSON."""
    lines = [
        row if isinstance(row, str) else json.dumps({"response": str(row)} if _is_number(row) else row) for row in rows
    ]
    Path("answers.jsonl").write_text("".join(f"{line}\n" for line in lines), "utf-8")


def _is_number(row: Any) -> bool:
    return isinstance(row, int | float)


def run_score(*arguments: str, reward: str = "reward.py:judge", out: str = "out.jsonl") -> int:
    return main(["score", "answers.jsonl", "--reward", reward, "--out", out, *arguments])


def verdicts(path: str = "out.jsonl") -> list[dict[str, Any]]:
    return [json.loads(line) for line in Path(path).read_text("utf-8").splitlines()]


def column(name: str, path: str = "out.jsonl") -> list[Any]:
    return [row[name] for row in verdicts(path)]


def calls() -> list[str]:
    return Path("calls.txt").read_text().split() if Path("calls.txt").exists() else []


def summary(capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found


def words_of_the_table(columns: int) -> str:
    """What the command prints on a screen of this width, which it reads when it starts, with single spaces."""
    command = [sys.executable, "-m", "rewardflow", "score", "answers.jsonl", "--reward", "reward.py:talkative"]
    env = {**os.environ, "COLUMNS": str(columns)}
    done = subprocess.run([*command, "--out", "out.jsonl"], capture_output=True, text=True, env=env, timeout=60)
    return " ".join(done.stdout.split())


# -- verdicts and exit codes --


@pytest.mark.parametrize("workers", ["thread", "process"])
def test_what_a_reward_prints_goes_to_stderr_so_that_stdout_is_one_json_object(here: Path, workers: str) -> None:
    answers({"response": "1"})
    scoring = start(
        *("score", "answers.jsonl", "--reward", "reward.py:prints", "--out", "out.jsonl"),
        *("--json", "--workers", workers),
    )
    said, told = scoring.communicate(timeout=60)
    assert json.loads(said)["scored"] == 1
    assert "what 1 is worth" in told


def test_all_scored_is_exit_code_0_and_a_row_for_each_row_in_order(here: Path) -> None:
    answers(*({"response": str(i), "ground_truth": "t", "mine": i} for i in range(20)))
    assert run_score("--max-concurrency", "3") == 0
    assert column("mine") == list(range(20))
    assert column("score") == [float(i) for i in range(20)]
    first = verdicts()[3]
    assert (first["status"], first["components"], first["explanation"]) == ("scored", {"half": 1.5}, "as it says")
    assert (first["attempts"], first["cost_usd"], first["tokens"], first["cached"]) == (1, 0.01, 100, False)
    assert first["extras"] == {"seen": "t"}


def test_some_failed_is_exit_code_3_and_a_failure_is_no_number(here: Path) -> None:
    answers(1, {"response": "fail"}, 2)
    assert run_score() == 3
    assert column("score") == [1.0, None, 2.0]
    assert verdicts()[1]["kind"] == "service"
    assert "out of order" in verdicts()[1]["error"]


def test_an_imputed_score_is_the_users_choice_counts_as_scored_and_is_told_apart(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    answers(1, {"response": "fail"}, {"response": "fail"})
    assert run_score("--json", reward="reward.py:Lenient") == 0
    told = summary(capsys)
    assert (told["rows"], told["scored"], told["imputed"], told["failed"]) == (3, 3, 2, {})
    assert column("score") == [1.0, 0.0, 0.0]
    assert column("imputed") == [False, True, True]
    assert column("status") == ["scored"] * 3
    assert column("kind") == [None, "service", "service"], "what the number stands for"
    assert run_score(reward="reward.py:Lenient") == 0
    shown = capsys.readouterr().out
    assert "3 rows: 3 scored (2 of them imputed), 0 failed" in shown
    assert "2  scores replace failures" in shown


def test_bad_rows_are_named_written_as_failed_and_stop_nothing(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    answers(1, "{broken", {"prompt": "q"}, 2)
    assert run_score() == 3
    said = capsys.readouterr().err
    assert "answers.jsonl, line 2: a line must be valid JSON" in said
    assert "answers.jsonl, line 3: a row must have one of response" in said
    assert column("kind") == [None, "bad_row", "bad_row", None]
    assert column("score") == [1.0, None, None, 2.0]


def test_strict_stops_before_the_first_call(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    answers(1, "{broken")
    assert run_score("--strict") == 2
    assert calls() == []
    assert not Path("out.jsonl").exists()
    assert "line 2" in capsys.readouterr().err
    answers(1)
    assert run_score("--strict") == 0


def test_of_many_bad_rows_the_first_are_named(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    answers(*["{"] * 30)
    assert run_score() == 3
    assert "line 20:" in (said := capsys.readouterr().err)
    assert "line 21:" not in said
    assert "and 10 more bad rows" in said


def test_an_empty_file_gives_an_empty_file(here: Path) -> None:
    answers()
    assert run_score() == 0
    assert verdicts() == []


def test_groups_are_judged_together(here: Path) -> None:
    answers(*({"response": str(i), "group_id": i % 2} for i in range(4)))
    assert run_score(reward="reward.py:Ranking") == 0
    assert column("score") == [0.0, 0.0, 0.5, 0.5]


def test_a_limit_scores_the_first_rows(here: Path) -> None:
    answers(*range(10))
    assert run_score("--limit", "3") == 0
    assert column("score") == [0.0, 1.0, 2.0]
    assert run_score() == 0
    assert Counter(calls()) == {str(i): 1 for i in range(10)}


def test_parquet_goes_in_and_out(here: Path) -> None:
    pq.write_table(pa.table({"response": ["1", "fail", "2"]}), "answers.parquet")
    assert main(["score", "answers.parquet", "--reward", "reward.py:judge", "--out", "out.parquet"]) == 3
    table = pq.read_table("out.parquet")
    assert table.column("score").to_pylist() == [1.0, None, 2.0]
    assert table.column("components").to_pylist() == [[("half", 0.5)], [], [("half", 1.0)]]


# -- the reward and the settings --


def test_a_reward_file_says_what_and_how_and_flags_go_before_it(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Path("rewards.yaml").write_text(
        "rewards:\n- {reward: 'reward.py:judge', name: judge, weight: 2}\n- {reward: length, limit: 9, buffer: 9}\n"
        "limits: {max_concurrency: 1, run: of-the-file, journal: own.db}\n"
    )
    answers(1, 2)
    assert run_score("--json", "--run", "of-the-flag", reward="rewards.yaml") == 0
    assert column("score") == [pytest.approx(2 - 1 / 9), pytest.approx(4 - 1 / 9)]
    told = summary(capsys)
    assert list(told["scores"]) == ["score", "judge", "judge/half", "length"]
    assert told["journal"] == str(here / "own.db")
    assert main(["journal", "ls", "own.db", "--run", "of-the-flag", "--json"]) == 0
    assert len(capsys.readouterr().out.splitlines()) == 4


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (["--set", "max_concurency=3"], "did you mean 'max_concurrency'"),
        (["--max-concurrency", "many"], "max_concurrency must be a whole number of at least 1, got 'many'"),
        (["--limit", "0"], "--limit must be at least 1, got 0"),
        (["--out", "answers.jsonl"], "--out must be a file other than the answers"),
        (["--out", "missing/out.jsonl"], "--out must lie in a folder that exists"),
        (["--out", "out.csv"], "must end in one of .jsonl"),
        (["--reward", "reward.py:jugde"], "has no 'jugde'; it has judge"),
        (["--reward", "missing.yaml"], "missing.yaml: the file must exist"),
        (["--reward", "judge"], "a reward is named 'file.py:name'"),
    ],
)
def test_bad_usage_is_exit_code_2_and_calls_nothing(
    arguments: Sequence[str], problem: str, here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    answers(1)
    assert run_score(*arguments) == 2
    assert problem in capsys.readouterr().err
    assert calls() == []
    assert Path("answers.jsonl").read_text() == '{"response": "1"}\n'


# -- paying once --


def test_the_same_command_pays_nothing_twice_unless_it_is_another_run(here: Path) -> None:
    answers(1, 2)
    assert run_score() == 0
    assert Path("out.jsonl.journal.db").exists()
    assert run_score() == 0
    assert column("cached") == [True, True]
    assert column("score") == [1.0, 2.0]
    assert calls() == ["1", "2"]
    assert run_score("--run", "again") == 0
    assert calls() == ["1", "2", "1", "2"]


def test_the_same_command_asks_again_for_what_failed_and_pays_for_no_score_twice(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    answers(1, {"response": "fail"}, 2)
    for num_asked in (1, 2):
        assert run_score() == 3
        assert column("cached") == [num_asked > 1, False, num_asked > 1]
        assert sorted(calls()) == ["1", "2", *["fail"] * num_asked]
    assert run_score("--replay-failures", "true") == 3
    assert column("cached") == [True, True, True]
    with pytest.raises(SystemExit):
        main(["score", "--help"])
    told = " ".join(capsys.readouterr().out.split())
    assert "asks for rows that it had not reached and for rows that failed" in told
    assert "whether a failure that was delivered before is used again (False)" in told


def test_a_second_command_on_the_same_output_is_refused_while_the_first_runs(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    answers(1)
    with lock_run(here / "out.jsonl.journal.db", "default"):
        assert run_score() == 2
    assert f"in use by process {os.getpid()} on " in capsys.readouterr().err
    assert calls() == []
    assert run_score() == 0


FULL_DISK = """
import resource, signal, sys

signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
calls = []

async def judge(response):
    calls.append(response)
    resource.setrlimit(resource.RLIMIT_FSIZE, (150_000, resource.RLIM_INFINITY))
    return 0.5

if __name__ == "__main__":
    sys.modules["full_disk"] = sys.modules["__main__"]
    from rewardflow.cli.main import main
    code = main("score answers.jsonl --reward full_disk:judge --out out.jsonl --max-concurrency 2".split())
    print(len(calls))
    sys.exit(code)
"""


def test_on_a_full_disk_the_output_has_every_verdict_that_was_paid_for(here: Path) -> None:
    """A limit on file size stands in for the full disk: the journal reaches it, the output does not."""
    answers(*range(200))
    Path("full_disk.py").write_text(FULL_DISK)
    done = subprocess.run([sys.executable, "full_disk.py"], capture_output=True, text=True, timeout=60)
    assert done.returncode == 1, done.stderr
    num_calls = int(done.stdout.splitlines()[-1])
    assert 0 < num_calls < 100
    assert len(verdicts()) == 200
    assert column("score").count(0.5) == num_calls
    assert set(column("kind")) == {None, "cancelled"}
    assert "the journal is not complete: the journal out.jsonl.journal.db must be written, but" in done.stderr


def test_an_output_that_cannot_be_written_any_more_goes_to_a_temporary_folder(
    here: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    spare_place = here / "spare"
    spare_place.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(spare_place))
    (here / "gone").mkdir()
    (here / "remover.py").write_text("import os\ndef judge(response):\n    os.rmdir('gone')\n    return 0.5\n")
    answers(1)
    assert run_score("--journal", "j.db", reward="remover.py:judge", out="gone/out.jsonl") == 1
    (spare,) = spare_place.glob("*/out.jsonl")
    assert column("score", str(spare)) == [0.5]
    assert f"cannot write gone/out.jsonl: No such file or directory; the verdicts are in {spare}" in " ".join(
        capsys.readouterr().err.split()
    )


def test_verdicts_that_can_be_written_nowhere_end_with_exit_code_1_and_are_in_the_journal(
    here: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(here / "no such folder"))
    (here / "gone").mkdir()
    (here / "remover.py").write_text("import os\ndef judge(response):\n    os.rmdir('gone')\n    return 0.5\n")
    answers(1)
    assert run_score("--journal", "j.db", "--json", reward="remover.py:judge", out="gone/out.jsonl") == 1
    shown = capsys.readouterr()
    told = " ".join(shown.err.split())
    assert "cannot write gone/out.jsonl: No such file or directory; nor can a temporary file be written" in told
    assert "what was paid for is kept in j.db; the same command goes on where this one stopped" in told
    assert (json.loads(shown.out)["out"], json.loads(shown.out)["scored"]) == (None, 1)
    (here / "gone").mkdir()
    assert run_score("--journal", "j.db", reward="remover.py:judge", out="gone/out.jsonl") == 0
    assert (column("score", "gone/out.jsonl"), column("cached", "gone/out.jsonl")) == ([0.5], [True])


def test_saved_verdicts_that_are_broken_are_asked_for_again_and_counted(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    answers(1, 2)
    assert run_score() == 0
    with contextlib.closing(sqlite3.connect("out.jsonl.journal.db")) as journal, journal:
        journal.execute("UPDATE verdicts SET verdict = replace(verdict, '2.0', '9.0')")
    assert run_score() == 0
    assert column("score") == [1.0, 2.0]
    assert "1 saved verdicts were broken and were asked for again" in " ".join(capsys.readouterr().err.split())


def test_without_a_journal_there_is_none(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    answers(1)
    assert run_score("--journal", "none") == 0
    assert "there is no journal" in capsys.readouterr().err
    assert not list(here.glob("*.db"))


def test_a_spent_budget_writes_what_was_reached_and_goes_on_with_a_larger_one(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    answers(*range(10))
    assert run_score("--max-cost-usd", "0.05", "--max-concurrency", "1") == 3
    assert Counter(column("kind")) == {None: 5, "budget": 5}
    assert "out.jsonl.journal.db; the same command goes on where this one stopped" in capsys.readouterr().err
    assert run_score("--max-cost-usd", "0.10", "--max-concurrency", "1") == 0
    assert Counter(calls()) == {str(i): 1 for i in range(10)}
    assert column("cached").count(True) == 5


def test_an_outage_writes_unfinished_rows_as_failed(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    answers(1, "{broken", 2)
    arguments = ("--outage-window", "1", "--outage-give-up-s", "0", "--backoff-s", "0.01", "--json")
    assert run_score(*arguments, reward="reward.py:down") == 3
    assert column("kind") == ["outage", "bad_row", "outage"]
    said = capsys.readouterr()
    assert "stopped early" in said.err
    assert "nobody at home" in json.loads(said.out)["halted"]


# -- the closing table --


def test_the_summary_is_one_json_object(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    answers(1, 1, 2, {"response": "fail"}, "{")
    assert run_score("--json") == 3
    told = summary(capsys)
    assert (told["rows"], told["scored"], told["failed"]) == (5, 3, {"service": 1, "bad_row": 1})
    assert told["scores"]["score"]["bins"] == [
        {"low": 1.0, "high": 1.0, "count": 2},
        {"low": 2.0, "high": 2.0, "count": 1},
    ]
    assert told["scores"]["half"]["mean"] == pytest.approx(2 / 3)
    assert (told["calls"], told["cached"], told["tokens"]) == (4, 0, 400)
    assert told["cost_usd"] == pytest.approx(0.04)
    assert set(told["latency_s"]) == {"p50", "p90", "p99"}
    assert run_score("--json") == 3
    again = summary(capsys)
    assert (again["calls"], again["cached"]) == (1, 3), "only the failure is asked again"
    assert again["cost_usd"] == pytest.approx(0.01)
    assert again["run_cost_usd"] == pytest.approx(0.05)


def test_the_table_shows_scores_failures_latency_cost_and_savings(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    answers(1, 2, {"response": "fail"})
    run_score()
    run_score()
    shown = capsys.readouterr().out
    for text in ("3 rows: 2 scored, 1 failed", "half", "mean 0.75", "service 1", "out of order", "(p90)", "calls",
                 "$0.0300", "300 tokens", "2  verdicts came from the journal", "out.jsonl"):  # fmt: skip
        assert text in shown


def test_calls_that_a_cascade_saved_are_counted(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Path("cascade.yaml").write_text("reward: cascade\nfirst: {reward: gsm8k}\nthen: reward.py:judge\n")
    answers(*({"response": text, "ground_truth": "7"} for text in ("#### 7", "#### 8", "0.5")))
    assert run_score("--json", reward="cascade.yaml") == 0
    assert column("score") == [1.0, 0.0, 0.5]
    assert summary(capsys)["saved_by_cascade"] == 2
    assert calls() == ["0.5"]


def test_what_the_journal_saved_is_not_counted_again_as_saved_by_the_cascade(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Also where another part of a weighted sum is new, so that the row as a whole does not come from the journal."""
    file = (
        "rewards:\n"
        "  - {reward: cascade, name: right, first: {reward: gsm8k}, then: 'reward.py:judge'}\n"
        "  - {reward: length, name: brief, limit: 100, buffer: 10}\n"
    )
    Path("sum.yaml").write_text(file)
    answers({"response": "#### 7", "ground_truth": "7"}, {"response": "#### 8", "ground_truth": "7"})
    assert run_score("--json", "--limit", "1", reward="sum.yaml") == 0
    assert summary(capsys)["saved_by_cascade"] == 1
    Path("sum.yaml").write_text(file.replace("100", "200"))
    assert run_score("--json", reward="sum.yaml") == 0
    again = summary(capsys)
    assert (again["cached"], again["saved_by_cascade"]) == (0, 1)


def test_many_different_scores_are_shown_in_ten_bins() -> None:
    bins = Distribution.of([i / 99 for i in range(100)]).bins
    assert [one.count for one in bins] == [10] * 10
    assert (bins[0].low, bins[-1].high) == (0.0, 1.0)
    wide = Distribution.of([float(i) for i in range(-50, 50)]).bins
    assert (wide[0].low, wide[-1].high, sum(one.count for one in wide)) == (-50.0, 49.0, 100)
    assert sum(one.count for one in Distribution.of([-1e308, 1e308, *map(float, range(20))]).bins) == 22


# -- interrupted --

STUCK = """
import asyncio, os, sys
from reward import CALLS

async def judge(response):
    with CALLS.open("a") as file:
        file.write(response + "\\n")
    if response == "10" and "STUCK" in os.environ:
        sys.stdout.write("stuck\\n")
        sys.stdout.flush()
        await asyncio.sleep(3600)
    return float(response)
"""


def start(*arguments: str, **environment: str) -> subprocess.Popen[str]:
    code = "import sys; from rewardflow.cli.main import main; sys.exit(main())"
    return subprocess.Popen(
        [sys.executable, "-c", code, *arguments],
        env={**os.environ, "PYTHONPATH": f"{ROOT / 'src'}{os.pathsep}.", **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupt_ends_in_order_and_the_same_command_goes_on(signum: signal.Signals, here: Path) -> None:
    Path("stuck.py").write_text(STUCK)
    Path("out.jsonl").write_text("old")
    answers(*range(20))
    command = ("score", "answers.jsonl", "--reward", "stuck.py:judge", "--out", "out.jsonl", "--max-concurrency", "1")
    first = start(*command, STUCK="1")
    assert first.stdout is not None
    assert first.stdout.readline() == "stuck\n"
    first.send_signal(signum)
    _, err = first.communicate(timeout=60)
    assert first.returncode == 130
    assert "goes on where this one stopped" in err
    assert err.endswith("rewardflow: interrupted\n")
    assert "Traceback" not in err
    assert Path("out.jsonl").read_text() == "old"

    second = start(*command)
    second.communicate(timeout=60)
    assert second.returncode == 0
    assert column("score") == [float(i) for i in range(20)]
    assert column("cached") == [True] * 10 + [False] * 10
    assert Counter(calls()) == {str(i): 2 if i == 10 else 1 for i in range(20)}


# -- a judge that ships --


def test_an_llm_judge_from_yaml_scores_a_file_over_http_and_is_not_asked_twice(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with MockJudge(MockJudgeSettings(latency="uniform:0.01,0.02", faults={"500": 0.2})) as judge:
        Path("judge.yaml").write_text(
            f"reward: llm_judge\nmodel: mock\nbase_urls: ['{judge.base_url}']\n"
            "criteria: [{name: correctness, weight: 2}, safety]\n"
            "prices: {input_usd_per_million: 1, output_usd_per_million: 2}\n"
            "limits: {backoff_s: 0.01, max_attempts: 5}\n"
        )
        answers(*({"prompt": "6 * 7?", "response": f"answer {i}"} for i in range(20)))
        assert run_score("--json", reward="judge.yaml") == 0
        told = summary(capsys)
        assert list(told["scores"]) == ["score", "correctness", "safety"]
        assert told["cost_usd"] > 0
        asked = judge.statistics()
        assert run_score("--json", reward="judge.yaml") == 0
        assert judge.statistics() == asked
        assert summary(capsys)["cached"] == 20


@pytest.mark.parametrize("depth", [101, 900, 5_000, 100_000])
def test_a_row_nested_without_end_is_a_bad_row_before_anything_is_paid(depth: int, here: Path) -> None:
    deep = "[" * depth + "]" * depth
    answers(1, '{"response": "2", "extra_info": {"deep": ' + deep + "}}", 3)
    assert run_score() == 3
    assert column("score") == [1.0, None, 3.0]
    assert column("kind") == [None, "bad_row", None]
    assert (here / "calls.txt").read_text().split() == ["1", "3"]


def test_a_verdict_nested_without_end_is_written_short(here: Path) -> None:
    (here / "deep.py").write_text(
        "async def judge(response):\n"
        "    deep = 1\n"
        "    for _ in range(int(response)):\n"
        "        deep = [deep]\n"
        "    return {'score': 1.0, 'deep': deep}\n"
    )
    answers(1, 900, 100_000)
    assert run_score(reward="deep.py:judge") == 0
    assert column("score") == [1.0, 1.0, 1.0]
    assert run_score(reward="deep.py:judge") == 0
    assert column("cached") == [True, True, True]


def test_a_reason_is_cut_only_where_the_screen_has_no_room_for_it(here: Path) -> None:
    answers(1)
    assert f"ValueError: begins; {'word ' * 29}ends" in words_of_the_table(200)
    narrow = words_of_the_table(60)
    assert "ValueError: begins; word" in narrow
    assert "..." in narrow
    assert "ends" not in narrow
