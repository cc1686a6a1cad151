"""A model that is not there is refused without loading anything heavy."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from rewardflow.errors import InvalidInput
from rewardflow.policy.model_place import ModelPlace, check_model_files
from rewardflow.settings.run_settings import PolicySettings


def test_a_folder_needs_a_configuration_and_a_tokenizer(tmp_path: Path) -> None:
    settings = PolicySettings(model=str(tmp_path))
    with pytest.raises(InvalidInput, match=r"policy\.model must be a folder with a config\.json"):
        check_model_files(settings)
    (tmp_path / "config.json").touch()
    with pytest.raises(InvalidInput, match="the folder holds no tokenizer"):
        check_model_files(settings)
    (tmp_path / "tokenizer.json").touch()
    check_model_files(settings)
    assert ModelPlace.of(settings).is_local


def test_what_is_built_in_or_may_be_on_the_hub_is_left_to_the_loader() -> None:
    check_model_files(PolicySettings())
    check_model_files(PolicySettings(model="Qwen/Qwen2.5-7B"))
    assert not ModelPlace.of(PolicySettings(model="Qwen/Qwen2.5-7B")).is_local


@pytest.mark.parametrize("key", ["model", "tokenizer"])
def test_a_path_that_does_not_exist_is_named_with_its_key(key: str) -> None:
    with pytest.raises(InvalidInput, match=rf"policy\.{key} must be a path that exists .* got \./nowhere"):
        check_model_files(PolicySettings(**{key: "./nowhere"}))


def test_neither_torch_nor_transformers_is_imported() -> None:
    code = (
        "import sys, rewardflow.policy.model_place, rewardflow.cli.export; "
        "sys.exit(bool({'torch', 'transformers'} & set(sys.modules)))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
