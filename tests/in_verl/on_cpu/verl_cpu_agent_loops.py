"""Agent loops that go wrong, for tests: a rollout that cannot be generated, and a process that dies."""

from __future__ import annotations

import os
from typing import Any

from verl.experimental.agent_loop.single_turn_agent_loop import SingleTurnAgentLoop


class BrokenTool(SingleTurnAgentLoop):
    """The third rollout of prompt 1 fails."""

    async def run(self, sampling_params: dict[str, Any], **kwargs: Any) -> Any:
        if (kwargs["extra_info"]["index"], kwargs["session_id"]) == (1, 2):
            raise RuntimeError("the tool broke")
        return await super().run(sampling_params, **kwargs)


class DyingProcess(SingleTurnAgentLoop):
    """Prompt 5 takes its worker down."""

    async def run(self, sampling_params: dict[str, Any], **kwargs: Any) -> Any:
        if kwargs["extra_info"]["index"] == 5:
            os._exit(1)
        return await super().run(sampling_params, **kwargs)
