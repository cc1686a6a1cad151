"""Prompts as tokens, and those that are too long."""

from __future__ import annotations

from typing import Any

import pytest

from rewardflow.errors import InvalidInput
from rewardflow.flow.records import Prompt
from rewardflow.generate.prompt_encoder import PromptEncoder
from rewardflow.policy.tiny import build_tokenizer
from rewardflow.settings.run_settings import ChatSettings, GenerationSettings

SHORT, LONG = Prompt(uid="short", text="12="), Prompt(uid="long", text="123456=")


def encoder(**settings: Any) -> PromptEncoder:
    return PromptEncoder(build_tokenizer(), GenerationSettings(max_prompt_tokens=4, **settings))


def test_messages_go_through_the_chat_template_up_to_the_answer() -> None:
    tokenizer = build_tokenizer()
    prompt = Prompt(uid="a", messages=({"role": "user", "content": "1+"},), text="not this")
    assert encoder().encode(prompt) == (tokenizer.bos_token_id, *tokenizer.encode("1+>"))


def test_text_goes_in_as_it_is() -> None:
    assert encoder().encode(SHORT) == tuple(build_tokenizer().encode("12="))


def test_text_becomes_the_users_message_with_system_and_instruction() -> None:
    tokenizer = build_tokenizer()
    chat = ChatSettings(wrap_text=True, system="s", instruction="i")
    one = PromptEncoder(tokenizer, GenerationSettings(chat=chat))
    expected = tokenizer.apply_chat_template(
        [{"role": "system", "content": "s"}, {"role": "user", "content": "12=\n\ni"}],
        add_generation_prompt=True,
        return_dict=False,
    )
    assert one.encode(SHORT) == tuple(expected)
    bare = PromptEncoder(tokenizer, GenerationSettings(chat=ChatSettings(wrap_text=True)))
    assert bare.encode(SHORT) == (tokenizer.bos_token_id, *tokenizer.encode("12=>"))


def test_messages_stay_as_they_are_where_text_is_wrapped() -> None:
    prompt = Prompt(uid="a", messages=({"role": "user", "content": "1+"},), text="not this")
    chat = ChatSettings(wrap_text=True, system="s")
    assert PromptEncoder(build_tokenizer(), GenerationSettings(chat=chat)).encode(prompt) == encoder().encode(prompt)


def test_the_template_gets_its_arguments() -> None:
    tokenizer = build_tokenizer()
    tokenizer.chat_template = "{{ messages[0]['content'] }}{{ '>' if thinks else '=' }}"
    found = [
        PromptEncoder(tokenizer, GenerationSettings(chat=ChatSettings(wrap_text=True, arguments={"thinks": thinks})))
        for thinks in (True, False)
    ]
    prompt = Prompt(uid="a", text="1")
    assert [one.encode(prompt) for one in found] == [tuple(tokenizer.encode("1>")), tuple(tokenizer.encode("1="))]


def test_settings_of_chat_that_would_have_no_effect_or_break_the_template_are_refused() -> None:
    with pytest.raises(InvalidInput, match="system are for wrap_text=true"):
        ChatSettings(system="s")
    with pytest.raises(InvalidInput, match="add_generation_prompt"):
        ChatSettings(arguments={"add_generation_prompt": False})
    with pytest.raises(InvalidInput, match=r"got max_length, truncation"):  # `overlong_prompts` decides that
        ChatSettings(arguments={"truncation": True, "max_length": 8, "thinks": True})


def test_messages_without_a_chat_template_are_refused_by_the_key_that_gives_one() -> None:
    tokenizer = build_tokenizer()
    tokenizer.chat_template = None
    with pytest.raises(InvalidInput, match=r"policy\.chat_template"):
        PromptEncoder(tokenizer, GenerationSettings()).encode(
            Prompt(uid="a", messages=({"role": "user", "content": "1"},))
        )


def test_a_prompt_without_tokens_is_refused() -> None:
    with pytest.raises(InvalidInput, match="at least one token, prompt 'empty'"):
        encoder().encode(Prompt(uid="empty"))


def test_a_long_prompt_keeps_its_end_when_truncated() -> None:
    one = encoder(overlong_prompts="truncate")
    assert one.encode(LONG) == tuple(build_tokenizer().encode("456="))
    fitting = one.fit([SHORT, LONG])
    assert (list(fitting.kept), fitting.num_filtered) == ([SHORT, LONG], 0)


def test_long_prompts_are_filtered_and_counted() -> None:
    fitting = encoder(overlong_prompts="filter").fit([LONG, SHORT, LONG])
    assert (list(fitting.kept), fitting.num_filtered) == ([SHORT], 2)


def test_a_long_prompt_is_an_error_that_names_it_and_the_limit() -> None:
    for attempt in (encoder().encode, lambda prompt: encoder().fit([SHORT, prompt])):
        with pytest.raises(InvalidInput, match="at most max_prompt_tokens=4 tokens, prompt 'long' has 7"):
            attempt(LONG)


def test_a_prompt_at_the_limit_is_not_too_long() -> None:
    assert len(encoder().encode(Prompt(uid="a", text="123="))) == 4
