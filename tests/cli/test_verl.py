"""`rewardflow verl`, as far as it goes without verl."""

from __future__ import annotations

import importlib.util

import pytest

from rewardflow.cli.main import main

without_verl = pytest.mark.skipif(importlib.util.find_spec("verl") is not None, reason="verl is installed here")


@without_verl
def test_a_missing_verl_is_named_with_the_release_before_anything_starts(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["verl", "trainer.total_epochs=1", "--dry-run"]) == 2
    assert "pip install 'verl==0.9.1'" in capsys.readouterr().err


def test_the_command_explains_itself(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stopped:
        main(["verl", "--help"])
    assert stopped.value.code == 0
    assert "async_reward_agent" in capsys.readouterr().out
