"""Command lines against the installed verl's own configuration. Nothing is started."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from verl_recipe_lines import (
    ALL_SETTINGS,
    CONFIG_PATH,
    DOCUMENTED_FSDP2,
    DOCUMENTED_MEGATRON,
    MEGATRON_CONFIG_NAME,
    SCRIPTS,
    Script,
)

from rewardflow.adapters.verl.config_checks import engine_of
from rewardflow.adapters.verl.launch import unread_settings
from rewardflow.adapters.verl.launch.composition import check, completed, compose, defaults_of, differences
from rewardflow.adapters.verl.launch.translation import CommandLine, translate
from rewardflow.adapters.verl.launch.unread_settings import leaves, without_effect
from rewardflow.errors import InvalidInput


def test_the_recipes_line_for_megatron_composes_with_every_setting_in_its_place() -> None:
    lines = (*DOCUMENTED_MEGATRON, *ALL_SETTINGS, "actor_rollout_ref.actor.megatron.param_offload=True")
    command, config = completed(translate(lines, config_path=CONFIG_PATH, config_name=MEGATRON_CONFIG_NAME))
    settings = check(command, config, defaults_of(command))
    actor = config["actor_rollout_ref"]["actor"]
    assert (actor["strategy"], config["critic"]["strategy"]) == ("megatron", "megatron")
    assert actor["megatron"]["param_offload"] is True
    assert actor["policy_loss"]["loss_mode"] == "decoupled"
    assert config["reward"]["reward_manager"]["name"] == config["trainer"]["v1"]["trainer_mode"] == "rewardflow"
    assert settings.reward == "/home/user/rewards/gsm8k.py:compute_score"
    assert (settings.stream, settings.max_staleness, settings.behaviour_weight_cap) == ("mini_batch", 1, 5.0)
    assert settings.agent_options["max_concurrency"] == 256
    assert "actor_rollout_ref.rollout.name=vllm" in command.overrides


@pytest.mark.parametrize(
    "words",
    [
        ["distillation.enabled=True"],  # the teacher's engine refers to the rollout's
        ["algorithm.filter_groups.enable=True", "algorithm.filter_groups.metric=acc"],
        ["trainer.v1.trainer_mode=sync"],
    ],
    ids=["an engine", "a stream", "a sampler"],
)
def test_the_completed_configuration_is_the_one_that_verl_composes_from_the_words(words: list[str]) -> None:
    command, config = completed(translate(words))
    assert config == compose(command)


def test_differences_from_verls_defaults_are_those_that_were_made() -> None:
    command, config = completed(translate([*DOCUMENTED_FSDP2, "actor_rollout_ref.rollout.name=vllm"]))
    found = {key: value for key, _, value in differences(config, defaults_of(command))}
    assert found["reward.custom_reward_function.name"] == "Gsm8kAgent"
    assert found["rewardflow.max_staleness"] == 1
    assert "trainer.total_epochs" not in found


def test_a_key_that_verl_does_not_know_is_refused_by_name() -> None:
    with pytest.raises(InvalidInput, match=r"actor_rollout_ref\.actor\.no_such_key"):
        completed(translate(["actor_rollout_ref.actor.no_such_key=1"]))


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (["algorithm.filter_groups.enable=True", "rewardflow.stream=mini_batch"], "needs rewardflow.stream=batch"),
        (["algorithm.filter_groups.enable=True", "algorithm.filter_groups.metric=null"], "metric must name"),
        (["actor_rollout_ref.rollout.n=2", "rewardflow.min_group=3"], "min_group must be at most .*, got 3 and 2"),
        (["algorithm.adv_estimator=remax"], "no rewards of greedy rollouts"),
        (["actor_rollout_ref.actor.ppo_epochs=2"], "need rewardflow.stream=batch"),
        (["data.train_batch_size=100"], "must be a multiple"),
        (["critic.ppo_mini_batch_size=100"], r"a multiple of critic.ppo_mini_batch_size, got 256 and 100"),
        (["critic.ppo_epochs=2"], "critic.ppo_epochs=2"),
        (["algorithm.adv_estimator=gdpo", "reward.reward_manager.name=gdpo"], "no numbers of the reward beside"),
        (["trainer.v1.trainer_mode=sync", "algorithm.adv_estimator=remax"], "no rewards of greedy rollouts"),
        (["+trainer.v1.rewardflow.max_staleness=1"], "its settings are in the section rewardflow"),
        (["reward.reward_manager.name=gdpo"], "needs reward.reward_manager.name=rewardflow"),
        (
            ["trainer.v1.trainer_mode=sync", "reward.reward_manager.name=naive", "data.reward_fn_key=topic"],
            "ignore data.reward_fn_key",
        ),
        (["trainer.v1.sampler.max_off_policy_threshold=2"], "rewardflow.max_staleness is the bound"),
        (["reward.reward_manager.source=importlib"], "must be register"),
        (["reward.reward_model.enable=True"], "cannot reach a reward model that verl serves"),
        (["+reward.reward_kwargs.overlong_buffer_cfg=1"], "custom_reward_function.reward_kwargs"),
        (["+max_concurency=8"], "nothing reads it, got"),
        (["++traner.total_epochs=2"], "did you mean 'trainer'"),
        (["+reward_model.reward_kwargs.max_resp_len=1"], "rewardflow.overlong"),
    ],
)
def test_what_nobody_would_honour_is_refused(words: list[str], reason: str) -> None:
    with pytest.raises(InvalidInput, match=reason):
        checked(words)


def checked(words: list[str]) -> dict[str, Any]:
    command, config = completed(translate(words))
    check(command, config, defaults_of(command))
    return config


@pytest.mark.parametrize(
    ("word", "why"),
    [
        ("trainer.balance_batch=False", "the v1 trainer always balances"),
        ("data.gen_batch_size=1536", "this mode takes prompts one by one"),
        ("critic.forward_micro_batch_size_per_gpu=4", "its place is critic.ppo_infer_micro_batch_size_per_gpu"),
        ("actor_rollout_ref.rollout.multi_stage_wake_up=True", "nothing reads it"),
        ("trainer.v1.colocate_async.num_warmup_batches=3", "trainer.v1.trainer_mode is rewardflow"),
        ("algorithm.filter_groups.max_inflight_gen_batches=2", "this mode generates all that is missing at once"),
    ],
)
def test_what_changes_no_training_is_told_and_goes_on(word: str, why: str) -> None:
    command, config = completed(translate([word]))
    check(command, config, defaults_of(command))
    assert [str(note) for note in without_effect(config, defaults_of(command))] == [f"{word} -> no effect ({why})"]


KINDS: dict[str, list[str]] = {
    "GRPO": ["algorithm.adv_estimator=grpo", "actor_rollout_ref.rollout.n=5"],
    "one rollout per prompt": ["algorithm.adv_estimator=reinforce_plus_plus", "actor_rollout_ref.rollout.n=1"],
    "RLOO": ["algorithm.adv_estimator=rloo", "actor_rollout_ref.rollout.n=5"],
    "a critic": ["algorithm.adv_estimator=gae", "critic.ppo_mini_batch_size=256", "critic.model.path=/m"],
    "a critic on Megatron": ["model_engine=megatron", "algorithm.adv_estimator=gae", "critic.model.path=/m"],
    "a reference policy": ["actor_rollout_ref.actor.use_kl_loss=True", "actor_rollout_ref.ref.strategy=fsdp2"],
    "DAPO": [
        "reward.reward_manager.name=dapo",
        "+reward.reward_kwargs.overlong_buffer_cfg.enable=True",
        "+reward.reward_kwargs.overlong_buffer_cfg.len=4096",
        "+reward.reward_kwargs.overlong_buffer_cfg.penalty_factor=1.0",
        "+reward.reward_kwargs.max_resp_len=8192",
        "algorithm.filter_groups.enable=True",
        "algorithm.filter_groups.metric=acc",
    ],
    "LoRA": ["actor_rollout_ref.model.lora_rank=32", "actor_rollout_ref.model.lora_alpha=32"],
    "several turns": [
        "actor_rollout_ref.rollout.multi_turn.enable=True",
        "actor_rollout_ref.rollout.agent.default_agent_loop=tool_agent",
    ],
    "images": ["data.image_key=images", "actor_rollout_ref.rollout.free_cache_engine=False"],
    "distillation": [
        "distillation.enabled=True",
        "actor_rollout_ref.rollout.n=1",
        "distillation.teacher_models.teacher_model.model_path=/t",
    ],
    "rollout correction": [
        "actor_rollout_ref.rollout.calculate_log_probs=True",
        "algorithm.rollout_correction.rollout_is=token",
    ],
    "configurations beside verl's main": ["--config-path=config", "--config-name=ppo_megatron_trainer"],
    **{
        f"loss {name}": [f"actor_rollout_ref.actor.policy_loss.loss_mode={name}"]
        for name in ("vanilla", "gspo", "sapo", "gpg", "clip_cov", "kl_cov", "geo_mean", "cispo", "decoupled")
    },
    **{f"engine {name}": [f"model_engine={name}"] for name in ("dp", "megatron", "veomni", "torchtitan")},
}


@pytest.mark.parametrize("words", KINDS.values(), ids=KINDS)
def test_every_kind_of_verls_examples_is_taken(words: list[str]) -> None:
    options = {word.partition("=")[0]: word.partition("=")[2] for word in words if word.startswith("--")}
    line = translate(
        [word for word in words if not word.startswith("--")],
        config_path=options.get("--config-path"),
        config_name=options.get("--config-name"),
    )
    command, config = completed(line)
    settings = check(command, config, defaults_of(command))
    assert config["trainer"]["v1"]["trainer_mode"] == "rewardflow"
    assert settings.min_group <= config["actor_rollout_ref"]["rollout"]["n"]
    assert "param_offload" in engine_of(config["actor_rollout_ref"]["actor"])


def test_dapos_settings_keep_their_meaning() -> None:
    config = checked(KINDS["DAPO"])
    assert config["rewardflow"] == {"overlong": {"limit": 8192, "buffer": 4096, "penalty": 1.0}, "stream": "batch"}


@pytest.mark.parametrize("script", SCRIPTS.values(), ids=SCRIPTS)
def test_the_whole_scripts_of_the_recipe_are_taken_with_the_recipes_defaults(script: Script) -> None:
    command, config = completed(translate(script.words, config_path=CONFIG_PATH, config_name=script.config_name))
    settings = check(command, config, defaults_of(command))
    assert settings.agent_options["max_concurrency"] == 256
    assert (settings.stream, settings.max_staleness, settings.order) == ("mini_batch", 1, "fixed")
    assert settings.behaviour_weight_cap is None  # it belongs to the decoupled loss


def test_without_its_pipeline_a_line_of_the_recipe_trains_whole_batches_and_caps_the_decoupled_loss() -> None:
    words = [*(word for word in DOCUMENTED_FSDP2 if "pipeline" not in word), ALL_SETTINGS[2]]
    command, config = completed(translate(words))
    settings = check(command, config, defaults_of(command))
    assert (settings.stream, settings.behaviour_weight_cap) == ("batch", 5)


@pytest.mark.parametrize(
    "words",
    [
        [],
        ["trainer.v1.trainer_mode=sync", "trainer.v1.sampler.sync_refill_failed_groups=True"],
        ["trainer.v1.trainer_mode=colocate_async", "trainer.v1.colocate_async.num_warmup_batches=2"],
        ["+actor_rollout_ref.model.override_config.attn_implementation=sdpa", "actor_rollout_ref.actor.grad_clip=1.0"],
        ["model_engine=megatron", "actor_rollout_ref.actor.megatron.tensor_model_parallel_size=2"],
    ],
)
def test_what_verl_and_we_honour_is_taken(words: list[str]) -> None:
    checked(words)


def test_in_verls_own_modes_our_sampler_counts_verdicts_unless_the_user_has_one() -> None:
    key = "trainer.v1.sampler.custom_sampler.path"
    command, config = completed(translate(["trainer.v1.trainer_mode=sync"]))
    assert config["trainer"]["v1"]["sampler"]["custom_sampler"]["name"] == "replay_buffer"
    assert any(str(note).startswith(f"not set -> {key}=pkg://rewardflow") for note in command.notes)
    command, config = completed(translate(["trainer.v1.trainer_mode=sync", f"{key}=mine.py"]))
    assert config["trainer"]["v1"]["sampler"]["custom_sampler"]["path"] == "mine.py"
    _, config = completed(translate([]))
    assert config["trainer"]["v1"]["sampler"]["custom_sampler"]["path"] is None


def test_reward_workers_that_nobody_asks_are_not_started_unless_the_user_wants_them() -> None:
    command, config = completed(translate([]))
    assert config["reward"]["num_workers"] == 1
    assert any(note.after == "reward.num_workers=1" for note in command.notes)
    _, config = completed(translate(["reward.num_workers=8"]))
    assert config["reward"]["num_workers"] == 8
    _, config = completed(translate(["trainer.v1.trainer_mode=sync"]))
    assert config["reward"]["num_workers"] == defaults_of(CommandLine(overrides=()))["reward"]["num_workers"]


def test_every_setting_that_is_said_to_be_ignored_is_one_of_verls() -> None:
    defaults = dict(leaves(defaults_of(CommandLine(overrides=()))))
    for key in (
        *unread_settings._UNREAD_BY_TRAINER,
        *unread_settings._WITHOUT_EFFECT,
        "trainer.v1.sampler",
        "skip.rollout_tq",
        "reward.reward_manager.module",
    ):
        assert any(name == key or name.startswith(f"{key}.") for name in defaults), key


@pytest.fixture
def conf(tmp_path: Path) -> Path:
    """A configuration of the user's own, on top of verl's."""
    (tmp_path / "experiment").mkdir()
    (tmp_path / "experiment" / "large.yaml").write_text("# @package _global_\ntrainer:\n  total_epochs: 7\n")
    (tmp_path / "mine.yaml").write_text(
        "defaults: [ppo_trainer, _self_]\nmy: {lr: 1e-5}\nactor_rollout_ref: {actor: {optim: {lr: '${my.lr}'}}}\n"
    )
    return tmp_path


def composed(*words: str, conf: Path | None = None) -> dict[str, Any]:
    line = translate(
        words, config_path=None if conf is None else str(conf), config_name=None if conf is None else "mine"
    )
    command, config = completed(line)
    check(command, config, defaults_of(command))
    return config


def test_sections_and_groups_of_the_users_own_configuration_may_be_set(conf: Path) -> None:
    config = composed("++my.lr=1e-4", "+experiment=large", conf=conf)
    assert config["actor_rollout_ref"]["actor"]["optim"]["lr"] == 1e-4
    assert config["trainer"]["total_epochs"] == 7
    with pytest.raises(InvalidInput, match="nothing reads it"):
        composed("+mine.lr=1", conf=conf)


def test_a_section_that_other_settings_refer_to_may_be_added() -> None:
    assert (
        composed("+lr=1e-4", "actor_rollout_ref.actor.optim.lr=${lr}")["actor_rollout_ref"]["actor"]["optim"]["lr"]
        == 1e-4
    )


def test_the_mode_that_the_users_own_configuration_names_is_kept(conf: Path) -> None:
    with (conf / "mine.yaml").open("a") as file:
        file.write("trainer: {v1: {trainer_mode: colocate_async}}\n")
    config = composed(conf=conf)
    assert config["trainer"]["v1"]["trainer_mode"] == "colocate_async"
    assert config["reward"]["reward_manager"]["name"] == "rewardflow"
    assert composed("trainer.v1.trainer_mode=rewardflow", conf=conf)["trainer"]["v1"]["trainer_mode"] == "rewardflow"


def test_a_mode_that_nobody_has_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("VERL_USE_EXTERNAL_MODULES", raising=False)
    with pytest.raises(InvalidInput, match=r"must be one of sync, .*, rewardflow, got 'rewardflw'"):
        composed("trainer.v1.trainer_mode=rewardflw")
    monkeypatch.setenv("VERL_USE_EXTERNAL_MODULES", "my_trainers")  # may register it
    assert composed("trainer.v1.trainer_mode=mine")["trainer"]["v1"]["trainer_mode"] == "mine"


def test_a_setting_that_verl_reads_cannot_be_taken_away() -> None:
    with pytest.raises(InvalidInput, match=r"verl reads reward\.reward_manager\.name and must find it, got ~reward"):
        composed("~reward.reward_manager.name")
