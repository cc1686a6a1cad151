"""settings.json: everything as it was resolved, and nothing that may be a secret."""

from __future__ import annotations

import json
import stat
from pathlib import Path
from typing import Any

import pytest
from tiny_run import settings_in

from rewardflow.runtime.records.saved_settings import changed_settings, shown_settings, write_settings
from rewardflow.settings.run_settings import AlgorithmSettings, ChatSettings, GenerationSettings, RunSettings

SECRET = "q7Zp0aTTlm29xw"


def test_defaults_stand_there_too(tmp_path: Path) -> None:
    shown = shown_settings(settings_in(tmp_path, run_dir=tmp_path / "run"))
    assert shown["generation"]["max_prompt_tokens"] == 8
    assert shown["trainer"]["betas"] == [0.9, 0.999]
    assert shown["policy"]["tokenizer"] is None
    assert shown["run_dir"] == str(tmp_path / "run")
    assert set(shown) == set(RunSettings.__dataclass_fields__)


@pytest.mark.parametrize(
    "fields",
    [
        {"reward_kwargs": {"api_key": SECRET}},
        {"reward_kwargs": {"headers": {"x-title": SECRET}}},
        {"reward_kwargs": {"clients": [{"name": "a", "password": SECRET}]}},
        {"reward_kwargs": {"note": f"Authorization: Bearer {SECRET}"}},
        {"reward": {"reward": "llm_judge", "model": "m", "base_urls": [f"http://me:{SECRET}@host"]}},
        {"limits": {"endpoints": [f"https://host/v1?key={SECRET}"]}},
    ],
)
def test_no_secret_is_written(tmp_path: Path, fields: dict[str, Any]) -> None:
    write_settings(settings_in(tmp_path, **fields), tmp_path / "settings.json")
    text = (tmp_path / "settings.json").read_text("utf-8")
    assert SECRET not in text
    assert "[redacted]" in text
    assert json.loads(text)["steps"] == 3


def test_the_file_is_for_its_owner_alone(tmp_path: Path) -> None:
    write_settings(settings_in(tmp_path), tmp_path / "settings.json")
    assert stat.S_IMODE((tmp_path / "settings.json").stat().st_mode) == 0o600


def test_what_has_changed_since_is_told_then_and_now(tmp_path: Path) -> None:
    path = tmp_path / "settings.json"
    before = settings_in(tmp_path, reward_kwargs={"model": "a", "api_key": SECRET})
    assert changed_settings(before, path) == []
    write_settings(before, path)
    assert changed_settings(before, path) == []
    after = settings_in(tmp_path, steps=5, reward_kwargs={"model": "b", "api_key": SECRET}, limits={"rpm": 60})
    assert changed_settings(after, path) == [
        "steps was 3 and is 5",
        'reward_kwargs.model was "a" and is "b"',
        "limits.rpm was null and is 60",
    ]


def generation_with(arguments: dict[str, Any]) -> GenerationSettings:
    chat = ChatSettings(arguments=arguments)
    return GenerationSettings(group_size=4, max_prompt_tokens=8, max_response_tokens=5, chat=chat)


def test_a_mapping_is_read_back_as_it_was_given(tmp_path: Path) -> None:
    settings = settings_in(
        tmp_path,
        algorithm=AlgorithmSettings(component_weights={"a": 0.5}),
        generation=generation_with({"hf_token": SECRET, "enable_thinking": False}),
    )
    write_settings(settings, tmp_path / "settings.json")
    read = json.loads((tmp_path / "settings.json").read_bytes())
    assert read["algorithm"]["component_weights"] == {"a": 0.5}
    assert read["generation"]["chat"]["arguments"] == {"hf_token": "[redacted]", "enable_thinking": False}


def test_a_key_that_the_user_added_to_a_mapping_or_took_away_is_a_change(tmp_path: Path) -> None:
    path = tmp_path / "settings.json"
    write_settings(settings_in(tmp_path, generation=generation_with({"enable_thinking": True})), path)
    after = settings_in(tmp_path, generation=generation_with({"tools": 2}))
    assert changed_settings(after, path) == [
        "generation.chat.arguments.enable_thinking was true and is null",
        "generation.chat.arguments.tools was null and is 2",
    ]
