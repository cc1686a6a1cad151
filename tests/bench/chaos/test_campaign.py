"""The campaign counts what its trials find, and goes on after a trial that fails."""

from __future__ import annotations

from pathlib import Path

import pytest

from rewardflow.bench.chaos.campaign import SCENARIOS, run_scenario, scenarios_named
from rewardflow.bench.chaos.scenario import Scenario, Tried
from rewardflow.errors import InvalidInput


def scenario(*results: Tried | Exception) -> tuple[Scenario, list[int]]:
    """Returns a scenario whose trials end like this, and the list of the seeds that it was given."""
    seeds: list[int] = []

    def trial(seed: int, folder: Path) -> Tried:
        assert list(folder.iterdir()) == []
        seeds.append(seed)
        result = results[len(seeds) - 1]
        if isinstance(result, Exception):
            raise result
        return result

    return Scenario("x", "nothing breaks", "cases", 1.0, trial), seeds


def test_each_trial_gets_the_next_seed_and_an_empty_folder() -> None:
    made, seeds = scenario(Tried(5), Tried(5), Tried(5))
    tallies = list(run_scenario(made, seed=40, seconds=60.0, max_trials=3))
    assert seeds == [40, 41, 42]
    assert [tally.tried for tally in tallies] == [5, 10, 15]
    assert tallies[-1].lost == 0


def test_the_worst_trial_is_kept_with_its_seed() -> None:
    made, _ = scenario(Tried(5, ("a",)), Tried(5, ("b", "c")), Tried(5, ("d",)))
    *_, last = run_scenario(made, seed=1, seconds=60.0, max_trials=3)
    assert (last.tried, last.held, last.lost) == (15, 11, 4)
    assert (last.worst_seed, last.worst_lost, last.worst_complaint) == (2, 2, "b")


def test_an_error_in_a_trial_counts_as_lost_and_does_not_stop_the_campaign() -> None:
    made, _ = scenario(RuntimeError("boom"), Tried(3))
    *_, last = run_scenario(made, seed=1, seconds=60.0, max_trials=2)
    assert (last.tried, last.lost) == (4, 1)
    assert "RuntimeError: boom" in last.worst_complaint


def test_a_scenario_has_one_trial_even_without_time() -> None:
    made, seeds = scenario(Tried(1))
    assert len(list(run_scenario(made, seed=9, seconds=0.0))) == 1
    assert seeds == [9]


def test_scenarios_are_chosen_by_name() -> None:
    assert scenarios_named([]) == SCENARIOS
    assert [one.name for one in scenarios_named(["kills"])] == ["kills"]
    with pytest.raises(InvalidInput, match="--only must name a scenario"):
        scenarios_named(["earthquake"])


def test_the_names_of_scenarios_are_distinct() -> None:
    assert len({one.name for one in SCENARIOS}) == len(SCENARIOS)


def test_the_short_campaign_starts_its_last_trials_within_two_minutes() -> None:
    assert sum(one.seconds for one in SCENARIOS) <= 120.0
