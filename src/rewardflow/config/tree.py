"""Every setting of a training run, once: its name, its default, its rule.

Always true: a record that exists obeys its own rules; what spans several records is checked by `RunSettings`. Nothing
here imports torch, so a mistake is told before anything heavy is loaded. The comment of a field explains it wherever
settings are explained: it ends up in the JSON schema and in docs/configuration.md.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from os import PathLike
from typing import Any, Literal

from rewardflow.config.algorithms import ADVANTAGES, STREAMS, AdvantageKind
from rewardflow.config.reward_shape import check_reward
from rewardflow.config.rules import at_least, check_choices, within
from rewardflow.errors import InvalidInput
from rewardflow.flow.schedule import Schedule
from rewardflow.flow.validation_plan import VALIDATION_SOURCE, Occasions
from rewardflow.flow.validation_report import names_of_figures
from rewardflow.reward.services.typed_values import at
from rewardflow.reward.settings import split_options

Dtype = Literal["float32", "bfloat16", "float16"]
Aggregation = Literal["token_mean", "seq_mean_token_sum", "seq_mean_token_mean", "fixed_length"]
AdvantageName = Literal[
    "grpo",
    "grpo_passk",
    "rloo",
    "opo",
    "gpg",
    "reinforce_plus_plus",
    "reinforce_plus_plus_baseline",
    "remax",
    "gae",
]
KlEstimator = Literal["k1", "k2", "k3", "abs"]
LossKlEstimator = Literal["k1", "k2", "k3", "abs", "k1+", "k3+"]
WeighBy = Literal["token", "sequence"]
RejectBy = Literal["token", "sequence", "sequence_mean"]
AboveCap = Literal["leave_out", "truncate"]


@dataclass(frozen=True, slots=True, kw_only=True)
class DataSettings:
    """Where prompts come from: exactly one of `task` (generated), `path` (a file) and `dataset` (Hugging Face)."""

    task: Literal["copy_digits", "arithmetic"] | None = None  # prompts that are generated and need no file
    path: str | PathLike[str] | None = None  # a file of prompts, .jsonl or .parquet
    dataset: str | None = None  # a data set of the Hugging Face hub, with `:configuration` where it has several
    split: str = "train"  # of `dataset`
    prompt_column: str | None = None  # null: `prompt`, `messages` or `question`, whichever is there
    answer_column: str | None = None  # null: `ground_truth`, `reward_model.ground_truth` or `answer`, if there is one
    shuffle: bool = True  # each epoch in an order of its own, which `seed` fixes
    limit: int | None = None  # only the first so many rows
    num_digits: int = 3  # of the numbers in generated tasks

    def __post_init__(self) -> None:
        check_choices(self)
        given = [name for name in ("task", "path", "dataset") if getattr(self, name) is not None]
        if len(given) != 1:
            raise InvalidInput(f"exactly one of task, path and dataset must be given, got {', '.join(given) or 'none'}")
        at_least("num_digits", self.num_digits, 1)
        if self.limit is not None:
            at_least("limit", self.limit, 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicySettings:
    """The model that learns. `tiny` is built in code; everything else is a path that transformers can load."""

    model: str = "tiny"  # `tiny`, a folder, or a name on the Hugging Face hub
    gguf_file: str | None = None  # a file of the model's folder to read the weights from
    tokenizer: str | None = None  # null: the model's own
    dtype: Dtype = "float32"  # of the weights
    chat_template: str | None = None  # a Jinja template, or a file with one; null: the tokenizer's own
    gradient_checkpointing: bool = False  # compute activations twice instead of keeping them
    trust_remote_code: bool = False  # run the code that comes with a model
    attention: str | None = None  # transformers' attn_implementation
    tiny_hidden: int = 64  # width of the tiny model
    tiny_layers: int = 2  # depth of the tiny model

    def __post_init__(self) -> None:
        check_choices(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerationSettings:
    """How rollouts are sampled. `top_k=0` and `top_p=1.0` leave the distribution whole."""

    engine: Literal["hf", "vllm"] = "hf"  # what generates: transformers, or vLLM in a process of its own
    group_size: int = 8  # rollouts of each prompt
    temperature: float = 1.0  # of sampling
    top_p: float = 1.0  # sample from the likeliest tokens that have this probability together
    top_k: int = 0  # sample from this many of the likeliest tokens; 0: from all
    max_prompt_tokens: int = 1024  # longer prompts are overlong
    max_response_tokens: int = 1024  # a response is cut there
    overlong_prompts: Literal["filter", "truncate", "error"] = "error"  # leave them out, keep their end, or stop
    max_sequences: int = 256  # decoded together
    stop: Sequence[str] = ()  # texts that end a response, beside the end token

    def __post_init__(self) -> None:
        check_choices(self)
        for name in ("group_size", "max_prompt_tokens", "max_response_tokens", "max_sequences"):
            at_least(name, getattr(self, name), 1)
        at_least("top_k", self.top_k, 0)
        within("top_p", self.top_p, 0.0, 1.0, low_open=True)
        within("temperature", self.temperature, 0.0, math.inf, low_open=True)


WeightTransfer = Literal["shared_memory", "ipc", "nccl", "reload"]


@dataclass(frozen=True, slots=True, kw_only=True)
class VllmSettings:
    """How vLLM runs, for `generation.engine: vllm`; vllm.md says which of them fit which machine."""

    # how new weights reach the engine: through this machine's memory; on the GPU that trainer and engine share;
    # from GPU to GPU; or as `shared_memory` does, but by vLLM's `reload_weights`
    transfer: WeightTransfer = "shared_memory"
    tensor_parallel: int = 1  # GPUs that hold one model together
    devices: Sequence[int] = ()  # the GPUs of the engine; empty: the first ones, or those that Ray gives
    # of each GPU's memory for weights, keys and values; null: 0.9, or 0.45 where the trainer is on it as well
    memory_share: float | None = None
    kv_cache_gb: float | None = None  # for keys and values; null: what `memory_share` leaves. A CPU engine needs it
    eager: bool = False  # neither compile nor capture graphs: starts sooner, generates slower
    sleep: bool = False  # give the GPU's memory back while training
    arguments: Mapping[str, Any] = field(default_factory=dict)  # further ones of vLLM's AsyncEngineArgs

    def __post_init__(self) -> None:
        check_choices(self)
        at_least("tensor_parallel", self.tensor_parallel, 1)
        for device in self.devices:
            at_least("devices", device, 0)
        if self.devices and len(self.devices) != self.tensor_parallel:
            raise InvalidInput(
                f"devices must be as many as tensor_parallel, got devices={list(self.devices)}, "
                f"tensor_parallel={self.tensor_parallel}"
            )
        if self.memory_share is not None:
            within("memory_share", self.memory_share, 0.0, 1.0, low_open=True)
        if self.kv_cache_gb is not None:
            within("kv_cache_gb", self.kv_cache_gb, 0.0, math.inf, low_open=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class AlgorithmSettings:
    """What is optimised, in the order in which it is computed; the formulas are in algorithms.md.

    The behaviour policy is the one that generated; `behaviour` says whose log-probs stand for it: the engine's, or the
    trainer's under the same weights. The old policy is that of the trainer before a step's first update.
    """

    advantage: AdvantageName = "grpo"  # what a score is worth beside others
    # whose spread divides the scores of `grpo` and `grpo_passk`: of the group, of the whole batch, or nobody's
    scale: Literal["group", "batch", "none"] = "group"
    discount: float = 1.0  # below 1, a reward fades with the sampled tokens between it and a token
    lam: float = 1.0  # of `gae`: 1 trusts the rewards that came, 0 the critic's next value
    whiten: bool = True  # of `gae`: centre and scale advantages over the tokens of the batch, for which it needs all
    reward_kl_coef: float = 0.0  # what each token pays, off the reward, for its KL from the reference policy
    reward_kl_estimator: KlEstimator = "k1"  # how that KL is estimated
    reward_kl_target: float | None = None  # `reward_kl_coef` moves to keep that KL here; null: it stays
    reward_kl_horizon: int = 10_000  # rollouts over which it moves; more: slower

    loss: Literal["ppo", "decoupled", "gspo", "policy_gradient"] = "ppo"  # how advantages pull
    clip_low: float = 0.2  # the ratio of new to old probability counts down to 1 minus this
    clip_high: float = 0.2  # and up to 1 plus this
    dual_clip: float | None = 3.0  # with a negative advantage the ratio counts up to this; null: without bound

    behaviour: Literal["engine", "trainer"] = "engine"  # whose log-probs stand for the policy that generated
    # weigh the loss by how much likelier the old policy finds a token, or the whole response, than the policy that
    # generated; null: by `token` with `decoupled`, else not
    behaviour_weights: WeighBy | None = None
    behaviour_weight_cap: float | None = 5.0  # the largest such weight; null: without bound
    above_cap: AboveCap = "leave_out"  # what becomes of tokens or responses with larger weights
    # leave out tokens, or responses by the product or the geometric mean of their tokens, where old and behaviour
    # policy differ too much; null: none
    reject: RejectBy | None = None
    reject_outside: tuple[float, float] = (0.5, 2.0)  # the ratios of old to behaviour probability that `reject` keeps

    kl_coef: float = 0.0  # weight of the distance from the reference policy; above 0 a reference model is kept
    kl_estimator: LossKlEstimator = "k3"  # how that distance is estimated; `k1+` and `k3+` pull as `k2` does
    entropy_coef: float = 0.0  # weight of the bonus for entropy
    aggregation: Aggregation = "token_mean"  # how the terms of tokens become one number

    def __post_init__(self) -> None:
        check_choices(self)
        within("discount", self.discount, 0.0, 1.0, low_open=True)
        within("lam", self.lam, 0.0, 1.0)
        within("clip_low", self.clip_low, 0.0, 1.0, low_open=True)
        within("clip_high", self.clip_high, 0.0, math.inf, low_open=True)
        if self.dual_clip is not None:
            within("dual_clip", self.dual_clip, 1.0, math.inf, low_open=True)
        if self.behaviour_weight_cap is not None:
            within("behaviour_weight_cap", self.behaviour_weight_cap, 0.0, math.inf, low_open=True)
        low, high = self.reject_outside
        within("reject_outside[0]", low, 0.0, 1.0, low_open=True)
        within("reject_outside[1]", high, 1.0, math.inf)
        for name in ("reward_kl_coef", "kl_coef", "entropy_coef"):
            within(name, getattr(self, name), 0.0, math.inf)
        if self.reward_kl_target is not None:
            within("reward_kl_target", self.reward_kl_target, 0.0, math.inf, low_open=True)
        at_least("reward_kl_horizon", self.reward_kl_horizon, 1)
        self._check_unused()

    def _check_unused(self) -> None:
        """A setting that would change nothing is a misunderstanding."""
        if self.scale != "group" and not self.kind.takes_scale:
            raise InvalidInput(
                f"scale is for {_named('takes_scale')}, got advantage={self.advantage}, scale={self.scale}"
            )
        if self.discount != 1.0 and not self.kind.takes_discount:
            raise InvalidInput(
                f"a discount below 1 is for {_named('takes_discount')}, "
                f"got advantage={self.advantage}, discount={self.discount}"
            )
        if self.lam != 1.0 and not self.kind.critic:
            raise InvalidInput(f"lam is for {_named('critic')}, got advantage={self.advantage}, lam={self.lam}")
        if not self.whiten and not self.kind.takes_whiten:
            raise InvalidInput(f"whiten is for {_named('takes_whiten')}, got advantage={self.advantage}, whiten=false")
        if self.reward_kl_target is not None and self.reward_kl_coef == 0:
            raise InvalidInput(
                "reward_kl_target moves reward_kl_coef, which must start above 0, "
                f"got reward_kl_target={self.reward_kl_target}, reward_kl_coef=0"
            )
        if self.behaviour == "trainer" and not self.needs_behaviour:
            raise InvalidInput(
                "behaviour=trainer is for what compares with the policy that generated (loss=decoupled, "
                f"behaviour_weights or reject), got loss={self.loss} without behaviour_weights and reject"
            )

    @property
    def kind(self) -> AdvantageKind:
        return ADVANTAGES[self.advantage]

    @property
    def weigh_by(self) -> WeighBy | None:
        """What `behaviour_weights` comes to."""
        return "token" if self.behaviour_weights is None and self.loss == "decoupled" else self.behaviour_weights

    @property
    def needs_reference(self) -> bool:
        return self.kl_coef > 0 or self.reward_kl_coef > 0

    @property
    def needs_behaviour(self) -> bool:
        return self.weigh_by is not None or self.reject is not None

    @property
    def takes_old(self) -> bool:
        """Whether old log-probs are needed where a step has one update, so that the loss does without."""
        return self.reward_kl_coef > 0

    @property
    def why_batch(self) -> str:
        """What takes the whole batch's scores before the first update, in words; empty if nothing does."""
        if self.kind.why_batch and self.whiten:
            return f"algorithm.advantage={self.advantage} {self.kind.why_batch}, so it"
        if self.scale == "batch":
            return "algorithm.scale=batch"
        return "algorithm.reward_kl_target" if self.reward_kl_target is not None else ""


def _named(trait: str) -> str:
    return ", ".join(name for name, kind in ADVANTAGES.items() if getattr(kind, trait))


@dataclass(frozen=True, slots=True, kw_only=True)
class OptimizerSettings:
    """AdamW, and how its learning rate moves."""

    lr: float = 1e-6  # learning rate, at its highest
    betas: tuple[float, float] = (0.9, 0.999)  # of Adam
    eps: float = 1e-8  # of Adam
    weight_decay: float = 0.0  # of AdamW
    lr_schedule: Literal["constant", "linear", "cosine"] = "constant"  # after the warm-up, over the run's steps
    warmup_steps: int = 0  # steps in which the learning rate rises
    min_lr_share: float = 0.0  # where `linear` and `cosine` end, as a share of `lr`
    max_grad_norm: float | None = 1.0  # longer gradients are shortened to this; null: never

    def __post_init__(self) -> None:
        check_choices(self)
        within("lr", self.lr, 0.0, math.inf)
        within("eps", self.eps, 0.0, math.inf, low_open=True)
        within("weight_decay", self.weight_decay, 0.0, math.inf)
        within("min_lr_share", self.min_lr_share, 0.0, 1.0)
        at_least("warmup_steps", self.warmup_steps, 0)
        for beta in self.betas:
            within("betas", beta, 0.0, 1.0, high_open=True)
        if self.max_grad_norm is not None:
            within("max_grad_norm", self.max_grad_norm, 0.0, math.inf, low_open=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class MegatronSettings:
    """How `trainer.backend: megatron` cuts the model, over as many ranks as the product of the sizes.

    `runtime.ranks` is a multiple of it: the ranks beyond are replicas, which train on other samples.
    """

    tensor_parallel: int = 1  # ranks that share each layer's matrices, and the vocabulary
    pipeline_parallel: int = 1  # ranks that have some of the layers each
    context_parallel: int = 1  # ranks that have some of each sequence's tokens

    def __post_init__(self) -> None:
        for name in ("tensor_parallel", "pipeline_parallel", "context_parallel"):
            at_least(name, getattr(self, name), 1)

    @property
    def num_ranks(self) -> int:
        """That hold one model together."""
        return self.tensor_parallel * self.pipeline_parallel * self.context_parallel

    def __str__(self) -> str:
        return f"{self.tensor_parallel} x {self.pipeline_parallel} x {self.context_parallel}"


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainerSettings(OptimizerSettings):
    """The optimizer, and how much goes through the model at once."""

    backend: Literal["fsdp2", "megatron"] = "fsdp2"  # what spreads the model over ranks
    megatron: MegatronSettings = MegatronSettings()
    micro_batch_tokens: int = 16384  # prompt and response tokens of one forward and backward
    device: str = "auto"  # as torch names it; `auto`: a GPU if there is one
    autocast: Dtype | None = None  # null: compute in the dtype of the weights
    offload: bool = False  # keep what only training needs off the device between steps
    threads: int | None = None  # of torch on the CPU

    def __post_init__(self) -> None:
        OptimizerSettings.__post_init__(self)
        at_least("micro_batch_tokens", self.micro_batch_tokens, 1)
        if self.threads is not None:
            at_least("threads", self.threads, 1)
        if self.backend != "megatron" and self.megatron != MegatronSettings():
            raise InvalidInput(f"settings of megatron are for backend=megatron, got backend={self.backend}")


_TRUNK_WEIGHT = 0.1


@dataclass(frozen=True, slots=True, kw_only=True)
class CriticSettings(OptimizerSettings):
    """What learns the value of each token, for `algorithm.advantage: gae`, with an optimizer of its own.

    `model` is a value model of its own; `head` sits on the policy's trunk, which then learns from both losses.
    """

    lr: float = 1e-5  # learning rate, at its highest
    form: Literal["model", "head"] = "model"  # a model of its own, or a head on the policy's
    model: str | None = None  # what a model of its own starts as, named as in `policy.model`; null: the policy
    alone_steps: int = 0  # steps at the start in which only the critic learns
    clip: float | None = 0.5  # how far from its value before the step's first update a value counts; null: however far
    # of the value loss in the gradient of the policy's trunk, where the critic is a head on it; 0: none reaches it
    trunk_weight: float = _TRUNK_WEIGHT

    def __post_init__(self) -> None:
        OptimizerSettings.__post_init__(self)
        at_least("alone_steps", self.alone_steps, 0)
        within("trunk_weight", self.trunk_weight, 0.0, math.inf)
        if self.clip is not None:
            within("clip", self.clip, 0.0, math.inf, low_open=True)
        if self.form == "head" and self.model is not None:
            raise InvalidInput(f"a head sits on the policy's own model: model must be null, got model={self.model}")
        if self.form == "model" and self.trunk_weight != _TRUNK_WEIGHT:
            raise InvalidInput(f"trunk_weight is for form=head, got form=model, trunk_weight={self.trunk_weight}")


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointSettings:
    """When a run is saved, to go on after a crash. They need `run_dir`, and a run that has one is saved at its end."""

    every: int | None = None  # steps from one checkpoint to the next; null: no more than the others here ask for
    keep: int = 2  # how many of the latest stay
    # a number of metrics.jsonl; the checkpoint with the highest stays as well. One of the validation, such as
    # `validation/score_mean`, has every version that is measured saved
    keep_best_by: str | None = None
    on_signal: bool = True  # save after the step that is under way when SIGUSR1 comes
    max_hours: float | None = None  # save and end the run before it has taken so long; null: it takes what it needs

    def __post_init__(self) -> None:
        if self.every is not None:
            at_least("every", self.every, 1)
        at_least("keep", self.keep, 1)
        if self.keep_best_by is not None and not self.keep_best_by:
            raise InvalidInput("keep_best_by must name a number of metrics.jsonl, got an empty text")
        if self.max_hours is not None:
            within("max_hours", self.max_hours, 0.0, math.inf, low_open=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricsSettings:
    """Where the figures of each step go, beside metrics.jsonl; what they are is in metrics.md. They need `run_dir`."""

    tensorboard: bool | None = None  # a folder `tensorboard` in `run_dir`; null: if tensorboard is installed
    wandb: Literal["online", "offline"] | None = None  # to Weights & Biases, or to files for `wandb sync`; null: no
    wandb_project: str = "rewardflow"  # of the run there
    wandb_entity: str | None = None  # who owns the project; null: whoever is logged in

    def __post_init__(self) -> None:
        check_choices(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class RolloutSettings:
    """What is kept of the rollouts and their verdicts, as parquet files in `run_dir`; columns in run_directory.md."""

    every: int | None = 1  # steps from one file to the next; null: no files
    limit: int | None = None  # rollouts of a step at the most, in whole groups; null: all

    def __post_init__(self) -> None:
        for name in ("every", "limit"):
            value = getattr(self, name)
            if value is not None:
                at_least(name, value, 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class ValidationSettings:
    """What is measured of the policy on prompts of its own, with the run's reward, as validation.md says."""

    data: DataSettings
    every: int | None = None  # steps from one validation to the next; null: no more than the two below ask for
    at_start: bool = False  # measure the policy before its first step
    at_end: bool = True  # measure the policy after its last step
    rollouts: int = 1  # of each prompt
    temperature: float = 0.0  # of sampling; 0: the likeliest token each time
    top_p: float = 1.0  # sample from the likeliest tokens that have this probability together
    top_k: int = 0  # sample from this many of the likeliest tokens; 0: from all
    max_response_tokens: int | None = None  # null: as in `generation`
    pass_at: Sequence[int] = ()  # each k for which pass@k is told
    passes_from: float = 1.0  # a score of at least this is a pass
    seed: int = 1_000_000  # of sampling and of generated tasks; the same for every run, so that runs can be compared

    def __post_init__(self) -> None:
        if self.every is not None:
            at_least("every", self.every, 1)
        at_least("rollouts", self.rollouts, 1)
        at_least("top_k", self.top_k, 0)
        at_least("seed", self.seed, 0)
        within("temperature", self.temperature, 0.0, math.inf)
        within("top_p", self.top_p, 0.0, 1.0, low_open=True)
        within("passes_from", self.passes_from, -math.inf, math.inf)
        if self.max_response_tokens is not None:
            at_least("max_response_tokens", self.max_response_tokens, 1)
        for k in self.pass_at:
            at_least("pass_at", k, 1)
        self._check_rollouts()
        if self.data.task is not None and self.data.limit is None:
            raise InvalidInput(
                "data.limit must say how many prompts to measure with, because a generated task has no end, "
                f"got task={self.data.task}, limit=null"
            )

    def _check_rollouts(self) -> None:
        if max(self.pass_at, default=0) > self.rollouts:
            raise InvalidInput(
                "pass_at must not exceed rollouts: pass@k needs k rollouts of a prompt, "
                f"got pass_at={list(self.pass_at)}, rollouts={self.rollouts}"
            )
        if self.is_greedy and self.rollouts > 1:
            raise InvalidInput(
                "rollouts must be 1 with temperature 0, which gives the same response each time; set a temperature to "
                f"sample several, got rollouts={self.rollouts}, temperature=0"
            )

    @property
    def is_greedy(self) -> bool:
        return self.temperature == 0

    @property
    def occasions(self) -> Occasions:
        return Occasions(every=self.every, at_start=self.at_start, at_end=self.at_end)

    @property
    def figure_names(self) -> frozenset[str]:
        """Those that every validation has, overall and for each data source."""
        return names_of_figures(self.rollouts, self.pass_at)


@dataclass(frozen=True, slots=True, kw_only=True)
class RuntimeSettings:
    """Where a run computes: in one process, or as actors of a Ray cluster (cluster.md).

    In a run file `runtime: ray` stands for a cluster of this machine alone, and `runtime: auto` or `runtime: host:port`
    for one to join.
    """

    kind: Literal["embedded", "ray"] = "embedded"  # one process, or many on Ray
    # of a Ray cluster to join, `auto` for the one of this machine; null: start one here, for this run alone
    address: str | None = None
    ranks: int = 1  # processes that train one model together; with schedule.placement=colocated they also generate
    generators: int = 1  # processes that generate, with schedule.placement=separate
    cpus: float = 1.0  # of the cluster, for each of these processes
    gpus: float | None = None  # likewise; null: one if the cluster has any
    # whether these processes are put on few nodes or on many
    spread: Literal["pack", "spread", "strict_pack", "strict_spread"] = "pack"
    wait_s: float = 600.0  # for room in a cluster that others use

    def __post_init__(self) -> None:
        check_choices(self)
        for name in ("ranks", "generators"):
            at_least(name, getattr(self, name), 1)
        within("cpus", self.cpus, 0.0, math.inf)
        within("wait_s", self.wait_s, 0.0, math.inf)
        if self.gpus is not None:
            within("gpus", self.gpus, 0.0, math.inf)
        changed = [
            f"{one.name}={getattr(self, one.name)}" for one in fields(self) if getattr(self, one.name) != one.default
        ]
        if self.kind == "embedded" and changed:
            raise InvalidInput(f"settings of a cluster are for kind=ray, got kind=embedded with {', '.join(changed)}")


@dataclass(frozen=True, slots=True, kw_only=True)
class SharedAgentSettings:
    """One reward agent for several runs, in an actor of a Ray cluster (shared_agent.md)."""

    name: str | None = None  # of the agent, which is started if it is not there; null: the run has one of its own
    namespace: str = "rewardflow"  # of the name
    address: str = "auto"  # of the Ray cluster, where the run itself is not on one
    run: str | None = None  # what the run is called there; null: its run_dir
    share: float = 1.0  # of the service, beside the shares of other runs
    env: Sequence[str] = ()  # environment variables that the agent gets from here when the run starts it, such as keys
    resources: Mapping[str, float] = field(default_factory=dict)  # Ray's names for what its node must have
    give_up_s: float = 600.0  # without an answer from it

    def __post_init__(self) -> None:
        within("share", self.share, 0.0, math.inf, low_open=True)
        within("give_up_s", self.give_up_s, 0.0, math.inf, low_open=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class RunSettings:
    """A whole run: what is rewarded, for how long, and where it is written down."""

    # `file.py:name`, `package.module:name`, a YAML reward file, or its contents in place;
    # in a run file also a kind of reward such as `gsm8k`
    reward: str | Mapping[str, Any]
    data: DataSettings
    schedule: Schedule
    steps: int  # how many to train; each ends in new weights
    run_dir: str | PathLike[str] | None = None  # where everything about the run is written; null: nowhere
    seed: int = 0  # of the order of prompts, of sampling and of weights that are built
    reward_kwargs: Mapping[str, Any] = field(default_factory=dict)  # settings of a reward that is named
    # where relative paths inside a reward's contents start; in a run file it is the file's folder unless given
    reward_folder: str | PathLike[str] | None = None
    limits: Mapping[str, Any] = field(default_factory=dict)  # settings of the reward agent, as in settings.md
    policy: PolicySettings = PolicySettings()
    generation: GenerationSettings = GenerationSettings()
    algorithm: AlgorithmSettings = AlgorithmSettings()
    trainer: TrainerSettings = TrainerSettings()
    critic: CriticSettings = CriticSettings()
    checkpoint: CheckpointSettings = CheckpointSettings()
    metrics: MetricsSettings = MetricsSettings()
    rollouts: RolloutSettings = RolloutSettings()
    validation: ValidationSettings | None = None
    vllm: VllmSettings = VllmSettings()
    runtime: RuntimeSettings = RuntimeSettings()
    shared_agent: SharedAgentSettings = field(default_factory=SharedAgentSettings)

    def __post_init__(self) -> None:
        at_least("steps", self.steps, 1)
        at_least("seed", self.seed, 0)
        check_reward(self.reward, self.reward_kwargs)
        with at("limits"):
            split_options(self.limits)
        self._check_advantage()
        self._check_behaviour()
        self._check_horizon()
        self._check_checkpoint()
        self._check_validation()
        self._check_vllm()
        self._check_runtime()
        self._check_shared_agent()
        if self.schedule.min_group > self.generation.group_size:
            raise InvalidInput(
                "schedule.min_group must not exceed generation.group_size, or every group is dropped, "
                f"got min_group={self.schedule.min_group}, group_size={self.generation.group_size}"
            )

    def _check_checkpoint(self) -> None:
        asked = [name for name in ("every", "keep_best_by", "max_hours") if getattr(self.checkpoint, name) is not None]
        if asked and self.run_dir is None:
            raise InvalidInput(f"checkpoint.{asked[0]} needs a run_dir to save to, got run_dir=null")
        written = [name for name in ("tensorboard", "wandb") if getattr(self.metrics, name)]
        if written and self.run_dir is None:
            raise InvalidInput(f"metrics.{written[0]} needs a run_dir to write to, got run_dir=null")

    def _check_validation(self) -> None:
        validation = self.validation
        if validation is not None and validation.data.task is not None and validation.seed == self.seed:
            raise InvalidInput(
                "validation.seed must differ from seed, or generated tasks would be measured with the prompts of "
                f"training, got {self.seed} for both"
            )
        if self.is_best_by_validation:
            self._check_best_by_validation(str(self.checkpoint.keep_best_by))

    def _check_best_by_validation(self, best_by: str) -> None:
        validation = self.validation
        if validation is None:
            raise InvalidInput(f"checkpoint.keep_best_by={best_by} needs a validation to take it from, got none")
        *outer, figure = best_by.split("/")
        if figure not in validation.figure_names and outer[-1] != "component_means":
            raise InvalidInput(
                f"checkpoint.keep_best_by must be {VALIDATION_SOURCE}/ and one of "
                f"{', '.join(sorted(validation.figure_names))}, or {VALIDATION_SOURCE}/<data source>/ and one of them, "
                f"got {best_by}"
            )
        if not validation.occasions.versions(self.steps):
            raise InvalidInput(
                f"checkpoint.keep_best_by={best_by} needs a validation that takes place, "
                f"got validation.every={validation.every}, at_start=false, at_end=false"
            )

    @property
    def is_best_by_validation(self) -> bool:
        """Whether the best checkpoint is known only when a validation has its verdicts."""
        return str(self.checkpoint.keep_best_by).startswith(f"{VALIDATION_SOURCE}/")

    def _check_vllm(self) -> None:
        vllm, placement = self.vllm, self.schedule.placement
        if vllm != VllmSettings() and self.generation.engine != "vllm":
            raise InvalidInput(
                f"settings of vllm are for generation.engine=vllm, got generation.engine={self.generation.engine}"
            )
        self._check_log_probs_of_vllm()
        if self.runtime.kind == "ray" and vllm.devices:
            raise InvalidInput(f"on Ray each engine is given its GPUs, got vllm.devices={list(vllm.devices)}")
        if self.runtime.kind == "ray" and vllm.tensor_parallel > 1 and placement == "colocated":
            raise InvalidInput(
                "on Ray with schedule.placement=colocated each rank has an engine on its own GPU, "
                f"got vllm.tensor_parallel={vllm.tensor_parallel}"
            )
        if vllm.sleep and placement != "colocated":
            raise InvalidInput(f"vllm.sleep is for schedule.placement=colocated, got placement={placement}")
        fitting = {"ipc": "colocated", "nccl": "separate"}.get(vllm.transfer, placement)
        if placement != fitting:
            raise InvalidInput(
                f"vllm.transfer={vllm.transfer} is for schedule.placement={fitting}, got placement={placement}"
            )

    def _check_log_probs_of_vllm(self) -> None:
        generation = self.generation
        is_cut = generation.top_k > 0 or generation.top_p < 1.0
        if generation.engine == "vllm" and generation.temperature != 1.0 and is_cut:
            raise InvalidInput(
                "generation.temperature must be 1 where top_k or top_p cut the distribution and vllm generates, which "
                "tells no log-probs of the whole one then, "
                f"got temperature={generation.temperature}, top_k={generation.top_k}, top_p={generation.top_p}"
            )

    def _check_runtime(self) -> None:
        if self.runtime.kind != "ray":
            return
        megatron, ranks = self.trainer.megatron, self.runtime.ranks
        if ranks % megatron.num_ranks:
            raise InvalidInput(
                "runtime.ranks must be a multiple of the ranks that hold one model (tensor_parallel x "
                "pipeline_parallel x context_parallel of trainer.megatron), so that the others are whole replicas, "
                f"got ranks={ranks} for {megatron}"
            )

    def _check_shared_agent(self) -> None:
        shared = self.shared_agent
        if shared.name is None and shared != SharedAgentSettings():
            raise InvalidInput("settings of shared_agent are for an agent with a name, got shared_agent.name=null")
        if shared.name is not None and shared.run is None and self.run_dir is None:
            raise InvalidInput(
                "a shared agent tells runs apart by name: shared_agent.run or run_dir must be given, got neither"
            )

    def _check_advantage(self) -> None:
        algorithm, schedule = self.algorithm, self.schedule
        if self.critic != CriticSettings() and not algorithm.kind.critic:
            raise InvalidInput(
                f"settings of critic are for algorithm.advantage={_named('critic')}, "
                f"got advantage={algorithm.advantage}"
            )
        if algorithm.why_batch and schedule.stream not in STREAMS["batch"]:
            raise InvalidInput(
                f"{algorithm.why_batch} needs the scores of the whole batch before the first update, which "
                f"schedule.stream={schedule.stream} does not wait for; choose schedule.stream=batch, "
                f"or {_instead(algorithm)}"
            )
        if algorithm.kind.compares_group and self.generation.group_size < 2:
            raise InvalidInput(
                f"{algorithm.advantage} compares the rollouts of a group, so generation.group_size must be at least 2, "
                f"got group_size={self.generation.group_size}"
            )
        if algorithm.kind.critic and self.trainer.backend == "megatron":
            raise InvalidInput(
                f"algorithm.advantage={algorithm.advantage} needs a critic, which trainer.backend=megatron does not "
                "train; choose trainer.backend=fsdp2, or an advantage without a critic"
            )

    def _check_behaviour(self) -> None:
        if self.algorithm.behaviour == "trainer" and self.schedule.placement == "separate":
            raise InvalidInput(
                "algorithm.behaviour=trainer takes log-probs while the trainer has the weights that generated, which "
                "schedule.placement=separate does not promise; choose algorithm.behaviour=engine, or "
                "schedule.placement=colocated"
            )

    def _check_horizon(self) -> None:
        """The factor of a step is at least 1 - n / (5 horizon); below 0 it would pay for leaving the reference."""
        num_rollouts = self.schedule.groups_per_step * self.generation.group_size
        horizon = self.algorithm.reward_kl_horizon
        if self.algorithm.reward_kl_target is not None and num_rollouts >= 5 * horizon:
            raise InvalidInput(
                "algorithm.reward_kl_horizon must be more than a fifth of a step's rollouts, or a step with little KL "
                f"would make reward_kl_coef negative, got reward_kl_horizon={horizon} for {num_rollouts} rollouts"
            )

    @property
    def rollouts_per_group(self) -> int:
        """Those that are trained on, and the greedy one they are compared with where there is one."""
        return self.generation.group_size + self.algorithm.kind.greedy


def _instead(algorithm: AlgorithmSettings) -> str:
    """What does not need the whole batch, where this does."""
    if algorithm.kind.takes_whiten and algorithm.whiten:
        return "algorithm.whiten=false"
    if algorithm.kind.why_batch and algorithm.whiten:
        fitting = [name for name, kind in ADVANTAGES.items() if not kind.why_batch]
        return f"algorithm.advantage={' or '.join(fitting)}"
    return "algorithm.scale=group or none" if algorithm.scale == "batch" else "algorithm.reward_kl_target=null"
