"""From the settings of a validation to what the loop measures with.

Always true: what is wrong with the data or the sampling of a validation is told before a model is loaded; its engine
generates with the weights of the run's own, and so with what was published last.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from rewardflow.data.open_prompts import open_prompts
from rewardflow.data.prompt_set import PromptSet
from rewardflow.errors import InvalidInput
from rewardflow.flow.protocols import Generator
from rewardflow.flow.records import Prompt
from rewardflow.flow.validation_plan import ValidationPlan
from rewardflow.reward.agent import RewardAgent
from rewardflow.runtime.reward_probe import units_of
from rewardflow.runtime.run_agent import RunAgent
from rewardflow.settings.run_settings import GenerationSettings, RunSettings, ValidationSettings

if TYPE_CHECKING:
    from rewardflow.generate.hf.engine import HFEngine
    from rewardflow.generate.vllm.engine import VllmEngine


def open_validation_set(settings: RunSettings) -> PromptSet | None:
    """None: nothing is measured."""
    validation = settings.validation
    return None if validation is None else open_prompts(validation.data, seed=validation.seed)


def generation_of(settings: RunSettings, validation: ValidationSettings) -> GenerationSettings:
    """As in training but for what the validation says. Greedy is drawing from the likeliest token alone."""
    generation = settings.generation
    return replace(
        generation,
        temperature=1.0 if validation.is_greedy else validation.temperature,
        top_k=1 if validation.is_greedy else validation.top_k,
        top_p=validation.top_p,
        max_response_tokens=validation.max_response_tokens or generation.max_response_tokens,
    )


def fitting_prompts(prompt_set: PromptSet, engine: HFEngine | VllmEngine) -> tuple[Prompt, ...]:
    """All that can be generated from; which cannot, and what that means, is `generation.overlong_prompts`."""
    assert prompt_set.size is not None, "a validation without end is refused by its settings"
    prompts = [prompt_set[number] for number in range(prompt_set.size)]
    kept = tuple(engine.encoder.fit(prompts).kept)
    if not kept:
        raise InvalidInput(
            "some prompt of validation.data must have at most generation.max_prompt_tokens tokens, "
            f"got {len(prompts):,} that all have more"
        )
    return kept


def check_reward_fits(validation: ValidationSettings | None, agent: RunAgent) -> None:
    """The agent is open. What a shared one judges at a time is not known here."""
    if not isinstance(agent, RewardAgent):
        return
    if validation is not None and validation.rollouts == 1 and "group" in units_of(agent):
        raise InvalidInput(
            f"the reward {agent.name} compares the rollouts of a group, so validation.rollouts must be at least 2 "
            "(with a temperature above 0), got rollouts=1"
        )


def make_plan(validation: ValidationSettings, prompts: tuple[Prompt, ...], generator: Generator) -> ValidationPlan:
    return ValidationPlan(
        prompts=prompts,
        generator=generator,
        group_size=validation.rollouts,
        occasions=validation.occasions,
        passes_from=validation.passes_from,
        ks=tuple(sorted(set(validation.pass_at))),
    )
