"""Ctrl-C and SIGTERM: first the step ends, then the run, then the process."""

from __future__ import annotations

import asyncio
import signal
import threading
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest

from rewardflow.cli.train.stop_signals import StopSignals
from rewardflow.clock import run as on_virtual_clock


@dataclass
class Run:
    """As much of a run as the signals see."""

    version: int = 0
    grace_s: float = 300.0
    stops: list[str] = field(default_factory=list)
    has_checkpointer: bool = True

    @property
    def checkpointer(self) -> Any:
        return SimpleNamespace(stop=self.stops.append) if self.has_checkpointer else None

    @property
    def settings(self) -> Any:
        return SimpleNamespace(checkpoint=SimpleNamespace(grace_s=self.grace_s), steps=10)

    @property
    def flow(self) -> Any:
        return SimpleNamespace(statistics=lambda: SimpleNamespace(version=self.version))


def never() -> None:
    pytest.fail("the process would have ended")


async def training(signals: StopSignals, run: Run, *numbers: signal.Signals) -> float:
    """Trains for ever, gets the signals one after another, and returns how long it went on after the last."""
    loop = asyncio.get_running_loop()
    with signals.handled(), signals.saving(run):  # type: ignore[arg-type]
        for number in numbers:
            signal.raise_signal(number)
            await asyncio.sleep(0)
            await asyncio.sleep(0)
        started_s = loop.time()
        try:
            await asyncio.sleep(1e6)
        except asyncio.CancelledError:
            signals.closed()
            return loop.time() - started_s
    return 1e6


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_the_first_signal_asks_for_a_save_and_the_end_of_the_grace_cancels(number: signal.Signals) -> None:
    run, told = Run(grace_s=40.0), []
    signals = StopSignals(tell=told.append, leave=never)
    assert on_virtual_clock(training(signals, run, number)) == pytest.approx(40.0)
    assert run.stops == ["signal"]
    assert "has 40 s (checkpoint.grace_s) to end" in told[0]


def test_the_second_signal_cancels_at_once_whichever_it_is() -> None:
    run = Run()
    signals = StopSignals(tell=lambda _: None, leave=never)
    with pytest.raises(asyncio.CancelledError):
        on_virtual_clock(training(signals, run, signal.SIGINT, signal.SIGTERM))
    assert run.stops == ["signal"]
    signals.closed()


@pytest.mark.parametrize("run", [Run(version=10), Run(has_checkpointer=False)], ids=["trained", "nothing to save"])
def test_a_run_with_nothing_to_save_is_cancelled_by_the_first(run: Run) -> None:
    signals = StopSignals(tell=lambda _: None, leave=never)
    with pytest.raises(asyncio.CancelledError):
        on_virtual_clock(training(signals, run, signal.SIGINT))
    assert run.stops == []
    signals.closed()


def test_the_third_signal_ends_the_process() -> None:
    left = []
    signals = StopSignals(tell=lambda _: None, leave=lambda: left.append(True), closing_s=3600.0)

    async def closing() -> None:
        with signals.handled():
            signal.raise_signal(signal.SIGINT)
            signal.raise_signal(signal.SIGINT)
            assert not left
            signal.raise_signal(signal.SIGINT)

    asyncio.run(closing())
    assert left == [True]
    signals.closed()


def test_closing_that_takes_too_long_ends_the_process() -> None:
    left = threading.Event()
    signals = StopSignals(tell=lambda _: None, leave=left.set, closing_s=0.01)

    async def refusing() -> None:
        with signals.handled():
            signal.raise_signal(signal.SIGINT)
            try:
                await asyncio.sleep(3600)
            except asyncio.CancelledError:
                await asyncio.to_thread(left.wait)  # a library that computes

    asyncio.run(refusing())
    assert left.is_set()


def test_the_handlers_from_before_come_back() -> None:
    before = signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)

    async def handled() -> None:
        outer = signal.getsignal(signal.SIGTERM)
        with StopSignals(tell=lambda _: None, leave=never).handled():
            assert signal.getsignal(signal.SIGTERM) is not outer
        assert signal.getsignal(signal.SIGTERM) is outer

    asyncio.run(handled())
    assert (signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)) == before
