"""verl's `sync` and `colocate_async` beside trainer mode `rewardflow`: same model, same prompts, same delays.

All three are real runs of verl on this machine's CPU, one after another. The asynchronous ones are held to the same
staleness, of one version, and drop nothing. Prints one JSON object.

    python compare_modes.py --steps 10 --median-s 1.0
"""

from __future__ import annotations

import argparse
import json
import re
import statistics
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parent / "on_cpu")]

import verl_job  # noqa: E402  # beside this file
from verl_cpu_rewards import delay_s  # noqa: E402

GROUPS, ROLLOUTS, MINI_BATCHES = 8, 4, 4
SIGMA, CAP_S = 1.0, 30.0
# Left out of every figure: the first step is slow everywhere, and after the last ours has nothing more to generate.
MEASURED = slice(1, -1)
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


def run_mode(mode: Mode, folder: Path, materials: verl_job.Materials, *, steps: int, median_s: float) -> dict[str, Any]:
    reward = "reward.custom_reward_function"
    settings = [
        *verl_job.small(materials, groups=GROUPS, rollouts=ROLLOUTS, mini_batches=MINI_BATCHES, steps=steps),
        f"{reward}.path={verl_job.REWARDS}",
        f"{reward}.name=delayed",
        f"+{reward}.reward_kwargs.median_s={median_s}",
        f"+{reward}.reward_kwargs.sigma={SIGMA}",
        f"+{reward}.reward_kwargs.cap_s={CAP_S}",
        f"trainer.rollout_data_dir={folder / 'rollouts'}",
        *mode.settings,
    ]
    outcome = verl_job.run(folder, settings, timeout_s=3000, launcher=mode.is_ours)
    if outcome.code != 0 or len(outcome.metrics) != steps:
        raise SystemExit(f"{mode.name} ended with {outcome.code}; see {folder}/output.txt")
    return figures(mode, outcome.metrics[MEASURED], folder / "rollouts", median_s=median_s)


def figures(mode: Mode, steps: list[dict[str, Any]], rollouts: Path, *, median_s: float) -> dict[str, Any]:
    def mean(name: str) -> float | None:
        values = [step[name] for step in steps if name in step]
        return statistics.fmean(values) if values else None

    parts = [mean(f"timing_s/{name}") or 0.0 for name in ("gen", "old_log_prob", "adv")]
    until_first_update_s = sum(parts) + (mean("timing_s/update_actor") or 0.0) / MINI_BATCHES
    times = [step["timing_s/step"] for step in steps]
    return {
        "mode": mode.name,
        "poll_s": mode.poll_s,
        "step_s": statistics.fmean(times),
        "step_s_median": statistics.median(times),
        "first_update_s": mean("rewardflow/first_update_s") if mode.is_ours else until_first_update_s,
        "sampling_s": mean("timing_s/gen"),
        "generate_s": mean("rewardflow/busy_s/generate"),
        "exposed_s": mean("rewardflow/exposed_s"),
        "hidden_s": mean("rewardflow/hidden_s"),
        "staleness_max": max(step["training/off_policy/trajectory_staleness_worst/max"] for step in steps),
        "slow_groups_share": slow_share(rollouts, median_s=median_s),
    }


def slow_share(rollouts: Path, *, median_s: float) -> float | None:
    """Of the groups that were trained, those whose slowest verdict is in the upper quarter of all prompts'."""
    if not median_s:
        return None
    slowest = {index: _slowest_s(index, median_s) for index in range(64)}
    bar = statistics.quantiles(slowest.values(), n=4)[2]
    trained = [
        int(match[1])
        for file in rollouts.glob("*.jsonl")
        for line in file.read_text().splitlines()
        if (match := re.search(r"(\d+)\+1=", json.loads(line)["input"]))
    ]
    return sum(slowest[index] > bar for index in trained) / len(trained) if trained else None


def _slowest_s(index: int, median_s: float) -> float:
    delays = (delay_s(index, k, median_s=median_s, sigma=SIGMA, cap_s=CAP_S) for k in range(ROLLOUTS))
    return max(delays)


def with_exposed(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """verl does not tell waiting for rewards from generating: what its sampling takes beyond generating is waiting."""
    generate_s = next(row["generate_s"] for row in rows if row["mode"] == "rewardflow")
    return [
        row if row["exposed_s"] is not None else {**row, "exposed_s": max(0.0, row["sampling_s"] - generate_s)}
        for row in rows
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=10, help="the first and the last are left out of the figures")
    parser.add_argument("--median-s", type=float, default=1.0, help="of the lognormal delay; 0 is no delay")
    parser.add_argument("--only", choices=[mode.name for mode in MODES], action="append")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="compare-") as folder:
        materials = verl_job.make_materials(Path(folder))
        rows = [
            run_mode(mode, Path(folder) / str(number), materials, steps=args.steps, median_s=args.median_s)
            for number, mode in enumerate(MODES)
            if args.only is None or mode.name in args.only
        ]
    if any(row["mode"] == "rewardflow" for row in rows):
        rows = with_exposed(rows)
    delays = {"median_s": args.median_s, "sigma": SIGMA, "cap_s": CAP_S}
    shape = {"groups": GROUPS, "rollouts": ROLLOUTS, "mini_batches": MINI_BATCHES, "steps": args.steps}
    sys.stdout.write(json.dumps({"delays": delays, **shape, "modes": rows}, indent=2) + "\n")


if __name__ == "__main__":
    main()
