"""The settings of validation: measuring the policy on separate prompts."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from rewardflow.errors import InvalidInput
from rewardflow.flow.validation.validation_plan import Occasions
from rewardflow.flow.validation.validation_report import names_of_figures
from rewardflow.settings.rules import at_least, check_seed, within
from rewardflow.settings.sections.data import DataSettings


@dataclass(frozen=True, slots=True, kw_only=True)
class ValidationSettings:
    """How the policy is measured on separate prompts, with the run's reward; see validation.md."""

    data: DataSettings
    every: int | None = None  # steps between validations; null: only those of the two settings below
    at_start: bool = False  # measure the policy before its first step
    at_end: bool = True  # measure the policy after its last step
    rollouts: int = 1  # rollouts per prompt
    temperature: float = 0.0  # sampling temperature; 0: always the likeliest token
    top_p: float = 1.0  # sample from the likeliest tokens whose probabilities add up to this
    top_k: int = 0  # sample from this many of the likeliest tokens; 0: all tokens
    max_response_tokens: int | None = None  # null: as in `generation`
    pass_at: Sequence[int] = ()  # each k for which to report pass@k
    passes_from: float = 1.0  # a score of at least this counts as a pass
    seed: int = 1_000_000  # seed of sampling and of generated tasks; equal in all runs, so that they can be compared

    def __post_init__(self) -> None:
        if self.every is not None:
            at_least("every", self.every, 1)
        at_least("rollouts", self.rollouts, 1)
        at_least("top_k", self.top_k, 0)
        check_seed(self.seed)
        within("temperature", self.temperature, 0.0, math.inf)
        within("top_p", self.top_p, 0.0, 1.0, low_open=True)
        within("passes_from", self.passes_from, -math.inf, math.inf)
        if self.max_response_tokens is not None:
            at_least("max_response_tokens", self.max_response_tokens, 1)
        for k in self.pass_at:
            at_least("pass_at", k, 1)
        self._check_rollouts()
        if self.data.task is not None and self.data.limit is None:
            raise InvalidInput(
                "data.limit must say how many prompts to measure with, because a generated task has no end, "
                f"got task={self.data.task}, limit=null"
            )

    def _check_rollouts(self) -> None:
        if max(self.pass_at, default=0) > self.rollouts:
            raise InvalidInput(
                "pass_at must not exceed rollouts: pass@k needs k rollouts of a prompt, "
                f"got pass_at={list(self.pass_at)}, rollouts={self.rollouts}"
            )
        if self.is_greedy and self.rollouts > 1:
            raise InvalidInput(
                "rollouts must be 1 with temperature 0, which gives the same response each time; set a temperature to "
                f"sample several, got rollouts={self.rollouts}, temperature=0"
            )

    @property
    def is_greedy(self) -> bool:
        return self.temperature == 0

    @property
    def occasions(self) -> Occasions:
        return Occasions(every=self.every, at_start=self.at_start, at_end=self.at_end)

    @property
    def figure_names(self) -> frozenset[str]:
        """The names of the figures in every validation, overall and for each data source."""
        return names_of_figures(self.rollouts, self.pass_at)
