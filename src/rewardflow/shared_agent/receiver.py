"""What a client hears: verdicts as they come, and after a break everything anew.

Always true: a delivery has landed before the next one is asked for. After a break the host is told first what of all
that was asked is still wanted; then all of that is asked again, and what was sealed is sealed again.
"""

from __future__ import annotations

import logging

from rewardflow.errors import AgentHalted
from rewardflow.shared_agent.claims import Claims
from rewardflow.shared_agent.connection import Connection
from rewardflow.shared_agent.messages import Seal
from rewardflow.shared_agent.record import RunRecord
from rewardflow.shared_agent.sender import Sender
from rewardflow.shared_agent.verdict_delivery import Verdicts
from rewardflow.shared_agent.waiting_rollouts import Unanswered

logger = logging.getLogger(__name__)


class Receiver:
    def __init__(
        self,
        connection: Connection,
        verdicts: Verdicts,
        *,
        unanswered: Unanswered,
        claims: Claims,
        sender: Sender,
        record: RunRecord | None,
    ) -> None:
        self._connection = connection
        self._verdicts = verdicts
        self._unanswered = unanswered
        self._claims = claims
        self._sender = sender
        self._record = record

    async def run(self) -> None:
        """Until the host has halted, or is gone for good."""
        while True:
            try:
                delivery = await self._connection.take()
                if delivery is None:
                    await self._reconnect()
                    continue
            except AgentHalted as gone:
                self._verdicts.halt(gone)
                return
            self._verdicts.land(delivery, needs_groups=self._connection.welcome.needs_groups)
            if delivery.halt is not None:
                return

    async def _reconnect(self) -> None:
        """Say hello until somebody answers, then send again all that has no verdict."""
        async with self._connection.renewed():
            if self._record is not None:
                self._record.reconnected()
            want, questions = self._unanswered.asked_again()
            seals = [Seal(number) for number in self._claims.sealed_numbers()]
            self._sender.start_over([want, *questions, *seals])
        logger.warning("back at the shared agent; %d rollouts without a verdict were sent again", len(self._unanswered))
