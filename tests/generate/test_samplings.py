"""What the settings of a run say about sampling, for training and for validation."""

from __future__ import annotations

from pathlib import Path

from tiny_run import settings_in

from rewardflow.flow.records import Sampling
from rewardflow.generate.samplings import samplings_of_run, training_sampling
from rewardflow.settings.run_settings import DataSettings, GenerationSettings, ValidationSettings

GENERATION = GenerationSettings(temperature=0.7, top_k=5, top_p=0.9, max_response_tokens=50)
DATA = DataSettings(task="copy_digits", limit=2)


def test_training_is_sampled_as_the_generation_says(tmp_path: Path) -> None:
    settings = settings_in(tmp_path, seed=3, generation=GENERATION)
    expected = Sampling(seed=3, temperature=0.7, top_k=5, top_p=0.9, max_response_tokens=50)
    assert training_sampling(settings) == expected
    assert samplings_of_run(settings) == (expected,)


def test_validation_is_sampled_as_it_says_itself_and_is_as_long_as_training_unless_it_says_more(tmp_path: Path) -> None:
    sampled = ValidationSettings(data=DATA, seed=8, rollouts=2, temperature=0.5, top_k=7, top_p=0.8)
    settings = settings_in(tmp_path, seed=3, generation=GENERATION, validation=sampled)
    training, validation = samplings_of_run(settings)
    assert training == training_sampling(settings)
    assert validation == Sampling(seed=8, temperature=0.5, top_k=7, top_p=0.8, max_response_tokens=50)
    longer = ValidationSettings(data=DATA, seed=8, max_response_tokens=99)
    settings = settings_in(tmp_path, seed=3, generation=GENERATION, validation=longer)
    assert samplings_of_run(settings)[1].max_response_tokens == 99


def test_a_greedy_validation_draws_from_the_likeliest_token_alone(tmp_path: Path) -> None:
    greedy = ValidationSettings(data=DATA, seed=8)
    settings = settings_in(tmp_path, seed=3, generation=GENERATION, validation=greedy)
    assert greedy.is_greedy
    assert samplings_of_run(settings)[1] == Sampling(seed=8, temperature=1.0, top_k=1, max_response_tokens=50)
