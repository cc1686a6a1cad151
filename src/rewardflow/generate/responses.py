"""Turns a response that has ended, from any engine, into a rollout; counts what an engine generated.

Always true: tokens, log-probs, mask and versions of a rollout have one length, with 0 where a token is the prompt's; a
rollout is as old as its oldest token.
"""

from __future__ import annotations

from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from rewardflow.flow.records import TRUNCATED, GroupRequest
from rewardflow.types import Rollout


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineStatistics:
    """What an engine has generated since its start. `busy_s` is the time it took."""

    num_rollouts: int = 0
    num_response_tokens: int = 0
    num_truncated: int = 0
    busy_s: float = 0.0

    def plus(self, num_tokens: int, *, is_truncated: bool) -> EngineStatistics:
        """Adds one rollout."""
        return replace(
            self,
            num_rollouts=self.num_rollouts + 1,
            num_response_tokens=self.num_response_tokens + num_tokens,
            num_truncated=self.num_truncated + is_truncated,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """A response that has ended. `is_truncated`: only the limit of tokens ended it."""

    request: GroupRequest
    index: int
    prompt_ids: Sequence[int]
    token_ids: Sequence[int]  # of the response, as are the log-probs
    log_probs: Sequence[float]
    is_truncated: bool
    text: str

    def to_rollout(self, version: int, token_versions: Sequence[int] | None = None) -> Rollout:
        """Stamps the rollout with `version`, the oldest of its tokens.

        `token_versions` has one entry for each token of the response, if they differ. The `extra_info` of a response
        that was cut off has `truncated: True`; that of others has no such entry. See also `extra_info_of`.
        """
        request, prompt = self.request, self.request.prompt
        num_prompt, num_response = len(self.prompt_ids), len(self.token_ids)
        extra_info: Mapping[str, Any] = request.extra_info_of(self.index)
        return Rollout(
            group_id=request.group_id,
            index=self.index,
            group_size=request.group_size,
            step=request.step,
            position=request.number,
            prompt=prompt.text,
            messages=prompt.messages,
            response=self.text,
            ground_truth=prompt.ground_truth,
            data_source=prompt.data_source,
            extra_info=self._marked(extra_info),
            token_ids=array("i", (*self.prompt_ids, *self.token_ids)),
            response_mask=array("b", bytes(num_prompt) + b"\1" * num_response),
            log_probs=array("f", (*(0.0,) * num_prompt, *self.log_probs)),
            policy_version=version,
            token_versions=None if token_versions is None else array("i", (*(0,) * num_prompt, *token_versions)),
        )

    def _marked(self, extra_info: Mapping[str, Any]) -> Mapping[str, Any]:
        """Marks a truncated response; a column of the data that has the mark's name cannot mark another one."""
        if self.is_truncated or TRUNCATED in extra_info:
            return {**extra_info, TRUNCATED: self.is_truncated}
        return extra_info
