"""From the recipe's command line to one that verl 0.9 and the adapter honour."""

from __future__ import annotations

from pathlib import Path

import pytest
from verl_recipe_lines import ALL_SETTINGS, CONFIG_PATH, DOCUMENTED_FSDP2, DOCUMENTED_MEGATRON, MEGATRON_CONFIG_NAME

from rewardflow.adapters.verl.launch.overrides import VerlOverride
from rewardflow.adapters.verl.launch.translation import CommandLine, translate
from rewardflow.errors import InvalidInput


def test_the_documented_line_for_fsdp2_becomes_one_that_verl_honours() -> None:
    command = translate(DOCUMENTED_FSDP2, config_path=CONFIG_PATH)
    assert command.config_path is None
    assert command.config_name == "ppo_trainer"
    assert set(command.overrides) == {
        "actor_rollout_ref.actor.strategy=fsdp2",
        "reward.custom_reward_function.path=/home/user/rewards/gsm8k.py",
        "reward.custom_reward_function.name=Gsm8kAgent",
        "reward.reward_manager.name=rewardflow",
        "++rewardflow.max_staleness=1",
        "++rewardflow.stream=mini_batch",
        "++rewardflow.max_concurrency=256",
        "trainer.v1.trainer_mode=rewardflow",
    }


def test_the_documented_line_for_megatron_chooses_the_engine_in_the_one_configuration() -> None:
    command = translate(DOCUMENTED_MEGATRON, config_path=CONFIG_PATH, config_name=MEGATRON_CONFIG_NAME)
    assert command.config_name == "ppo_trainer"
    assert command.overrides[0] == "model_engine=megatron"
    assert "actor_rollout_ref.actor.strategy=megatron" in command.overrides


def test_the_strategy_alone_chooses_the_engine_too() -> None:
    assert "model_engine=megatron" in translate(DOCUMENTED_MEGATRON).overrides
    assert "model_engine=megatron" not in translate(DOCUMENTED_FSDP2).overrides


def test_the_other_settings_of_the_recipe_are_understood() -> None:
    overrides = translate(ALL_SETTINGS).overrides
    assert "++rewardflow.max_concurrency=256" in overrides
    assert "++rewardflow.behaviour_weight_cap=5.0" in overrides
    assert "actor_rollout_ref.actor.policy_loss.loss_mode=decoupled" in overrides
    assert "actor_rollout_ref.rollout.calculate_log_probs=True" in overrides
    assert "data.reward_fn_key=source" in overrides


def test_every_word_that_changed_is_told_and_no_other() -> None:
    command = translate((*DOCUMENTED_FSDP2, "trainer.total_epochs=2"), config_path=CONFIG_PATH)
    told = {note.before for note in command.notes}
    assert told >= set(DOCUMENTED_FSDP2[1:])
    assert not told & {"actor_rollout_ref.actor.strategy=fsdp2", "trainer.total_epochs=2"}


def test_the_older_name_of_the_pipeline_is_known_and_can_be_off() -> None:
    assert "++rewardflow.stream=mini_batch" in translate(["+update_pipeline=True"]).overrides
    assert "++rewardflow.stream=batch" in translate(["+mini_batch_pipeline=False"]).overrides
    assert "++rewardflow.max_staleness=0" in translate(["reward_model.launch_reward_fn_async=False"]).overrides


def test_the_recipes_defaults_and_what_is_not_taken_over_are_told_for_its_lines_only() -> None:
    told = [str(note) for note in translate(DOCUMENTED_FSDP2).notes]
    assert "the recipe's default -> ++rewardflow.max_concurrency=256 (the recipe's number of calls at once)" in told
    assert any(line.startswith("mini-batches in the order of verdicts -> in the order of prompts") for line in told)
    plain = translate(["trainer.total_epochs=2"])
    assert {note.before for note in plain.notes} == {"not set"}


def test_an_old_name_of_a_manager_is_translated_with_what_belongs_to_it() -> None:
    command = translate(["reward_model.reward_manager=dapo"])
    assert command.overrides == ("trainer.v1.trainer_mode=rewardflow", "reward.reward_manager.name=rewardflow")
    assert str(command.notes[0]) == (
        "reward_model.reward_manager=dapo -> reward.reward_manager.name=rewardflow (it calls the same function)"
    )
    assert len(command.notes) == 2


@pytest.mark.parametrize("path", ["config", "./config", "/home/user/verl/trainer/config"])
def test_a_path_that_hydra_finds_beside_verls_main_is_verls_own_configuration(path: str) -> None:
    command = translate([], config_path=path)
    assert command.config_path is None
    assert f"--config-path={path} -> the installed verl's own" in map(str, command.notes)


def test_the_old_trainer_is_refused() -> None:
    with pytest.raises(InvalidInput, match="v1 trainer"):
        translate(["trainer.use_v1=False"])


def test_an_unknown_setting_of_ours_names_the_nearest() -> None:
    with pytest.raises(InvalidInput, match="did you mean 'max_staleness'"):
        translate(["rewardflow.max_stalenes=1"])


def test_a_choice_of_the_user_is_not_overridden() -> None:
    overrides = translate(["trainer.v1.trainer_mode=colocate_async", "reward.reward_manager.name=naive"]).overrides
    assert overrides == ("trainer.v1.trainer_mode=colocate_async", "reward.reward_manager.name=naive")


def test_a_reward_file_is_found_from_any_folder_afterwards(tmp_path: Path) -> None:
    overrides = translate(["+rewardflow.reward=judge.yaml"], folder=tmp_path).overrides
    assert f"++rewardflow.reward={tmp_path}/judge.yaml" in overrides


@pytest.mark.parametrize("name", ["custom_reward_function.path", "reward.custom_reward_function.path"])
def test_a_file_of_the_users_own_is_found_from_any_folder_afterwards(tmp_path: Path, name: str) -> None:
    overrides = translate([f"{name}=rewards/gsm8k.py"], folder=tmp_path).overrides
    assert f"reward.custom_reward_function.path={tmp_path}/rewards/gsm8k.py" in overrides


@pytest.mark.parametrize("place", ["pkg://my.rewards", "file:///home/me/rewards.py", "/home/me/rewards.py", "null"])
def test_a_place_that_is_the_same_everywhere_is_kept(place: str) -> None:
    word = f"reward.custom_reward_function.path={place}"
    command = translate([word])
    assert word in command.overrides
    assert not any(note.before == word for note in command.notes)


@pytest.mark.parametrize("key", ["reward.custom_reward_function.path", "custom_reward_function.path"])
def test_a_place_that_only_the_whole_configuration_knows_is_kept(key: str, tmp_path: Path) -> None:
    place = "${oc.env:HOME}/reward.py"
    (word,) = [word for word in translate([f"{key}={place}"], folder=tmp_path).overrides if ".path=" in word]
    assert VerlOverride.parse(word).text == place
    own = f"++rewardflow.reward={place}:score"
    assert own in translate([own], folder=tmp_path).overrides


def test_a_place_with_a_comma_in_it_stays_one_value() -> None:
    folder = Path("/data/a, b's")
    overrides = translate(["rewardflow.reward=judge.yaml", "custom_reward_function.path=r.py"], folder=folder).overrides
    assert r"++rewardflow.reward='/data/a, b\'s/judge.yaml'" in overrides
    assert r"reward.custom_reward_function.path='/data/a, b\'s/r.py'" in overrides


def test_a_folder_of_the_users_own_builds_on_verls_configuration(tmp_path: Path) -> None:
    command = translate([], config_path=str(tmp_path), config_name="mine")
    assert command.config_path == str(tmp_path)
    assert command.overrides[0] == "hydra.searchpath=[pkg://verl.trainer.config]"
    assert command.words()[:2] == ["--config-name=mine", f"--config-path={tmp_path}"]


def test_a_folder_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="must be a folder"):
        translate([], config_path=str(tmp_path / "none"))


def test_a_word_can_be_added_later_and_is_told() -> None:
    command = CommandLine(overrides=("a=1",)).adding("b=2", "because")
    assert command.overrides == ("b=2", "a=1")
    assert str(command.notes[0]) == "not set -> b=2 (because)"


def test_a_word_that_was_added_can_be_left_out_again_with_its_note() -> None:
    command = translate(["a=1"]).leaving_out("trainer.v1.trainer_mode=rewardflow")
    assert command.overrides == ("reward.reward_manager.name=rewardflow", "a=1")
    assert [note.after for note in command.notes] == ["reward.reward_manager.name=rewardflow"]
