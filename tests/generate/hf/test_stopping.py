"""End tokens and stop strings."""

from __future__ import annotations

import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from rewardflow.errors import InvalidInput
from rewardflow.generate.hf.stopping import StopRule
from rewardflow.policy.load_policy import Policy


def rule(policy: Policy, *stops: str) -> StopRule:
    return StopRule(policy, stops, len(policy.tokenizer))


def test_without_stop_strings_only_end_tokens_are_looked_at(policy: Policy) -> None:
    one = rule(policy)
    assert one.is_candidate.nonzero().flatten().tolist() == sorted(policy.eos_ids)
    assert one.ends([5, policy.tokenizer.eos_token_id])
    assert not one.ends([policy.tokenizer.eos_token_id, 5])


def test_a_response_ends_with_the_token_that_completes_a_stop_string(policy: Policy) -> None:
    one = rule(policy, "ab=", "99")
    encode = policy.tokenizer.encode
    assert one.ends(encode("12ab="))
    assert one.ends(encode("1199"))
    assert not one.ends(encode("12ab"))
    assert not one.ends(encode("a b="))
    assert {*encode("=9")} <= set(one.is_candidate.nonzero().flatten().tolist())
    assert not one.is_candidate[encode("a")[0]]


def test_a_stop_string_inside_a_longer_token_or_after_silent_ones_is_seen(policy: Policy) -> None:
    """Bytes as tokens, and one token that goes on after the stop string."""
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {token: number for number, token in enumerate([*letters, "=x", "<eos>"])}
    backend = Tokenizer(models.BPE(vocabulary, [("=", "x")]))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    backend.decoder = decoders.ByteLevel()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=backend, eos_token="<eos>")
    one = StopRule(Policy(policy.model, tokenizer), ("b=", "é"), len(vocabulary))
    for text in ("ab=x", "cafeé"):
        tokens = tokenizer.encode(text)
        assert one.is_candidate[tokens[-1]]
        assert one.ends(tokens)
        assert not one.ends(tokens[:-1])


def test_an_empty_stop_string_is_refused(policy: Policy) -> None:
    with pytest.raises(InvalidInput, match=r"generation\.stop must not hold an empty string"):
        rule(policy, "a", "")
