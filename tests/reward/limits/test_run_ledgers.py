"""Caps of runs that share an agent, on the virtual clock: each keeps its own, and none holds up the others."""

from __future__ import annotations

import asyncio
import shutil
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

import rewardflow as rf
from rewardflow import clock
from rewardflow.reward.agent import RewardAgent
from rewardflow.reward.limits.run_ledgers import RunLedgers

PRICE_USD = 0.125
CALLS: Counter[str] = Counter()


async def judge(solution_str: str, data_source: str) -> float:
    CALLS[data_source] += 1
    await asyncio.sleep(1.0)
    rf.report_usage(cost_usd=PRICE_USD)
    return 1.0


class Receiver:
    """Keeps the first verdict on each rollout, which is final."""

    def __init__(self, num_expected: int) -> None:
        self._num_expected = num_expected
        self._by_place: dict[tuple[str, str], rf.Reward] = {}
        self.has_all = asyncio.Event()

    @property
    def verdicts(self) -> list[tuple[str, rf.Reward]]:
        return [(run, reward) for (run, _), reward in self._by_place.items()]

    def verdict(self, run: str, rollout: rf.Rollout, reward: rf.Reward, waited_s: float = 0.0) -> None:
        self._by_place.setdefault((run, rollout.group_id), reward)
        if len(self._by_place) == self._num_expected:
            self.has_all.set()

    def sink_of(self, run: str) -> None:
        return None

    def halted(self, error: rf.AgentHalted) -> None:
        raise AssertionError(error)

    def counts(self) -> Counter[tuple[str, str]]:
        return Counter((run, reward.kind or "scored") for run, reward in self.verdicts)


async def spend(ledgers: RunLedgers, runs: dict[str, int], **options: object) -> tuple[Receiver, float]:
    CALLS.clear()
    receiver = Receiver(sum(runs.values()))
    loop = asyncio.get_running_loop()
    async with RewardAgent(judge, serves_runs=True, run_ledgers=ledgers, **options) as agent:  # type: ignore[arg-type]
        began_s = loop.time()
        for run, count in runs.items():
            ticket = agent.open_forwarding_ticket(receiver, run=run)
            agent.submit(
                [rf.Rollout(group_id=f"{i}", response=str(i), data_source=run) for i in range(count)], ticket=ticket
            )
        await receiver.has_all.wait()
        return receiver, loop.time() - began_s


@pytest.mark.parametrize("options", [{"call_cost_usd": PRICE_USD}, {}])
def test_a_run_stops_at_its_cap_with_budget_and_the_other_goes_on_at_full_speed(options: dict[str, float]) -> None:
    async def main() -> None:
        ledgers = RunLedgers({"small": 8 * PRICE_USD})
        receiver, took_s = await spend(ledgers, {"small": 100, "large": 100}, max_concurrency=10, **options)
        counts = receiver.counts()
        assert counts["large", "scored"] == CALLS["large"] == 100
        assert counts["small", "scored"] == CALLS["small"] == 8
        assert counts["small", "budget"] == 92
        assert took_s < 16  # 108 calls of a second in ten slots
        money = ledgers.statistics()
        assert (money["small"].spent_usd, money["large"].spent_usd) == (8 * PRICE_USD, 100 * PRICE_USD)

    clock.run(main())


def test_the_reason_names_the_run_its_cap_and_what_was_spent() -> None:
    async def main() -> None:
        receiver, _ = await spend(RunLedgers({"small": PRICE_USD}), {"small": 3}, call_cost_usd=PRICE_USD)
        errors = {reward.error for _, reward in receiver.verdicts if reward.kind == "budget"}
        assert errors == {
            "the next call of run 'small' could pass its cap of 0.125 USD, spent so far: 0.125 USD; "
            "reserved for the next call: 0.125 USD"
        }

    clock.run(main())


def test_what_a_run_has_spent_survives_a_restart_and_is_loaded_once(tmp_path: Path) -> None:
    async def main() -> None:
        options = {"journal": tmp_path / "v.db", "call_cost_usd": PRICE_USD}
        first, _ = await spend(RunLedgers({"small": 4 * PRICE_USD}), {"small": 3}, **options)
        assert first.counts() == {("small", "scored"): 3}
        ledgers = RunLedgers({"small": 4 * PRICE_USD})
        again, _ = await spend(ledgers, {"small": 10}, **options)
        assert again.counts() == {("small", "scored"): 4, ("small", "budget"): 6}
        assert CALLS["small"] == 1
        await spend(ledgers, {"small": 3}, **options)
        assert ledgers.statistics()["small"].spent_usd == 4 * PRICE_USD

    clock.run(main())


def test_two_agents_keep_one_cap_together() -> None:
    async def main() -> None:
        ledgers = RunLedgers({"small": 6 * PRICE_USD})
        both = await asyncio.gather(*(spend(ledgers, {"small": 10}, call_cost_usd=PRICE_USD) for _ in range(2)))
        assert sum(receiver.counts()["small", "scored"] for receiver, _ in both) == 6

    clock.run(main())


def copy_of(journal: Path, folder: Path) -> Path:
    """What is on disk now: a process that is killed leaves the file and its log as they are."""
    folder.mkdir()
    for path in journal.parent.glob(f"{journal.name}*"):
        if path.suffix in (".db", ".db-wal"):
            shutil.copy(path, folder / path.name)
    return folder / journal.name


@pytest.mark.parametrize("max_cost_usd", [None, 100.0])
@pytest.mark.parametrize("price", [{"call_cost_usd": PRICE_USD}, {}])
def test_calls_in_flight_at_a_kill_count_against_the_cap_of_their_run(
    tmp_path: Path, max_cost_usd: float | None, price: dict[str, float]
) -> None:
    """A judge that never answers has every call that the cap allows; after the kill the run may make no other."""
    caps = {"small": 4 * PRICE_USD}
    (tmp_path / "lives").mkdir()
    journal = tmp_path / "lives" / "v.db"

    class Silent:
        """Tells what a call costs at most, and does not answer; its identity is that of the judge that does."""

        def cost_bound_usd(self, rollout: rf.Rollout) -> float:
            return PRICE_USD

        async def compute_score(self, solution_str: str, data_source: str) -> float:
            CALLS[data_source] += 1
            await asyncio.sleep(1000.0)
            return 1.0

    async def main() -> None:
        CALLS.clear()
        receiver = Receiver(1)
        options: Any = {"max_cost_usd": max_cost_usd, "timeout_s": None, **price}
        ledgers = RunLedgers(caps)
        async with RewardAgent(Silent(), serves_runs=True, run_ledgers=ledgers, journal=journal, **options) as agent:
            for run in ("small", "large"):
                ticket = agent.open_forwarding_ticket(receiver, run=run)
                one = [rf.Rollout(group_id=f"{i}", response=str(i), data_source=run) for i in range(6)]
                agent.submit(one, ticket=ticket)
            await asyncio.sleep(500.0)
            assert CALLS == {"small": 4, "large": 6}
            killed = copy_of(journal, tmp_path / "killed")
        ended = copy_of(journal, tmp_path / "ended")
        for left, num_more in ((killed, 0), (ended, 0)):
            again = RunLedgers(caps)
            receiver, _ = await spend(again, {"small": 2, "large": 2}, journal=left, **options)
            assert receiver.counts()["small", "budget"] == 2 - num_more
            assert receiver.counts()["large", "scored"] == 2
            assert again.statistics()["small"].uncertain_usd == pytest.approx(4 * PRICE_USD)

    clock.run(main())


def test_a_clean_end_leaves_exactly_what_was_spent(tmp_path: Path) -> None:
    async def main() -> None:
        options: Any = {"journal": tmp_path / "v.db", "call_cost_usd": PRICE_USD, "max_concurrency": 3}
        ledgers = RunLedgers({"small": 9 * PRICE_USD})
        for number in range(3):  # the agent opens again with the same ledgers, as after a halt
            receiver, _ = await spend(ledgers, {f"other {number}": 2, "small": 2 * (number + 1)}, **options)
            assert receiver.counts()["small", "scored"] == 2 * (number + 1)
        money = RunLedgers({"small": 9 * PRICE_USD})
        receiver, _ = await spend(money, {"small": 20}, **options)
        assert receiver.counts() == {("small", "scored"): 9, ("small", "budget"): 11}
        assert money.statistics()["small"].spent_usd == 9 * PRICE_USD
        assert money.statistics()["small"].uncertain_usd == 0

    clock.run(main())
