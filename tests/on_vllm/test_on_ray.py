"""vLLM in the actors of a Ray cluster: weights in pieces, whole runs, and what is left of one that is killed."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Iterator, Sequence
from contextlib import aclosing
from pathlib import Path
from typing import Any

import pytest
import ray
import torch
from cluster_runs import checkpoint_of, metrics_in, on_ray, settings_in
from engine_at_work import (
    HIDDEN,
    LONG_TEXT,
    TEXTS,
    assert_log_probs,
    log_probs_of,
    opinionated,
    requests,
)
from processes_here import descendants_of, title_of, wait_until_gone
from ray_here import LOOPBACK, one_node

from rewardflow.checkpoint.model_state import read_state
from rewardflow.errors import ClusterError
from rewardflow.flow.reports import StepReport
from rewardflow.flow.schedule import Schedule
from rewardflow.generate.engines import engine_factory
from rewardflow.policy.load_policy import Policy, load_policy
from rewardflow.runtime.on_ray.actor_group import ActorGroup
from rewardflow.runtime.on_ray.engine_actor import EngineActor
from rewardflow.runtime.on_ray.remote_parts import EngineGenerator
from rewardflow.runtime.on_ray.weight_buckets import WeightBucket
from rewardflow.runtime.open_run import open_run
from rewardflow.settings.run_settings import (
    AlgorithmSettings,
    DataSettings,
    GenerationSettings,
    PolicySettings,
    RunSettings,
    TrainerSettings,
    ValidationSettings,
    VllmSettings,
)
from rewardflow.types import Rollout

pytestmark = pytest.mark.filterwarnings("default")

MODEL = PolicySettings(tiny_hidden=HIDDEN)
ENGINE = VllmSettings(eager=True, kv_cache_gb=0.2)
PASSED_ON = ("HF_HUB_OFFLINE", "OMP_NUM_THREADS", "PYTHONPATH", "TORCH_COMPILE_DISABLE")


@pytest.fixture(scope="module", autouse=True)
def cluster() -> Iterator[None]:
    passed_on = {name: os.environ[name] for name in PASSED_ON if name in os.environ}
    with one_node(num_cpus=16, runtime_env={"env_vars": passed_on}):
        yield


# -- one engine, which is given weights --


class GivenEngine:
    """An actor that generates, and what it was given last."""

    def __init__(self, settings: RunSettings) -> None:
        self.actors = ActorGroup("generator", [ray.remote(EngineActor).remote(0, 1)])
        (self.place,) = asyncio.run(self.actors.all("open", lambda _: (settings,)))
        self.generator = EngineGenerator(self.actors, engine_factory(settings).routing(settings.generation))
        self.policies: dict[int, Policy] = {}

    async def give(self, seed: int) -> int:
        """Another policy's weights, backwards and in small pieces."""
        policy = opinionated(seed)
        version = len(self.policies)
        weights = list((*policy.model.named_parameters(), *policy.model.named_buffers()))[::-1]
        for start in range(0, len(weights), 5):
            piece = {name: weight.detach() for name, weight in weights[start : start + 5]}
            await self.actors.all("receive", lambda _, piece=piece: (WeightBucket(piece),))
        await self.generator.publish(version)
        self.policies[version] = policy
        return version

    def generate(self, *texts: str, group_size: int = 3) -> list[Rollout]:
        async def run() -> list[Rollout]:
            return [one async for one in self.generator.generate(requests(*texts, group_size=group_size))]

        return asyncio.run(run())

    def num_rollouts(self) -> int:
        return int(asyncio.run(self.actors.all("statistics"))[0].num_rollouts)


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GivenEngine]:
    settings = settings_in(
        tmp_path_factory.mktemp("engine"),
        policy=MODEL,
        vllm=ENGINE,
        schedule=Schedule(groups_per_step=4, placement="separate"),
        generation=GenerationSettings(engine="vllm", max_prompt_tokens=400, max_response_tokens=200, max_sequences=16),
    )
    given = GivenEngine(settings)
    asyncio.run(given.give(seed=1))
    yield given
    processes = descendants_of(given.place.pid)
    assert processes
    given.actors.kill()
    assert wait_until_gone(processes) == []


def test_weights_in_pieces_are_a_version_whose_log_probs_are_those_of_transformers(engine: GivenEngine) -> None:
    for seed in (2, 3):
        version = asyncio.run(engine.give(seed))
        for _ in range(2):  # the second time from the prefix cache
            rollouts = engine.generate(LONG_TEXT, "7=")
            assert len(rollouts) == 6
            for rollout in rollouts:
                assert rollout.policy_version == version
                assert_log_probs(engine.policies[version], rollout)


def test_weights_that_come_while_rollouts_are_generated_are_told_token_by_token(engine: GivenEngine) -> None:
    async def run() -> tuple[int, int, list[Rollout]]:
        before = await engine.give(seed=4)
        rollouts, after = [], before
        async with aclosing(engine.generator.generate(requests(*TEXTS, group_size=2))) as stream:
            async for rollout in stream:
                rollouts.append(rollout)
                if after == before:
                    after = await engine.give(seed=5)
        return before, after, rollouts

    before, after, rollouts = asyncio.run(run())
    assert len(rollouts) == 2 * len(TEXTS)
    mixed = [rollout for rollout in rollouts if rollout.token_versions is not None]
    assert mixed
    for rollout in mixed:
        assert rollout.policy_version == before
        versions = torch.tensor(list(rollout.token_versions or ()))
        told = torch.tensor(list(rollout.log_probs or ()))
        for version in (before, after):
            is_own = versions == version
            expected = log_probs_of(engine.policies[version], rollout)[is_own]
            assert torch.allclose(told[is_own], expected, atol=1e-5, rtol=0)


def test_whoever_stops_listening_stops_the_rollouts_in_the_actor(engine: GivenEngine) -> None:
    async def run() -> None:
        async with aclosing(engine.generator.generate(requests(*TEXTS, group_size=16))) as stream:
            async for _ in stream:
                break

    before = engine.num_rollouts()
    asyncio.run(run())
    assert len(engine.generate("7=")) == 3
    assert engine.num_rollouts() < before + 16 * len(TEXTS) // 2


def test_weights_that_are_not_all_there_are_no_version(engine: GivenEngine) -> None:
    """Last, because an engine with half of its weights stays paused."""
    piece = {"model.norm.weight": torch.ones(HIDDEN)}

    async def run() -> None:
        await engine.actors.all("receive", lambda _: (WeightBucket(piece),))
        await engine.generator.publish(99)

    with pytest.raises(Exception, match=r"published weights must be all of the policy's, got none for lm_head"):
        asyncio.run(run())


# -- whole runs --


def run_settings(folder: Path, **fields: Any) -> RunSettings:
    placement = fields.pop("placement", "separate")
    defaults: dict[str, Any] = {
        "policy": MODEL,
        "vllm": ENGINE,
        "schedule": Schedule(
            groups_per_step=8, mini_batches=2, stream="mini_batch", max_staleness=1, placement=placement
        ),
        "generation": GenerationSettings(engine="vllm", group_size=4, max_prompt_tokens=8, max_response_tokens=5),
        "algorithm": AlgorithmSettings(),
        "trainer": TrainerSettings(lr=5e-3, threads=1),
        "steps": 10,
    }
    return settings_in(folder, "sevens", **{**defaults, **fields})


async def trained(settings: RunSettings, texts: Sequence[str] = (), **options: Any) -> list[Rollout]:
    """What the last version says to these."""
    async with open_run(settings, probes=False, **options) as run:
        await run.train()
        asked = requests(*texts, group_size=2, sampling=run.parts.sampling)
        return [one async for one in run.parts.generator.generate(asked)]


def saved_policy(settings: RunSettings) -> Policy:
    """Of the last checkpoint."""
    policy = load_policy(settings.policy, seed=99)
    read_state(checkpoint_of(settings).path / "state", policy.model)
    return policy


@pytest.mark.parametrize(("placement", "ranks"), [("separate", 2), ("colocated", 2)])
def test_a_run_learns_and_its_engines_have_the_weights_that_its_ranks_have(
    tmp_path: Path, placement: str, ranks: int
) -> None:
    measured = ValidationSettings(data=DataSettings(task="copy_digits", limit=4), every=5, seed=7)
    settings = run_settings(tmp_path, placement=placement, runtime=on_ray(ranks), validation=measured)
    rollouts = asyncio.run(trained(settings, ("12=", "7=")))
    lines = [line for line in metrics_in(settings) if "staleness_max" in line]  # others tell of validations
    assert [line["staleness_max"] for line in lines] == [0, *[1] * 9]
    assert lines[0]["engine_diff_max"] < 1e-4  # probabilities under the same weights
    scores = [line["score_mean"] for line in lines]
    assert sum(scores[-3:]) / 3 > sum(scores[:3]) / 3 + 0.1
    assert len(rollouts) == 4
    policy = saved_policy(settings)
    for rollout in rollouts:
        assert rollout.policy_version == 10
        assert_log_probs(policy, rollout)


def engine_actors() -> list[int]:
    """Their processes."""
    named = [one for one in descendants_of(os.getpid()) if title_of(one).startswith("ray::EngineActor")]
    own = {other for one in named for other in descendants_of(one)}  # what vLLM forks keeps the actor's title
    return [one for one in named if one not in own]


def test_a_generator_that_is_killed_ends_the_run_with_its_name_and_leaves_no_process(tmp_path: Path) -> None:
    settings = run_settings(tmp_path, runtime=on_ray(1))
    others = engine_actors()  # that of the tests before, which is there until the last one has ended
    left: list[int] = []

    def kill(report: StepReport) -> None:
        if report.step == 1:
            (pid,) = set(engine_actors()).difference(others)
            left.extend([pid, *descendants_of(pid)])
            os.kill(pid, signal.SIGKILL)

    with pytest.raises(ClusterError) as caught:
        asyncio.run(trained(settings, on_step=kill))
    first = str(caught.value).splitlines()[0]
    assert first.startswith(f"generator 0 of 1 (node {LOOPBACK}, process {left[0]}) went away: ")
    assert len(left) > 1  # vLLM's own were there
    assert wait_until_gone(left) == []
