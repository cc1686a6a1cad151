"""Loads the model to train and its tokenizer, as the settings name them.

Always true: a mistake in the settings raises `InvalidInput`, which names the key; a path that exists is read from this
machine, and only other names are looked up on the hub; a loaded policy can end a response, pad a batch, and has no
dropout.
"""

from __future__ import annotations

import contextlib
import copy
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import torch
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoTokenizer,
    GenerationConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
    PreTrainedTokenizerFast,
)

from rewardflow.errors import InvalidInput
from rewardflow.policy import tiny
from rewardflow.policy.cpu_instructions import avoid_undescribed_amx
from rewardflow.policy.dropout import switch_off_dropout
from rewardflow.policy.hub_connection import require_hub
from rewardflow.policy.model_place import TINY, ModelPlace, check_holds_tokenizer, find
from rewardflow.policy.outline import outlined
from rewardflow.settings.run_settings import PolicySettings

T = TypeVar("T")

_MAX_TOLD = 5


@dataclass(frozen=True, slots=True)
class Policy:
    """A model and its tokenizer."""

    model: PreTrainedModel
    tokenizer: PreTrainedTokenizerBase

    @property
    def eos_ids(self) -> frozenset[int]:
        """The tokens that end a response: chat models often have one for the turn and one for the text."""
        generation = getattr(self.model, "generation_config", None)
        return frozenset((*_ids(self.tokenizer.eos_token_id), *_ids(getattr(generation, "eos_token_id", None))))

    def reference(self) -> PreTrainedModel:
        """Returns a frozen copy of the current model."""
        frozen: PreTrainedModel = copy.deepcopy(self.model)
        frozen.requires_grad_(False)
        frozen.train(False)
        return frozen


def load_policy(settings: PolicySettings, *, seed: int) -> Policy:
    """Loads the policy onto the CPU, in training mode. `seed` matters only for weights that are built, not read."""
    if settings.model == TINY:
        policy = Policy(_tiny_model(settings, seed), _tokenizer(settings))
    else:
        place = _reachable("policy.model", ModelPlace.of(settings))
        tokenizer = _tokenizer(settings, place)
        policy = Policy(_read_model(settings, place), tokenizer)
    return _completed(policy, settings)


def outline_policy(settings: PolicySettings) -> Policy:
    """Builds the policy without its weights, in training mode (`outlined`)."""
    if settings.model == TINY:
        policy = Policy(outlined(lambda: _tiny_model(settings, seed=0)), _tokenizer(settings))
    else:
        place = _reachable("policy.model", ModelPlace.of(settings))
        policy = Policy(outlined(lambda: _outline_model(settings, place)), _tokenizer(settings, place))
    return _completed(policy, settings)


def _completed(policy: Policy, settings: PolicySettings) -> Policy:
    avoid_undescribed_amx()
    _check(policy, settings)
    if settings.chat_template is not None:
        policy.tokenizer.chat_template = _template(settings.chat_template)
    if settings.gradient_checkpointing:
        policy.model.gradient_checkpointing_enable({"use_reentrant": False})
    switch_off_dropout(policy.model)
    policy.model.train()
    return policy


def _tiny_model(settings: PolicySettings, seed: int) -> PreTrainedModel:
    if settings.gguf_file is not None:
        raise InvalidInput(f"policy.gguf_file needs a policy.model that it is in, got {settings.gguf_file} with tiny")
    sizes = (settings.tiny_hidden, settings.tiny_layers)
    model = _read("policy.model", "code", lambda: tiny.build_model(*sizes, seed=seed, attention=settings.attention))
    return torch.nn.Module.to(model, _dtype(settings))


def _read_model(settings: PolicySettings, place: ModelPlace) -> PreTrainedModel:
    attention = {} if settings.attention is None else {"attn_implementation": settings.attention}
    options = {**place.options(settings), **attention, "dtype": _dtype(settings)}

    def load() -> PreTrainedModel:
        loaded: Any = AutoModelForCausalLM.from_pretrained(
            place.name, **options, output_loading_info=True, ignore_mismatched_sizes=True
        )
        model: PreTrainedModel = loaded[0]
        _check_is_whole(place, loaded[1])
        return model

    return _read("policy.model", place.name, load)


def _check_is_whole(place: ModelPlace, told: Mapping[str, Any]) -> None:
    """Raises if transformers has filled weights with random numbers: a policy would begin with noise in them."""
    missing = [f"no {name}" for name in sorted(told["missing_keys"])]
    odd = [f"{name} of {tuple(stored)} for {tuple(own)}" for name, stored, own in sorted(told["mismatched_keys"])]
    if missing or odd:
        named = [*missing, *odd]
        more = f", and {len(named) - _MAX_TOLD} others" if len(named) > _MAX_TOLD else ""
        raise InvalidInput(
            f"policy.model must have every weight of its configuration, in its shape, got {place.name} with "
            f"{', '.join(named[:_MAX_TOLD])}{more}"
        )


def _outline_model(settings: PolicySettings, place: ModelPlace) -> PreTrainedModel:
    def build() -> PreTrainedModel:
        config = AutoConfig.from_pretrained(place.name, **place.options(settings))
        attention = {} if settings.attention is None else {"attn_implementation": settings.attention}
        model: PreTrainedModel = AutoModelForCausalLM.from_config(  # type: ignore[no-untyped-call]
            config, dtype=_dtype(settings), trust_remote_code=settings.trust_remote_code, **attention
        )
        if place.gguf_file is None:
            with contextlib.suppress(OSError):  # not all models have this file; then the configuration must suffice
                model.generation_config = GenerationConfig.from_pretrained(place.name, local_files_only=place.is_local)
        return model

    return _read("policy.model", place.name, build)


def _tokenizer(settings: PolicySettings, model_place: ModelPlace | None = None) -> PreTrainedTokenizerBase:
    """Loads the tokenizer that the settings name, or else the model's own."""
    if settings.tokenizer is not None:
        key = "policy.tokenizer"
        place = _reachable(key, find(key, settings.tokenizer))
    elif model_place is not None:
        key, place = "the tokenizer of policy.model", model_place
    else:
        return tiny.build_tokenizer()
    check_holds_tokenizer(key, place)

    def load() -> PreTrainedTokenizerBase:
        tokenizer: PreTrainedTokenizerBase = _tokenizer_class(place).from_pretrained(
            place.name, **place.options(settings)
        )
        return tokenizer

    return _read(key, place.name, load)


def _tokenizer_class(place: ModelPlace) -> Any:
    """Chooses the class: for some models AutoTokenizer ignores the saved class and would split text differently."""
    file = Path(place.name) / "tokenizer_config.json"
    if not place.is_local or place.gguf_file is not None or not file.is_file():
        return AutoTokenizer
    is_generic = json.loads(file.read_text("utf-8")).get("tokenizer_class") == "TokenizersBackend"
    return PreTrainedTokenizerFast if is_generic else AutoTokenizer


def _reachable(key: str, place: ModelPlace) -> ModelPlace:
    """Returns the place; raises if it is on the hub and the hub cannot be reached."""
    if not place.is_local:
        require_hub(key, place.name)
    return place


def _read(key: str, name: str, load: Callable[[], T]) -> T:
    """Turns the errors of transformers that wrong settings cause into `InvalidInput`."""
    try:
        return load()
    except InvalidInput:
        raise
    except (OSError, ValueError, KeyError, ImportError) as error:
        first_line = str(error).partition("\n")[0]
        raise InvalidInput(f"{key} could not be loaded from {name}: {type(error).__name__}: {first_line}") from error


def _check(policy: Policy, settings: PolicySettings) -> None:
    """Checks what generation needs. A missing pad token becomes the end token, which works as well under a mask."""
    name = settings.tokenizer or settings.model
    tokenizer = policy.tokenizer
    if not policy.eos_ids:
        raise InvalidInput(f"policy.tokenizer must have an end token, or no response would end; {name} has none")
    if tokenizer.eos_token_id is None:
        tokenizer.eos_token = tokenizer.convert_ids_to_tokens(min(policy.eos_ids))
    if tokenizer.pad_token_id is None:
        tokenizer.pad_token = tokenizer.eos_token
    embeddings: Any = policy.model.get_input_embeddings()
    num_embeddings = embeddings.weight.shape[0]
    if len(tokenizer) > num_embeddings:
        raise InvalidInput(
            f"policy.tokenizer must fit the model, got {len(tokenizer)} tokens from {name} "
            f"for a model with {num_embeddings} embeddings"
        )


def _template(given: str) -> str:
    """Returns the given template, or reads it from a file. Text without braces must be a file name, not a template."""
    if "{" in given:
        return given
    path = Path(given).expanduser()
    if not path.is_file():
        raise InvalidInput(f"policy.chat_template must be a Jinja template or a file with one, got {given!r}")
    return path.read_text("utf-8")


def _dtype(settings: PolicySettings) -> torch.dtype:
    dtype: torch.dtype = getattr(torch, settings.dtype)
    return dtype


def _ids(value: int | list[int] | None) -> list[int]:
    return [] if value is None else [value] if isinstance(value, int) else value
