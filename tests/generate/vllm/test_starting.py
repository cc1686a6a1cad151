"""What vLLM is told, and what it reads about the model."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoConfig, AutoTokenizer

from rewardflow.errors import InvalidInput
from rewardflow.flow.records import Sampling
from rewardflow.generate.vllm.starting import check_installed, engine_arguments, write_outline
from rewardflow.policy.load_policy import load_policy
from rewardflow.settings.run_settings import GenerationSettings, PolicySettings, VllmSettings

SPEC = find_spec("vllm")
IS_INSTALLED = SPEC is not None and SPEC.origin is not None


def arguments(*, is_colocated: bool = True, generation: dict[str, Any] | None = None, **vllm: Any) -> dict[str, Any]:
    settings = GenerationSettings(engine="vllm", max_prompt_tokens=40, **(generation or {}))
    training = Sampling(temperature=settings.temperature, top_k=settings.top_k, max_response_tokens=50)
    return engine_arguments(
        settings,
        VllmSettings(**vllm),
        folder=Path("outline"),
        samplings=[training, Sampling(temperature=0.3, max_response_tokens=60)],
        dtype=torch.bfloat16,
        is_colocated=is_colocated,
    )


def test_the_engine_has_room_for_as_many_tokens_and_sequences_as_are_asked_for() -> None:
    told = arguments(generation={"max_sequences": 9})
    assert (told["max_model_len"], told["max_num_seqs"], told["dtype"]) == (100, 9, "bfloat16")


def test_it_takes_half_of_a_gpu_that_it_shares_and_most_of_one_that_it_has() -> None:
    assert arguments()["gpu_memory_utilization"] == 0.45
    assert arguments(is_colocated=False)["gpu_memory_utilization"] == 0.9
    assert arguments(memory_share=0.6)["gpu_memory_utilization"] == 0.6


@pytest.mark.parametrize(
    ("generation", "mode"),
    [({}, "raw_logprobs"), ({"top_k": 5}, "raw_logprobs"), ({"temperature": 0.7}, "processed_logprobs")],
)
def test_log_probs_are_those_of_the_whole_distribution_at_the_temperature(
    generation: dict[str, Any], mode: str
) -> None:
    assert arguments(generation=generation)["logprobs_mode"] == mode


def test_each_transfer_has_its_receiver_and_reloading_needs_none() -> None:
    told = {transfer: arguments(transfer=transfer) for transfer in ("shared_memory", "ipc", "nccl", "reload")}
    backends = {name: one.get("weight_transfer_config", {}).get("backend") for name, one in told.items()}
    assert backends == {"shared_memory": "rewardflow_file", "ipc": "ipc", "nccl": "nccl", "reload": None}


def test_further_arguments_are_handed_on_and_those_that_others_decide_are_refused() -> None:
    assert arguments(arguments={"quantization": "fp8"})["quantization"] == "fp8"
    with pytest.raises(InvalidInput, match=r"vllm\.arguments must not hold .* got dtype, load_format"):
        arguments(arguments={"load_format": "auto", "dtype": "half", "quantization": "fp8"})


def test_several_workers_are_processes_of_the_same_machine_unless_the_user_wants_others() -> None:
    assert "distributed_executor_backend" not in arguments()
    assert arguments(tensor_parallel=2)["distributed_executor_backend"] == "mp"
    chosen = arguments(tensor_parallel=2, arguments={"distributed_executor_backend": "ray"})
    assert chosen["distributed_executor_backend"] == "ray"


@pytest.mark.skipif(IS_INSTALLED, reason="vLLM is installed")
def test_without_vllm_it_is_said_how_to_get_it() -> None:
    with pytest.raises(InvalidInput, match=r"needs the package vllm: .* pip install .*\[vllm\]"):
        check_installed()


def test_what_vllm_reads_names_the_model_and_splits_text_as_the_policy_does(tmp_path: Path) -> None:
    policy = load_policy(PolicySettings(), seed=0)
    write_outline(policy, tmp_path)
    assert AutoConfig.from_pretrained(tmp_path / "model").architectures == ["Qwen2ForCausalLM"]
    assert not list(tmp_path.rglob("*.safetensors"))
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "tokenizer")
    assert tokenizer("12+3=abc").input_ids == policy.tokenizer("12+3=abc").input_ids
    assert tokenizer.decode([5, 6, 14]) == policy.tokenizer.decode([5, 6, 14])
