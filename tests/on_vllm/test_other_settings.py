"""The engine with the other way to give weights, a temperature, stop strings, and sleep.

On a CPU sleeping frees no memory; that requests and updates go on after it is what can be seen here.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from engine_at_work import LONG_TEXT, TEXTS, EngineAtWork, assert_log_probs, engine_at_work, requests, response_ids

from rewardflow.flow.records import Sampling

pytestmark = pytest.mark.filterwarnings("default")

STOP = ("7", "=0")
WARM = Sampling(temperature=0.7, max_response_tokens=60)


@pytest.fixture(scope="module")
def at_work() -> Iterator[EngineAtWork]:
    with engine_at_work(WARM, transfer="reload", sleep=True, stop=STOP) as started:
        yield started


def test_log_probs_are_those_of_the_temperature_that_sampled(at_work: EngineAtWork) -> None:
    for rollout in at_work.generate(requests(*TEXTS, sampling=WARM)):
        assert_log_probs(at_work.policy, rollout, temperature=0.7)


def test_a_stop_string_ends_a_response_and_is_its_end(at_work: EngineAtWork) -> None:
    tokenizer, ended = at_work.policy.tokenizer, 0
    for rollout in at_work.generate(requests(*TEXTS, group_size=8, sampling=WARM)):
        before = tokenizer.decode(response_ids(rollout)[:-1], skip_special_tokens=True)
        assert not any(stop in before for stop in STOP)
        is_stopped = rollout.response.endswith(STOP)
        is_at_end = response_ids(rollout)[-1] == tokenizer.eos_token_id
        assert rollout.extra_info.get("truncated", False) == (not is_stopped and not is_at_end)
        ended += is_stopped
    assert ended > len(TEXTS)


def test_reloaded_weights_are_the_new_ones_also_where_the_prompt_was_cached(at_work: EngineAtWork) -> None:
    for seed in (2, 3):
        version = at_work.run(at_work.give_weights_of(seed))
        for rollout in at_work.generate(requests(LONG_TEXT, "8=", sampling=WARM)):
            assert rollout.policy_version == version
            assert_log_probs(at_work.policy, rollout, temperature=0.7)
