"""`rewardflow train`: from a file of settings to a directory with a run in it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from tiny_run import calls_in, write_run_file

from rewardflow.cli.main import build_parser, main
from rewardflow.extras import install_command
from rewardflow.observe.run_directory import read_events
from rewardflow.reward.journal.reader import JournalReader

ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    write_run_file(tmp_path)
    return tmp_path


def start(*arguments: str, first: str = "", before: tuple[str, ...] = ()) -> subprocess.Popen[str]:
    """The command in a process of its own, after a statement; `before` stands before the command line."""
    code = f"import sys; {first or 'pass'}; from rewardflow.cli.main import main; sys.exit(main())"
    environment = {name: value for name, value in os.environ.items() if name not in ("FORCE_COLOR", "COLUMNS")}
    return subprocess.Popen(
        [*before, sys.executable, "-c", code, *arguments],
        env={**environment, "PYTHONPATH": str(ROOT / "src")},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def metrics() -> list[dict[str, Any]]:
    return [json.loads(line) for line in Path("run/metrics.jsonl").read_text("utf-8").splitlines()]


# ---- a run --------------------------------------------------------------------------------------------------------


def test_a_run_ends_with_a_table_of_what_it_was_like(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", "run.yaml"]) == 0
    said = capsys.readouterr()
    assert "step 1 of 3; score -" in said.err
    for label in ("steps", "step time", "device", "reward time", "score", "verdicts", "staleness", "cost", "metrics"):
        assert f"\n{label} " in f"\n{said.out}"
    assert "$0.4800  for 48 calls" in said.out
    assert "metrics.jsonl" in said.out  # the table cuts a long path
    assert len(metrics()) == 3


def test_a_reward_that_prints_leaves_the_json_of_a_run_alone(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Path("loud.py").write_text("def score(response):\n    print('scoring', response)\n    return 0.5\n")
    for arguments in (["--check"], ["--no-probe"]):
        assert main(["train", "run.yaml", "reward=loud.py:score", "steps=1", "--json", *arguments]) == 0
        said = capsys.readouterr()
        assert json.loads(said.out)
        assert "scoring" in said.err


def test_a_program_gets_one_json_object_and_overrides_count(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", "steps=1", "--json", "run.yaml"]) == 2  # the file stands first
    capsys.readouterr()
    assert main(["train", "run.yaml", "--json", "steps=2", "--no-probe", "schedule.max_staleness=0"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert (told["steps"], told["scored"], told["calls"], told["staleness_max"]) == (2, 32, 32, 0)
    assert told["score_last"] == pytest.approx(metrics()[-1]["score_mean"])
    assert told["exposed_s"] == pytest.approx(sum(line["exposed_s"] for line in metrics()))
    assert 0 < told["busy_share"] <= 1
    assert len(calls_in(here)) == 32


@pytest.mark.parametrize(
    "words", [["run.yaml", "a=1", "--check"], ["run.yaml", "--check", "a=1"], ["--check", "run.yaml", "a=1"]]
)
def test_options_stand_anywhere_among_the_words(words: list[str]) -> None:
    args = build_parser().parse_args(["train", *words])
    assert (args.run_file, args.overrides, args.check) == ("run.yaml", ["a=1"], True)


def test_an_error_in_the_loop_is_one_line(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A budget that ends in the middle of several steps at once."""
    assert main(["train", "run.yaml", "limits.max_cost_usd=0.2"]) == 2
    said = capsys.readouterr().err.splitlines()
    assert said[-1].startswith("rewardflow: ")
    assert "max_cost_usd=0.2" in said[-1]
    assert not any("Traceback" in line for line in said)


IGNORES_CTRL_C = ("sh", "-c", 'trap "" INT; exec "$@"', "sh")  # as shells do for jobs in the background


@pytest.mark.parametrize(
    ("signum", "before"),
    [(signal.SIGINT, ()), (signal.SIGTERM, IGNORES_CTRL_C)],
    ids=["ctrl-c", "sigterm in the background"],
)
def test_the_first_signal_ends_the_step_saves_and_names_where_resume_starts(
    signum: signal.Signals, before: tuple[str, ...], here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    process = start("train", "run.yaml", "steps=1000000", before=before)
    assert process.stderr is not None
    said = []
    for line in process.stderr:
        said.append(line)
        if line.startswith("step "):
            break
    assert said[0].startswith("Ctrl-C is switched off") == bool(before)
    process.send_signal(signum)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "checkpoint " in out
    assert "Traceback" not in err
    assert "stopping: the current step has 5 min 0 s (checkpoint.grace_s) to end" in err
    lines = metrics()
    assert err.splitlines()[-1] == f"rewardflow: interrupted; --resume starts at step {len(lines):,} of 1,000,000"
    assert [line["step"] for line in lines] == list(range(len(lines)))
    assert [path.name for path in Path("run/checkpoints").iterdir()] == [f"step_{len(lines):06d}"]
    *_, last = read_events("run")
    statistics = last.statistics  # type: ignore[union-attr]
    assert sum(account["in_flight"] for account in statistics["accounts"]) == 0
    assert statistics["verdicts"]["pending_groups"] == 0
    assert main(["train", "run.yaml", "--resume", f"steps={len(lines) + 1}"]) == 0
    assert f"going on with step {len(lines):,} of" in capsys.readouterr().err


def test_a_second_signal_leaves_now_and_says_that_nothing_was_saved(here: Path) -> None:
    Path("slow.py").write_text(
        "import asyncio, pathlib\n\n"
        "async def score(response):\n"
        "    pathlib.Path('asked').touch()\n"
        "    await asyncio.sleep(3600)\n",
        "utf-8",
    )
    process = start("train", "run.yaml", "reward=slow.py:score", "limits.timeout_s=7200", "--no-probe")
    assert process.stderr is not None
    while not Path("asked").exists():  # before it trains, the first signal is enough
        assert process.poll() is None
        time.sleep(0.02)
    process.send_signal(signal.SIGTERM)
    while "stopping: " not in process.stderr.readline():
        assert process.poll() is None
    process.send_signal(signal.SIGTERM)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "Traceback" not in err
    told = err.splitlines()[-1]
    assert told.startswith("rewardflow: interrupted; no step was saved: --resume starts at step 0")


def test_ctrl_c_while_torch_loads_is_one_line(here: Path) -> None:
    """torch cannot be interrupted while it is imported, and nobody waits for it."""
    Path("torch.py").write_text("import sys, time\nprint('torch', file=sys.stderr, flush=True)\ntime.sleep(3600)\n")
    process = start("train", "run.yaml", "--no-probe", first="sys.path.insert(0, '.')")
    assert process.stderr is not None
    for line in process.stderr:
        if line == "torch\n":
            break
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 130
    assert [line for line in err.splitlines() if line] == ["rewardflow: interrupted"]


# ---- failures -----------------------------------------------------------------------------------------------------


def test_a_run_whose_verdicts_all_fail_stops_with_3_and_the_first_reason(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("bad.py").write_text('def score(response):\n    return "0.7"\n', "utf-8")
    assert main(["train", "run.yaml", "reward=bad.py:score", "--no-probe", "steps=50", "failures.stop_after=2"]) == 3
    said = capsys.readouterr().err.splitlines()
    assert said[-1].startswith("rewardflow: all verdicts of the last 2 steps failed")
    assert "unparsable: the reward returned str '0.7'" in said[-1]
    assert [line["step"] for line in metrics()] == [0, 1]


def test_the_closing_table_has_the_first_error_of_each_kind_and_where_to_go_on(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("bad.py").write_text(
        "def score(response, extra_info):\n"
        "    if extra_info['group_uid'] == '5':\n"
        "        raise ValueError('no number in it')\n"
        "    return len(response)\n",
        "utf-8",
    )
    share = 4 / 48
    assert main(["train", "run.yaml", "reward=bad.py:score", "--no-probe"]) == 0  # 4 of 48 is less than a tenth
    said = " ".join(capsys.readouterr().out.split())
    journal = here / "run" / "journal.db"
    assert "4 failed: user_error: ValueError: no number in it" in said
    assert f"rewardflow report {here / 'run'}" in said
    assert f"checkpoint {here / 'run' / 'checkpoints' / 'step_000003'}" in said
    with JournalReader(journal) as reader:
        first = reader.first_failure("user_error")
        assert reader.first_failure("timeout") is None
    assert f"rewardflow journal show {journal} {first}" in said
    assert main(["journal", "ls", str(journal), "--failed"]) == 0
    heading, *rows = capsys.readouterr().out.splitlines()
    assert heading.split() == ["id", "step", "group", "index", "kind", "attempts", "error"]
    assert len(rows) == 4
    assert all("ValueError: no number in it" in row for row in rows)
    assert main(["journal", "show", str(journal), str(first)]) == 0
    assert "error: ValueError: no number in it" in capsys.readouterr().out
    again = ["run_dir=again", "reward=bad.py:score", "--no-probe", "--json", f"failures.max_share={share - 0.01}"]
    assert main(["train", "run.yaml", *again]) == 3
    said = capsys.readouterr()
    assert "8% of the verdicts failed, more than failures.max_share" in said.err
    told = json.loads(said.out)
    assert (told["failed_share"], list(told["first_failures"])) == (share, ["user_error"])
    assert told["checkpoint"].endswith("step_000003")


# ---- --resume -----------------------------------------------------------------------------------------------------


def test_a_run_goes_on_from_its_checkpoint_and_says_when_it_is_finished(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["train", "run.yaml", "checkpoint.max_hours=1e-9"]) == 0
    assert "are up before step 1 of 3: the same command with --resume goes on" in capsys.readouterr().err
    assert main(["train", "run.yaml", "--resume", "--json"]) == 0
    said = capsys.readouterr()
    assert f"going on with step 1 of 3, from {here / 'run' / 'checkpoints' / 'step_000001'}" in said.err
    assert "\nstep 2 of 3; " in said.err
    told = json.loads(said.out)
    assert (told["steps"], told["trained"]) == (2, 3)
    assert [line["step"] for line in metrics()] == [0, 1, 2]
    num_calls = len(calls_in(here))
    assert main(["train", "run.yaml", "--resume", "--json"]) == 0
    said = capsys.readouterr()
    assert "is finished: 3 of 3 steps are trained" in said.err
    assert json.loads(said.out) == {"steps": 0, "trained": 3}
    assert len(calls_in(here)) == num_calls


def test_the_cost_of_a_run_that_went_on_is_not_told_as_that_of_its_latest_calls(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["train", "run.yaml", "steps=1"]) == 0
    assert main(["train", "run.yaml", "--resume", "steps=2"]) == 0
    num_calls = len(calls_in(here)) - 2  # without the samples
    assert f"${num_calls / 100:.4f}  of the run, 16 calls of it now" in capsys.readouterr().out


def test_a_run_that_has_more_steps_than_are_asked_for_is_finished(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["train", "run.yaml", "--no-probe", "steps=2"]) == 0
    assert main(["train", "run.yaml", "--no-probe", "--resume", "steps=1"]) == 0
    assert "is finished: 2 steps are trained" in capsys.readouterr().err


def test_a_check_that_may_not_ask_about_a_sample_is_refused_and_asks_nothing(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["train", "run.yaml", "--check", "--no-probe"]) == 2
    assert "--no-probe cannot go with --check" in capsys.readouterr().err
    assert calls_in(here) == []


def test_an_error_of_the_reward_that_takes_several_lines_is_told_in_one(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("wordy.py").write_text('def score(response):\n    raise ValueError("one\\ntwo")\n', "utf-8")
    assert main(["train", "run.yaml", "reward=wordy.py:score"]) == 2
    last = capsys.readouterr().err.splitlines()[-1]
    assert last.startswith("rewardflow: the reward must answer a sample")
    assert "ValueError: one two (" in last


def test_a_check_whose_sample_failed_does_not_say_that_the_reward_has_no_price(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["train", "run.yaml", "--check", "reward=rewards.py:Paid"]) == 3
    assert "unknown  the sample has no score" in capsys.readouterr().out


def test_a_run_whose_last_validation_was_cut_off_is_finished_by_that_alone(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    validation = "validation={data: {task: copy_digits, limit: 5}}"
    assert main(["train", "run.yaml", "--no-probe", validation, "--json"]) == 0
    (told,) = json.loads(capsys.readouterr().out)["validations"]
    num_calls = len(calls_in(here))
    Path("run/validation.jsonl").write_text("")  # as if it had been killed before the last verdict
    assert main(["train", "run.yaml", "--no-probe", validation, "--resume", "--json"]) == 0
    again = json.loads(capsys.readouterr().out)
    assert again["steps"] == 0
    assert again["validations"][0]["validation/score_mean"] == told["validation/score_mean"]
    assert len(calls_in(here)) == num_calls
    assert main(["train", "run.yaml", validation, "--resume"]) == 0
    assert "is finished: 3 of 3 steps are trained" in capsys.readouterr().err


def test_without_a_checkpoint_a_run_starts_again_and_says_so(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", "run.yaml", "--no-probe", "limits.max_cost_usd=0.3"]) == 2
    assert main(["train", "run.yaml", "--no-probe", "--resume"]) == 0
    assert "there is no checkpoint in" in capsys.readouterr().err
    assert [line["step"] for line in metrics()] == [0, 1, 2]
    assert main(["train", "run.yaml"]) == 2
    assert "--resume goes on with it" in capsys.readouterr().err


def test_other_settings_than_those_of_the_checkpoint_are_refused(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["train", "run.yaml", "steps=1"]) == 0
    assert main(["train", "run.yaml", "--resume", "trainer.lr=0.5"]) == 2
    assert "trainer.lr was 0.001 and is 0.5" in capsys.readouterr().err.splitlines()[-1]
    assert main(["train", "run.yaml", "--resume", "--check"]) == 0


# ---- --check and --schema -----------------------------------------------------------------------------------------


def test_check_says_what_a_run_needs_and_starts_nothing(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", "run.yaml", "--check"]) == 0
    said = capsys.readouterr().out
    for label in ("sample", "prompts", "calls", "cost", "model", "memory"):
        assert f"\n{label} " in f"\n{said}"
    assert "$0.1600  a step" in said
    assert "83,520" in said
    assert not Path("run").exists()
    assert len(calls_in(here)) == 1


def test_check_says_what_is_free_and_what_has_no_price(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", "run.yaml", "--check", "reward=rewards.py:Free"]) == 0
    assert "$0.00  by the reward's own prices" in capsys.readouterr().out
    assert main(["train", "run.yaml", "--check", "reward=rewards.py:silent"]) == 0
    assert "unknown  no price is known" in capsys.readouterr().out


def test_check_for_programs(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", "run.yaml", "--check", "--json", "trainer.device=cpu"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert (told["ok"], told["calls"]["a_step"], told["memory"]["fits"]) == (True, 16, True)
    assert (told["device_defaults"]["kind"], told["device_defaults"]["trainer.autocast"]) == ("cpu", None)


def test_check_with_memory_plans_each_phase_and_asks_no_reward(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    small = ["trainer.micro_batch_tokens=64", "policy.tiny_layers=1"]
    assert main(["train", "run.yaml", *small, "--check", "--memory", "1", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["fits"] is True
    chosen = {"trainer.autocast": "bfloat16", "policy.gradient_checkpointing": True, "trainer.tf32": True}
    assert told["device_defaults"] == chosen
    assert [phase["name"] for phase in told["phases"]] == ["load", "log-probs", "update", "publish", "save", "generate"]
    assert main(["train", "run.yaml", *small, "--check", "--memory", "0.0001"]) == 4
    said = capsys.readouterr().out
    assert "TOO LITTLE" in said
    assert "bfloat16  trainer.autocast, the default on an accelerator" in said
    assert "are short" in said
    assert calls_in(here) == []
    assert main(["train", "run.yaml", "--memory", "80"]) == 2
    assert "--memory goes with --check" in capsys.readouterr().err


def test_check_ends_with_3_and_the_reason_if_the_reward_failed(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", "run.yaml", "--check", "reward=rewards.py:refusing"]) == 3
    said = capsys.readouterr()
    assert "FAILED" in said.out
    assert "answered 401" in said.err


def test_the_schema_needs_no_file(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", "--schema"]) == 0
    assert "schedule" in json.loads(capsys.readouterr().out)["properties"]


# ---- mistakes -----------------------------------------------------------------------------------------------------


def test_a_judge_that_is_down_ends_the_start_and_leaves_nothing(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Path("judge.yaml").write_text("reward: llm_judge\nmodel: m\nbase_urls: ['http://127.0.0.1:9']\n")
    assert main(["train", "run.yaml", "reward=judge.yaml"]) == 2
    last = capsys.readouterr().err.splitlines()[-1]
    assert last.startswith("rewardflow: the reward must answer a sample before the run starts")
    assert "127.0.0.1:9" in last
    assert not Path("run").exists()


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ([], "needs a file of settings"),
        (["nowhere.yaml"], "nowhere.yaml"),
        (["run.yaml", "trainer.lrr=1"], "did you mean"),
        (["run.yaml", "schedule.groups_per_step=3"], "divisible"),
        (["run.yaml", "reward=nowhere.yaml"], "nowhere.yaml"),
        (["run.yaml", "policy.model=./nowhere"], "policy.model must be a path that exists or a name on the hub"),
        (["run.yaml", "data.task=null", "data.path=nowhere.jsonl"], "nowhere.jsonl"),
    ],
)
def test_a_mistake_is_told_and_is_exit_code_2(
    here: Path, arguments: list[str], told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["train", *arguments]) == 2
    assert told in capsys.readouterr().err.splitlines()[-1]
    assert not Path("run").exists()


def test_mistakes_are_told_before_torch_is_imported(here: Path) -> None:
    """A torch that cannot be imported is not missed: it is found, but nobody gets so far as to load it."""
    Path("torch.py").write_text("raise SystemExit('torch was imported')")
    process = start("train", "run.yaml", "reward=rewards.py:broken", first="sys.path.insert(0, '.')")
    _, err = process.communicate(timeout=60)
    assert process.returncode == 2
    assert "user_error" in err.splitlines()[-1]
    process = start("train", "run.yaml", "policy.model=./nowhere", first="sys.path.insert(0, '.')")
    _, err = process.communicate(timeout=60)
    assert "policy.model must be a path that exists" in err


@pytest.mark.parametrize("package", ["torch", "transformers"])
def test_a_missing_package_is_named_with_what_installs_it(here: Path, package: str) -> None:
    process = start("train", "run.yaml", first=f"sys.modules[{package!r}] = None")
    _, err = process.communicate(timeout=60)
    assert process.returncode == 2
    assert err == f"rewardflow: training needs {package}: {install_command('train')}\n"
