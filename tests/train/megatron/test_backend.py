"""Megatron as a back end, as far as it answers without megatron-core."""

from __future__ import annotations

import pytest
from tiny_training import run_settings

from rewardflow.errors import InvalidInput
from rewardflow.flow.device_thread import DeviceThread
from rewardflow.policy.load_policy import outline_policy
from rewardflow.settings.run_settings import MegatronSettings, RunSettings, RuntimeSettings, TrainerSettings
from rewardflow.train.megatron.backend import BACKEND


def settings(ranks: int = 1, **sizes: int) -> RunSettings:
    return run_settings(
        trainer=TrainerSettings(backend="megatron", megatron=MegatronSettings(**sizes)),
        runtime=RuntimeSettings(kind="ray", ranks=ranks) if ranks > 1 else RuntimeSettings(),
    )


def test_several_ranks_in_one_process_are_refused() -> None:
    with pytest.raises(InvalidInput, match=r"a run in one process has one rank, .* got 2 ranks for one model"):
        BACKEND.check_one_process(settings(tensor_parallel=2))


def test_the_number_of_ranks_is_explained_by_the_sizes() -> None:
    cut = settings(ranks=4, tensor_parallel=2)
    assert BACKEND.describe_ranks(cut) == "4 ranks: tensor 2 x pipeline 1 x context 1 x data 2"


def test_a_model_that_cannot_be_cut_like_that_is_refused_in_a_rehearsal() -> None:
    cut = settings(ranks=7, tensor_parallel=7)
    with pytest.raises(InvalidInput, match=r"must be a multiple of trainer\.megatron\.tensor_parallel"):
        BACKEND.rehearse(cut, outline_policy(cut.policy), DeviceThread("rehearsal"))
