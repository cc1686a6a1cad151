"""The parts that all calls of one service account share."""

from __future__ import annotations

import asyncio
import random
from dataclasses import dataclass
from typing import Self

from rewardflow.clock import chance
from rewardflow.observe.events import EventSink
from rewardflow.reward.calls.blame import Blame
from rewardflow.reward.calls.fair_queue import FairQueue
from rewardflow.reward.calls.retry import RetryBudget
from rewardflow.reward.limits.governors import Governors
from rewardflow.reward.limits.ledger import Ledger
from rewardflow.reward.limits.run_ledgers import RunLedgers
from rewardflow.reward.settings import LimitSettings


@dataclass(frozen=True, slots=True, kw_only=True)
class AccountParts:
    account: str
    limits: LimitSettings
    loop: asyncio.AbstractEventLoop
    rng: random.Random
    sink: EventSink | None  # for changes of the account
    ledger: Ledger
    governors: Governors
    queue: FairQueue
    blame: Blame
    budget: RetryBudget
    run_ledgers: RunLedgers | None  # if runs have caps of their own

    @classmethod
    def make(
        cls,
        account: str,
        limits: LimitSettings,
        ledger: Ledger,
        sink: EventSink | None,
        run_ledgers: RunLedgers | None,
    ) -> Self:
        loop, governors = asyncio.get_running_loop(), Governors(account, limits, ledger, sink, run_ledgers)
        return cls(
            account=account,
            limits=limits,
            loop=loop,
            rng=chance(loop),
            sink=sink,
            ledger=ledger,
            governors=governors,
            queue=FairQueue(),
            blame=Blame(limits.outage_window),
            budget=RetryBudget(limits.retry_budget, savings=governors.limit),
            run_ledgers=run_ledgers if run_ledgers is not None and run_ledgers.has_caps else None,
        )
