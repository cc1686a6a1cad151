"""Checks the rules that span several sections of a run's settings.

Always true: a rule about one section alone is in that section's record, not here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from rewardflow.errors import InvalidInput
from rewardflow.flow.validation.validation_plan import VALIDATION_SOURCE
from rewardflow.settings.algorithm_needs import ADVANTAGES, STREAMS
from rewardflow.settings.sections.algorithm import AlgorithmSettings, named
from rewardflow.settings.sections.generation import ENGINES
from rewardflow.settings.sections.runtime import SharedAgentSettings
from rewardflow.settings.sections.training import BACKENDS, CriticSettings

if TYPE_CHECKING:
    from rewardflow.settings.run_settings import RunSettings


def check_across_sections(settings: RunSettings) -> None:
    """Raises `InvalidInput` for the first broken rule."""
    _check_advantage(settings)
    _check_back_end(settings)
    _check_behaviour(settings)
    _check_horizon(settings)
    _check_checkpoint(settings)
    _check_validation(settings)
    if settings.audit is not None and settings.run_dir is None:
        raise InvalidInput("audit needs a run_dir, where its verdicts are kept, got run_dir=null")
    _check_engine(settings)
    _check_vllm(settings)
    _check_runtime(settings)
    _check_shared_agent(settings)
    _check_min_group(settings)


def _check_advantage(settings: RunSettings) -> None:
    algorithm, schedule = settings.algorithm, settings.schedule
    if settings.critic != CriticSettings() and not algorithm.kind.critic:
        raise InvalidInput(
            f"settings of critic are for algorithm.advantage={named('critic')}, got advantage={algorithm.advantage}"
        )
    if algorithm.why_batch and schedule.stream not in STREAMS["batch"]:
        raise InvalidInput(
            f"{algorithm.why_batch} needs the scores of the whole batch before the first update, which "
            f"schedule.stream={schedule.stream} does not wait for; choose schedule.stream=batch, "
            f"or {_instead(algorithm)}"
        )
    if algorithm.kind.compares_group and settings.generation.group_size < 2:
        raise InvalidInput(
            f"{algorithm.advantage} compares the rollouts of a group, so generation.group_size must be at least 2, "
            f"got group_size={settings.generation.group_size}"
        )
    backend = settings.trainer.backend
    if algorithm.kind.critic and not BACKENDS[backend].trains_critic:
        fitting = " or ".join(name for name, traits in BACKENDS.items() if traits.trains_critic)
        raise InvalidInput(
            f"algorithm.advantage={algorithm.advantage} needs a critic, which trainer.backend={backend} does not "
            f"train; choose trainer.backend={fitting}, or an advantage without a critic"
        )


def _check_back_end(settings: RunSettings) -> None:
    backend = settings.trainer.backend
    if settings.trainer.padding_free and not BACKENDS[backend].padding_free:
        fitting = " or ".join(name for name, traits in BACKENDS.items() if traits.padding_free)
        raise InvalidInput(
            f"trainer.padding_free needs attention that keeps rows apart by their positions, which "
            f"trainer.backend={backend} does not have; choose trainer.backend={fitting}, or padding_free=false"
        )
    if settings.policy.lora is not None and not BACKENDS[backend].trains_adapters:
        fitting = " or ".join(name for name, traits in BACKENDS.items() if traits.trains_adapters)
        raise InvalidInput(
            f"policy.lora needs a back end that trains the modules of transformers, which trainer.backend={backend} "
            f"replaces by its own; choose trainer.backend={fitting}, or policy.lora=null"
        )


def _instead(algorithm: AlgorithmSettings) -> str:
    """Names a setting that does not need the whole batch, for the error about one that does."""
    if algorithm.kind.takes_whiten and algorithm.whiten:
        return "algorithm.whiten=false"
    if algorithm.kind.why_batch and algorithm.whiten:
        fitting = [name for name, kind in ADVANTAGES.items() if not kind.why_batch]
        return f"algorithm.advantage={' or '.join(fitting)}"
    return "algorithm.scale=group or none" if algorithm.scale == "batch" else "algorithm.reward_kl_target=null"


def _check_behaviour(settings: RunSettings) -> None:
    if settings.algorithm.behaviour == "trainer" and settings.schedule.placement == "separate":
        raise InvalidInput(
            "algorithm.behaviour=trainer takes log-probs while the trainer has the weights that generated, which "
            "schedule.placement=separate does not promise; choose algorithm.behaviour=engine, or "
            "schedule.placement=colocated"
        )


def _check_horizon(settings: RunSettings) -> None:
    """Keeps the factor of a step, at least 1 - n / (5 horizon), positive: below 0 it would reward a larger KL."""
    num_rollouts = settings.schedule.groups_per_step * settings.generation.group_size
    horizon = settings.algorithm.reward_kl_horizon
    if settings.algorithm.reward_kl_target is not None and num_rollouts >= 5 * horizon:
        raise InvalidInput(
            "algorithm.reward_kl_horizon must be more than a fifth of a step's rollouts, or a step with little KL "
            f"would make reward_kl_coef negative, got reward_kl_horizon={horizon} for {num_rollouts} rollouts"
        )


def _check_checkpoint(settings: RunSettings) -> None:
    used = [name for name in ("every", "keep_best_by", "max_hours") if getattr(settings.checkpoint, name) is not None]
    if used and settings.run_dir is None:
        raise InvalidInput(f"checkpoint.{used[0]} needs a run_dir to save to, got run_dir=null")
    written = [name for name in ("tensorboard", "wandb") if getattr(settings.metrics, name)]
    if written and settings.run_dir is None:
        raise InvalidInput(f"metrics.{written[0]} needs a run_dir to write to, got run_dir=null")


def _check_validation(settings: RunSettings) -> None:
    validation = settings.validation
    if validation is not None and validation.data.task is not None and validation.seed == settings.seed:
        raise InvalidInput(
            "validation.seed must differ from seed, or generated tasks would be measured with the prompts of "
            f"training, got {settings.seed} for both"
        )
    if settings.is_best_by_validation:
        _check_best_by_validation(settings, str(settings.checkpoint.keep_best_by))


def _check_best_by_validation(settings: RunSettings, best_by: str) -> None:
    validation = settings.validation
    if validation is None:
        raise InvalidInput(f"checkpoint.keep_best_by={best_by} needs a validation to take it from, got none")
    *outer, figure = best_by.split("/")
    if figure not in validation.figure_names and outer[-1] != "component_means":
        raise InvalidInput(
            f"checkpoint.keep_best_by must be {VALIDATION_SOURCE}/ and one of "
            f"{', '.join(sorted(validation.figure_names))}, or {VALIDATION_SOURCE}/<data source>/ and one of them, "
            f"got {best_by}"
        )
    if not validation.occasions.versions(settings.steps):
        raise InvalidInput(
            f"checkpoint.keep_best_by={best_by} needs a validation that takes place, "
            f"got validation.every={validation.every}, at_start=false, at_end=false"
        )


def _check_engine(settings: RunSettings) -> None:
    generation = settings.generation
    for name in ENGINES:  # a section with the name of an engine is for that engine
        section = getattr(settings, name, None)
        if section is not None and name != generation.engine and section != type(section)():
            raise InvalidInput(
                f"settings of {name} are for generation.engine={name}, got generation.engine={generation.engine}"
            )
    is_cut = generation.top_k > 0 or generation.top_p < 1.0
    if is_cut and generation.temperature != 1.0 and not ENGINES[generation.engine].log_probs_of_cut:
        raise InvalidInput(
            "generation.temperature must be 1 if top_k or top_p cut the distribution and "
            f"{generation.engine} generates, because {generation.engine} then gives no log-probs of the whole "
            "distribution, "
            f"got temperature={generation.temperature}, top_k={generation.top_k}, top_p={generation.top_p}"
        )


def _check_vllm(settings: RunSettings) -> None:
    vllm, placement = settings.vllm, settings.schedule.placement
    if settings.runtime.kind == "ray" and vllm.devices:
        raise InvalidInput(f"on Ray each engine is given its GPUs, got vllm.devices={list(vllm.devices)}")
    if settings.runtime.kind == "ray" and vllm.tensor_parallel > 1 and placement == "colocated":
        raise InvalidInput(
            "on Ray with schedule.placement=colocated each rank has an engine on its own GPU, "
            f"got vllm.tensor_parallel={vllm.tensor_parallel}"
        )
    if vllm.sleep and placement != "colocated":
        raise InvalidInput(f"vllm.sleep is for schedule.placement=colocated, got placement={placement}")
    needed = {"ipc": "colocated", "nccl": "separate"}.get(vllm.transfer, placement)
    if placement != needed:
        raise InvalidInput(
            f"vllm.transfer={vllm.transfer} is for schedule.placement={needed}, got placement={placement}"
        )


def _check_runtime(settings: RunSettings) -> None:
    if settings.runtime.kind != "ray":
        return
    megatron, ranks = settings.trainer.megatron, settings.runtime.ranks
    if ranks % megatron.num_ranks:
        raise InvalidInput(
            "runtime.ranks must be a multiple of the ranks that hold one model (tensor_parallel x "
            "pipeline_parallel x context_parallel of trainer.megatron), so that the others are whole replicas, "
            f"got ranks={ranks} for {megatron}"
        )


def _check_shared_agent(settings: RunSettings) -> None:
    shared = settings.shared_agent
    if shared.name is None and shared != SharedAgentSettings():
        raise InvalidInput("settings of shared_agent are for an agent with a name, got shared_agent.name=null")
    if shared.name is not None and shared.run is None and settings.run_dir is None:
        raise InvalidInput(
            "a shared agent tells runs apart by name: shared_agent.run or run_dir must be given, got neither"
        )


def _check_min_group(settings: RunSettings) -> None:
    if settings.schedule.min_group > settings.generation.group_size:
        raise InvalidInput(
            "schedule.min_group must not exceed generation.group_size, or every group is dropped, "
            f"got min_group={settings.schedule.min_group}, group_size={settings.generation.group_size}"
        )
