"""The command shows what was tried, held and lost, and fails if anything was lost."""

from __future__ import annotations

import io
from pathlib import Path

import orjson
import pytest
from rich.console import Console

from rewardflow.bench.chaos.scenario import Scenario, Tally, Tried
from rewardflow.cli.chaos import write_table
from rewardflow.cli.main import main


def trial(_seed: int, _folder: Path) -> Tried:
    return Tried(1)


HARSH = Scenario("kills", "nothing is paid twice", "rollouts", 1.0, trial)


def shown(*tallies: Tally) -> str:
    file = io.StringIO()
    write_table(tallies, Console(file=file, width=120))
    return file.getvalue()


def test_the_table_shows_tried_held_and_lost() -> None:
    text = shown(Tally(HARSH).plus(3, Tried(1200), 1.0))
    assert "1,200 rollouts" in text
    assert "1,200 │ 0" in text
    assert "repeat it" not in text


def test_a_scenario_that_lost_is_shown_with_the_command_that_repeats_it() -> None:
    text = shown(Tally(HARSH).plus(3, Tried(10), 1.0).plus(4, Tried(10, ("rollout 7 was paid twice",)), 2.0))
    assert "rollout 7 was paid twice" in text
    assert "rewardflow chaos --only kills --seed 4 --trials 1" in text


def test_one_trial_of_a_scenario_can_be_repeated(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["chaos", "--only", "mixed-answers", "--seed", "1005", "--trials", "1", "--json"]) == 0
    (row,) = orjson.loads(capsys.readouterr().out)
    assert (row["scenario"], row["trials"], row["tried"], row["lost"]) == ("mixed-answers", 1, 100, 0)


@pytest.mark.parametrize(
    "arguments", [["--only", "earthquake"], ["--trials", "0"], ["--times", "0"], ["--times", "nan"]]
)
def test_a_wrong_option_is_refused(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["chaos", *arguments]) != 0
    assert "must" in capsys.readouterr().err
