"""Turns the settings of a run into the `Sampling` of its requests: one for training, one for validation."""

from __future__ import annotations

from rewardflow.flow.records import Sampling
from rewardflow.settings.run_settings import RunSettings, ValidationSettings


def training_sampling(settings: RunSettings) -> Sampling:
    generation = settings.generation
    return Sampling(
        seed=settings.seed,
        temperature=generation.temperature,
        top_k=generation.top_k,
        top_p=generation.top_p,
        max_response_tokens=generation.max_response_tokens,
    )


def validation_sampling(settings: RunSettings, validation: ValidationSettings) -> Sampling:
    """Greedy validation draws from the likeliest token alone. The length is training's unless `validation` says one."""
    return Sampling(
        seed=validation.seed,
        temperature=1.0 if validation.is_greedy else validation.temperature,
        top_k=1 if validation.is_greedy else validation.top_k,
        top_p=validation.top_p,
        max_response_tokens=validation.max_response_tokens or settings.generation.max_response_tokens,
    )


def samplings_of_run(settings: RunSettings) -> tuple[Sampling, ...]:
    """All that an engine of the run is asked with, training's first."""
    training = training_sampling(settings)
    if settings.validation is None:
        return (training,)
    return training, validation_sampling(settings, settings.validation)
