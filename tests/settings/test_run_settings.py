"""Records of settings keep their rules, however they are made."""

from __future__ import annotations

import re
from typing import Any

import pytest

from rewardflow.errors import InvalidInput
from rewardflow.flow.schedule import Schedule
from rewardflow.settings.run_settings import (
    AlgorithmSettings,
    CheckpointSettings,
    CriticSettings,
    DataSettings,
    GenerationSettings,
    MegatronSettings,
    PolicySettings,
    RunSettings,
    RuntimeSettings,
    SharedAgentSettings,
    TrainerSettings,
    ValidationSettings,
    VllmSettings,
)

FILE = DataSettings(path="test.jsonl")


def run(**changes: Any) -> RunSettings:
    return RunSettings(
        **{
            "reward": "judge.py:f",
            "data": DataSettings(task="arithmetic"),
            "schedule": Schedule(groups_per_step=8),
            "steps": 1,
            **changes,
        }
    )


def test_a_run_needs_little() -> None:
    assert run().generation.group_size == 8


@pytest.mark.parametrize(
    ("record", "values", "problem"),
    [
        (DataSettings, {"task": "sorting"},
         "task must be one of copy_digits, copy_numbers, arithmetic, null, got 'sorting'"),
        (DataSettings, {"task": "arithmetic", "path": "x"},
         "exactly one of task, path and dataset must be given, got task, path"),
        (DataSettings, {"path": "x", "limit": 0}, "limit must be a whole number of at least 1"),
        (PolicySettings, {"dtype": "int8"}, "dtype must be one of float32, bfloat16, float16, got 'int8'"),
        (GenerationSettings, {"overlong_prompts": "cut"}, "overlong_prompts must be one of filter, truncate, error"),
        (GenerationSettings, {"stop": ["END", ""]}, "stop must not hold an empty text"),
        (GenerationSettings, {"top_p": 0.0}, "top_p must be a number above 0 and at most 1, got top_p=0.0"),
        (GenerationSettings, {"temperature": float("nan")}, "temperature must be a number above 0"),
        (SharedAgentSettings, {"resources": {"box": -1}}, "resources.box must be a number above 0"),
        (VllmSettings, {"transfer": "mail"}, "transfer must be one of shared_memory, ipc, nccl, reload, got 'mail'"),
        (VllmSettings, {"devices": (0, 1)}, "devices must be as many as tensor_parallel, got devices=[0, 1]"),
        (VllmSettings, {"memory_share": 1.5}, "memory_share must be"),
        (VllmSettings, {"kv_cache_gb": 0.0}, "kv_cache_gb must be"),
        (AlgorithmSettings, {"loss": "reinforce"}, "loss must be one of ppo, decoupled, cispo, gspo, policy_gradient"),
        (AlgorithmSettings, {"loss": "policy_gradient", "ratio_to": "behaviour"}, "ratio_to is for losses"),
        (AlgorithmSettings, {"reject": "token", "ratio_to": "behaviour"}, "ratio_to=behaviour corrects for"),
        (AlgorithmSettings, {"loss": "decoupled", "ratio_to": "behaviour"}, "ratio_to=behaviour corrects for"),
        (AlgorithmSettings, {"advantage": "rloo", "scale": "none"},
         "scale is for grpo, grpo_passk, got advantage=rloo, scale=none"),
        (AlgorithmSettings, {"advantage": "opo", "discount": 0.9},
         "a discount below 1 is for grpo, reinforce_plus_plus, gae, got advantage=opo, discount=0.9"),
        (AlgorithmSettings, {"lam": 0.9}, "lam is for gae, got advantage=grpo, lam=0.9"),
        (AlgorithmSettings, {"advantage": "gae", "lam": 1.5}, "lam must be"),
        (AlgorithmSettings, {"whiten": False}, "whiten is for gae, got advantage=grpo, whiten=false"),
        (CriticSettings, {"form": "head", "model": "there"}, "a head uses the policy's model: model must be"),
        (CriticSettings, {"trunk_weight": 0.5}, "trunk_weight is for form=head, got form=model, trunk_weight=0.5"),
        (CriticSettings, {"clip": 0.0}, "clip must be"),
        (CriticSettings, {"lr": -1.0}, "lr must be"),
        (CriticSettings, {"alone_steps": -1}, "alone_steps must be"),
        (CriticSettings, {"form": "tree"}, "form must be one of model, head, got 'tree'"),
        (AlgorithmSettings, {"reward_kl_target": 0.1}, "reward_kl_target moves reward_kl_coef, which must start"),
        (AlgorithmSettings, {"reward_kl_coef": -1.0}, "reward_kl_coef must be a number of at least 0"),
        (AlgorithmSettings, {"reject_outside": (1.1, 2.0)}, "reject_outside[0] must be a number above 0 and at most 1"),
        (AlgorithmSettings, {"reject_outside": (0.5, 0.9)}, "reject_outside[1] must be a number of at least 1"),
        (AlgorithmSettings, {"dual_clip": 1.0}, "dual_clip must be a number above 1"),
        (TrainerSettings, {"autocast": "int8"}, "autocast must be one of float32, bfloat16, float16, null, got 'int8'"),
        (TrainerSettings, {"betas": (0.9, 2.0)}, "betas must be a number of at least 0 and below 1, got betas=2.0"),
        (TrainerSettings, {"betas": (0.9, 1.0)}, "betas must be a number of at least 0 and below 1, got betas=1.0"),
        (AlgorithmSettings, {"behaviour": "trainer"}, "behaviour=trainer is for what compares with the policy that"),
        (CheckpointSettings, {"every": 0}, "every must be a whole number of at least 1, got every=0"),
        (CheckpointSettings, {"keep": 0}, "keep must be a whole number of at least 1"),
        (CheckpointSettings, {"keep_best_by": ""}, "keep_best_by must name a number of metrics.jsonl"),
        (CheckpointSettings, {"max_hours": 0.0}, "max_hours must be a number above 0"),
        (ValidationSettings, {"data": FILE, "every": 0}, "every must be a whole number of at least 1, got every=0"),
        (ValidationSettings, {"data": FILE, "rollouts": 4, "temperature": 1.0, "pass_at": (1, 8)},
         "pass_at must not exceed rollouts: pass@k needs k rollouts of a prompt, got pass_at=[1, 8], rollouts=4"),
        (ValidationSettings, {"data": FILE, "pass_at": (0,)}, "pass_at must be a whole number of at least 1"),
        (ValidationSettings, {"data": FILE, "rollouts": 4}, "rollouts must be 1 with temperature 0"),
        (ValidationSettings, {"data": FILE, "temperature": -1.0}, "temperature must be a number of at least 0"),
        (ValidationSettings, {"data": DataSettings(task="arithmetic")}, "data.limit must say how many prompts"),
    ],
)  # fmt: skip
def test_a_record_that_breaks_its_rule_cannot_be_made(record: Any, values: dict[str, Any], problem: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        record(**values)
    assert str(caught.value).startswith(problem)


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"steps": True}, "steps must be a whole number of at least 1"),
        ({"seed": -1}, "seed must be a whole number of at least 0"),
        ({"seed": 2**63}, "seed must be below 2**63, got seed=9223372036854775808"),
        ({"reward": "gsm"}, "reward must be a reward file"),
        ({"limits": {"rpm": -1}}, "limits: rpm must be a positive number"),
        ({"checkpoint": CheckpointSettings(every=5)}, "checkpoint.every needs a run_dir to save to"),
        ({"run_dir": "r", "checkpoint": CheckpointSettings(keep_best_by="validation/score_mean")},
         "checkpoint.keep_best_by=validation/score_mean needs a validation"),
        ({"run_dir": "r", "checkpoint": CheckpointSettings(keep_best_by="validation/pass@4"),
          "validation": ValidationSettings(data=FILE)},
         "checkpoint.keep_best_by must be validation/ and one of cost_usd, mean@1, num_failed"),
        ({"run_dir": "r", "checkpoint": CheckpointSettings(keep_best_by="validation/score_mean"),
          "validation": ValidationSettings(data=FILE, at_end=False)},
         "checkpoint.keep_best_by=validation/score_mean needs a validation that takes place"),
        ({"seed": 7, "validation": ValidationSettings(data=DataSettings(task="copy_digits", limit=9), seed=7)},
         "validation.seed must differ from seed"),
        ({"generation": GenerationSettings(group_size=1), "schedule": Schedule(groups_per_step=8, min_group=1)},
         "grpo compares the rollouts of a group"),
        ({"schedule": Schedule(groups_per_step=8, min_group=9)}, "schedule.min_group must not exceed"),
        ({"critic": CriticSettings(lr=1e-3)}, "settings of critic are for algorithm.advantage=gae, got advantage=grpo"),
        ({"algorithm": AlgorithmSettings(scale="batch"), "schedule": Schedule(groups_per_step=8, stream="micro_batch")},
         "algorithm.scale=batch needs the scores of the whole batch"),
        ({"algorithm": AlgorithmSettings(reject="token", behaviour="trainer"),
          "schedule": Schedule(groups_per_step=8, placement="separate")},
         "algorithm.behaviour=trainer takes log-probs while the trainer has the weights that generated"),
        ({"algorithm": AlgorithmSettings(reward_kl_coef=0.1, reward_kl_target=0.1, reward_kl_horizon=12)},
         "algorithm.reward_kl_horizon must be more than a fifth of a step's rollouts"),
        ({"algorithm": AlgorithmSettings(advantage="gae"), "trainer": TrainerSettings(backend="megatron")},
         "algorithm.advantage=gae needs a critic, which trainer.backend=megatron does not train"),
    ],
)  # fmt: skip
def test_what_spans_records_is_checked_by_the_run(changes: dict[str, Any], problem: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        run(**changes)
    assert str(caught.value).startswith(problem)


def test_what_needs_the_whole_batch_is_refused_with_words_that_say_what_to_choose() -> None:
    streaming = Schedule(groups_per_step=8, mini_batches=2, stream="mini_batch")
    adaptive = AlgorithmSettings(reward_kl_coef=0.1, reward_kl_target=0.1)
    for algorithm, start, end in (
        (AlgorithmSettings(advantage="gpg"), "algorithm.advantage=gpg counts the scores",
         "choose schedule.stream=batch, or algorithm.advantage=grpo or grpo_passk or rloo or opo or remax"),
        (AlgorithmSettings(advantage="gae"), "algorithm.advantage=gae whitens over", "or algorithm.whiten=false"),
        (AlgorithmSettings(scale="batch"), "algorithm.scale=batch needs", "or algorithm.scale=group or none"),
        (adaptive, "algorithm.reward_kl_target needs", "or algorithm.reward_kl_target=null"),
    ):  # fmt: skip
        with pytest.raises(InvalidInput) as caught:
            run(algorithm=algorithm, schedule=streaming)
        assert str(caught.value).startswith(start)
        assert str(caught.value).endswith(end)
        run(algorithm=algorithm, schedule=streaming.changed(stream="batch"))
    run(algorithm=AlgorithmSettings(advantage="gae", whiten=False), schedule=streaming)


def test_a_group_has_one_more_rollout_where_the_greedy_one_is_its_baseline() -> None:
    assert run(generation=GenerationSettings(group_size=3)).rollouts_per_group == 3
    greedy = AlgorithmSettings(advantage="remax")
    assert run(generation=GenerationSettings(group_size=3), algorithm=greedy).rollouts_per_group == 4


def test_groups_of_one_are_for_advantages_that_compare_no_siblings() -> None:
    alone = {
        "generation": GenerationSettings(group_size=1),
        "schedule": Schedule(groups_per_step=8, min_group=1),
    }
    assert run(algorithm=AlgorithmSettings(advantage="reinforce_plus_plus"), **alone).generation.group_size == 1
    with pytest.raises(InvalidInput, match="rloo compares the rollouts of a group"):
        run(algorithm=AlgorithmSettings(advantage="rloo"), **alone)


def test_decoupled_is_ppo_that_weighs_by_token() -> None:
    assert AlgorithmSettings(loss="decoupled").weigh_by == "token"
    assert AlgorithmSettings(loss="decoupled", behaviour_weights="sequence").weigh_by == "sequence"
    assert AlgorithmSettings().weigh_by is None


def test_settings_say_which_log_probs_they_compare_with() -> None:
    assert not AlgorithmSettings().needs_behaviour
    assert AlgorithmSettings(behaviour_weights="token").needs_behaviour
    assert AlgorithmSettings(reject="sequence").needs_behaviour
    assert not AlgorithmSettings().needs_reference
    assert AlgorithmSettings(kl_coef=0.1).needs_reference
    assert AlgorithmSettings(reward_kl_coef=0.1).needs_reference


@pytest.mark.parametrize(
    ("vllm", "engine", "placement", "problem"),
    [
        (VllmSettings(eager=True), "hf", "colocated", "settings of vllm are for generation.engine=vllm"),
        (VllmSettings(sleep=True), "vllm", "separate", "vllm.sleep is for schedule.placement=colocated"),
        (VllmSettings(transfer="ipc"), "vllm", "separate", "vllm.transfer=ipc is for schedule.placement=colocated"),
        (VllmSettings(transfer="nccl"), "vllm", "colocated", "vllm.transfer=nccl is for schedule.placement=separate"),
    ],
)
def test_settings_of_vllm_fit_the_engine_and_the_placement(
    vllm: VllmSettings, engine: Any, placement: Any, problem: str
) -> None:
    schedule = Schedule(groups_per_step=8, placement=placement)
    with pytest.raises(InvalidInput, match=re.escape(problem)):
        run(vllm=vllm, generation=GenerationSettings(engine=engine), schedule=schedule)


def test_vllm_generates_for_either_backend() -> None:
    settings = run(generation=GenerationSettings(engine="vllm"), trainer=TrainerSettings(backend="megatron"))
    assert settings.trainer.backend == "megatron"


def test_ranks_on_ray_must_hold_whole_models_between_them() -> None:
    sizes = MegatronSettings(tensor_parallel=2, pipeline_parallel=3)
    trainer = TrainerSettings(backend="megatron", megatron=sizes)
    for fitting in (6, 12):
        assert run(runtime=RuntimeSettings(kind="ray", ranks=fitting), trainer=trainer).trainer.megatron == sizes
    for ranks in (1, 2, 9):
        with pytest.raises(
            InvalidInput, match=rf"runtime\.ranks must be a multiple .*, got ranks={ranks} for 2 x 3 x 1"
        ):
            run(runtime=RuntimeSettings(kind="ray", ranks=ranks), trainer=trainer)
    run(runtime=RuntimeSettings(kind="ray", ranks=5), trainer=TrainerSettings(backend="megatron"))


@pytest.mark.parametrize(
    ("vllm", "problem"),
    [
        (VllmSettings(devices=[1]), "on Ray each engine is given its GPUs, got vllm.devices=[1]"),
        (VllmSettings(tensor_parallel=2), "each rank has an engine on its own GPU, got vllm.tensor_parallel=2"),
    ],
    ids=["devices", "tensor_parallel"],
)
def test_on_ray_a_rank_generates_with_vllm_on_the_gpu_that_it_is_given(vllm: VllmSettings, problem: str) -> None:
    with pytest.raises(InvalidInput, match=re.escape(problem)):
        run(vllm=vllm, generation=GenerationSettings(engine="vllm"), runtime=RuntimeSettings(kind="ray"))


def test_vllm_generates_under_either_placement() -> None:
    for placement in ("colocated", "separate"):
        schedule = Schedule(groups_per_step=8, placement=placement)
        assert run(generation=GenerationSettings(engine="vllm"), schedule=schedule).vllm.transfer == "shared_memory"


@pytest.mark.parametrize("cut", [{"top_p": 0.9}, {"top_k": 20}])
def test_vllm_cannot_tell_log_probs_of_a_cut_distribution_at_a_temperature(cut: dict[str, Any]) -> None:
    with pytest.raises(InvalidInput, match="temperature must be 1 if top_k or top_p cut the distribution"):
        run(generation=GenerationSettings(engine="vllm", temperature=0.7, **cut))
    for fitting in ({"temperature": 0.7}, cut):
        assert run(generation=GenerationSettings(engine="vllm", **fitting)).generation.engine == "vllm"


@pytest.mark.parametrize(
    ("engine", "autocast", "expected"),
    [("hf", "bfloat16", "float32"), ("vllm", "bfloat16", "bfloat16"), ("vllm", None, "float32")],
)
def test_weights_are_published_in_what_the_engine_holds_them_in(
    engine: str, autocast: str | None, expected: str
) -> None:
    settings = run(generation=GenerationSettings(engine=engine), trainer=TrainerSettings(autocast=autocast))  # type: ignore[arg-type]
    assert settings.engine_dtype == expected
