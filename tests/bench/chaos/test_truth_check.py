"""The checks of the campaign can fail: each broken promise makes a complaint."""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path

from rewardflow.bench.chaos.exchange import SCALE
from rewardflow.bench.chaos.hostile_server import HostileServer, Told, rollout_of
from rewardflow.bench.chaos.truth_check import (
    LogText,
    check_calls,
    check_secret,
    check_verdicts,
    timed_out,
    verdicts_by_number,
)
from rewardflow.clock import run
from rewardflow.reward.agent import RewardAgent
from rewardflow.types import Reward, Rollout, ScoredGroup


def server_that_told(*told: Told) -> HostileServer:
    server = HostileServer(seed=3)
    server.told = dict(enumerate(told))
    return server


def true_verdict(server: HostileServer, number: int) -> Reward:
    return Reward(value=server.truth_of(number) / SCALE)


HONESTLY = Told(num_calls=1, names=["honest"], was_told=True, num_told=1)
SILENT = Told(num_calls=1, names=["never_answer"])


def test_true_scores_and_failures_without_a_score_make_no_complaint() -> None:
    server = server_that_told(HONESTLY, SILENT)
    verdicts = {0: true_verdict(server, 0), 1: Reward(kind="timeout")}
    assert list(check_verdicts(server, 2, verdicts)) == []


def test_a_default_of_zero_in_place_of_a_failure_is_found() -> None:
    server = server_that_told(SILENT)
    assert len(list(check_verdicts(server, 1, {0: Reward(value=0.0)}))) == 1


def test_swapped_scores_are_found() -> None:
    server = server_that_told(HONESTLY, HONESTLY)
    swapped = {0: true_verdict(server, 1), 1: true_verdict(server, 0)}
    assert len(list(check_verdicts(server, 2, swapped))) == 2


def test_a_true_score_that_nobody_told_is_found() -> None:
    server = server_that_told(SILENT)
    (complaint,) = check_verdicts(server, 1, {0: true_verdict(server, 0)})
    assert "nobody told" in complaint


def test_a_missing_verdict_is_found() -> None:
    assert len(list(check_verdicts(server_that_told(HONESTLY), 1, {}))) == 1


def test_a_refused_truth_is_found_unless_it_may_be_refused() -> None:
    server = server_that_told(HONESTLY)
    failed = {0: Reward(kind="unparsable")}
    assert len(list(check_verdicts(server, 1, failed))) == 1
    assert list(check_verdicts(server, 1, failed, may_fail=True)) == []


def test_a_truth_that_came_too_late_may_be_missed_but_no_score_invented() -> None:
    server = server_that_told(HONESTLY)
    assert list(check_verdicts(server, 1, {0: Reward(kind="service")}, too_late={0})) == []
    assert len(list(check_verdicts(server, 1, {0: Reward(kind="service")}, too_late={1}))) == 1
    assert len(list(check_verdicts(server, 1, {0: Reward(value=0.0)}, too_late={0}))) == 1


def test_the_record_of_a_run_tells_which_rollouts_had_a_call_that_took_too_long(tmp_path: Path) -> None:
    async def hangs(rollout: Rollout) -> float:
        await asyncio.sleep(5.0 if rollout.index == 1 else 0.0)
        return 1.0

    async def scored() -> None:
        async with RewardAgent(hangs, timeout_s=0.5, max_attempts=1, run_dir=tmp_path) as agent:
            await agent.submit([rollout_of(number, group_size=4) for number in range(4, 8)]).all()

    run(scored())
    assert timed_out(tmp_path, 4) == {5}


def test_a_second_verdict_for_a_rollout_is_found() -> None:
    group = ScoredGroup(
        group_id="group-7", step=0, group_size=1, rollouts=(rollout_of(7),), rewards=(Reward(value=1.0),)
    )
    verdicts, complaints = verdicts_by_number([group, group], group_size=1)
    assert list(verdicts) == [7]
    assert complaints == ["rollout 7 has 2 verdicts"]


def test_too_many_calls_about_a_rollout_are_found() -> None:
    assert list(check_calls(server_that_told(Told(num_calls=6)), 6, 10)) == []
    assert len(list(check_calls(server_that_told(Told(num_calls=7)), 6, 10))) == 1


def test_refusals_use_up_no_attempt_but_are_not_repeated_for_ever() -> None:
    refused = ["too_many_requests", "rate_limit_as_success"] * 5
    assert list(check_calls(server_that_told(Told(num_calls=16, names=refused)), 6, 10)) == []
    assert len(list(check_calls(server_that_told(Told(num_calls=17, names=refused)), 6, 10))) == 1
    assert len(list(check_calls(server_that_told(Told(num_calls=11, names=[*refused, refused[0]])), 6, 10))) == 1


def test_a_key_is_found_in_verdicts_files_and_log(tmp_path: Path) -> None:
    verdicts = {0: Reward(value=1.0, explanation="it is sk-123")}
    (tmp_path / "journal.db").write_bytes(b"\x00sk-123\x00")
    assert len(list(check_secret("sk-123", verdicts, tmp_path, "sent sk-123"))) == 3
    assert list(check_secret("sk-999", verdicts, tmp_path, "sent sk-123")) == []


def test_the_log_of_a_trial_is_collected_and_released() -> None:
    logger = logging.getLogger("rewardflow.somewhere")
    with LogText() as log:
        logger.warning("one %d", 1)
    logger.debug("two")
    assert log.lines == ["one 1"]
