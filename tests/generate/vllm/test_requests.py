"""Seeds, and what is made of vLLM's answers. The answers are records with the fields of vLLM's own."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rewardflow.errors import FlowError, InvalidInput
from rewardflow.flow.records import GroupRequest, Prompt, Sampling
from rewardflow.generate.vllm.requests import Asked, completion_of, seed_of
from rewardflow.policy.tiny import build_tokenizer
from rewardflow.types import Rollout


@dataclass
class Span:
    version: str
    start: int
    end: int


@dataclass
class LogProbs:
    token_ids: list[int]
    logprobs: list[float]


@dataclass
class Completion:
    token_ids: list[int]
    logprobs: LogProbs | None
    weight_versions: list[Span] | None
    finish_reason: str = "stop"


TOKENIZER = build_tokenizer()
SEVEN, EIGHT, EOS = *TOKENIZER.convert_tokens_to_ids(["7", "8"]), TOKENIZER.eos_token_id


def asked(number: int = 0, index: int = 0, seed: int = 0) -> Asked:
    prompt, sampling = Prompt(uid="p", text="7"), Sampling(seed=seed)
    request = GroupRequest(number=number, step=2, prompt=prompt, group_size=64, sampling=sampling)
    return Asked(request, index, (SEVEN,))


def rollout_of(**fields: Any) -> Rollout:
    tokens = [SEVEN, EIGHT, EOS]
    defaults: dict[str, Any] = {
        "token_ids": tokens,
        "logprobs": LogProbs(tokens, [-0.5, -1.5, -2.5]),
        "weight_versions": [Span("3", 0, 3)],
    }
    return completion_of(asked(), Completion(**{**defaults, **fields}), TOKENIZER).to_rollout()


@given(st.integers(0, 2**40), st.integers(0, 2**40), st.integers(0, 63))
def test_a_seed_is_one_that_vllm_takes_and_the_same_for_the_same_place(seed: int, number: int, index: int) -> None:
    found = seed_of(asked(number, index, seed))
    assert 0 <= found < 2**63
    assert found == seed_of(asked(number, index, seed))


def test_seeds_differ_between_runs_groups_and_indices() -> None:
    seeds = {seed_of(asked(n, i, seed)) for seed in range(3) for n in range(40) for i in range(8)}
    assert len(seeds) == 3 * 40 * 8


def test_an_answer_becomes_a_rollout_with_prompt_and_response_in_one_row() -> None:
    rollout = rollout_of()
    assert list(rollout.token_ids) == [SEVEN, SEVEN, EIGHT, EOS]
    assert list(rollout.response_mask) == [0, 1, 1, 1]
    assert list(rollout.log_probs) == [0.0, -0.5, -1.5, -2.5]
    assert rollout.response == "78"
    assert (rollout.policy_version, rollout.token_versions) == (3, None)
    assert "truncated" not in rollout.extra_info


def test_a_rollout_of_two_versions_is_as_old_as_its_oldest_token() -> None:
    rollout = rollout_of(weight_versions=[Span("3", 0, 2), Span("4", 2, 3)])
    assert rollout.policy_version == 3
    assert list(rollout.token_versions) == [0, 3, 3, 4]


def test_a_response_that_only_its_length_ended_is_marked() -> None:
    assert rollout_of(finish_reason="length").extra_info["truncated"] is True


@pytest.mark.parametrize(
    ("fields", "problem"),
    [
        ({"finish_reason": "abort"}, "must end a response at a stop or at its length, got abort"),
        ({"weight_versions": [Span("3", 0, 2)]}, "the version of each of 3 tokens, got 2"),
        ({"weight_versions": None}, "the version of each of 3 tokens, got 0"),
        ({"logprobs": LogProbs([SEVEN], [-0.5])}, "a log-prob of each sampled token"),
        ({"logprobs": None}, "a log-prob of each sampled token"),
    ],
)
def test_an_answer_that_lacks_something_is_refused(fields: dict[str, Any], problem: str) -> None:
    with pytest.raises(FlowError, match=problem):
        rollout_of(**fields)


def test_weights_that_have_diverged_are_told() -> None:
    with pytest.raises(InvalidInput, match="logits must be finite"):
        rollout_of(logprobs=LogProbs([SEVEN, EIGHT, EOS], [-0.5, float("nan"), -1.0]))
