"""The engine as a run has it: weights through shared memory, temperature 1, no stop strings."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import aclosing

import pytest
import torch
from engine_at_work import (
    LONG_TEXT,
    TEXTS,
    EngineAtWork,
    assert_log_probs,
    by_place,
    engine_at_work,
    log_probs_of,
    requests,
    response_ids,
)

from rewardflow.flow.records import Sampling
from rewardflow.types import Rollout

pytestmark = pytest.mark.filterwarnings("default")  # vLLM has many


@pytest.fixture(scope="module")
def at_work() -> Iterator[EngineAtWork]:
    with engine_at_work() as started:
        yield started


def test_log_probs_are_those_of_transformers(at_work: EngineAtWork) -> None:
    rollouts = at_work.generate(requests(*TEXTS))
    assert len(rollouts) == 3 * len(TEXTS)
    for rollout in rollouts:
        assert_log_probs(at_work.policy, rollout)


def test_rollouts_arrive_one_by_one_as_they_end(at_work: EngineAtWork) -> None:
    async def run() -> tuple[list[Rollout], list[int]]:
        rollouts, unfinished = [], []
        async for rollout in at_work.engine.generate(requests(*TEXTS, group_size=4)):
            rollouts.append(rollout)
            unfinished.append(at_work.engine.num_unfinished)
        return rollouts, unfinished

    rollouts, unfinished = at_work.run(run())
    lengths = [len(response_ids(rollout)) for rollout in rollouts]
    assert lengths == sorted(lengths)
    assert lengths[0] < lengths[-1]
    assert unfinished[0] > 0
    assert unfinished[-1] == 0


def test_a_response_ends_at_its_end_token_or_is_marked_as_cut(at_work: EngineAtWork) -> None:
    eos = at_work.policy.tokenizer.eos_token_id
    rollouts = at_work.generate(requests(*TEXTS, group_size=8, first=100))
    for rollout in rollouts:
        tokens = response_ids(rollout)
        assert eos not in tokens[:-1]
        assert rollout.extra_info.get("truncated", False) == (tokens[-1] != eos)
        assert len(tokens) == 200 or tokens[-1] == eos
        assert rollout.response == at_work.policy.tokenizer.decode(tokens, skip_special_tokens=True)
    assert 0 < sum(rollout.extra_info.get("truncated", False) for rollout in rollouts) < len(rollouts)


def test_the_same_requests_draw_the_same_again_and_others_draw_others(at_work: EngineAtWork) -> None:
    once = by_place(at_work.generate(requests("12=", "12=", group_size=6)))
    assert by_place(at_work.generate(requests("12=", "12=", group_size=6))) == once
    assert len({tuple(tokens) for tokens in once.values()}) == len(once)
    other = by_place(at_work.generate(requests("12=", "12=", group_size=6, first=7)))
    assert not set(map(tuple, other.values())) & set(map(tuple, once.values()))


def test_the_baseline_of_a_group_is_what_transformers_says_greedily(at_work: EngineAtWork) -> None:
    model, tokenizer = at_work.policy.model.eval(), at_work.policy.tokenizer
    for rollout in at_work.generate(requests(*TEXTS, has_baseline=True)):
        assert rollout.extra_info["greedy"] == (rollout.index == 2)
        if rollout.index == 2:
            prompt = tokenizer(rollout.prompt, return_tensors="pt")
            told = model.generate(**prompt, max_new_tokens=200, do_sample=False)
            assert response_ids(rollout) == told[0, prompt.input_ids.shape[1] :].tolist()


def test_after_an_update_log_probs_are_those_of_the_new_weights_also_where_the_prompt_was_cached(
    at_work: EngineAtWork,
) -> None:
    asked = requests(LONG_TEXT, "7=")
    for seed in (2, 3):
        version = at_work.run(at_work.give_weights_of(seed))
        for _ in range(2):  # the second time from the prefix cache
            for rollout in at_work.generate(asked):
                assert rollout.policy_version == version
                assert rollout.token_versions is None
                assert_log_probs(at_work.policy, rollout)


def test_an_update_in_flight_keeps_requests_and_every_token_has_the_version_that_sampled_it(
    at_work: EngineAtWork,
) -> None:
    async def run() -> tuple[int, int, list[Rollout]]:
        before = await at_work.give_weights_of(4)
        policies[before] = at_work.frozen_policy()
        rollouts, after = [], before
        async with aclosing(at_work.engine.generate(requests(*TEXTS, group_size=4))) as stream:
            async for rollout in stream:
                rollouts.append(rollout)
                if after == before:
                    after = await at_work.give_weights_of(5)
        policies[after] = at_work.frozen_policy()
        return before, after, rollouts

    policies: dict[int, object] = {}
    before, after, rollouts = at_work.run(run())
    assert len(rollouts) == 4 * len(TEXTS)
    mixed = [rollout for rollout in rollouts if rollout.token_versions is not None]
    assert mixed
    for rollout in mixed:
        assert rollout.policy_version == before
        versions = [v for v, sampled in zip(rollout.token_versions, rollout.response_mask, strict=True) if sampled]
        assert versions == sorted(versions)
        assert set(versions) == {before, after}
        check_versions(policies, rollout)


def check_versions(policies: dict[int, object], rollout: Rollout) -> None:
    """Each token's log-prob is that of its version, given all tokens before it."""
    versions = torch.tensor(list(rollout.token_versions))
    told = torch.tensor(list(rollout.log_probs))
    for version, policy in policies.items():
        is_own = versions == version
        assert torch.allclose(told[is_own], log_probs_of(policy, rollout)[is_own], atol=1e-5, rtol=0)


def test_what_was_asked_for_and_is_not_wanted_any_more_stops(at_work: EngineAtWork) -> None:
    async def run() -> int:
        async with aclosing(at_work.engine.generate(requests(*TEXTS, group_size=8))) as stream:
            async for _ in stream:
                assert at_work.engine.num_unfinished > 0
                break
        return at_work.engine.num_unfinished

    num_before = at_work.engine.statistics().num_rollouts
    assert at_work.run(run()) == 0
    assert at_work.engine.statistics().num_rollouts < num_before + 8 * len(TEXTS)
    assert len(at_work.generate(requests("7="))) == 3


def test_a_cancelled_caller_stops_its_requests(at_work: EngineAtWork) -> None:
    async def consume(has_begun: asyncio.Event) -> None:
        async for _ in at_work.engine.generate(requests(*TEXTS, group_size=8)):
            has_begun.set()  # and on to the next, for which it waits when it is cancelled

    async def run() -> int:
        has_begun = asyncio.Event()
        async with asyncio.TaskGroup() as tasks:
            task = tasks.create_task(consume(has_begun))
            await has_begun.wait()
            assert at_work.engine.num_unfinished > 0
            task.cancel()
        return at_work.engine.num_unfinished

    assert at_work.run(run()) == 0


def test_requests_are_sampled_in_their_own_way_on_the_same_weights(at_work: EngineAtWork) -> None:
    greedy = Sampling(seed=99, top_k=1, max_response_tokens=20)
    told = at_work.generate(requests(*TEXTS, group_size=1, sampling=greedy))
    baselines = [one for one in at_work.generate(requests(*TEXTS, has_baseline=True)) if one.index == 2]
    expected = {one.group_id: response_ids(one)[:20] for one in baselines}
    assert {one.group_id: response_ids(one) for one in told} == expected
    assert {one.policy_version for one in told} == {one.policy_version for one in baselines}


def test_statistics_count_rollouts_and_tokens(at_work: EngineAtWork) -> None:
    before = at_work.engine.statistics()
    rollouts = at_work.generate(requests(*TEXTS))
    after = at_work.engine.statistics()
    assert after.num_rollouts - before.num_rollouts == len(rollouts)
    assert after.num_response_tokens - before.num_response_tokens == sum(len(response_ids(one)) for one in rollouts)
    assert after.busy_s > before.busy_s
