"""Progress of scoring: where somebody looks, and nowhere else."""

from __future__ import annotations

import asyncio
import io
import sys
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

import rewardflow as rf
from rewardflow.clock import run as on_virtual_clock
from rewardflow.reward.progress import NotebookLine, TerminalLine, screen_here, shown_progress


class Lines:
    tick_s = 0.5

    def __init__(self) -> None:
        self.shown: list[str] = []
        self.is_cleared = False

    def show(self, line: str) -> None:
        self.shown.append(line)

    def clear(self) -> None:
        self.is_cleared = True


async def slow(response: str) -> float:
    await asyncio.sleep(4.0)
    rf.report_usage(cost_usd=0.01)
    if response == "bad":
        raise ValueError("no")
    return 1.0


def rollouts(count: int) -> list[rf.Rollout]:
    return [rf.Rollout(group_id=str(i), response="bad" if i == 0 else "good") for i in range(count)]


def test_a_line_says_how_many_are_judged_how_long_it_takes_and_what_it_costs() -> None:
    lines = Lines()

    async def score() -> None:
        async with rf.RewardAgent(slow, max_concurrency=2) as agent, shown_progress(agent, total=6, screen=lines):
            await agent.submit(rollouts(6)).all()

    on_virtual_clock(score())
    assert lines.shown[0] == "0 of 6 judged, 2 in flight"
    (later,) = {line for line in lines.shown if line.startswith("4 of 6 judged, 1 failed, 5 s left")}
    assert later == "4 of 6 judged, 1 failed, 5 s left, $0.0400, 2 in flight"
    assert lines.is_cleared


def test_what_takes_less_than_a_second_shows_nothing() -> None:
    lines = Lines()

    async def score() -> None:
        async with rf.RewardAgent(lambda response: 1.0) as agent, shown_progress(agent, screen=lines):
            await agent.submit(rollouts(6)).all()

    on_virtual_clock(score())
    assert lines.shown == []


def test_a_pipe_and_a_file_get_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    assert screen_here() is None
    rf.score(rollouts(2), lambda response: 1.0)
    assert capsys.readouterr() == ("", "")


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_an_exhausted_budget_is_the_same_error_with_a_terminal_and_keeps_its_groups(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def priced(response: str) -> float:
        rf.report_usage(cost_usd=0.01)
        return 1.0

    monkeypatch.setattr(sys, "stderr", Terminal())
    with pytest.raises(rf.BudgetExhausted) as raised:
        rf.score(rollouts(40)[1:], priced, max_cost_usd=0.05, max_concurrency=1)
    assert raised.value.groups


def test_an_error_of_the_block_is_raised_as_it_is_while_progress_is_shown() -> None:
    lines = Lines()

    async def score() -> None:
        async with rf.RewardAgent(slow) as agent, shown_progress(agent, screen=lines):
            await agent.submit(rollouts(6)).all()
            raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        on_virtual_clock(score())
    assert lines.shown
    assert lines.is_cleared


def test_a_screen_that_breaks_is_logged_and_scoring_goes_on(caplog: pytest.LogCaptureFixture) -> None:
    class Broken(Lines):
        def show(self, line: str) -> None:
            raise RuntimeError("the front end is gone")

    async def score() -> list[rf.ScoredGroup]:
        async with rf.RewardAgent(slow) as agent, shown_progress(agent, screen=Broken()):
            return await agent.submit(rollouts(6)).all()

    assert len(on_virtual_clock(score())) == 6
    assert [record.getMessage() for record in caplog.records] == [
        "progress is not shown any more: RuntimeError: the front end is gone"
    ]


def test_progress_true_writes_whole_lines_to_a_pipe(monkeypatch: pytest.MonkeyPatch) -> None:
    """In real time, because `rf.score` has a loop of its own."""
    stream = io.StringIO()
    monkeypatch.setattr(sys, "stderr", stream)

    async def one_second(response: str) -> float:
        await asyncio.sleep(1.2)
        return 1.0

    rf.score(rollouts(2), one_second, progress=True)
    assert stream.getvalue() == "0 of 2 judged, 2 in flight\n"


def test_progress_false_shows_nothing_on_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stderr", Terminal())
    assert screen_here(is_wanted=False) is None
    assert isinstance(screen_here(is_wanted=True), TerminalLine)


def test_a_terminal_gets_one_line_that_changes_and_goes(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = io.StringIO()
    monkeypatch.setattr(stream, "isatty", lambda: True)
    monkeypatch.setattr(sys, "stderr", stream)
    screen = screen_here()
    assert isinstance(screen, TerminalLine)
    screen.show("x" * 200)
    screen.clear()
    assert stream.getvalue() == f"\r\x1b[K{'x' * 79}\r\x1b[K"


def test_a_notebook_gets_one_output_that_is_updated(monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[Any] = []
    handle = SimpleNamespace(update=lambda content, raw: told.append(content))

    def display(content: Any, *, raw: bool, display_id: bool) -> Any:
        told.append(content)
        return handle

    ipython, module = ModuleType("IPython"), ModuleType("IPython.display")
    ipython.get_ipython = lambda: SimpleNamespace(kernel=object())  # type: ignore[attr-defined]
    module.display = display  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "IPython", ipython)
    monkeypatch.setitem(sys.modules, "IPython.display", module)
    screen = screen_here()
    assert isinstance(screen, NotebookLine)
    screen.show("1 of <2>")
    screen.show("2 of <2>")
    screen.clear()
    assert [content["text/plain"] for content in told] == ["1 of <2>", "2 of <2>", ""]
    assert told[0]["text/html"] == "<pre>1 of &lt;2&gt;</pre>"


def test_an_agent_shows_its_progress_on_request() -> None:
    async def score() -> None:
        async with rf.RewardAgent(lambda response: 1.0) as agent, agent.progress(total=2):
            await agent.submit(rollouts(2)).all()

    asyncio.run(score())
