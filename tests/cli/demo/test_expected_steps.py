"""The planner's prediction for the demo: from times without a judge, and between the floor and the sum."""

from __future__ import annotations

import pytest

from rewardflow.cli.demo.expected_steps import DeviceWork, expected_steps
from rewardflow.flow.schedule import Schedule

SCHEDULE = Schedule(groups_per_step=16, mini_batches=4)


def test_overlapping_is_expected_to_hide_the_devices_work_behind_the_judge() -> None:
    alone = DeviceWork(generation_s=0.04, log_probs_s=0.01, update_s=0.05, publish_s=0.0)
    service_s = 2.3 * alone.compute_s
    expected = expected_steps(alone, SCHEDULE, 16, slots=64, scale=service_s * 64 / (256 * 20.5), seed=0)
    assert 0.9 * service_s < expected.overlapped_s < 1.1 * service_s
    assert expected.overlapped_s < expected.synchronous_s < 1.1 * (service_s + alone.compute_s)
    assert expected.saved_share == pytest.approx(1 - expected.overlapped_s / expected.synchronous_s)
