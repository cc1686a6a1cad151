"""Turns the settings of a validation into the plan that the loop measures with.

Always true: mistakes in the data or the sampling of a validation are found before a model is loaded.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from rewardflow.data.open_prompts import open_prompts
from rewardflow.data.prompt_set import PromptSet
from rewardflow.errors import InvalidInput
from rewardflow.flow.records import Prompt
from rewardflow.flow.validation.validation_plan import ValidationPlan
from rewardflow.generate.samplings import validation_sampling
from rewardflow.reward.agent import RewardAgent
from rewardflow.runtime.run_agent import RunAgent
from rewardflow.settings.run_settings import RunSettings, ValidationSettings

if TYPE_CHECKING:
    from rewardflow.generate.prompt_encoder import PromptEncoder


def open_validation_set(settings: RunSettings) -> PromptSet | None:
    """Opens the prompts of the validation; None: nothing is measured."""
    validation = settings.validation
    return None if validation is None else open_prompts(validation.data, seed=validation.seed)


def fitting_prompts(prompt_set: PromptSet, encoder: PromptEncoder) -> tuple[Prompt, ...]:
    """Returns the prompts that fit; `generation.overlong_prompts` says what happens to the others."""
    assert prompt_set.size is not None, "a validation without end is refused by its settings"
    prompts = [prompt_set[number] for number in range(prompt_set.size)]
    kept = tuple(encoder.fit(prompts).kept)
    if not kept:
        raise InvalidInput(
            "some prompt of validation.data must have at most generation.max_prompt_tokens tokens, "
            f"got {len(prompts):,} that all have more"
        )
    return kept


def check_reward_fits(validation: ValidationSettings | None, agent: RunAgent) -> None:
    """Raises if an open agent compares rollouts of a group, and the validation has one. Skips shared agents."""
    if not isinstance(agent, RewardAgent):
        return
    if validation is not None and validation.rollouts == 1 and "group" in agent.units:
        raise InvalidInput(
            f"the reward {agent.name} compares the rollouts of a group, so validation.rollouts must be at least 2 "
            "(with a temperature above 0), got rollouts=1"
        )


def make_plan(settings: RunSettings, prompts: tuple[Prompt, ...]) -> ValidationPlan | None:
    """Builds the plan of the validation; None: nothing is measured."""
    validation = settings.validation
    if validation is None:
        return None
    return ValidationPlan(
        prompts=prompts,
        sampling=validation_sampling(settings, validation),
        group_size=validation.rollouts,
        occasions=validation.occasions,
        passes_from=validation.passes_from,
        ks=tuple(sorted(set(validation.pass_at))),
    )
