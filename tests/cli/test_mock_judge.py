"""The command `rewardflow mock-judge`: its options, where it says it listens, how it ends."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import urllib.request
from dataclasses import fields
from pathlib import Path

import orjson
import pytest

from rewardflow.cli.main import build_parser, main
from rewardflow.cli.mock_judge import PORT, settings_of
from rewardflow.mock_judge import MockJudgeSettings

ROOT = Path(__file__).resolve().parents[2]


def start(*arguments: str) -> subprocess.Popen[str]:
    code = "import sys; from rewardflow.cli.main import main; sys.exit(main())"
    return subprocess.Popen(
        [sys.executable, "-c", code, "mock-judge", "--port", "0", *arguments],
        env={**os.environ, "PYTHONPATH": str(ROOT / "src")},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def test_it_says_where_it_listens_answers_there_and_ends_when_interrupted() -> None:
    process = start("--latency", "uniform:1,40", "--scale", "0.001")
    assert process.stdout is not None
    found = re.fullmatch(r"the mock judge listens at (http://127\.0\.0\.1:\d+/v1)\n", process.stdout.readline())
    assert found is not None
    body = orjson.dumps({"messages": [{"role": "user", "content": "How good?"}]})
    with urllib.request.urlopen(f"{found[1]}/chat/completions", data=body, timeout=30) as response:
        assert orjson.loads(response.read())["model"] == "mock-judge"
    process.send_signal(signal.SIGTERM)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "/stats" in err
    assert "Traceback" not in err


def test_json_tells_the_address_first_and_the_counts_last() -> None:
    process = start("--json", "--model", "another")
    assert process.stdout is not None
    where = orjson.loads(process.stdout.readline())
    with urllib.request.urlopen(f"{where['base_url']}/models", timeout=30) as response:
        assert orjson.loads(response.read())["data"][0]["id"] == "another"
    process.send_signal(signal.SIGINT)
    out, _ = process.communicate(timeout=60)
    assert orjson.loads(out)["calls"] == 0


def test_without_options_the_settings_are_the_defaults_on_a_known_port() -> None:
    assert settings_of(build_parser().parse_args(["mock-judge"])) == MockJudgeSettings(port=PORT)


def test_every_setting_has_an_option() -> None:
    given = build_parser().parse_args(["mock-judge"])
    assert {field.name for field in fields(MockJudgeSettings) if field.init} <= set(vars(given))


def test_options_become_settings() -> None:
    line = (
        "mock-judge --seed 7 --latency lognormal:5,1 --scale 0.01 --faults 429=0.05,hang=0.01 --max-concurrency 8 "
        "--rpm 600 --tpm 9000 --burst-s 1 --no-retry-after --no-limit-headers --no-schema --no-log-probs --hang-s 30"
    )
    settings = settings_of(build_parser().parse_args(line.split()))
    assert settings == MockJudgeSettings(
        seed=7,
        latency="lognormal:5,1",
        scale=0.01,
        faults={"429": 0.05, "hang": 0.01},
        max_concurrency=8,
        rpm=600,
        tpm=9000,
        burst_s=1,
        says_retry_after=False,
        says_limits=False,
        takes_schema=False,
        gives_log_probs=False,
        hang_s=30,
        port=PORT,
    )


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--faults", "500=0.9,502=0.2"], "must add up to at most 1"),
        (["--faults", "hiccup=0.1"], "got 'hiccup'"),
        (["--latency", "weibull:1,2"], "got 'weibull:1,2'"),
        (["--latency", "journal:nowhere.db"], "nowhere.db"),
        (["--scale", "0"], "scale must be a positive number"),
    ],
)
def test_a_bad_option_is_one_line_and_exit_code_2(
    arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["mock-judge", *arguments]) == 2
    err = capsys.readouterr().err
    assert said in err
    assert err.count("\n") == 1
