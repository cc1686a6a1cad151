"""The cap on cost, through the agent: after answers without a cost, over restarts, and over `kill -9`.

In every test the service's own count of its charges is the truth, not the agent's ledger.
"""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import signal
import sqlite3
import subprocess
import sys
import textwrap
import time
from pathlib import Path
from typing import Any

import pytest
from rollouts import numbered
from scoring import score

import rewardflow as rf
from rewardflow import clock

# -- answers that tell no cost -----------------------------------------------------------------------------------------


class PaidReward:
    """Charges `cost_usd` for each call; the first `untold` answers do not tell it."""

    version = "1"

    def __init__(self, cost_usd: float = 1.0, *, untold: int = 0) -> None:
        self.cost_usd = cost_usd
        self.untold = untold
        self.charged_usd = 0.0
        self.in_flight = self.most_in_flight = 0

    async def compute_score(self, rollout: rf.Rollout) -> float:
        self.charged_usd += self.cost_usd
        self.in_flight += 1
        self.most_in_flight = max(self.most_in_flight, self.in_flight)
        await asyncio.sleep(1.0)
        self.in_flight -= 1
        self.untold -= 1
        if self.untold < 0:
            rf.report_usage(cost_usd=self.cost_usd)
        return 1.0


class PaidHang(PaidReward):
    """Answers two calls, and lets all others hang."""

    def __init__(self) -> None:
        super().__init__(0.5)

    async def compute_score(self, rollout: rf.Rollout) -> float:
        if self.charged_usd >= 1.0:
            self.charged_usd += self.cost_usd
            await asyncio.sleep(1000.0)
        return await super().compute_score(rollout)


def spend(reward: Any, count: int = 300, **settings: Any) -> rf.BudgetExhausted | None:
    try:
        score(reward, numbered(count), **settings)
    except rf.BudgetExhausted as stop:
        return stop
    return None


@pytest.mark.parametrize("untold", [0, 1, 5])
def test_a_reward_of_one_s_own_with_256_slots_whose_first_answers_tell_no_cost_keeps_the_cap(untold: int) -> None:
    reward = PaidReward(untold=untold)
    assert spend(reward, max_concurrency=256, max_cost_usd=40.0) is not None
    assert reward.charged_usd == 40.0
    assert reward.most_in_flight > 8, "once the price is known, calls run side by side"


def test_a_reward_that_never_tells_a_cost_is_called_one_at_a_time_and_a_warning_says_what_to_set(
    caplog: pytest.LogCaptureFixture,
) -> None:
    reward = PaidReward(untold=10**9)
    assert spend(reward, 20, max_concurrency=256, max_cost_usd=40.0) is None
    assert reward.most_in_flight == 1
    assert [text for text in caplog.messages if "set call_cost_usd, or report cost_usd=0.0" in text] == caplog.messages
    assert len(caplog.messages) == 1


def test_a_reward_that_says_it_is_free_is_called_at_full_concurrency_without_a_warning(
    caplog: pytest.LogCaptureFixture,
) -> None:
    class Free(PaidReward):
        def cost_bound_usd(self, rollout: rf.Rollout) -> float:
            return 0.0

    reward = Free(untold=10**9)
    assert spend(reward, 64, max_concurrency=64, max_cost_usd=1.0) is None
    assert reward.most_in_flight == 64
    assert caplog.messages == []


def test_a_reward_that_tells_an_upper_bound_starts_with_many_calls_and_keeps_the_cap() -> None:
    class Bounded(PaidReward):
        def cost_bound_usd(self, rollout: rf.Rollout) -> float:
            return 1.25

    reward = Bounded(untold=3)
    assert spend(reward, max_concurrency=256, max_cost_usd=40.0) is not None
    assert reward.most_in_flight == 32
    assert 36.0 <= reward.charged_usd <= 40.0


def test_a_bound_that_raises_fails_its_rollouts() -> None:
    class Broken(PaidReward):
        def cost_bound_usd(self, rollout: rf.Rollout) -> float:
            raise KeyError("tokenizer")

    rewards = score(Broken(), numbered(3), max_cost_usd=1.0)
    assert {one.kind for one in rewards} == {"user_error"}
    (error,) = {one.error for one in rewards}
    assert str(error).startswith("cost_bound_usd failed: KeyError: 'tokenizer' (test_budget.py, line ")
    assert str(error).endswith(", in cost_bound_usd)")


def test_a_price_that_rises_while_calls_are_in_flight_passes_the_cap_by_those_calls_at_most() -> None:
    class Rising(PaidReward):
        async def compute_score(self, rollout: rf.Rollout) -> float:
            self.cost_usd = 1.0 if self.charged_usd < 20.0 else 3.0
            return await super().compute_score(rollout)

    reward = Rising()
    assert spend(reward, max_concurrency=256, max_cost_usd=40.0) is not None
    assert reward.charged_usd <= 40.0 + reward.most_in_flight * (3.0 - 1.0)
    assert reward.charged_usd <= 40.0 * 3.0 / 2.0, "beside others a call reserves twice the largest cost seen"


def test_the_error_says_what_is_spent_and_what_is_uncertain_and_what_to_do() -> None:
    stop = spend(PaidHang(), 20, max_cost_usd=3.0, call_cost_usd=0.5, max_concurrency=1, timeout_s=10.0, max_attempts=1)
    assert stop is not None
    assert "spent so far: 1 USD" in str(stop)
    assert "uncertain: 2 USD, for calls that may have been charged but told no cost" in str(stop)
    assert "reserved for the next call: 0.5 USD" in str(stop)
    assert "Raise the cap and run again with the same journal" in str(stop)


@pytest.mark.parametrize(
    ("raised", "uncertain_usd"),
    [
        (rf.RateLimited(), 0.0),
        (rf.ServiceError(status=503), 0.0),
        (rf.ServiceError(status=404, retryable=False), 0.0),
        (ConnectionRefusedError(), 0.0),
        (rf.ServiceError(status=500), 0.5),
        (rf.ServiceError("broke off"), 0.5),
        (ConnectionResetError(), 0.5),
        (rf.Unparsable("no score"), 0.5),
    ],
)
def test_only_a_request_that_was_refused_counts_as_free(raised: Exception, uncertain_usd: float) -> None:
    async def judge(rollout: rf.Rollout) -> float:
        raise raised

    def bound(rollout: rf.Rollout) -> float:
        return 0.5

    judge.cost_bound_usd = bound  # type: ignore[attr-defined]

    async def main() -> float:
        async with rf.RewardAgent(judge, max_cost_usd=9.0, max_attempts=1, outage_share=None) as agent:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(0.2):
                    await agent.submit(numbered(1)).all()
            return agent.statistics().ledger.uncertain_usd

    assert clock.run(main()) == uncertain_usd


def test_a_call_that_hangs_after_it_told_the_cost_of_its_first_request_counts_as_its_whole_reservation() -> None:
    charged_usd = 0.0

    async def judge(rollout: rf.Rollout) -> float:
        nonlocal charged_usd
        charged_usd += 1.0
        rf.report_usage(cost_usd=0.01)
        await asyncio.sleep(1000.0)
        return 1.0

    settings = {"max_cost_usd": 5.0, "call_cost_usd": 1.0, "timeout_s": 1.0, "max_attempts": 1, "outage_share": None}
    assert spend(judge, 40, **settings) is not None
    assert charged_usd == 5.0


# -- restarts ----------------------------------------------------------------------------------------------------------


class AlwaysHangs(PaidReward):
    async def compute_score(self, rollout: rf.Rollout) -> float:
        self.charged_usd += self.cost_usd
        await asyncio.sleep(1000.0)
        return 1.0


def test_five_runs_on_one_journal_whose_calls_time_out_spend_the_cap_once(tmp_path: Path) -> None:
    reward = AlwaysHangs(0.25)
    for _ in range(5):
        settings = {"max_cost_usd": 1.0, "call_cost_usd": 0.25, "timeout_s": 10.0, "replay_failures": False}
        stop = spend(reward, 20, journal=tmp_path / "run.db", max_attempts=1, **settings)
        assert stop is not None
        assert "uncertain: 1 USD" in str(stop)
    assert reward.charged_usd == 1.0


def test_a_higher_cap_goes_on_where_the_lower_one_stopped(tmp_path: Path) -> None:
    reward = AlwaysHangs(0.25)
    settings = {"call_cost_usd": 0.25, "timeout_s": 10.0, "max_attempts": 1, "journal": tmp_path / "run.db"}
    spend(reward, 20, max_cost_usd=1.0, **settings)
    spend(reward, 20, max_cost_usd=2.0, **settings)
    assert reward.charged_usd == 2.0


def rows_of(journal: Path) -> list[tuple[Any, ...]]:
    with contextlib.closing(sqlite3.connect(journal)) as connection:
        return connection.execute(
            "SELECT run, account, spent_usd, uncertain_usd, num_unpriced FROM reservations"
        ).fetchall()


def test_a_clean_end_leaves_the_exact_sums_in_the_journal(tmp_path: Path) -> None:
    reward = PaidHang()
    settings = {"call_cost_usd": 0.5, "timeout_s": 10.0, "max_attempts": 1, "max_concurrency": 1}
    score(reward, numbered(4), journal=tmp_path / "run.db", max_cost_usd=90.0, **settings)
    assert [(run, *sums) for run, _, *sums in rows_of(tmp_path / "run.db")] == [("default", 0.0, 1.0, 0)]


def test_the_cost_of_a_hedge_that_lost_is_in_the_journal_too(tmp_path: Path) -> None:
    class Racing(PaidReward):
        async def compute_score(self, rollout: rf.Rollout) -> float:
            self.charged_usd += self.cost_usd
            rf.report_usage(cost_usd=self.cost_usd)
            call = rf.current_call()
            assert call is not None
            await asyncio.sleep(100.0 if rollout.response == "40" and call.attempt == 1 else 1.0)
            return 1.0

    reward = Racing(0.5)
    settings = {"hedge_quantile": 0.9, "hedge_share": 1.0, "max_concurrency": 4, "max_cost_usd": 90.0}
    score(reward, numbered(60), journal=tmp_path / "run.db", call_cost_usd=0.5, **settings)
    with contextlib.closing(sqlite3.connect(tmp_path / "run.db")) as connection:
        (in_verdicts_usd,) = connection.execute("SELECT total(cost_usd) FROM verdicts").fetchone()
    beside_usd = sum(row[2] + row[3] for row in rows_of(tmp_path / "run.db"))
    assert in_verdicts_usd + beside_usd == pytest.approx(reward.charged_usd)


def test_a_run_without_a_cap_writes_no_reservation(tmp_path: Path) -> None:
    score(PaidReward(), numbered(20), journal=tmp_path / "run.db")
    assert rows_of(tmp_path / "run.db") == []


def test_money_that_is_in_flight_is_in_the_journal_before_its_calls_go_out(tmp_path: Path) -> None:
    journal = tmp_path / "run.db"
    seen: list[tuple[float, float]] = []

    class Looking(PaidReward):
        async def compute_score(self, rollout: rf.Rollout) -> float:
            self.charged_usd += self.cost_usd
            for suffix in ("", "-wal"):
                shutil.copyfile(f"{journal}{suffix}", f"{tmp_path}/copy.db{suffix}")
            seen.append((self.charged_usd, sum(row[2] + row[3] for row in rows_of(tmp_path / "copy.db"))))
            await asyncio.sleep(1.0)
            return 1.0

    score(Looking(0.5), numbered(12), journal=journal, max_cost_usd=50.0, call_cost_usd=0.5)
    assert all(charged_usd <= reserved_usd for charged_usd, reserved_usd in seen)
    assert len({reserved_usd for _, reserved_usd in seen}) < 8, "one row reserves money for several calls"


# -- kill -9 -----------------------------------------------------------------------------------------------------------

# Some calls are in flight when the test kills this script's process: those from its ninth call on never end.
KILLED = """
    import asyncio, sys
    import rewardflow as rf

    is_last_life = "last" in sys.argv
    num_charges = 0
    charges = open("charges.txt", "a", buffering=1)

    async def judge(rollout):
        global num_charges
        num_charges += 1
        charges.write("1\\n")
        await asyncio.sleep(0.001 if is_last_life or num_charges < 9 else 1e9)
        rf.report_usage(cost_usd=1.0)
        return 1.0

    rollouts = [rf.Rollout(group_id=str(i), response=str(i)) for i in range(1000)]
    try:
        rf.score(
            rollouts, judge, max_cost_usd=100.0, call_cost_usd=1.0, max_concurrency=8, timeout_s=1e6, journal="run.db"
        )
    except rf.BudgetExhausted as stop:
        print(stop)
"""


def test_the_cap_holds_over_six_kills_with_calls_in_flight(tmp_path: Path) -> None:
    (tmp_path / "run.py").write_text(textwrap.dedent(KILLED))
    charges = tmp_path / "charges.txt"
    charges.touch()

    def charged_usd() -> int:
        return charges.read_text().count("1")

    for _ in range(6):
        before = charged_usd()
        process = subprocess.Popen([sys.executable, "run.py"], cwd=tmp_path, stdout=subprocess.DEVNULL)
        while charged_usd() < before + 9 and process.poll() is None:
            time.sleep(0.001)
        process.send_signal(signal.SIGKILL)
        process.wait()
    last = subprocess.run([sys.executable, "run.py", "last"], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert charged_usd() <= 100
    assert "could pass max_cost_usd=100" in last.stdout
    assert "in flight when a run was killed" in last.stdout
    assert charged_usd() >= 40, "a kill costs about as much as was in flight"
