"""Compares verl's `sync` and `colocate_async` with trainer mode `rewardflow`: same model, same prompts, same delays.

All are real runs of verl on this machine's CPU, one after another. The asynchronous ones have the same limit of
staleness, one version, and drop nothing. The rollout server and the training engine measure the times, in the same way
for every mode. Prints one JSON object.

    python compare_modes.py --steps 10 --median-s 1.0
"""

from __future__ import annotations

import argparse
import json
import os
import re
import statistics
import sys
import tempfile
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parent / "on_cpu")]

import verl_cpu_pace  # noqa: E402  # beside this file
import verl_job  # noqa: E402
from verl_cpu_rewards import delay_s  # noqa: E402
from verl_cpu_spans import FILE_VARIABLE, Span, read_spans  # noqa: E402

from rewardflow.policy.cpu_instructions import avoid_undescribed_amx  # noqa: E402

GROUPS, ROLLOUTS, MINI_BATCHES = 8, 4, 4
SIGMA, CAP_S = 1.0, 30.0
SAMPLER = Path(__file__).parent / "on_cpu" / "verl_cpu_sampler.py"

ONE_VERSION_NOTHING_DROPPED = (
    "trainer.v1.trainer_mode=colocate_async",
    "trainer.v1.colocate_async.num_warmup_batches=1",
    "trainer.v1.sampler.max_off_policy_threshold=2",  # versions that a prompt may span: one behind
    "trainer.v1.sampler.max_off_policy_strategy=wait",
)


@dataclass(frozen=True, slots=True)
class Mode:
    name: str
    settings: tuple[str, ...]
    is_ours: bool = False
    poll_s: float | None = None


MODES = (
    Mode("sync", ("trainer.v1.trainer_mode=sync",), poll_s=2.0),
    Mode("colocate_async", ONE_VERSION_NOTHING_DROPPED, poll_s=2.0),
    Mode(
        "colocate_async, quick polls",
        (
            *ONE_VERSION_NOTHING_DROPPED,
            f"trainer.v1.sampler.custom_sampler.path={SAMPLER}",
            "trainer.v1.sampler.custom_sampler.name=QuickReplayBuffer",
        ),
        poll_s=0.05,
    ),
    Mode("rewardflow", ("rewardflow.max_staleness=1", "rewardflow.max_concurrency=256"), is_ours=True),
)


@dataclass(frozen=True, slots=True)
class StepTimes:
    """One step, from the loading of the weights that it starts from to the loading of those that it makes.

    `waiting_s` is the rest: the device has nothing to do, because of verdicts, polls or messages.
    """

    step_s: float
    first_update_s: float
    generate_s: float
    log_probs_s: float
    update_s: float
    num_updates: int

    @property
    def waiting_s(self) -> float:
        return self.step_s - self.generate_s - self.log_probs_s - self.update_s


def step_times(spans: Sequence[Span]) -> list[StepTimes]:
    """Leaves out the first step, which is slow in every mode, and the last, in which ours has nothing to generate."""
    published = [span.ended_s for span in spans if span.work == "publish"][1:-1]
    return [_between(spans, *ends) for ends in pairwise(published)]


def _between(spans: Sequence[Span], started_s: float, ended_s: float) -> StepTimes:
    def seconds(work: str) -> float:
        return sum(span.within(started_s, ended_s) for span in spans if span.work == work)

    updates = [span for span in spans if span.work == "update" and started_s < span.ended_s <= ended_s]
    return StepTimes(
        step_s=ended_s - started_s,
        first_update_s=updates[0].ended_s - started_s,
        generate_s=seconds("generate"),
        log_probs_s=seconds("log_probs"),
        update_s=seconds("update"),
        num_updates=len(updates),
    )


@dataclass(frozen=True, slots=True)
class Delays:
    median_s: float
    num_prompts: int

    def slowest_s(self, prompt: int) -> float:
        """Returns the delay of the prompt's slowest verdict."""
        if not self.median_s:
            return 0.0
        return max(
            delay_s(prompt, sample, median_s=self.median_s, sigma=SIGMA, cap_s=CAP_S) for sample in range(ROLLOUTS)
        )

    def slow_share(self, trained: Sequence[int]) -> float | None:
        """Returns the share of trained groups whose slowest verdict is in the slowest quarter of all prompts."""
        if not self.median_s:
            return None
        bar = statistics.quantiles(map(self.slowest_s, range(self.num_prompts)), n=4)[2]
        return sum(self.slowest_s(prompt) > bar for prompt in trained) / len(trained)


def ideal_step_s(delays: Delays, *, steps: int, generate_s: float, log_probs_s: float, update_s: float) -> float:
    """Returns a step's time in mode `rewardflow` on a device that only generates, takes log-probs, updates and waits.

    A step's rollouts are generated once the weights of two steps before are there, and its last mini-batch is trained
    once its slowest verdict is there. No schedule with that staleness can hide the time between the two.
    """

    def judged_at_s(step: int, started_s: float) -> list[float]:
        """Returns when each group of a step has its verdicts; groups are generated one after another."""
        each_s = generate_s / GROUPS
        return sorted(
            started_s + each_s * (number + 1) + delays.slowest_s(step * GROUPS + number) for number in range(GROUPS)
        )

    per_update = GROUPS // MINI_BATCHES
    judged, now_s = judged_at_s(0, 0.0), generate_s
    ends_s: list[float] = []
    for step in range(steps):
        coming = judged_at_s(step + 1, now_s)
        now_s += generate_s + log_probs_s
        for group in judged[per_update - 1 :: per_update]:
            now_s = max(now_s, group) + update_s / MINI_BATCHES
        ends_s.append(now_s)
        judged = coming
    return (ends_s[-2] - ends_s[0]) / (steps - 2)


def run_mode(mode: Mode, folder: Path, delays: Delays, *, steps: int) -> dict[str, Any]:
    materials = verl_job.make_materials(folder / "materials", num_prompts=delays.num_prompts)
    reward = "reward.custom_reward_function"
    settings = [
        *verl_job.small(materials, groups=GROUPS, rollouts=ROLLOUTS, mini_batches=MINI_BATCHES, steps=steps),
        *verl_job.judged_by("delayed", median_s=delays.median_s),
        f"+{reward}.reward_kwargs.sigma={SIGMA}",
        f"+{reward}.reward_kwargs.cap_s={CAP_S}",
        f"trainer.rollout_data_dir={folder / 'rollouts'}",
        *mode.settings,
    ]
    os.environ[FILE_VARIABLE] = str(folder / "spans.jsonl")
    outcome = verl_job.run(folder, settings, timeout_s=1500, launcher=mode.is_ours, modules=("verl_cpu_timed_engine",))
    if outcome.code != 0 or len(outcome.metrics) != steps:
        raise SystemExit(f"{mode.name} ended with {outcome.code}:\n{outcome.output[-3000:]}")
    times = step_times(read_spans(folder / "spans.jsonl"))
    trained = trained_prompts(folder / "rollouts")
    return {
        "mode": mode.name,
        "poll_s": mode.poll_s,
        **figures(times, delays, steps=steps),
        **_own_figures(outcome.metrics[1:-1]),
        "staleness": _numbers(outcome.metrics[1:-1], "training/off_policy/trajectory_staleness_worst/max", max),
        "dropped": sum(_dropped(step) for step in outcome.metrics),
        "slow_groups_share": delays.slow_share(trained),
        "steps": [asdict(step) for step in times],
    }


def figures(times: Sequence[StepTimes], delays: Delays, *, steps: int) -> dict[str, float]:
    """Returns means over the steps."""
    names = ("step_s", "first_update_s", "waiting_s", "generate_s", "log_probs_s", "update_s", "num_updates")
    means = {name: statistics.fmean(getattr(step, name) for step in times) for name in names}
    work = {name: means[name] for name in ("generate_s", "log_probs_s", "update_s")}
    return {
        **means,
        "step_s_median": statistics.median(step.step_s for step in times),
        "ideal_step_s": ideal_step_s(delays, steps=steps, **work),
    }


def _own_figures(steps: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Returns what the run itself measured: verl's timers and our metrics."""
    prefixes = ("timing_s/", "rewardflow/busy_s/", "rewardflow/idle_s/", "rewardflow/exposed_s", "rewardflow/first_up")
    names = sorted({name for step in steps for name in step if name.startswith(prefixes)})
    return {"own": {name: _numbers(steps, name, statistics.fmean) for name in names}}


def _numbers(steps: Sequence[dict[str, Any]], name: str, reduce: Callable[[Iterable[float]], float]) -> float:
    return reduce([step[name] for step in steps if name in step])


def _dropped(step: dict[str, Any]) -> float:
    """Counts the groups that verl evicted or we left out, for any reason."""
    return sum(value for name, value in step.items() if name.endswith("/evicted_samples") or "groups/dropped/" in name)


def trained_prompts(rollouts: Path) -> list[int]:
    """Returns the prompt of every sequence that was trained."""
    lines = [line for file in rollouts.glob("*.jsonl") for line in file.read_text().split("\n") if line]
    matches = [re.search(r"(\d+)\+1=", json.loads(line)["input"]) for line in lines]
    return [int(match[1]) for match in matches if match]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=10, help="the first and the last are left out of the figures")
    parser.add_argument("--median-s", type=float, default=1.0, help="of the lognormal delay; 0 is no delay")
    parser.add_argument("--token-ms", type=float, default=0.0, help="generate at this pace, with no work for the CPU")
    parser.add_argument("--only", choices=[mode.name for mode in MODES], action="append")
    args = parser.parse_args()
    avoid_undescribed_amx()
    os.environ[verl_cpu_pace.VARIABLE] = str(args.token_ms / 1000)
    delays = Delays(median_s=args.median_s, num_prompts=GROUPS * (args.steps + 1))
    with tempfile.TemporaryDirectory(prefix="compare-") as folder:
        rows = [
            run_mode(mode, Path(folder) / str(number), delays, steps=args.steps)
            for number, mode in enumerate(MODES)
            if args.only is None or mode.name in args.only
        ]
    shape = {"groups": GROUPS, "rollouts": ROLLOUTS, "mini_batches": MINI_BATCHES, "num_steps": args.steps}
    shape["token_ms"] = args.token_ms
    delay_settings = {"median_s": args.median_s, "sigma": SIGMA, "cap_s": CAP_S}
    sys.stdout.write(json.dumps({"delays": delay_settings, **shape, "modes": rows}, indent=2) + "\n")


if __name__ == "__main__":
    main()
