"""The small run of the demo and the benchmarks."""

from __future__ import annotations

from dataclasses import replace

from rewardflow.settings.copying_run import copying_run
from rewardflow.settings.run_settings import RunSettings


def a_run(*, seed: int = 0, num_digits: int = 3) -> RunSettings:
    return copying_run("judge.py:score", stream="batch", max_staleness=0, seed=seed, steps=9, num_digits=num_digits)


def test_two_runs_differ_only_in_what_the_caller_changes() -> None:
    assert replace(a_run(seed=1), seed=0) == a_run()


def test_prompts_and_responses_have_room_for_the_digits() -> None:
    generation = a_run(num_digits=5).generation
    assert (generation.max_prompt_tokens, generation.max_response_tokens) == (7, 6)
