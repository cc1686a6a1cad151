"""Every option shows where people look for it."""

from __future__ import annotations

import inspect
import pydoc

import pytest

import rewardflow as rf
from rewardflow.cli.main import build_parser
from rewardflow.reward.option_help import option_meanings
from rewardflow.reward.settings import AGENT_NAMES, LIMIT_NAMES

NAMES = [*LIMIT_NAMES, *AGENT_NAMES]


def test_every_option_has_a_meaning_of_one_line() -> None:
    assert list(option_meanings()) == NAMES
    assert all(meaning and "\n" not in meaning for meaning in option_meanings().values())


@pytest.mark.parametrize("function", [rf.score, rf.RewardAgent.__init__])
def test_help_and_signature_show_every_option_with_default_and_meaning(function: object) -> None:
    parameters = inspect.signature(function).parameters  # type: ignore[arg-type]
    assert set(NAMES) < set(parameters)
    assert parameters["timeout_s"].default == 120.0
    shown = pydoc.render_doc(function, renderer=pydoc.plaintext)
    for name in NAMES:
        assert f"{name}={parameters[name].default!r}: {option_meanings()[name]}" in shown


def test_a_commands_help_has_the_meanings(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        build_parser().parse_args(["score", "--help"])
    assert "spend cap of the run" in " ".join(capsys.readouterr().out.split())
