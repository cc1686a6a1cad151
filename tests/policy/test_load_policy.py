"""Policies are loaded from folders, and mistakes are reported by the key of the setting."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from rewardflow.errors import InvalidInput
from rewardflow.policy.load_policy import Policy, load_policy
from rewardflow.settings.run_settings import PolicySettings

torch.set_num_threads(1)


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A policy as save_pretrained leaves it."""
    folder = tmp_path_factory.mktemp("policy")
    policy = tiny(seed=7)
    policy.model.save_pretrained(folder)
    policy.tokenizer.save_pretrained(folder)
    return folder


def tiny(*, seed: int = 0, **settings: Any) -> Policy:
    return load_policy(PolicySettings(tiny_hidden=16, tiny_layers=1, **settings), seed=seed)


def copy_of(folder: Path, to: Path, *, without: str = "", change: Callable[[str, Any], None] | None = None) -> Path:
    """Copies the folder without files whose name has the word, and with its JSON files changed."""
    for file in folder.iterdir():
        if not without or without not in file.name:
            (to / file.name).write_bytes(file.read_bytes())
        if change is not None and file.suffix == ".json":
            content = json.loads(file.read_text())
            change(file.name, content)
            (to / file.name).write_text(json.dumps(content))
    return to


def test_a_saved_policy_comes_back_whole_without_a_network(saved: Path) -> None:
    before, after = tiny(seed=7), load_policy(PolicySettings(model=str(saved)), seed=0)
    text = "12+3=aB >"
    assert after.tokenizer.encode(text) == before.tokenizer.encode(text)
    assert after.tokenizer.decode(after.tokenizer.encode(text)) == text
    assert after.tokenizer.chat_template == before.tokenizer.chat_template
    assert after.eos_ids == before.eos_ids
    tokens = torch.tensor([before.tokenizer.encode(text)])
    assert torch.equal(before.model(tokens).logits, after.model(tokens).logits)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_the_weights_have_the_dtype_that_was_asked_for(saved: Path, dtype: Any) -> None:
    for policy in (tiny(dtype=dtype), load_policy(PolicySettings(model=str(saved), dtype=dtype), seed=0)):
        assert {parameter.dtype for parameter in policy.model.parameters()} == {getattr(torch, dtype)}


def test_a_policy_is_loaded_ready_to_train(saved: Path) -> None:
    policy = load_policy(PolicySettings(model=str(saved), gradient_checkpointing=True, attention="eager"), seed=0)
    assert policy.model.training
    assert policy.model.is_gradient_checkpointing
    assert policy.model.config._attn_implementation == "eager"


def test_a_chat_template_is_replaced_by_text_or_by_a_file(tmp_path: Path) -> None:
    template = "{% for message in messages %}{{ message['content'] }}={% endfor %}"
    file = tmp_path / "template.jinja"
    file.write_text(template)
    for given in (template, str(file)):
        rendered = tiny(chat_template=given).tokenizer.apply_chat_template(
            [{"role": "user", "content": "12"}], tokenize=False
        )
        assert rendered == "12="


def test_the_reference_is_frozen_and_stays_as_it_was() -> None:
    policy = tiny()
    reference = policy.reference()
    before = [parameter.clone() for parameter in reference.parameters()]
    with torch.no_grad():
        for parameter in policy.model.parameters():
            parameter += 1.0
    assert all(torch.equal(a, b) for a, b in zip(before, reference.parameters(), strict=True))
    assert not any(parameter.requires_grad for parameter in reference.parameters())
    assert not reference.training
    assert policy.model.training
    assert all(parameter.requires_grad for parameter in policy.model.parameters())


def test_a_tokenizer_without_pad_token_pads_with_its_end_token(saved: Path, tmp_path: Path) -> None:
    def change(name: str, content: Any) -> None:
        if name == "tokenizer_config.json":
            content.pop("pad_token")

    policy = load_policy(PolicySettings(model=str(copy_of(saved, tmp_path, change=change))), seed=0)
    assert policy.tokenizer.pad_token_id == policy.tokenizer.eos_token_id is not None


def test_every_end_token_of_the_generation_config_ends_a_response(saved: Path, tmp_path: Path) -> None:
    def change(name: str, content: Any) -> None:
        if name == "generation_config.json":
            content["eos_token_id"] = [2, 9]

    policy = load_policy(PolicySettings(model=str(copy_of(saved, tmp_path, change=change))), seed=0)
    assert policy.eos_ids == {2, 9}


def test_a_policy_that_could_end_no_response_is_refused(saved: Path, tmp_path: Path) -> None:
    def change(name: str, content: Any) -> None:
        content.pop("eos_token", None)
        content.pop("eos_token_id", None)

    with pytest.raises(InvalidInput, match=r"policy\.tokenizer must have an end token"):
        load_policy(PolicySettings(model=str(copy_of(saved, tmp_path, change=change))), seed=0)


def test_a_tokenizer_that_knows_more_tokens_than_the_model_is_refused(saved: Path, tmp_path: Path) -> None:
    tokenizer = tiny().tokenizer
    tokenizer.add_tokens(["longword"])
    tokenizer.save_pretrained(tmp_path)
    with pytest.raises(InvalidInput, match=r"policy\.tokenizer must fit the model, got 73 tokens .* 72 embeddings"):
        load_policy(PolicySettings(model=str(saved), tokenizer=str(tmp_path)), seed=0)


def test_a_folder_without_tokenizer_is_told_apart_and_another_can_be_named(saved: Path, tmp_path: Path) -> None:
    folder = copy_of(saved, tmp_path, without="token")
    with pytest.raises(InvalidInput, match=r"the tokenizer of policy\.model could not be loaded"):
        load_policy(PolicySettings(model=str(folder)), seed=0)
    assert load_policy(PolicySettings(model=str(folder), tokenizer=str(saved)), seed=0).tokenizer.encode("1") == [5]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"model": "/no/such/folder"}, r"policy\.model must be a path that exists .* got /no/such/folder"),
        ({"model": "./missing"}, r"policy\.model must be a path that exists"),
        ({"model": "SAVED/.."}, r"policy\.model must be a folder with a config\.json"),
        ({"model": "SAVED/config.json"}, r"policy\.model must be a folder with a config\.json"),
        ({"model": "SAVED", "tokenizer": "/no/such"}, r"policy\.tokenizer must be a path that exists"),
        ({"model": "SAVED", "attention": "nonsense"}, r"policy\.model could not be loaded .*nonsense"),
        ({"attention": "nonsense"}, r"policy\.model could not be loaded .*nonsense"),
        ({"model": "SAVED", "gguf_file": "weights.gguf"}, r"policy\.gguf_file"),
        ({"gguf_file": "weights.gguf"}, r"policy\.gguf_file needs a policy\.model"),
        ({"chat_template": "no/such/file.jinja"}, r"policy\.chat_template must be a Jinja template or a file"),
        ({"tiny_hidden": 20}, r"policy\.tiny_hidden must be divisible by 8"),
    ],
)
def test_what_cannot_be_loaded_is_named_by_its_key(saved: Path, settings: dict[str, str], message: str) -> None:
    given = {
        key: value.replace("SAVED", str(saved)) if isinstance(value, str) else value for key, value in settings.items()
    }
    with pytest.raises(InvalidInput, match=message):
        load_policy(PolicySettings(**given), seed=0)
