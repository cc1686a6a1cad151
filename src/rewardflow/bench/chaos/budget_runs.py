"""Makes random runs under a cap against a simulated service that charges, on the clock that jumps.

Always true: the service's own count of its charges is the truth, not the agent's ledger; the same seed makes the same
run. A run has several sessions on one journal; a session ends cleanly, at its cap, or as by `kill -9`: the next session
opens the journal as it was on disk at that moment, while calls were in flight. A call sends one request or several.

    python -m rewardflow.bench.chaos.budget_runs --runs 1000 --seed 0
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import random
import shutil
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from rewardflow import clock
from rewardflow.bench.chaos.scenario import Scenario, Tried
from rewardflow.errors import AgentHalted, RateLimited, ServiceError, Unparsable
from rewardflow.reward.agent import RewardAgent
from rewardflow.reward.calls.faults import is_free_of_charge
from rewardflow.reward.code.current_call import report_usage, request_of_unknown_cost
from rewardflow.types import Rollout

Price = Literal["set", "told", "unknown"]
PRICES: tuple[Price, ...] = ("set", "told", "unknown")

_ROUNDING = 1 + 1e-6
_SHARED_MEMORY = Path("/dev/shm")  # thousands of commits: a disk would take minutes


@dataclass(frozen=True, slots=True, kw_only=True)
class BudgetRun:
    """One run: what the service charged, beside the cap and beside the bound that the ledger states."""

    seed: int
    price: Price  # how the agent knows the price: call_cost_usd is set, the reward tells a bound, or not at all
    cap_usd: float
    charged_usd: float
    bound_usd: float
    num_calls: int
    num_sessions: int
    num_kills: int

    @property
    def is_kept(self) -> bool:
        return self.charged_usd <= self.bound_usd * _ROUNDING

    @property
    def share_of_cap(self) -> float:
        return self.charged_usd / self.cap_usd


@dataclass(slots=True)
class _Charge:
    """What the service charged for the requests of one call."""

    reserved_usd: float  # at most what the agent reserved for the call
    cost_usd: float = 0.0
    told_usd: float = 0.0
    is_over: bool = False

    @property
    def is_told(self) -> bool:
        return self.told_usd == self.cost_usd


class _PaidService:
    """Charges when a request arrives, and then misbehaves in one of the ways that services have."""

    def __init__(self, chance: random.Random, price: Price) -> None:
        self._chance = chance
        self._price = price
        self.largest_usd = 10 ** chance.uniform(-3, 0)  # of a call, with all of its requests
        self._least_share = chance.choice((1.0, 0.5, 0.01))  # of the largest cost
        self._request_shares = _shares(chance, chance.choice((1, 1, 2, 3)))
        # Without a client that counts its requests, a reward tells the cost of each of them as soon as it is answered.
        self._is_counted = len(self._request_shares) > 1 and chance.random() < 0.5
        self._is_tidy = len(self._request_shares) > 1 and not self._is_counted
        kinds = ["told", "unparsable", "cut off", "hangs", "500", "429", "503", "refused"]
        kinds += [] if self._is_tidy else ["untold"]
        self._weights = {kind: chance.random() ** 3 for kind in kinds}
        for usual in ("told", chance.choice(kinds)):
            self._weights[usual] = chance.uniform(0.3, 3.0)
        self._fails_at_last = chance.random() < 0.5  # only the last request of a call misbehaves
        self._first = [chance.choice(kinds) for _ in range(chance.randint(0, 3))]
        self.is_dead = False  # the process that asks was killed
        self.charges: list[_Charge] = []
        self._at_last_start: list[_Charge] = []
        self._told_usd = 0.0

    def new_session(self) -> None:
        self.is_dead, self._told_usd = False, 0.0
        for charge in self.charges:
            charge.is_over = True

    async def answer(self) -> float:
        """Answers all requests of one call; raises at the first that fails."""
        if self.is_dead:
            raise ServiceError("the process was killed", was_sent=False)
        charge = _Charge(self._told_usd if self._price == "unknown" else self.largest_usd)
        self.charges.append(charge)
        self._at_last_start = [one for one in self.charges if not one.is_over]
        try:
            for number, share in enumerate(self._request_shares, 1):
                is_early = self._fails_at_last and number < len(self._request_shares)
                kind = "told" if is_early else self._next_kind()
                if not self._is_counted:
                    await self._request(charge, share * self.largest_usd, kind)
                    continue
                with request_of_unknown_cost(is_free_of_charge) as cost_is_told:
                    if await self._request(charge, share * self.largest_usd, kind):
                        cost_is_told()
            return 1.0
        finally:
            charge.is_over = True
            if charge.is_told:
                self._told_usd = max(self._told_usd, charge.told_usd)

    def _next_kind(self) -> str:
        if self._first:
            return self._first.pop()
        return self._chance.choices(list(self._weights), list(self._weights.values()))[0]

    async def _request(self, charge: _Charge, most_usd: float, kind: str) -> bool:
        """Answers one request; returns whether its cost was told."""
        if kind == "429":
            raise RateLimited
        if kind == "503":
            raise ServiceError(status=503)
        if kind == "refused":
            raise ConnectionRefusedError
        cost_usd = most_usd * self._chance.uniform(self._least_share, 1.0)
        charge.cost_usd += cost_usd
        await asyncio.sleep(1e6 if kind == "hangs" else self._chance.expovariate(0.5))
        if kind == "500":
            raise ServiceError(status=500)
        if kind == "cut off":
            raise ConnectionResetError if self._is_tidy else Unparsable("the answer broke off")
        if kind == "untold":
            return False
        report_usage(cost_usd=cost_usd)
        charge.told_usd += cost_usd
        if kind == "unparsable":
            raise Unparsable
        return True

    def beyond_reservations_usd(self) -> float:
        """Returns by how much spending may pass the cap: see `reward/limits/ledger.py`."""
        untold = [one for one in self.charges if not one.is_told]
        calls = {id(one): one for one in (*untold, *self._at_last_start)}
        return sum(max(0.0, one.cost_usd - one.reserved_usd) for one in calls.values())


def _shares(chance: random.Random, num_requests: int) -> list[float]:
    """Returns the share of each request in the largest cost of a call; one is often far dearer than the others."""
    weights = [chance.random() ** 3 + 1e-3 for _ in range(num_requests)]
    return [one / sum(weights) for one in weights]


class _Judge:
    version = "1"

    def __init__(self, service: _PaidService) -> None:
        self._service = service

    async def compute_score(self, rollout: Rollout) -> float:
        return await self._service.answer()


class _JudgeWithBound(_Judge):
    def cost_bound_usd(self, rollout: Rollout) -> float:
        return self._service.largest_usd


def make_budget_run(seed: int) -> BudgetRun:
    """Makes one random run; everything in it follows from the seed."""
    chance = random.Random(seed)
    price = PRICES[seed % len(PRICES)]
    service = _PaidService(chance, price)
    cap_usd = service.largest_usd * (chance.uniform(0.5, 3) if chance.random() < 0.2 else chance.uniform(3, 60))
    settings: dict[str, Any] = {
        "max_cost_usd": cap_usd,
        "call_cost_usd": service.largest_usd if price == "set" else None,
        "max_concurrency": chance.choice((1, 4, 16, 64)),
        "max_attempts": chance.randint(1, 4),
        "timeout_s": 20.0,
        "hedge_quantile": chance.choice((None, 0.5)),
        "hedge_share": 0.5,
        "retry_budget": chance.choice((0.25, 2.0)),
        "outage_share": None,
        "backoff_s": 0.1,
        "rpm": None,
    }
    rollouts = [Rollout(group_id=str(i), response="x") for i in range(chance.randint(10, 100))]
    judge = (_JudgeWithBound if price == "told" else _Judge)(service)
    num_sessions = chance.randint(1, 5)
    num_kills = 0
    with tempfile.TemporaryDirectory(dir=_SHARED_MEMORY if _SHARED_MEMORY.is_dir() else None) as folder:
        journal = Path(folder) / "0.db"
        for number in range(num_sessions):
            service.new_session()
            next_journal = Path(folder) / f"{number + 1}.db"
            kill_after_s = chance.expovariate(0.1) if chance.random() < 0.6 else None
            session = _session(judge, service, rollouts, settings, journal, next_journal, kill_after_s)
            is_killed = clock.run(session, seed=seed)
            num_kills += is_killed
            journal = next_journal if is_killed else journal
    return BudgetRun(
        seed=seed,
        price=price,
        cap_usd=cap_usd,
        charged_usd=sum(one.cost_usd for one in service.charges),
        bound_usd=cap_usd + (service.beyond_reservations_usd() if price == "unknown" else 0.0),
        num_calls=sum(one.cost_usd > 0 for one in service.charges),
        num_sessions=num_sessions,
        num_kills=num_kills,
    )


async def _session(
    judge: _Judge,
    service: _PaidService,
    rollouts: Sequence[Rollout],
    settings: dict[str, Any],
    journal: Path,
    next_journal: Path,
    kill_after_s: float | None,
) -> bool:
    """Scores all rollouts; returns True if the session was killed, and then leaves `next_journal` as it was on disk."""
    async with RewardAgent(judge, journal=journal, **settings) as agent:
        with contextlib.suppress(AgentHalted):
            try:
                async with asyncio.timeout(kill_after_s):
                    await agent.submit(rollouts).all()
            except TimeoutError:
                for suffix in ("", "-wal"):
                    with contextlib.suppress(FileNotFoundError):
                        shutil.copyfile(f"{journal}{suffix}", f"{next_journal}{suffix}")
                service.is_dead = True
                return True
    return False


def _trial(seed: int, _folder: Path) -> Tried:
    run = make_budget_run(seed)
    complaint = f"{run.charged_usd:.6g} USD were charged, more than the bound of {run.bound_usd:.6g} USD"
    return Tried(1, () if run.is_kept else (complaint,), f"{run.share_of_cap:.2f} of the cap")


BUDGETS = Scenario(
    name="budgets",
    promise="spending stays within the cap, over restarts, kills and answers without a cost",
    unit="runs",
    seconds=12.0,
    trial=_trial,
)


def make_budget_runs(num_runs: int, seed: int = 0) -> Iterator[BudgetRun]:
    """Makes runs with the seeds from `seed` on; a third of them for each way to know the price."""
    for number in range(num_runs):
        yield make_budget_run(seed + number)


def describe_runs(runs: Sequence[BudgetRun]) -> Iterator[str]:
    """Yields one line for each way to know the price: how many runs kept the bound, and the worst one."""
    for price in PRICES:
        some = [run for run in runs if run.price == price]
        if some:
            worst = max(some, key=lambda run: run.share_of_cap)
            broken = [run.seed for run in some if not run.is_kept]
            yield (
                f"price {price}: {len(some)} runs, {sum(run.num_sessions for run in some)} sessions, "
                f"{sum(run.num_kills for run in some)} kills, {sum(run.num_calls for run in some)} charges; "
                f"bound broken in {len(broken)} {broken or ''}; above the cap in "
                f"{sum(run.share_of_cap > _ROUNDING for run in some)}, at most {worst.share_of_cap:.3f} of it "
                f"(seed {worst.seed}); median {sorted(run.share_of_cap for run in some)[len(some) // 2]:.2f}"
            )


def main(arguments: Sequence[str] | None = None) -> int:
    """Makes the runs and prints the result; exits with 1 if a run broke its bound."""
    parser = argparse.ArgumentParser(description="random runs under a cap, against a service that charges")
    parser.add_argument("--runs", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0)
    chosen = parser.parse_args(arguments)
    runs = list(make_budget_runs(chosen.runs, chosen.seed))
    sys.stdout.writelines(f"{line}\n" for line in describe_runs(runs))
    return 0 if all(run.is_kept for run in runs) else 1


if __name__ == "__main__":
    sys.exit(main())
