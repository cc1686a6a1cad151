"""Starts small verl runs on CPU: makes a tiny model and toy prompts, holds small settings, and returns the outcome.

A run is a separate process, as a user would start it: `rewardflow verl ...`, or verl's own main.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ON_CPU = Path(__file__).parent / "on_cpu"
REWARDS = ON_CPU / "verl_cpu_rewards.py"
PROJECT, EXPERIMENT = "tests", "run"


# FlashAttention and compiled kernels need a GPU, and half precision is slow without one.
FSDP2_ON_CPU = (
    "+actor_rollout_ref.model.override_config.attn_implementation=sdpa",
    "actor_rollout_ref.actor.fsdp_config.model_dtype=fp32",
    "actor_rollout_ref.actor.fsdp_config.dtype=float32",
    "actor_rollout_ref.actor.fsdp_config.use_torch_compile=False",
)
ON_FSDP2 = (
    "actor_rollout_ref.actor.strategy=fsdp2",
    "actor_rollout_ref.model.use_remove_padding=False",
    "actor_rollout_ref.model.enable_gradient_checkpointing=False",
    *FSDP2_ON_CPU,
)
# Generation by transformers, and one process of each kind.
FEW_PROCESSES = (
    "actor_rollout_ref.actor.use_torch_compile=False",
    "actor_rollout_ref.rollout.name=transformers_cpu",
    "actor_rollout_ref.rollout.agent.num_workers=1",
    "data.dataloader_num_workers=0",
    "reward.num_workers=1",
    "transfer_queue.backend.SimpleStorage.num_data_storage_units=1",
    "trainer.device=cpu",
)


def megatron_layers(part: str) -> tuple[str, ...]:
    """Switches off what megatron-core's own layers lack: fused kernels, and sequence parallelism in norms."""
    transformer = f"{part}.megatron.override_transformer_config"
    unknown = ("sequence_parallel", "masked_softmax_fusion", "gradient_accumulation_fusion", "apply_rope_fusion")
    return (
        f"{part}.megatron.vanilla_mbridge=True",
        f"{part}.megatron.sequence_parallel=False",
        f"{transformer}.attention_backend=local",
        *(f"+{transformer}.{name}=False" for name in unknown),
    )


ON_MEGATRON = ("actor_rollout_ref.actor.strategy=megatron", *megatron_layers("actor_rollout_ref.actor"))


@dataclass(frozen=True, slots=True)
class Materials:
    """The paths of the tiny model and the prompts."""

    model: Path
    prompts: Path


def make_materials(folder: Path, *, num_prompts: int = 64) -> Materials:
    materials = Materials(folder / "model", folder / "prompts.parquet")
    _save_model(materials.model)
    _save_prompts(materials.prompts, num_prompts)
    return materials


def _save_model(place: Path) -> None:
    """Saves a tokenizer of bytes and a Qwen2 of two layers with random weights; downloads nothing."""
    import torch
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast, Qwen2Config, Qwen2ForCausalLM

    vocabulary = {character: number for number, character in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}
    bytes_only = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    bytes_only.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    bytes_only.decoder = decoders.ByteLevel()
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=bytes_only,
        eos_token="<|im_end|>",
        pad_token="<|endoftext|>",
        additional_special_tokens=["<|im_start|>", "<|unused|>"],  # 260 tokens, which two ranks can share evenly
    )
    tokenizer.chat_template = (
        "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{% endfor %}"
        "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
    )
    tokenizer.save_pretrained(place)
    torch.manual_seed(0)
    config = Qwen2Config(
        vocab_size=len(tokenizer),
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=512,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
        bos_token_id=None,
        tie_word_embeddings=False,
    )
    Qwen2ForCausalLM(config).save_pretrained(place)


def _save_prompts(place: Path, count: int) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    rows = [
        {
            "data_source": "toy",
            "prompt": [{"role": "user", "content": f"{index}+1="}],
            "ability": "math",
            "reward_model": {"style": "rule", "ground_truth": str(index + 1)},
            "extra_info": {"index": index, "split": "train"},
        }
        for index in range(count)
    ]
    pq.write_table(pa.Table.from_pylist(rows), place)


def small(
    materials: Materials,
    *,
    groups: int = 4,
    rollouts: int = 4,
    mini_batches: int = 2,
    steps: int = 2,
    engine: Sequence[str] = ON_FSDP2,
) -> list[str]:
    """Returns verl's settings for a run of seconds, in the order: data, model, actor, rollout, reward, trainer.

    If a setting is given twice, the later value counts.
    """
    return [
        "algorithm.adv_estimator=grpo",
        f"data.train_files={materials.prompts}",
        f"data.val_files={materials.prompts}",
        f"data.train_batch_size={groups}",
        "data.max_prompt_length=64",
        "data.max_response_length=16",
        "data.filter_overlong_prompts=False",
        "data.shuffle=False",
        f"actor_rollout_ref.model.path={materials.model}",
        *engine,
        *FEW_PROCESSES,
        f"actor_rollout_ref.actor.ppo_mini_batch_size={groups // mini_batches}",
        "actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=8",
        "actor_rollout_ref.actor.use_dynamic_bsz=False",
        "actor_rollout_ref.actor.optim.lr=1e-3",
        f"actor_rollout_ref.rollout.n={rollouts}",
        "actor_rollout_ref.rollout.tensor_model_parallel_size=1",
        "actor_rollout_ref.rollout.log_prob_use_dynamic_bsz=False",
        "actor_rollout_ref.rollout.log_prob_micro_batch_size_per_gpu=16",
        "actor_rollout_ref.rollout.prompt_length=64",
        "actor_rollout_ref.rollout.response_length=16",
        "trainer.n_gpus_per_node=1",
        "trainer.nnodes=1",
        f"trainer.total_training_steps={steps}",
        "trainer.val_before_train=False",
        "trainer.test_freq=-1",
        "trainer.save_freq=-1",
        "trainer.logger=[file]",
        f"trainer.project_name={PROJECT}",
        f"trainer.experiment_name={EXPERIMENT}",
        "trainer.resume_mode=disable",
    ]


def judged_by(name: str, *, median_s: float | None = None) -> list[str]:
    """Returns the settings for one of our rewards, and for its delay if it has one."""
    function = "reward.custom_reward_function"
    words = [f"{function}.path={REWARDS}", f"{function}.name={name}"]
    return words if median_s is None else [*words, f"+{function}.reward_kwargs.median_s={median_s}"]


# In the recipe's own settings; they go after those of its documentation.
RECIPES_JUDGE = (
    f"custom_reward_function.path={REWARDS}",
    "custom_reward_function.name=delayed",
    "+custom_reward_function.reward_kwargs.median_s=0.3",
    "data.reward_fn_key=data_source",
)


def ray_apart(folder: Path) -> list[str]:
    """Gives the run a separate Ray cluster on this machine. More logical CPUs and GPUs than real ones cost nothing."""
    return [
        "ray_kwargs.ray_init.num_cpus=32",
        "+ray_kwargs.ray_init.num_gpus=2",
        "+ray_kwargs.ray_init.address=local",
        "+ray_kwargs.ray_init.include_dashboard=False",
        "+ray_kwargs.ray_init._node_ip_address=127.0.0.1",
        f"+ray_kwargs.ray_init._temp_dir={folder}",
    ]


class LastingRay:
    """A Ray cluster that outlives the jobs on it, in a separate process: `with LastingRay() as cluster: ...`."""

    def __enter__(self) -> LastingRay:
        self._folder = tempfile.TemporaryDirectory(prefix="rf-", dir="/tmp")
        self._process = subprocess.Popen(
            [sys.executable, "-W", "ignore", "-c", _CLUSTER, self._folder.name],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            # The cluster's processes get this environment, not a job's. It listens on this machine only.
            env={**environment(Path(self._folder.name)), "RAY_AUTH_MODE": "disabled"},
        )
        self.address = self._answer()
        return self

    def __exit__(self, *_: object) -> None:
        with self._process:
            self._process.stdin.close()
        self._folder.cleanup()

    @property
    def settings(self) -> list[str]:
        return [f"+ray_kwargs.ray_init.address={self.address}", f"+ray_kwargs.ray_init._node_ip_address={_LOOPBACK}"]

    def actors(self) -> list[str]:
        """Returns the names of all live actors, in all namespaces."""
        self._process.stdin.write("\n")
        self._process.stdin.flush()
        return self._answer().split()

    def _answer(self) -> str:
        """Returns the next line that starts with `>`: Ray may print other lines before."""
        for line in self._process.stdout:
            if line.startswith(">"):
                return line.removeprefix(">").strip()
        raise RuntimeError("the process that holds the cluster is gone")


_LOOPBACK = "127.0.0.2"  # for 127.0.0.1 Ray would use the machine's address in the network
_CLUSTER = f"""
import sys, ray, ray.util
ray.init(address="local", num_cpus=32, num_gpus=1, include_dashboard=False, log_to_driver=False,
         _node_ip_address="{_LOOPBACK}", _temp_dir=sys.argv[1])
print(">", ray.get_runtime_context().gcs_address, flush=True)
for _ in sys.stdin:
    print(">", *(actor["name"] for actor in ray.util.list_named_actors(all_namespaces=True)), flush=True)
"""


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a run ended."""

    code: int
    output: str
    metrics: list[dict[str, Any]]  # one a step, from verl's own logger
    run_dir: Path

    def column(self, name: str) -> list[float]:
        return [step[name] for step in self.metrics if name in step]


def environment(folder: Path, modules: Sequence[str] = ()) -> dict[str, str]:
    """Returns the environment of a run on CPU. verl finds the plug-in rewardflow by its entry point."""
    # A process that had a Ray cluster keeps variables that make other clusters ask for a token.
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("RAY_AUTH")}
    return {
        **inherited,
        "PYTHONPATH": os.pathsep.join([str(ON_CPU), os.environ.get("PYTHONPATH", "")]),
        "VERL_PLATFORM": "cpu",
        "VERL_USE_EXTERNAL_MODULES": ",".join(["verl_cpu_platform", *modules]),
        "VERL_FILE_LOGGER_ROOT": str(folder / "metrics"),
        "OMP_NUM_THREADS": "1",
        "HYDRA_FULL_ERROR": "1",
        "RAY_DEDUP_LOGS": "0",
        "RAY_worker_niceness": "0",  # Ray would let every other program of the machine go first
    }


def run(
    folder: Path,
    settings: Sequence[str],
    *,
    timeout_s: float = 600.0,
    launcher: bool = True,
    modules: Sequence[str] = (),
    cluster: LastingRay | None = None,
) -> Outcome:
    """Runs `rewardflow verl`, or verl's own main. All processes of the run have ended when this returns."""
    folder.mkdir(parents=True, exist_ok=True)
    main = (
        [str(Path(sys.executable).with_name("rewardflow")), "verl"]
        if launcher
        else [
            sys.executable,
            "-W",
            "ignore",
            "-m",
            "verl.trainer.main_ppo",
        ]
    )
    with tempfile.TemporaryDirectory(prefix="rf-", dir="/tmp") as ray_folder:  # short: sockets have short names
        words = [
            *main,
            *settings,
            *(ray_apart(Path(ray_folder)) if cluster is None else cluster.settings),
            f"trainer.default_local_dir={folder / 'checkpoints'}",
            f"hydra.run.dir={folder / 'hydra'}",
        ]
        code, output = _finished(words, folder, environment(folder, modules), timeout_s)
    return Outcome(code, output, _metrics(folder), folder / "checkpoints" / "rewardflow")


def ended_well(folder: Path, settings: Sequence[str], **options: Any) -> Outcome:
    """Runs, and fails the test unless the run ends well. `options` are those of `run`."""
    outcome = run(folder, settings, timeout_s=1500, **options)
    assert outcome.code == 0, outcome.output[-3000:]
    return outcome


def rewardflow(*words: str) -> str:
    """Returns what the command prints."""
    command = [str(Path(sys.executable).with_name("rewardflow")), *words]
    return subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout


def _finished(words: list[str], folder: Path, env: dict[str, str], timeout_s: float) -> tuple[int, str]:
    log = folder / "output.txt"
    with log.open("wb") as output:
        process = subprocess.Popen(
            words,
            cwd=folder,
            env=env,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            process.wait(timeout=timeout_s)
        except BaseException:
            os.killpg(process.pid, signal.SIGKILL)  # Ray's own processes watch for this and end
            process.wait()
            raise
    return process.returncode, log.read_text(errors="replace")


def _metrics(folder: Path) -> list[dict[str, Any]]:
    file = folder / "metrics" / PROJECT / f"{EXPERIMENT}.jsonl"
    if not file.exists():
        return []
    lines = [json.loads(line) for line in file.read_text().splitlines()]
    return [{"step": line["step"], **line["data"]} for line in lines]
