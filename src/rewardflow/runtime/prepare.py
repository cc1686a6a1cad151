"""Finds out what a run starts from, before anything is loaded, written or paid for.

Training, `--check`, an evaluation and `embedded` all begin here: first `check_start`, then `prepare`.

Always true: each check runs once for a start, the cheap ones first; nothing is written, sent or loaded, and neither
torch nor transformers is imported. A run resumes from its latest checkpoint that is intact and has the same model, data
and settings, or from the beginning if it has none; either way its journal holds the verdicts that were paid for.
"""

from __future__ import annotations

import importlib.util
from dataclasses import dataclass
from pathlib import Path

from rewardflow.checkpoint.fingerprint import check_same, fingerprint
from rewardflow.checkpoint.manifest import Checkpoint
from rewardflow.checkpoint.store import CheckpointStore
from rewardflow.data.open_prompts import open_prompts
from rewardflow.data.prompt_set import PromptSet
from rewardflow.errors import InvalidInput
from rewardflow.extras import install_command
from rewardflow.observe.run_directory import CHECKPOINTS_FOLDER, RUN_FILE, RunDirectory, check_free_for_new_run
from rewardflow.policy.model_place import check_model_files
from rewardflow.runtime.records.metrics_sinks import check_sinks
from rewardflow.runtime.run_agent import RunAgent, agent_of_run, build_agent
from rewardflow.runtime.run_lock import refuse_if_in_use
from rewardflow.runtime.validation_setup import open_validation_set
from rewardflow.settings.run_settings import RunSettings


@dataclass(frozen=True, slots=True, kw_only=True)
class RunStart:
    """Settings that passed the checks of a start, and the checkpoint to resume from."""

    settings: RunSettings
    resumes: bool = False
    checkpoint: Checkpoint | None = None  # None: the run starts at the beginning, with its journal if it resumes


@dataclass(frozen=True, slots=True, kw_only=True)
class PreparedRun:
    """What a run starts from. `prompt_set` is what it generates from; an evaluation generates from `validation_set`."""

    start: RunStart
    folder: Path  # where relative paths of the reward's contents start
    agent: RunAgent  # not entered yet
    prompt_set: PromptSet
    validation_set: PromptSet | None

    @property
    def settings(self) -> RunSettings:
        return self.start.settings

    @property
    def is_agent_shared(self) -> bool:
        return self.settings.shared_agent.name is not None


def check_start(settings: RunSettings, *, resume: Checkpoint | bool = False) -> RunStart:
    """Checks what is installed, the metric sinks and `run_dir`, and finds the checkpoint if the run resumes.

    `resume` may be the checkpoint itself, as `find_checkpoint` found it. Reads the checkpoint's files, which may take
    a while.
    """
    resumes = resume is not False
    check_installed()
    check_model_files(settings.policy)
    _check_adapters_installed(settings)
    check_sinks(settings)
    _check_run_dir(settings, resumes=resumes)
    checkpoint = find_checkpoint(settings) if resume is True else resume or None
    return RunStart(settings=settings, resumes=resumes, checkpoint=checkpoint)


def prepare(
    start: RunStart, *, folder: Path | None = None, agent: RunAgent | None = None, writes: bool = True
) -> PreparedRun:
    """Builds the agent and opens the prompts. `agent` replaces the one that the settings describe.

    `writes=False` is for a check: the agent is this process's own, and has neither journal nor run directory.
    """
    settings = start.settings
    folder = folder or folder_of(settings)
    if agent is None:
        agent = agent_of_run(settings, folder=folder) if writes else build_agent(settings, folder=folder, keeps=False)
    return PreparedRun(
        start=start,
        folder=folder,
        agent=agent,
        prompt_set=open_prompts(settings.data, seed=settings.seed),
        validation_set=open_validation_set(settings),
    )


def prepare_evaluation(settings: RunSettings) -> PreparedRun:
    """As `prepare`, for a run that only measures: it needs no prompts of training. The caller has checked the start."""
    folder = folder_of(settings)
    agent = agent_of_run(settings, folder=folder)
    prompt_set = open_validation_set(settings)
    assert prompt_set is not None, "an evaluation has a validation"
    start = RunStart(settings=settings)
    return PreparedRun(start=start, folder=folder, agent=agent, prompt_set=prompt_set, validation_set=prompt_set)


def check_installed() -> None:
    """Raises `InvalidInput` if a package that only training needs is missing; imports none of them."""
    missing = [name for name in ("torch", "transformers") if importlib.util.find_spec(name) is None]
    if missing:
        raise InvalidInput(f"training needs {' and '.join(missing)}: {install_command('train')}")


def _check_adapters_installed(settings: RunSettings) -> None:
    if settings.policy.lora is not None and importlib.util.find_spec("peft") is None:
        raise InvalidInput(f"policy.lora needs peft: {install_command('lora')}")


def _check_run_dir(settings: RunSettings, *, resumes: bool) -> None:
    if resumes:
        store_of(settings)  # raises without a run_dir
    if settings.run_dir is None:
        return
    holds_run = (Path(settings.run_dir) / RUN_FILE).exists()
    if holds_run and not resumes:
        raise InvalidInput(
            f"run_dir must be a new directory, got {settings.run_dir}, which holds a run already (--resume goes on "
            "with it)"
        )
    if holds_run:
        RunDirectory.open(settings.run_dir)  # raises if the directory is damaged
        refuse_if_in_use(Path(settings.run_dir))
    else:
        check_free_for_new_run(Path(settings.run_dir))


def store_of(settings: RunSettings) -> CheckpointStore:
    """Returns the checkpoints of the run in `run_dir`."""
    if settings.run_dir is None:
        raise InvalidInput("a run can go on only where it was written down: run_dir must be given, got null")
    checkpoint = settings.checkpoint
    folder = Path(settings.run_dir) / CHECKPOINTS_FOLDER
    return CheckpointStore(folder, keep=checkpoint.num_kept, score_by=checkpoint.keep_best_by)


def find_checkpoint(settings: RunSettings) -> Checkpoint | None:
    """Returns the checkpoint to resume from; None: the run has none yet. Reads its files to see if they are intact."""
    checkpoint = store_of(settings).latest()
    if checkpoint is not None:
        check_same(checkpoint.settings, fingerprint(settings), where=str(checkpoint.path))
    return checkpoint


def folder_of(settings: RunSettings) -> Path:
    """Returns the folder where relative paths of the reward's contents start."""
    return Path.cwd() if settings.reward_folder is None else Path(settings.reward_folder)
