"""Prints how well `Pace` learns a rate over tables of settings: `python tests/pace_table.py`.

A row is a family of settings. Its figures are the share of the rate in the last ten of twenty minutes (mean and worst)
and the share of calls answered 429 in minutes 2 to 10 and 2 to 20 (worst). The share is relative to what the slots can
reach; `below 0.8` is the share of runs that use less. `--seed` chooses other random numbers and `--seeds` runs several;
`--only` names rows by a part of their text; `--worst` also prints the three worst settings of each row.

A second table has limits with little burst behind a network that delays calls by up to 0.2 s. The share is beside that
of `max_refused=0.2`, that of the best constant rate of at most 20 % of refused calls, found by trying, and that of four
times the limit.
"""

from __future__ import annotations

import argparse
import itertools
import math
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from statistics import mean

from simulated_pace import Log, Service, run

from rewardflow.reward.limits.pace import Pace
from rewardflow.reward.settings import MAX_REFUSED

MINUTE_S = 60.0
REPLIES_S = ((0.2, 0.2), (20.0, 20.0), (1.0, 40.0))
BURSTS = (1, 10, 60, 200, 600)
FEW_REFUSED = 0.2


def exact(wait_s: float) -> float:
    return math.ceil(1000.0 * wait_s) / 1000.0


def whole_seconds(wait_s: float) -> float:
    return float(math.ceil(wait_s))


def always(seconds: float) -> Callable[[float], float]:
    return lambda wait_s: seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """One service and the way it is used; `since_s` to `until_s` is the time that the share is taken of."""

    service: Service
    slots: int = 256
    rpm: float = 600.0  # what the share is relative to
    since_s: float = 10 * MINUTE_S
    until_s: float = 20 * MINUTE_S
    name: str = ""

    def reachable_rpm(self) -> float:
        """Returns the accepted calls that the slots can make; a call refused by chance takes its slot too."""
        noise, service = self.service.noise, self.service
        slot_s = (1.0 - noise) * mean(service.replies_s) + noise * mean(service.refusals_s)
        return min(self.rpm, (1.0 - noise) * self.slots / slot_s * 60.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    setting: Setting
    share: float
    refused_to_10: float
    refused: float


def figures_of(setting: Setting, seed: int, max_refused: float = MAX_REFUSED) -> Figures:
    pace = Pace("auto", None, max_refused)
    log: Log = run(pace, setting.service, slots=setting.slots, until_s=setting.until_s, seed=seed)
    return Figures(
        setting=setting,
        share=log.accepted_share(setting.reachable_rpm(), setting.since_s, setting.until_s),
        refused_to_10=log.refused_share(MINUTE_S, 10 * MINUTE_S),
        refused=log.refused_share(MINUTE_S, setting.until_s),
    )


def grid(**options: object) -> list[Setting]:
    """Returns 45 settings: replies, slots and bursts."""
    return [
        Setting(
            service=replace(Service(burst=burst, replies_s=replies_s), **options),  # type: ignore[arg-type]
            slots=slots,
            name=f"burst {burst}, replies {replies_s}, {slots} slots",
        )
        for replies_s, slots, burst in itertools.product(REPLIES_S, (64, 256, 1024), BURSTS)
    ]


def families() -> Iterator[tuple[str, list[Setting]]]:
    """Yields the rows of the table."""
    yield "45 that announce nothing", grid()
    yield "90 with `Retry-After`", [*grid(retry_after=exact), *grid(retry_after=whole_seconds)]
    yield "90 with `x-ratelimit-*` headers", [*grid(announces=True), *grid(announces=True, retry_after=exact)]
    yield "45 that also refuse 0.5 % at random", grid(noise=0.005)
    yield "45 that also refuse 5 % at random", grid(noise=0.05)
    yield (
        "45 whose limit is 300 from minute 10 to 20; share of the last 3 of 30 minutes",
        [
            replace(setting, since_s=27 * MINUTE_S, until_s=30 * MINUTE_S)
            for setting in grid(changes=((600.0, 300.0), (1200.0, 600.0)))
        ],
    )
    yield (
        "135 of 30, 60 and 3000 a minute",
        [replace(setting, rpm=rpm) for rpm in (30.0, 60.0, 3000.0) for setting in grid(rpm=rpm)],
    )
    stopping = grid(retry_after=always(30.0))
    yield "45 with `Retry-After: 30`", stopping
    yield (
        "45 with `Retry-After: 30`; share of minutes 1 to 10",
        [replace(setting, since_s=MINUTE_S, until_s=10 * MINUTE_S) for setting in stopping],
    )
    yield "20 whose limit triples; share of the next five minutes", list(tripled())
    yield "24 that count in windows of 10 or 60 s", list(windowed())
    yield "6 of 60 a minute that count in sliding windows of 60 s", list(slow_windows())
    yield "12 without a limit that refuse 2 to 20 % at random; share of the first two minutes", list(unlimited())


def tripled() -> Iterator[Setting]:
    for burst, minute in itertools.product(BURSTS, (5, 10, 17, 25)):
        service = Service(burst=burst, changes=((minute * MINUTE_S, 1800.0),))
        since_s, until_s = minute * MINUTE_S, (minute + 5) * MINUTE_S
        yield Setting(
            service=service,
            slots=1024,
            rpm=1800.0,
            since_s=since_s,
            until_s=until_s,
            name=f"burst {burst}, at {minute}",
        )


def windowed() -> Iterator[Setting]:
    for slides, window_s, jitter_s, replies_s in itertools.product(
        (False, True), (10.0, 60.0), (0.0, 0.02), (0.2, 2.0, 20.0)
    ):
        service = Service(window_s=window_s, slides=slides, jitter_s=jitter_s, replies_s=(replies_s, replies_s))
        kind = "sliding" if slides else "fixed"
        yield Setting(service=service, name=f"{kind} {window_s:.0f} s, delays up to {jitter_s} s, replies {replies_s}")


def slow_windows() -> Iterator[Setting]:
    for jitter_s, slots in itertools.product((0.0, 0.02, 0.2), (64, 1024)):
        service = Service(rpm=60.0, window_s=60.0, slides=True, jitter_s=jitter_s)
        yield Setting(service=service, slots=slots, rpm=60.0, name=f"delays up to {jitter_s} s, {slots} slots")


def unlimited() -> Iterator[Setting]:
    for noise, replies_s, slots in itertools.product((0.02, 0.05, 0.1, 0.2), (0.05, 0.5, 2.0), (64,)):
        service = Service(rpm=None, noise=noise, replies_s=(replies_s, replies_s))
        yield Setting(
            service=service,
            slots=slots,
            rpm=math.inf,
            since_s=0.0,
            until_s=2 * MINUTE_S,
            name=f"{noise:.0%}, replies {replies_s}",
        )


def jittered() -> Iterator[Setting]:
    """Yields limits with little burst behind a network of uneven delay."""
    for burst, rpm in itertools.product((1, 2), (60.0, 120.0, 200.0, 300.0, 600.0, 1200.0, 3000.0)):
        service = Service(rpm=rpm, burst=burst, jitter_s=0.2)
        yield Setting(service=service, slots=1024, rpm=rpm, name=f"burst {burst}, {rpm:.0f} a minute")


def constant_share(setting: Setting, times: float, seed: int) -> tuple[float, float]:
    """Returns the share that a constant rate of so many times the limit reaches, and the share of refused calls."""
    pace = Pace(setting.rpm * times, None)
    log = run(pace, setting.service, slots=setting.slots, until_s=setting.until_s, seed=seed)
    share = log.accepted_share(setting.rpm, setting.since_s, setting.until_s)
    return share, log.refused_share(MINUTE_S, setting.until_s)


def best_constant_share(setting: Setting, seed: int) -> tuple[float, float]:
    """Returns the share that the best constant rate with few refusals reaches, and that rate as a share."""
    best = (0.0, 0.0)
    for percent in range(20, 132, 4):
        share, refused = constant_share(setting, percent / 100.0, seed)
        if refused <= FEW_REFUSED:
            best = max(best, (share, percent / 100.0))
    return best


def say_jittered(seed: int) -> None:
    say("")
    say(
        "| delays up to 0.2 s | share, mean of 4 | worst | 429, mean | `max_refused=0.2`: share | 429 "
        "| best constant: share | sent | 4 x: share | 429 |"
    )
    say("|---|---|---|---|---|---|---|---|---|---|")
    for setting in jittered():
        pressed = [figures_of(setting, seed + number) for number in range(4)]
        polite = [figures_of(setting, seed + number, FEW_REFUSED) for number in range(4)]
        best, sent = best_constant_share(setting, seed)
        hammered, hammered_refused = constant_share(setting, 4.0, seed)
        say(
            f"| {setting.name} | {mean(one.share for one in pressed):.3f} | {min(one.share for one in pressed):.3f} "
            f"| {mean(one.refused for one in pressed):.1%} "
            f"| {mean(one.share for one in polite):.3f} | {mean(one.refused for one in polite):.1%} "
            f"| {best:.3f} | {sent:.2f} | {hammered:.3f} | {hammered_refused:.1%} |"
        )


def say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--worst", action="store_true")
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--only", default="")
    arguments = parser.parse_args()
    say("| settings | share, mean | worst | below 0.8 | 429, minutes 2 to 10 | 429, from minute 2 | mean |")
    say("|---|---|---|---|---|---|---|")
    seeds = range(arguments.seed, arguments.seed + arguments.seeds)
    for name, settings in families():
        if arguments.only not in name:
            continue
        all_figures = [figures_of(setting, seed) for setting in settings for seed in seeds]
        shares = [figures.share for figures in all_figures]
        below = mean(share < 0.8 for share in shares)
        worst_10 = max(figures.refused_to_10 for figures in all_figures)
        worst_20 = max(figures.refused for figures in all_figures)
        refused = mean(figures.refused for figures in all_figures)
        say(
            f"| {name} | {mean(shares):.3f} | {min(shares):.3f} | {below:.1%} "
            f"| {worst_10:.1%} | {worst_20:.1%} | {refused:.2%} |"
        )
        if arguments.worst:
            for figures in sorted(all_figures, key=lambda one: one.share)[:3]:
                say(f"    share {figures.share:.3f}, 429 {figures.refused:.1%}: {figures.setting.name}")
            for figures in sorted(all_figures, key=lambda one: -one.refused_to_10)[:3]:
                say(f"    429 {figures.refused_to_10:.1%}, share {figures.share:.3f}: {figures.setting.name}")
    if arguments.only in "delay":
        say_jittered(arguments.seed)


if __name__ == "__main__":
    main()
