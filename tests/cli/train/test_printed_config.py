"""`--print-config`: every setting, its value, and who set it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tiny_run import write_run_file

from rewardflow.cli.main import main
from rewardflow.settings.run_keys import keys


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    write_run_file(tmp_path)
    return tmp_path


def test_every_key_has_its_value_and_where_it_comes_from(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", "run.yaml", "trainer.lr=0.5", "--print-config", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    off = ("policy.lora", "validation", "audit")
    assert list(told) == [*(name for name in keys() if not name.startswith(tuple(f"{one}." for one in off))), *off]
    assert told["trainer.lr"] == {"value": 0.5, "from": "command line"}
    assert told["steps"] == {"value": 3, "from": "run.yaml"}
    assert told["limits.timeout_s"] == {"value": 120.0, "from": "default"}
    assert told["checkpoint.grace_s"] == {"value": 300.0, "from": "default"}
    assert not Path("run").exists()


def test_people_get_lines_in_the_form_of_overrides(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", "run.yaml", "seed=7", "--print-config"]) == 0
    lines = [" ".join(line.split()) for line in capsys.readouterr().out.splitlines()]
    assert "seed: 7 # command line" in lines
    assert "schedule.mini_batches: 2 # run.yaml" in lines
    assert 'trainer.lr_schedule: "constant" # default' in lines


def test_what_may_be_a_secret_is_not_shown(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", "run.yaml", "reward_kwargs.api_key=sk-verysecretvalue123", "--print-config"]) == 0
    assert "verysecret" not in capsys.readouterr().out


def test_a_mapping_is_printed_as_one_also_for_programs(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command = ["train", "run.yaml", "algorithm.component_weights={a: 0.5}", "--print-config"]
    assert main([*command, "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["algorithm.component_weights"] == {"value": {"a": 0.5}, "from": "command line"}
    assert told["vllm.arguments"] == {"value": {}, "from": "default"}
    assert main(command) == 0
    assert 'algorithm.component_weights: {"a": 0.5} ' in capsys.readouterr().out


def test_a_part_that_is_switched_off_shows_no_settings_of_it(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", "run.yaml", "--print-config"]) == 0
    told = capsys.readouterr().out
    assert "policy.lora.rank" not in told
    assert "policy.lora: null" in told
    assert main(["train", "run.yaml", "policy.lora.rank=8", "--print-config"]) == 0
    lines = [" ".join(line.split()) for line in capsys.readouterr().out.splitlines()]
    assert "policy.lora.rank: 8 # command line" in lines
    assert "policy.lora.alpha: 32 # default" in lines
