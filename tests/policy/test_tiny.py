"""The model and the tokenizer that are built in code."""

from __future__ import annotations

import pytest
import torch

from rewardflow.errors import InvalidInput
from rewardflow.policy.tiny import CHARACTERS, build_model, build_tokenizer

torch.set_num_threads(1)


def test_what_is_encoded_is_decoded_again_one_token_a_character() -> None:
    tokenizer = build_tokenizer()
    tokens = tokenizer.encode(CHARACTERS)
    assert len(tokens) == len(CHARACTERS) == len(set(tokens))
    assert tokenizer.decode(tokens) == CHARACTERS


def test_an_unknown_character_is_one_unknown_token_and_changes_no_other() -> None:
    tokenizer = build_tokenizer()
    assert tokenizer.encode("1é\n2") == [*tokenizer.encode("1"), *[tokenizer.unk_token_id] * 2, *tokenizer.encode("2")]


def test_special_tokens_are_told_apart_and_left_out_of_the_text_on_demand() -> None:
    tokenizer = build_tokenizer()
    special = {tokenizer.pad_token_id, tokenizer.bos_token_id, tokenizer.eos_token_id, tokenizer.unk_token_id}
    assert len(special) == 4
    assert tokenizer.decode([*tokenizer.encode("12"), tokenizer.eos_token_id], skip_special_tokens=True) == "12"


def test_the_chat_template_ends_where_the_answer_starts() -> None:
    tokenizer = build_tokenizer()
    turns = [{"role": "user", "content": "1+2"}]
    assert tokenizer.apply_chat_template(turns, add_generation_prompt=True, tokenize=False) == "<bos>1+2>"
    turns += [{"role": "assistant", "content": "3"}, {"role": "user", "content": "2+2"}]
    assert tokenizer.apply_chat_template(turns, add_generation_prompt=True, tokenize=False) == "<bos>1+2>3<eos>2+2>"


def test_the_seed_alone_makes_the_weights_and_leaves_the_random_state_alone() -> None:
    torch.manual_seed(5)
    first = build_model(16, 1, seed=3)
    after_first = torch.rand(1)
    torch.manual_seed(5)
    assert after_first == torch.rand(1)
    second, other = build_model(16, 1, seed=3), build_model(16, 1, seed=4)
    assert all(torch.equal(a, b) for a, b in zip(first.parameters(), second.parameters(), strict=True))
    assert not all(torch.equal(a, b) for a, b in zip(first.parameters(), other.parameters(), strict=True))


def test_the_settings_give_the_size() -> None:
    model = build_model(24, 3, seed=0)
    assert (model.config.hidden_size, len(model.model.layers)) == (24, 3)


@pytest.mark.parametrize(
    ("hidden", "num_layers", "key"), [(20, 1, "tiny_hidden"), (0, 1, "tiny_hidden"), (16, 0, "tiny_layers")]
)
def test_a_size_that_cannot_be_is_refused_by_its_key(hidden: int, num_layers: int, key: str) -> None:
    with pytest.raises(InvalidInput, match=f"policy.{key}"):
        build_model(hidden, num_layers, seed=0)
